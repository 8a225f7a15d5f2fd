"""Schemas of the arrays in a data set: dtype, item shape and compression of each array, and how arrays are nested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from episodes.errors import TrackMismatch, UnreadableData, WrongType
from episodes.format_versions import checked_shape
from episodes.pack import EpisodePack
from episodes.tracks import nested
from episodes.tracks.field import ACTIONS
from episodes.tracks.ragged import LENGTH, Ragged

COMPRESSIONS = ("auto", "none", "zstd")

Structure: TypeAlias = str | Mapping[str, Any]
"""The nesting of tracks as JSON: a path, or a dict with the key "dict" or "tuple"; see `structure_of`."""
_PLAIN = (np.ndarray, Ragged)
_IMAGE_BYTES = 1000  # an item of uint8 that is at least so large is an image to `compression="auto"`


@dataclass(frozen=True, slots=True)
class TrackField:
    """Schema of one array in a data set: dtype, item shape and compression.

    Attributes:
        dtype: of the items, as numpy writes it.
        shape: of one item. Items of a ragged track have the shape [-1, ...].
        compression: "none" or "zstd".
        fill: bytes in hexadecimal of the item in shards without the track; None unless it was added later.
        bounds: "actions" for a ragged track whose items are as long as the actions, so that no lengths are stored.
    """

    dtype: str  # as numpy writes it: '<f4'
    shape: tuple[int, ...]  # of an item
    compression: str = "none"  # or "zstd"
    fill: str | None = None  # the item, in hexadecimal, of episodes from before there was such a track
    bounds: str | None = None  # path of the track whose items have the same lengths

    @staticmethod
    def of(path: str, array: np.ndarray, compression: str) -> TrackField:
        """Determine the schema of an array [n, ...] with n items. Raise `WrongType` for dtypes of objects and
        structures. `compression` as in `EpisodeWriter`: "auto" compresses images.
        """
        if array.dtype.kind in "OV" or not array.dtype.itemsize:
            raise WrongType(
                f"track {path!r} has dtype {array.dtype}: a track on disk holds numbers, bools, times or strings of a "
                "fixed size; convert it, or put it into infos or custom_data"
            )
        shape = array.shape[1:]
        if type(array) is Ragged:
            return TrackField(array.dtype.str, shape, "zstd" if compression == "zstd" else "none")
        image = array.dtype == np.uint8 and int(np.prod(shape)) >= _IMAGE_BYTES
        packed = compression == "zstd" or (compression == "auto" and image)
        return TrackField(array.dtype.str, shape, "zstd" if packed else "none")

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> TrackField:
        """Return the field that a JSON object describes.

        Raises:
            UnreadableData: its shape is not one, or it shares the lengths of another array's items, but cannot.
        """
        shape = checked_shape(value["shape"], "the shape of a track", ragged=True)
        field = TrackField(value["dtype"], shape, value["compression"], value.get("fill"), value.get("bounds"))
        smallest = min(field.value_shape, default=1)
        if smallest < field.is_ragged or field.bounds not in (None, ACTIONS.path if field.is_ragged else None):
            raise UnreadableData(
                f"a track of items of shape {value['shape']} cannot share the lengths of the items of {field.bounds!r}"
            )
        return field

    def to_json(self) -> dict[str, Any]:
        """Return this field as a JSON object. `fill` and `bounds` are left out if they are `None`."""
        value = {"dtype": self.dtype, "shape": list(self.shape), "compression": self.compression}
        value = value if self.fill is None else value | {"fill": self.fill}
        return value if self.bounds is None else value | {"bounds": self.bounds}

    def alike(self, field: TrackField) -> bool:
        """Return True if this schema and `field` have equal dtypes and item shapes.
        Strings of all lengths count as one dtype."""
        same = self.dtype == field.dtype or (self.is_text and field.is_text)
        return same and self.shape == field.shape

    @property
    def is_ragged(self) -> bool:
        """Whether the items of the array have different lengths."""
        return self.shape[:1] == (LENGTH,)

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one item, or if items have different lengths, shape of one of the values in an item."""
        return self.shape[1:] if self.is_ragged else self.shape

    @property
    def of_values(self) -> TrackField:
        """Schema of the concatenated values of a ragged array, whose items have different lengths."""
        return TrackField(self.dtype, self.value_shape, self.compression)

    @property
    def is_number(self) -> bool:
        return np.dtype(self.dtype).kind in "biuf"

    @property
    def is_text(self) -> bool:
        return np.dtype(self.dtype).kind == "U" and np.dtype(self.dtype).isnative

    def empty(self, num_rows: int = 0) -> Any:
        """Return an array of this schema with `num_rows` items, which are zero, or have length
        0 if the array is ragged."""
        if self.is_ragged:
            return Ragged.of(self.of_values.empty(), np.zeros(num_rows + 1, np.int64))
        return np.zeros((num_rows, *self.shape), np.dtype(self.dtype))

    def filled(self, num_rows: int) -> np.ndarray:
        """Return an array of `num_rows` default items [num_rows, *shape], for episodes stored before the array was
        added. It is a view of one item."""
        item = np.frombuffer(bytes.fromhex(self.fill or ""), np.dtype(self.dtype)).reshape(self.shape)
        return np.broadcast_to(item, (num_rows, *self.shape))

    def __str__(self) -> str:
        shape = ", ".join(map(str, ("L", *self.value_shape) if self.is_ragged else self.shape))
        return f"{np.dtype(self.dtype)} items of shape [{shape}]"


Fields = dict[str, TrackField]


def fields_of(pack: EpisodePack, compression: str) -> Fields:
    """Return the schema of each array of a pack, as a dict by path."""
    fields = {path: TrackField.of(path, array, compression) for path, array in pack.tracks.items()}
    if ACTIONS.path in fields and fields[ACTIONS.path].is_ragged:
        fields |= {
            path: replace(field, bounds=ACTIONS.path) for path, field in fields.items() if has_bounds(path, field)
        }
    return fields


def has_bounds(path: str, field: TrackField) -> bool:
    """Return True if the array at `path` is a ragged extra model output, whose items have the bounds (starts and ends)
    of the ragged actions."""
    parts = path.split("/")
    return field.is_ragged and len(parts) == 2 and parts[0] == "extra_model_outputs"


def with_common_text_width(pack: EpisodePack, fields: Fields, known: Fields) -> tuple[EpisodePack, Fields]:
    """Widen the strings of a pack to the width in the current file, so that this file can contain the pack. Return the
    pack and its schemas.

    Strings that are longer than in the file get a greater width. `fields` are the schemas of the pack, and `known` the
    schemas of the file.

    The width for longer text is the next power of two, so that ever longer text starts only a few shards.
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


def pack_columns(pack: EpisodePack) -> dict[str, Any]:
    """Return the observations, actions, rewards and extra model outputs of a pack as a dict by these names."""
    names = ("observations", "actions", "rewards", "extra_model_outputs")
    return {name: getattr(pack, name) for name in names}


def observation_fields(fields: Fields) -> Fields:
    """Return the schemas of the observation arrays, out of a dict of schemas by path."""
    return {path: field for path, field in fields.items() if is_observed(path)}


def is_flat(pack: EpisodePack) -> bool:
    """Return True if a pack's observations, actions and extra model outputs are plain arrays, without nesting."""
    observations, _, actions, _, extra = pack.columns
    if type(observations.data) not in _PLAIN or type(actions.data) not in _PLAIN:
        return False
    return not extra or all(type(track.data) in _PLAIN for track in extra.values())


def is_observed(path: str) -> bool:
    """Return True if the array at `path` belongs to the observations, which have T + 1 items
    per episode instead of T."""
    return path.split("/", 1)[0] == "observations"


def check_same(stored: Fields, new: Fields, label: str) -> None:
    """Raise `TrackMismatch` unless two sets of array schemas have equal paths, dtypes and item shapes.

    The message names the first array that differs.
    """
    for path in dict.fromkeys((*stored, *new)):
        if path not in new or path not in stored:
            problem = (
                f"the given episodes have no track {path!r}" if path in stored else f"track {path!r} is not stored"
            )
            raise TrackMismatch(
                f"{label}: {problem}; all episodes of a data set have the same tracks. Stored: {list(stored)}; "
                f"given: {list(new)}"
            )
        if not stored[path].alike(new[path]):
            raise TrackMismatch(
                f"{label}: track {path!r} is stored as {stored[path]}, the given episodes have {new[path]}; "
                "convert them, or write them to a separate data set"
            )


def structure_of(value: Any, prefix: str = "") -> Structure:
    """Return the nesting of a value as JSON: a dict is `{"dict": [[key, ...]]}`, a tuple is `{"tuple":
    [...]}`, and a leaf is its path.

    Args:
        prefix: path of the value.

    Raises:
        WrongType: a key of a dict is neither a str nor an int.
    """
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


def assemble(structure: Structure, leaves: Mapping[str, Any]) -> Any:
    """Create a nested value from its leaves, a dict by path, and its nesting, which `structure_of` returned."""
    if isinstance(structure, str):
        return leaves[structure]
    if "tuple" in structure:
        return tuple(assemble(part, leaves) for part in structure["tuple"])
    return {key: assemble(part, leaves) for key, part in structure["dict"]}
