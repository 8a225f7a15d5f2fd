"""Which feature of LeRobot's holds which of an episode's tracks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from episodes.converters.columns import has_column
from episodes.converters.videos import pixels
from episodes.errors import TrackMismatch, UnreadableData, WrongType
from episodes.storage import space_json
from episodes.storage.track_schema import assembled, is_observed, structure_of
from episodes.tracks import Tracks, nested

VERSION = "v3.0"
OURS = "rl_episodes"  # the key of info.json, and of a column of the episodes, that holds what LeRobot has no place for
BASE = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
FLAGS = ("next.done", "next.terminated", "next.truncated")
_ORDERS = {"HWC": (0, 1, 2, 3), "CHW": (0, 2, 3, 1)}  # from frames [n, ...] of an order to [n, H, W, C]


@dataclass(frozen=True, slots=True)
class Feature:
    """A track, and the feature that holds it."""

    path: str  # of the track
    name: str  # of the feature
    dtype: str
    shape: tuple[int, ...]  # of an item
    order: str | None = None  # "HWC" or "CHW" for frames of a video

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """[H, W, 3] of a video."""
        height, width, _ = (self.shape[axis - 1] for axis in _ORDERS[self.order or "HWC"][1:])
        return height, width, 3

    def frames(self, items: np.ndarray) -> np.ndarray:
        """Items [n, ...] as frames [n, H, W, 3]; grey ones have three equal channels."""
        laid = items.transpose(_ORDERS[self.order or "HWC"])
        return np.broadcast_to(laid, (*laid.shape[:3], 3)) if laid.shape[3] == 1 else laid

    def items(self, frames: np.ndarray) -> np.ndarray:
        """The items of `frames`."""
        laid = frames[..., :1] if 1 in (self.shape[0 if self.order == "CHW" else 2],) else frames
        return np.ascontiguousarray(laid.transpose(np.argsort(_ORDERS[self.order or "HWC"])))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "order": self.order}

    @staticmethod
    def from_json(path: str, told: dict[str, Any]) -> Feature:
        return Feature(path, told["name"], told["dtype"], tuple(told["shape"]), told["order"])

    def described(self, fps: int, lossless: bool) -> dict[str, Any]:
        """What info.json says of it."""
        if self.order is None:
            return described(np.dtype(self.dtype), self.shape)
        height, width, channels = self.frame_shape
        told = {"height": height, "width": width, "codec": "h264", "pix_fmt": pixels(self.frame_shape, lossless)[1]}
        told |= {"is_depth_map": False, "fps": fps, "channels": channels}
        video = {f"video.{key}": value for key, value in told.items()} | {"has_audio": False}
        names = ["height", "width", "channels"]
        return {"dtype": "video", "shape": [height, width, channels], "names": names, "info": video}


def described(dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
    """What info.json says of a feature in a column."""
    name = "string" if dtype.kind in "UT" else dtype.name
    return {"dtype": name, "shape": list(shape) or [1], "names": None}


def features_of(tracks: Tracks, videos: bool) -> dict[str, Feature]:
    """The features of finished tracks by path.

    Raises:
        WrongType: a track of complex numbers, times or the like.
    """
    found: dict[str, Feature] = {}
    taken: set[str] = set()
    for path, array in tracks.arrays().items():
        if not has_column(array) or array.dtype.kind in "mM" or 0 in array.shape[1:]:
            there = f"items of shape {list(array.shape[1:])} and dtype {array.dtype}"
            raise WrongType(f"track {path!r} has {there}: LeRobot's data hold numbers, bools and text")
        order = _order_of(array) if videos and is_observed(path) else None
        name = _name(path, order is not None)
        while name in taken:
            name += "_"
        taken.add(name)
        found[path] = Feature(path, name, array.dtype.str, array.shape[1:], order)
    return found


def _order_of(array: np.ndarray) -> str | None:
    """How images lie in the items; None for what are no images."""
    if array.dtype != np.uint8 or array.ndim != 4 or min(array.shape[1:]) < 1:
        return None
    if array.shape[3] in (1, 3) and min(array.shape[1:3]) >= 16:
        return "HWC"
    return "CHW" if array.shape[1] in (1, 3) and min(array.shape[2:]) >= 16 else None


def _name(path: str, is_video: bool) -> str:
    first, _, rest = path.partition("/")
    rest = ".".join(nested.unescape(part).replace("/", ".") for part in rest.split("/")) if rest else ""
    if first == "observations":
        kind = "observation.images" if is_video and rest else "observation"
        return f"{kind}.{rest or ('image' if is_video else 'state')}"
    if first == "rewards":
        return "next.reward"
    return f"action.{rest}".rstrip(".") if first == "actions" else f"{first}.{rest}"


def about_of(tracks: Tracks, features: dict[str, Feature], spaces: dict[str, Any]) -> dict[str, Any]:
    """What info.json keeps under our own key, so that tracks come back as they were."""
    whole = {"observations": tracks.observations.whole(), "actions": tracks.actions.whole()}
    whole |= {"rewards": tracks.rewards.whole()}
    whole |= {"extra_model_outputs": {key: track.whole() for key, track in tracks.extra.items()}}
    told = {path: feature.to_json() for path, feature in features.items()}
    own = {name: space_json.to_json(space, name) for name, space in spaces.items()}
    return {"structure": structure_of(whole), "tracks": told, **own}


def check_alike(known: dict[str, Feature], features: dict[str, Feature], id_: Any) -> None:
    """Raise `TrackMismatch` unless an episode has the features of those before it; text may be of any length."""
    for path in known.keys() | features.keys():
        mine, other = known.get(path), features.get(path)
        same_text = mine is not None and other is not None and mine.dtype[1] == other.dtype[1] == "U"
        if mine != other and not (same_text and mine and other and mine.shape == other.shape):
            raise TrackMismatch(
                f"episode {id_}: track {path!r} is {other}, in the episodes before it {mine}; LeRobot's data have the "
                "same features throughout: write a data set for each kind"
            )


def assembled_tracks(about: dict[str, Any], leaves: dict[str, np.ndarray]) -> dict[str, Any]:
    """Nested arrays by the name of the track. `UnreadableData` where one is not there."""
    try:
        return assembled(about["structure"], leaves)
    except KeyError as error:
        raise UnreadableData(f"info.json tells of a track {error}, which the data do not have") from None
