"""Frames to mp4 files and back, frame by frame, by PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import UnreadableData, needing

_SAMPLED = 16  # frames of a file that are compared with what was written


def pyav() -> Any:
    """The module `av`; `MissingExtra` where it is not installed."""
    with needing("video", "videos need PyAV"):
        import av
    return av


class VideoWriter:
    """Writes RGB frames [H, W, 3] uint8 to one file, by H.264.

    Args:
        fps: frames a second.
        lossless: every number comes back as it was, at some ten times the size.
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
        """Add frames [n, H, W, 3]."""
        for frame in frames:
            for packet in self._stream.encode(
                self._av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            ):
                self._file.mux(packet)
            if self.num_frames % self._every == 0:
                self._sample(frame)
            self.num_frames += 1

    def _sample(self, frame: np.ndarray) -> None:
        self._sampled[self.num_frames] = frame.copy()
        if len(self._sampled) > _SAMPLED:
            self._every *= 2
            self._sampled = {at: kept for at, kept in self._sampled.items() if at % self._every == 0}

    @property
    def nbytes(self) -> int:
        """The size of the file so far."""
        return self._path.stat().st_size if self._path.exists() else 0

    def close(self) -> tuple[int, float]:
        """Finish the file; the greatest and the mean error of some of its frames."""
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
        """Close the file, which nobody will read."""
        self._file.close()


def pixels(shape: tuple[int, ...], lossless: bool) -> tuple[str, str]:
    """The encoder and the format of pixels for frames of a shape."""
    if lossless:
        return "libx264rgb", "rgb24"
    is_even = shape[0] % 2 == 0 and shape[1] % 2 == 0
    return "libx264", "yuv420p" if is_even else "yuv444p"


def frames_of(path: Path) -> Iterator[np.ndarray]:
    """The frames [H, W, 3] uint8 of a video in order. `UnreadableData` for another or a damaged file."""
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
    """Frames of one video after another, by their number in their file; quick where they are asked for in order."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._frames: Iterator[np.ndarray] = iter(())
        self._at = 0

    def read(self, path: Path, start: int, count: int) -> np.ndarray:
        """The frames [count, H, W, 3] from number `start` on. `UnreadableData` where there are fewer."""
        if path != self._path or start < self._at:
            self._path, self._frames, self._at = path, frames_of(path), 0
        found = []
        for frame in self._frames:
            self._at += 1
            if self._at > start:
                found.append(frame)
            if self._at == start + count:
                break
        if len(found) < count:
            raise UnreadableData(f"{path}: {self._at} frames, and {count} from {start} on are asked for")
        return np.stack(found)


def frame_number(seconds: float, fps: float) -> int:
    """The number of the frame at a time."""
    return round(float(Fraction(seconds) * Fraction(fps)))
