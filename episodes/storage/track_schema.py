"""Dtype, item shape, compression and nesting of the arrays in a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from episodes.errors import TrackMismatch, WrongType
from episodes.pack import EpisodePack
from episodes.tracks import nested
from episodes.tracks.ragged import Ragged

COMPRESSIONS = ("auto", "none", "zstd")
_IMAGE_BYTES = 1000  # an item of uint8 that is at least so large is an image to `compression="auto"`


@dataclass(frozen=True, slots=True)
class TrackField:
    """Dtype, item shape and compression of one array column in a data set.

    Attributes:
        dtype: of the items, as numpy writes it.
        shape: of one item.
        compression: "none" or "zstd".
        fill: bytes in hexadecimal of the item in shards without the track; None unless it was added later.
    """

    dtype: str  # as numpy writes it: '<f4'
    shape: tuple[int, ...]  # of an item
    compression: str = "none"  # or "zstd"
    fill: str | None = None  # the item, in hexadecimal, of episodes from before there was such a track

    @staticmethod
    def of(path: str, array: np.ndarray, compression: str) -> TrackField:
        """Return the schema of an array [rows, ...]. Raise `WrongType` for object and structured dtypes."""
        if type(array) is Ragged:
            raise WrongType(f"track {path!r} is ragged: neither data sets nor messages hold ragged tracks yet")
        if array.dtype.kind in "OV" or not array.dtype.itemsize:
            raise WrongType(
                f"track {path!r} has dtype {array.dtype}: a track on disk holds numbers, bools, times or strings of a "
                "fixed size; convert it, or put it into infos or custom_data"
            )
        shape = array.shape[1:]
        image = array.dtype == np.uint8 and int(np.prod(shape)) >= _IMAGE_BYTES
        packed = compression == "zstd" or (compression == "auto" and image)
        return TrackField(array.dtype.str, shape, "zstd" if packed else "none")

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> TrackField:
        return TrackField(value["dtype"], tuple(value["shape"]), value["compression"], value.get("fill"))

    def to_json(self) -> dict[str, Any]:
        value = {"dtype": self.dtype, "shape": list(self.shape), "compression": self.compression}
        return value if self.fill is None else value | {"fill": self.fill}

    def alike(self, field: TrackField) -> bool:
        """Return True if dtype and item shape are equal. Strings of all lengths count as one dtype."""
        same = self.dtype == field.dtype or (self.is_text and field.is_text)
        return same and self.shape == field.shape

    @property
    def is_number(self) -> bool:
        return np.dtype(self.dtype).kind in "biuf"

    @property
    def is_text(self) -> bool:
        return np.dtype(self.dtype).kind == "U" and np.dtype(self.dtype).isnative

    def empty(self, num_rows: int = 0) -> np.ndarray:
        """Return an array of zeros [num_rows, *shape]."""
        return np.zeros((num_rows, *self.shape), np.dtype(self.dtype))

    def filled(self, num_rows: int) -> np.ndarray:
        """Return the default item repeated, [num_rows, *shape], without copies of the item."""
        item = np.frombuffer(bytes.fromhex(self.fill or ""), np.dtype(self.dtype)).reshape(self.shape)
        return np.broadcast_to(item, (num_rows, *self.shape))

    def __str__(self) -> str:
        return f"{np.dtype(self.dtype)} items of shape {list(self.shape)}"


Fields = dict[str, TrackField]


def fields_of(pack: EpisodePack, compression: str) -> Fields:
    """Return the schema of each array of a pack, by path."""
    return {path: TrackField.of(path, array, compression) for path, array in pack.tracks.items()}


def with_common_text_width(pack: EpisodePack, fields: Fields, known: Fields) -> tuple[EpisodePack, Fields]:
    """Return the pack with string arrays as wide as in the current file, and its schemas by path.

    Longer text gets twice the width, so that ever longer text starts only a few shards.
    """
    widened_dtype = {}
    for path, field in fields.items():
        stored = known.get(path)
        if field.is_text and stored is not None and stored.is_text and field.dtype != stored.dtype:
            width, widest = (np.dtype(text_field.dtype).itemsize // 4 for text_field in (field, stored))
            widened_dtype[path] = stored.dtype if width < widest else np.dtype(f"U{1 << (width - 1).bit_length()}").str
    if not widened_dtype:
        return pack, fields
    columns = pack.columns.map_arrays(
        lambda path, array: array.astype(widened_dtype.get(path, array.dtype), copy=False)
    )
    changed = {path: replace(fields[path], dtype=dtype) for path, dtype in widened_dtype.items()}
    return EpisodePack.of(columns, pack.facts, pack.lengths, pack.lookbacks), fields | changed


def columns_of(pack: EpisodePack) -> dict[str, Any]:
    """Return the observations, actions, rewards and extra outputs of a pack as one dict."""
    names = ("observations", "actions", "rewards", "extra_model_outputs")
    return {name: getattr(pack, name) for name in names}


def observation_fields(fields: Fields) -> Fields:
    """Return only the schemas of observation arrays."""
    return {path: field for path, field in fields.items() if is_observed(path)}


def is_flat(pack: EpisodePack) -> bool:
    """Return True if observations, actions and extra outputs of the pack are plain arrays, not nested."""
    observations, _, actions, _, extra = pack.columns
    if type(observations.whole()) is not np.ndarray or type(actions.whole()) is not np.ndarray:
        return False
    return not extra or all(type(track.whole()) is np.ndarray for track in extra.values())


def is_observed(path: str) -> bool:
    """Return True if the array at `path` has one row per observation instead of one per step."""
    return path.split("/", 1)[0] == "observations"


def check_same(stored: Fields, new: Fields, label: str) -> None:
    """Raise `TrackMismatch` unless both have arrays of the same paths, dtypes and shapes.

    The message names the first that differs.
    """
    for path in (*stored, *new):
        if path not in new or path not in stored:
            side, other_side = ("there", "not among those given") if path in stored else ("given", "not there")
            raise TrackMismatch(
                f"{label}: track {path!r} is {side}, but {other_side}; all episodes of a data set have the same "
                f"tracks. There: {list(stored)}; given: {list(new)}"
            )
        if not stored[path].alike(new[path]):
            raise TrackMismatch(
                f"{label}: track {path!r} holds {stored[path]}, the episodes given have {new[path]}; convert them, or "
                "write them to a data set of their own"
            )


def structure_of(value: Any, prefix: str = "") -> Any:
    """Describe as JSON how a value is nested: a leaf's path, `{"dict": [[key, ...]]}` or `{"tuple": [...]}`."""
    if nested.is_leaf(value):
        return prefix
    parts = [
        (key, structure_of(item, f"{prefix}/{nested.escape(name)}" if prefix else nested.escape(name)))
        for key, (name, item) in zip(value, nested.children(value), strict=isinstance(value, dict))
    ]
    if not isinstance(value, dict):
        return {"tuple": [part for _, part in parts]}
    wrong = [key for key in value if not isinstance(key, (str, int))]
    if wrong:
        raise WrongType(f"{prefix or 'a pack'}: key {wrong[0]!r}: keys of nested tracks are strings or ints on disk")
    return {"dict": [[key, part] for key, part in parts]}


def assemble(structure: Any, leaves: Mapping[str, Any]) -> Any:
    """Return the nested value described by `structure`, with the leaves given by path."""
    if isinstance(structure, str):
        return leaves[structure]
    if "tuple" in structure:
        return tuple(assemble(part, leaves) for part in structure["tuple"])
    return {key: assemble(part, leaves) for key, part in structure["dict"]}
