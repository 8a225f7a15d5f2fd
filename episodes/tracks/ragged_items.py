"""Items of ragged tracks: declared kinds, and conversion and checks of new items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from episodes.columns import check_extra_output_names
from episodes.errors import InvalidArgument, InvalidFill, ShapeMismatch, WrongType
from episodes.tracks.casting import try_cast
from episodes.tracks.ragged import Ragged, RaggedKind
from episodes.tracks.stacking import refuse_masked

_FIXED = ("rewards", "infos")  # tracks that cannot be ragged


def declared_kinds(ragged: Mapping[str, Any], label: str) -> dict[str, RaggedKind]:
    """Return the kinds of declared ragged tracks by name.

    Args:
        ragged: dtypes or kinds, by "observations", "actions" and the keys of extra model outputs.
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
    return {key: kind if isinstance(kind, RaggedKind) else RaggedKind(kind) for key, kind in ragged.items()}


def as_ragged_item(item: Any, kind: RaggedKind, label: Callable[[], str]) -> np.ndarray:
    """Return an item of a ragged track as an array [L, *value_shape] of the kind's dtype. Arrays are not copied.

    Args:
        label: function that returns the first words of an error message.

    Raises:
        ShapeMismatch: the item has another number of dimensions, or values that the dtype cannot hold.
        WrongType: the item is a masked array.
    """
    dtype, shape = kind.dtype, kind.value_shape
    if type(item) is np.ndarray and item.dtype is dtype and item.ndim == len(shape) + 1 and item.shape[1:] == shape:
        return item
    refuse_masked(item, label())
    try:
        array = np.asarray(item)
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


def as_ragged_items(items: Sequence[Any], kind: RaggedKind, name: str) -> list[np.ndarray]:
    """Return items of the ragged track `name` as arrays. Errors are those of `as_ragged_item`."""
    return [as_ragged_item(item, kind, lambda i=i: f"{name}: item {i}") for i, item in enumerate(items)]


def ragged_filler(fill: Any, kind: RaggedKind) -> np.ndarray:
    """Return a fill value as an item. `InvalidFill` for a scalar, which has no length, and for other dtypes."""
    try:
        return as_ragged_item(fill, kind, lambda: "fill")
    except ShapeMismatch as error:
        raise InvalidFill(
            f"fill={fill!r}: items of the track are arrays {kind}; give one, such as [] or [0] ({error})"
        ) from None


def take_filled_ragged(data: Ragged, positions: int | range | np.ndarray, fill: Any) -> Any:
    """Return the items at the positions, and the item `fill` for positions outside [0, n)."""
    kind, num = data.kind, len(data)
    filler = ragged_filler(fill, kind)
    if isinstance(positions, int):
        return data[positions] if 0 <= positions < num else filler
    rows = np.asarray(positions, np.int64)
    inside = (rows >= 0) & (rows < num)
    if inside.all():
        if isinstance(positions, range) and positions.step == 1:
            return data[positions.start : positions.stop]
        return data.take(rows)
    items = [data[row] if is_inside else filler for row, is_inside in zip(rows.tolist(), inside.tolist(), strict=True)]
    return Ragged.from_arrays(items, kind)


def with_ragged_items(data: Ragged, rows: Sequence[int], items: Sequence[Any], name: str) -> Ragged:
    """Return a copy with other items in some rows. Errors are those of `as_ragged_item`."""
    arrays, kind = list(data), data.kind
    for row, item in zip(rows, items, strict=True):
        arrays[row] = as_ragged_item(item, kind, lambda row=row: f"{name}: item {row}")
    return Ragged.from_arrays(arrays, kind)
