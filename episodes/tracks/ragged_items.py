"""Checks and conversions of ragged time series, whose items have different lengths, such as token sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.columns import check_extra_output_names
from episodes.errors import InvalidArgument, InvalidFill, ShapeMismatch, WrongType
from episodes.tracks import nested
from episodes.tracks.casting import try_cast
from episodes.tracks.ragged import Ragged, RaggedKind
from episodes.tracks.spaces import dtypes_of
from episodes.tracks.stacking import refuse_masked, stack_items

if TYPE_CHECKING:
    from episodes.data_types import Item, Space

_FIXED = ("rewards", "infos")  # tracks that cannot be ragged


Kinds = RaggedKind | dict[Any, Any]
"""Kind of a ragged track: that of its items, or of the ragged parts of nested items by key or index."""


def declared_kinds(ragged: Mapping[str, Any], label: str) -> dict[str, Kinds]:
    """Validate a user's declaration of ragged time series, and return the dtype and value shape of each by name.

    Args:
        ragged: dtypes or kinds, by "observations", "actions" and the keys of extra model outputs. A dict instead of a
            dtype names the ragged parts of nested items.
        label: first words of error messages.

    Raises:
        WrongType: `ragged` is not a dict, or a kind is no dtype.
        InvalidArgument: rewards or infos are declared.
        TrackMismatch: an extra model output has the name of a reserved column.
    """
    if not isinstance(ragged, Mapping):
        raise WrongType(f"{label}: ragged={ragged!r}; give a dict of dtypes by the names of tracks")
    fixed = [name for name in _FIXED if name in ragged]
    if fixed:
        raise InvalidArgument(f"{label}: ragged={fixed}: rewards are one number per step, and infos are dicts")
    check_extra_output_names([key for key in ragged if key not in ("observations", "actions")], label)
    return {key: _declared(kind) for key, kind in ragged.items()}


def _declared(kind: Any) -> Kinds:
    """Convert the dtypes in a user's declaration of ragged items, possibly nested, to `RaggedKind`."""
    if isinstance(kind, Mapping):
        return {key: _declared(part) for key, part in kind.items()}
    return kind if isinstance(kind, RaggedKind) else RaggedKind(kind)


def kinds_of(data: Any) -> Kinds | None:
    """Return the dtype and value shape of a `Ragged`, or for nested data a dict with one entry per ragged part. None
    means that nothing is ragged."""
    if type(data) is Ragged:
        return data.kind
    if nested.is_leaf(data):
        return None
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    return {key: kind for key, part in pairs if (kind := kinds_of(part)) is not None} or None


def as_plain_kinds(kinds: Mapping[str, Kinds]) -> dict[str, Any]:
    """Convert the `RaggedKind`s of ragged time series to tuples (dtype, shape), to be stored in state dicts."""
    return {
        key: as_plain_kinds(kind) if isinstance(kind, dict) else (kind.dtype.str, kind.value_shape)
        for key, kind in kinds.items()
    }


def from_plain_kinds(values: Mapping[str, Any]) -> dict[str, Kinds]:
    """Convert tuples (dtype, shape), as `as_plain_kinds` returns them, to `RaggedKind` objects."""
    return {
        key: from_plain_kinds(kind) if isinstance(kind, dict) else RaggedKind(np.dtype(kind[0]), tuple(kind[1]))
        for key, kind in values.items()
    }


def as_ragged_item(item: object, kind: Kinds, label: Callable[[], str]) -> Any:
    """Convert one item of a ragged time series to an array [L, *value_shape] with the dtype and value shape in `kind`.

    Args:
        item: the item. Parts of a nested item that are not ragged stay.
        kind: kind of the track.
        label: function that returns the first words of an error message.

    Raises:
        ShapeMismatch: the item has another number of dimensions, or values that the dtype cannot hold.
        WrongType: the item is a masked array.
    """
    if isinstance(kind, dict):
        return _with_ragged_parts(item, kind, label)
    dtype, shape = kind.dtype, kind.value_shape
    if type(item) is np.ndarray and item.dtype is dtype and item.ndim == len(shape) + 1 and item.shape[1:] == shape:
        return item
    refuse_masked(item, label())
    try:
        array = nested.host_array(item)
    except ValueError:
        raise ShapeMismatch(f"{label()} is a list of items of several lengths; give an array {kind}") from None
    if not array.size and array.ndim <= 1:
        return np.zeros((0, *shape), dtype)
    if array.ndim != len(shape) + 1 or array.shape[1:] != shape:
        raise ShapeMismatch(f"{label()} has shape {list(array.shape)}; give an array {kind}")
    fitting = array if array.dtype == dtype else try_cast(array, dtype)
    if fitting is None:
        raise ShapeMismatch(f"{label()} has dtype {array.dtype}, which does not fit {dtype} without loss; give {kind}")
    return fitting


def _with_ragged_parts(item: Any, kinds: dict[Any, Any], label: Callable[[], str]) -> Any:
    """Return a nested item in which each part named in `kinds`, the ragged parts, is converted to an
    array of its declared dtype.

    Raises:
        ShapeMismatch: the item lacks a part of `kinds`, or a part has another shape or dtype.
    """
    is_nested = not nested.is_leaf(item)
    keys = [] if not is_nested else list(item) if isinstance(item, dict) else list(range(len(item)))
    missing = [key for key in kinds if key not in keys]
    if missing:
        raise ShapeMismatch(f"{label()} has no part {missing[0]!r}, which is ragged; it has {keys}")
    parts = [
        as_ragged_item(item[key], kinds[key], lambda key=key: f"{label()}[{key!r}]") if key in kinds else item[key]
        for key in keys
    ]
    return nested.rebuild(item, parts)


def fixed_shapes(item: Any, kind: Kinds | None) -> Any:
    """Return the shapes of a nested item's parts, with None for ragged parts, to find out if
    two items have equal shapes."""
    if isinstance(kind, RaggedKind):
        return None
    if nested.is_leaf(item):
        return np.shape(item)
    keys = list(item) if isinstance(item, dict) else range(len(item))
    kinds = kind or {}
    return [(key, fixed_shapes(item[key], kinds.get(key))) for key in keys]


def finished_items(items: Sequence[Any], kind: Kinds | None, name: str, lookback: int, space: Space | None) -> Any:
    """Convert the list of items of a time series to a `Ragged`. In nested items, parts that are not
    ragged are stacked to arrays.

    Args:
        items: results of `as_ragged_item`.
        kind: kind of the track.
        name: name of the track, for errors.
        lookback: number of items before step 0, for errors.
        space: space of the items, or None. It determines the dtypes of the parts that are not ragged.

    Raises:
        ShapeMismatch: parts that are not ragged differ in shape.
    """
    if isinstance(kind, RaggedKind):
        return Ragged.from_arrays(items, kind)
    if kind is None:
        return stack_items(items, name, lookback, dtypes_of(space))
    if items:
        nested.check_same_keys(items[0], items[1:])
    first = items[0] if items else dict.fromkeys(kind)
    keys = list(first) if isinstance(first, dict) else range(len(first))
    spaces = getattr(space, "spaces", None)
    parts = [
        finished_items(
            [item[key] for item in items], kind.get(key), f"{name}[{key!r}]", lookback, spaces[key] if spaces else None
        )
        for key in keys
    ]
    return nested.rebuild(first, parts)


def as_ragged_items(items: Sequence[Any], kind: Kinds, name: str) -> list[Any]:
    """Convert each item of the ragged time series `name` to an array with the dtype and value shape in `kind`.

    Raises:
        WrongType, ShapeMismatch: an item cannot be converted.
    """
    return [as_ragged_item(item, kind, lambda i=i: f"{name}: item {i}") for i, item in enumerate(items)]


def ragged_filler(fill: Item, kind: Kinds) -> Any:
    """Convert a user's fill value to an item of a ragged time series. Raise `InvalidFill` for a
    scalar, which has no length."""
    try:
        return as_ragged_item(fill, kind, lambda: "fill")
    except ShapeMismatch as error:
        items = f"arrays {kind}; give one, such as [] or [0]" if isinstance(kind, RaggedKind) else "nested; give one"
        raise InvalidFill(f"fill={fill!r}: items of the track are {items} ({error})") from None


def take_filled_ragged(data: Ragged, positions: int | range | np.ndarray, fill: Item) -> Any:
    """Return the items of a `Ragged` with n items at the given positions.
    Positions outside of [0, n) get the item `fill`.

    Raises:
        InvalidFill: `fill` is a scalar, which has no length, or does not fit.
    """
    kind, num = data.kind, len(data)
    filler = ragged_filler(fill, kind)
    if isinstance(positions, int):
        return data[positions] if 0 <= positions < num else filler
    rows = np.asarray(positions, np.int64)
    inside = (rows >= 0) & (rows < num)
    if inside.all():
        if isinstance(positions, range) and positions.step == 1:
            return data[positions.start : positions.start + len(positions)]
        return data.take(rows)
    items = [data[row] if is_inside else filler for row, is_inside in zip(rows.tolist(), inside.tolist(), strict=True)]
    return Ragged.from_arrays(items, kind)


def with_ragged_items(data: Ragged, rows: Sequence[int], items: Sequence[Any], name: str) -> Ragged:
    """Return a copy of a `Ragged` in which the items at the indices `rows` are replaced by `items`.

    Raises:
        WrongType, ShapeMismatch: an item cannot be converted.
    """
    arrays, kind = list(data), data.kind
    for row, item in zip(rows, items, strict=True):
        arrays[row] = as_ragged_item(item, kind, lambda row=row: f"{name}: item {row}")
    return Ragged.from_arrays(arrays, kind)
