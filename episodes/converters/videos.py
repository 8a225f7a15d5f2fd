"""Reading and writing of mp4 videos frame by frame, with the library PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import UnreadableData, needing

_SAMPLED = 16  # frames of a file that are compared with the written ones


def pyav() -> Any:
    """Import and return the module `av` (PyAV).

    Raises:
        MissingExtra: PyAV is not installed.
    """
    with needing("video", "videos need PyAV"):
        import av
    return av


class VideoWriter:
    """Writer of RGB frames [H, W, 3], uint8, to an H.264 video file.

    Args:
        path: the file.
        fps: frames per second.
        shape: shape of a frame, [H, W, 3].
        lossless: store every number exactly, at about ten times the size.
    """

    def __init__(self, path: Path, fps: int, shape: tuple[int, ...], *, lossless: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._av = path, pyav()
        self._file = self._av.open(str(path), "w")
        codec, self.pix_fmt = pixels(shape, lossless)
        self._stream = self._file.add_stream(codec, rate=fps)
        self._stream.height, self._stream.width, self._stream.pix_fmt = *shape[:2], self.pix_fmt
        self._stream.options = {"qp": "0", "g": "10"} if lossless else {"crf": "23", "g": "2"}
        self._stream.thread_count = 1
        self.num_frames = 0
        self._sampled: dict[int, np.ndarray] = {}
        self._every = 1

    def write(self, frames: np.ndarray) -> None:
        """Append frames [n, H, W, 3] to the video."""
        for frame in frames:
            for packet in self._stream.encode(
                self._av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            ):
                self._file.mux(packet)
            if self.num_frames % self._every == 0:
                self._sample(frame)
            self.num_frames += 1

    def _sample(self, frame: np.ndarray) -> None:
        """Keep a copy of the frame, to be compared with the written one. At most `_SAMPLED` frames, evenly spread, are
        kept.
        """
        self._sampled[self.num_frames] = frame.copy()
        if len(self._sampled) > _SAMPLED:
            self._every *= 2
            self._sampled = {at: sample for at, sample in self._sampled.items() if at % self._every == 0}

    @property
    def nbytes(self) -> int:
        """Size of the video file in bytes."""
        return self._path.stat().st_size if self._path.exists() else 0

    def close(self) -> tuple[int, float]:
        """Finish the file. Return the largest and the mean compression error, measured on a sample of frames."""
        for packet in self._stream.encode():
            self._file.mux(packet)
        self._file.close()
        errors = [
            np.abs(frame.astype(np.int16) - self._sampled[at])
            for at, frame in enumerate(frames_of(self._path))
            if at in self._sampled
        ]
        return max((int(error.max()) for error in errors), default=0), float(
            np.mean([error.mean() for error in errors])
        )

    def abandon(self) -> None:
        """Close the file without finishing the video, after an error."""
        self._file.close()


def pixels(shape: tuple[int, ...], lossless: bool) -> tuple[str, str]:
    """Return the names of the video encoder and of the pixel format for frames of the given shape.

    Compressed with loss, frames with an odd height or width keep the full resolution of colours.
    """
    if lossless:
        return "libx264rgb", "rgb24"
    is_even = shape[0] % 2 == 0 and shape[1] % 2 == 0
    return "libx264", "yuv420p" if is_even else "yuv444p"


def frames_of(path: Path) -> Iterator[np.ndarray]:
    """Yield the frames of a video in order, uint8 [H, W, 3] each.

    Raises:
        UnreadableData: another or a damaged file.
    """
    av = pyav()
    try:
        with av.open(str(path)) as file:
            stream = file.streams.video[0]
            stream.thread_count = 1
            for frame in file.decode(stream):
                yield frame.to_ndarray(format="rgb24")
    except (av.FFmpegError, IndexError) as error:
        raise UnreadableData(f"{path}: no video that can be decoded: {error}") from None


class FrameReader:
    """Reader of ranges of frames from video files. Reading ranges in order is fastest."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._frames: Iterator[np.ndarray] = iter(())
        self._at = 0

    def read(self, path: Path, start: int, count: int) -> np.ndarray:
        """Return `count` consecutive frames of a video from frame `start` on, uint8 [count, H, W, 3].

        Raises:
            UnreadableData: there are fewer frames.
        """
        if path != self._path or start < self._at:
            self._path, self._frames, self._at = path, frames_of(path), 0
        frames = []
        for frame in self._frames:
            self._at += 1
            if self._at > start:
                frames.append(frame)
            if self._at == start + count:
                break
        if len(frames) < count:
            raise UnreadableData(f"{path}: {self._at} frames, and {count} from {start} on are asked for")
        return np.stack(frames)


def frame_number(seconds: float, fps: float) -> int:
    """Return the index of the video frame that is shown at `seconds`."""
    return round(float(Fraction(seconds) * Fraction(fps)))
