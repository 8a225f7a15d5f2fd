"""Image observations of an episode, as an array or as a video file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from episodes.errors import InvalidArgument, needing
from episodes.inspect.series import of_track
from episodes.storage.files import local_path

if TYPE_CHECKING:
    from episodes.single_agent.episode import SingleAgentEpisode


def frames(episode: SingleAgentEpisode, column: str | None = None) -> np.ndarray:
    """Return the image observations of an episode, without its lookback, as uint8 [T + 1, H, W, C].

    Args:
        column: the path of the images, such as `observations/camera`. The default is the first track of images.

    Returns:
        Images with C = 1 or 3.

    Raises:
        InvalidArgument: the episode has no images of that name.
    """
    finished = episode.tracks.observations.finalize()
    by_path = {series.label: series for series in of_track(finished)}
    images = [label for label, series in by_path.items() if series.is_image]
    chosen = column or (images[0] if images else "observations")
    if chosen not in by_path or by_path[chosen].array.ndim not in (3, 4):
        names = ", ".join(images) or "none"
        raise InvalidArgument(f"episode {episode.id_}: no images {chosen!r} among its observations; images: {names}")
    return viewable(by_path[chosen].array[episode.tracks.lookback :])


def video(
    episode: SingleAgentEpisode, path: str | Path, *, fps: float = 30, column: str | None = None, zoom: int = 1
) -> Path:
    """Write an episode's image observations as a video (`.mp4`) or animation (`.gif`), and return its path.

    Args:
        column: as in `frames`.
        zoom: width and height of a pixel in the video.

    Raises:
        InvalidArgument: the episode has no images, the path has another suffix, or fps or zoom is not positive.
        MissingExtra: imageio, or PyAV for mp4, is not installed.
    """
    path = local_path(path)
    if path.suffix not in (".mp4", ".gif"):
        raise InvalidArgument(f"{path}: give a path that ends in .mp4 or .gif")
    if fps <= 0 or zoom < 1:
        raise InvalidArgument(f"fps={fps}, zoom={zoom}: give frames a second above 0, and a zoom of at least 1")
    images = frames(episode, column)
    with needing("video", "a video needs imageio and PyAV"):
        import imageio.v3 as imageio

        if path.suffix == ".mp4":
            import av  # noqa: F401
    images = np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images
    images = images.repeat(zoom, axis=1).repeat(zoom, axis=2)
    if path.suffix == ".gif":
        imageio.imwrite(path, images, duration=1000 / fps, loop=0)
        return path
    odd_rows, odd_columns = images.shape[1] % 2, images.shape[2] % 2  # the codec needs even sizes
    images = np.pad(images, ((0, 0), (0, odd_rows), (0, odd_columns), (0, 0)), mode="edge")
    imageio.imwrite(path, images, plugin="pyav", codec="libx264", fps=fps)
    return path


def viewable(images: np.ndarray) -> np.ndarray:
    """Convert images [n, H, W], [n, H, W, C] or [n, C, H, W] to uint8 [n, H, W, 3] or [n, H, W, 1].

    Other dtypes are scaled: the range from 0 to 1, widened to the lowest and highest number, becomes 0 to 255. Of
    stacked grey frames (C is neither 1 nor 3), the last one is returned, which is the newest.
    """
    if images.ndim == 3:
        images = images[..., None]
    elif np.argmin(images.shape[1:]) == 0 and images.shape[3] != 3:
        images = np.moveaxis(images, 1, -1)
    if images.shape[-1] not in (1, 3):
        images = images[..., -1:]
    if images.dtype == np.uint8:
        return images
    numbers = np.nan_to_num(images.astype(np.float32), posinf=1.0, neginf=0.0)
    low, high = min(float(numbers.min()), 0.0), max(float(numbers.max()), 1.0)
    return ((numbers - low) * (255 / (high - low))).astype(np.uint8)
