"""Features (columns and videos) of LeRobot data sets, each of which stores one array of every episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from episodes.converters.columns import has_column
from episodes.converters.videos import pixels
from episodes.errors import TrackMismatch, UnreadableData, WrongType
from episodes.storage import space_json
from episodes.storage.track_schema import assemble, is_observed, structure_of
from episodes.tracks import Tracks, nested

VERSION = "v3.0"
OURS = "rl_episodes"  # key in info.json, and column of the episodes, for data that LeRobot has no place for
BASE = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
FLAGS = ("next.done", "next.terminated", "next.truncated")
_ORDERS = {"HWC": (0, 1, 2, 3), "CHW": (0, 2, 3, 1)}  # transpositions from [n, ...] to [n, H, W, C]


@dataclass(frozen=True, slots=True)
class Feature:
    """Column or video of a LeRobot data set that stores one array of every episode."""

    path: str  # path of the track
    name: str  # name of the feature
    dtype: str
    shape: tuple[int, ...]  # shape of an item
    order: str | None = None  # "HWC" or "CHW" for frames of a video

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape [H, W, 3] of the video's frames."""
        height, width, _ = (self.shape[axis - 1] for axis in _ORDERS[self.order or "HWC"][1:])
        return height, width, 3

    def frames(self, items: np.ndarray) -> np.ndarray:
        """Convert array items [n, ...] to video frames [n, H, W, 3]. Grey images are repeated for three channels."""
        laid = items.transpose(_ORDERS[self.order or "HWC"])
        return np.broadcast_to(laid, (*laid.shape[:3], 3)) if laid.shape[3] == 1 else laid

    def items(self, frames: np.ndarray) -> np.ndarray:
        """Convert video frames [n, H, W, 3] back to array items [n, ...]."""
        laid = frames[..., :1] if self.shape[0 if self.order == "CHW" else 2] == 1 else frames
        return np.ascontiguousarray(laid.transpose(np.argsort(_ORDERS[self.order or "HWC"])))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "order": self.order}

    @staticmethod
    def from_json(path: str, fields: dict[str, Any]) -> Feature:
        return Feature(path, fields["name"], fields["dtype"], tuple(fields["shape"]), fields["order"])

    def describe(self, fps: int, lossless: bool) -> dict[str, Any]:
        """Return the entry of this feature in info.json."""
        if self.order is None:
            return describe(np.dtype(self.dtype), self.shape)
        height, width, channels = self.frame_shape
        video = {
            "video.height": height,
            "video.width": width,
            "video.codec": "h264",
            "video.pix_fmt": pixels(self.frame_shape, lossless)[1],
            "video.is_depth_map": False,
            "video.fps": fps,
            "video.channels": channels,
            "has_audio": False,
        }
        names = ["height", "width", "channels"]
        return {"dtype": "video", "shape": [height, width, channels], "names": names, "info": video}


def describe(dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the entry in info.json of a feature that is a column, with this dtype and shape."""
    name = "string" if dtype.kind in "UT" else dtype.name
    return {"dtype": name, "shape": list(shape) or [1], "names": None}


def features_of(tracks: Tracks, videos: bool) -> dict[str, Feature]:
    """Choose a LeRobot feature for each array of an episode, and return them as a dict by array path.

    Args:
        tracks: finished tracks.
        videos: make images videos.

    Raises:
        WrongType: a track of complex numbers, times or another unsupported dtype.
    """
    features: dict[str, Feature] = {}
    names: set[str] = set()
    for path, array in tracks.arrays().items():
        if not has_column(array) or array.dtype.kind in "mM" or 0 in array.shape[1:]:
            items = f"items of shape {list(array.shape[1:])} and dtype {array.dtype}"
            raise WrongType(f"track {path!r} has {items}: LeRobot's data hold numbers, bools and text")
        order = _order_of(array) if videos and is_observed(path) else None
        name = _name(path, order is not None)
        while name in names:
            name += "_"
        names.add(name)
        features[path] = Feature(path, name, array.dtype.str, array.shape[1:], order)
    return features


def _order_of(array: np.ndarray) -> str | None:
    """Return the axis order "HWC" or "CHW" if the array's items are images, otherwise None."""
    if array.dtype != np.uint8 or array.ndim != 4 or min(array.shape[1:]) < 1:
        return None
    if array.shape[3] in (1, 3) and min(array.shape[1:3]) >= 16:
        return "HWC"
    return "CHW" if array.shape[1] in (1, 3) and min(array.shape[2:]) >= 16 else None


def _name(path: str, is_video: bool) -> str:
    """Return LeRobot's name of the array at `path`, such as "observation.images.front" for a video at
    "observations/front".

    Without a subpath, observations are "observation.state" or, as a video, "observation.image". Rewards are
    "next.reward".
    """
    first, _, subpath = path.partition("/")
    subpath = ".".join(nested.unescape(part).replace("/", ".") for part in subpath.split("/")) if subpath else ""
    if first == "observations":
        kind = "observation.images" if is_video and subpath else "observation"
        return f"{kind}.{subpath or ('image' if is_video else 'state')}"
    if first == "rewards":
        return "next.reward"
    return f"action.{subpath}".rstrip(".") if first == "actions" else f"{first}.{subpath}"


def about_of(tracks: Tracks, features: dict[str, Feature], spaces: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON description of dtypes, nesting and spaces, from which `from_lerobot` restores exact episodes."""
    whole = {"observations": tracks.observations.data, "actions": tracks.actions.data}
    whole |= {"rewards": tracks.rewards.data}
    whole |= {"extra_model_outputs": {key: track.data for key, track in tracks.extra.items()}}
    feature_documents = {path: feature.to_json() for path, feature in features.items()}
    space_documents = {name: space_json.to_json(space, name) for name, space in spaces.items()}
    return {"structure": structure_of(whole), "tracks": feature_documents, **space_documents}


def check_alike(known: dict[str, Feature], features: dict[str, Feature], id_: object) -> None:
    """Raise `TrackMismatch` unless the episode `id_` has the same features as the first. Text lengths may differ."""
    for path in known.keys() | features.keys():
        before, feature = known.get(path), features.get(path)
        is_text = before and feature and before.dtype[1] == feature.dtype[1] == "U" and before.shape == feature.shape
        if before != feature and not is_text:
            raise TrackMismatch(
                f"episode {id_}: track {path!r} is {feature}, in the episodes before it {before}; LeRobot's data "
                "have the same features throughout: write a data set for each kind"
            )


def assembled_tracks(about: dict[str, Any], leaves: dict[str, np.ndarray]) -> dict[str, Any]:
    """Restore the nesting of an episode's arrays, given a dict of arrays by path and the description `about`.

    Raises:
        UnreadableData: the array of a track is missing.
    """
    try:
        return assemble(about["structure"], leaves)
    except KeyError as error:
        raise UnreadableData(f"info.json lists a track {error}, which the data do not have") from None
