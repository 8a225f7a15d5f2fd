"""Read items at positions outside of an episode's stored range, where a fill value replaces the missing items."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import InvalidFill, ShapeMismatch
from episodes.tracks import indexing, nested
from episodes.tracks.casting import try_cast, widened_dtype
from episodes.tracks.ragged import Ragged
from episodes.tracks.ragged_items import take_filled_ragged, with_ragged_items
from episodes.tracks.validation import shown

if TYPE_CHECKING:
    from episodes.data_types import Item

_SMALL = 65504.0  # the largest float16, so every float dtype holds it


def take_filled(data: np.ndarray, positions: int | range | np.ndarray, fill: Item) -> np.ndarray:
    """Return the items of `data` [n, ...] at k positions as an array [k, ...].
    Positions outside of [0, n) get the value `fill`.

    A range of positions inside [0, n) returns a view.

    Raises:
        InvalidFill: `fill` does not fit the items.
    """
    if type(data) is Ragged:
        return take_filled_ragged(data, positions, fill)
    total = len(data)
    if isinstance(positions, range):
        return take_span_filled(data, positions, fill)
    if isinstance(positions, int):
        return data[positions] if 0 <= positions < total else _filler(fill, data)
    inside = (positions >= 0) & (positions < total)
    out = data[np.where(inside, positions, 0)] if total else np.empty((len(positions), *data.shape[1:]), data.dtype)
    out[~inside] = check_fill(fill, data)
    return out


def take_span_filled(data: np.ndarray, span: range, fill: Item) -> np.ndarray:
    """Return the items of `data` [n, ...] at the positions of the range `span`.
    Positions outside of [0, n) get the value `fill`.

    Raises:
        InvalidFill: `fill` does not fit the items.
    """
    size, start, step = len(span), span.start, span.step
    head, tail = indexing.inside(span, len(data))
    last = start + tail * step
    inner = data[start + head * step : None if last < 0 else last : step] if head < tail else data[:0]
    if tail - head == size:
        return inner
    shape, dtype = (size,) + data.shape[1:], data.dtype  # noqa: RUF005 (faster than unpacking)
    if type(fill) is not float or fill != 0.0 or dtype.kind != "f":  # 0.0 fits every float dtype
        fill = check_fill(fill, data)
    if type(fill) is float and fill == 0.0:
        out = np.zeros(shape, dtype)
        out[head:tail] = inner
        return out
    out = np.empty(shape, dtype)
    if head:
        out[:head] = fill
    out[head:tail] = inner
    if tail < size:
        out[tail:] = fill
    return out


def check_fill(fill: Any, data: np.ndarray) -> Any:
    """Return a user's fill value, cast to the dtype of `data` [n, ...]. Raise `InvalidFill` if its shape or
    value does not fit an item.

    Raises:
        InvalidFill: the fill has neither the shape of an item nor a scalar's, or the dtype cannot hold it.
    """
    dtype = data.dtype
    kind = type(fill)
    if dtype.kind == "f" and (kind is float or kind is int) and -_SMALL <= fill <= _SMALL:
        return fill
    try:
        array = np.asarray(fill)
    except ValueError:
        raise InvalidFill(
            f"fill={shown(fill)} is ragged; give a scalar, or an item of shape {data.shape[1:]}"
        ) from None
    if array.shape not in ((), data.shape[1:]):
        raise InvalidFill(
            f"fill={shown(fill)} has shape {array.shape}; items have {data.shape[1:]}: give a scalar or that shape"
        )
    cast_fill = try_cast(array, dtype)
    if cast_fill is None:
        raise InvalidFill(
            f"fill={shown(fill)} cannot be converted to the items' dtype {dtype} without loss; give a value of that "
            "dtype"
        )
    return cast_fill


def _filler(fill: Item, data: np.ndarray) -> Any:
    """Return `fill` as an item of the shape and dtype of the items of `data` [n, ...]."""
    filler = np.empty(data.shape[1:], data.dtype)
    filler[...] = check_fill(fill, data)
    return filler[()]


class ItemKinds:
    """Cache of the dtypes of the items in a growing list, so that a fill value can be converted without inspecting all
    items again."""

    __slots__ = ("_dtypes", "_num")

    def __init__(self) -> None:
        self._num = 0  # items inspected so far
        self._dtypes: Any = None  # a set of dtypes for each leaf, nested as the items are

    def filler(self, items: Sequence[Any], fill: Item) -> Any:
        """Return an item that has the nesting, shapes and dtypes of `items` and contains only the value `fill`.

        Without items, `fill` itself is returned.
        """
        if not items:
            return fill
        first = items[0]
        if not 0 < self._num <= len(items):
            self._num, self._dtypes = 0, nested.map_leaves(lambda leaf: set(), first)
        if self._num < len(items):
            self._add_dtypes(items[self._num :])
        self._num = len(items)
        if nested.is_leaf(fill):
            return nested.map_leaves(lambda leaf, dtypes: _filler_like(leaf, dtypes, fill), first, self._dtypes)
        return nested.map_leaves(_filler_like, first, self._dtypes, fill)

    def _add_dtypes(self, items: Sequence[Any]) -> None:
        """Add the dtypes of new items to the cached dtypes."""
        if type(self._dtypes) is set:
            self._dtypes.update([item.dtype for item in items if type(item) is np.ndarray])
            items = [item for item in items if type(item) is not np.ndarray]
        for item in items:
            nested.map_leaves(lambda dtypes, leaf: dtypes.add(np.asarray(leaf).dtype), self._dtypes, item)


def _filler_like(first: Any, dtypes: set[np.dtype], fill: Item) -> Any:
    """Return the fill value `fill` as an item with the shape of `first` and the common dtype of all items.

    It is a Python value if `first` is one.
    """
    filler = _filler(fill, np.empty((0, *np.shape(first)), np.result_type(*dtypes)))
    return filler.item() if isinstance(first, (bool, int, float, str)) else filler


def with_items_written(name: str, leaf: np.ndarray, rows: Sequence[int] | np.ndarray, items: Any) -> np.ndarray:
    """Return a copy of the array `leaf` [n, ...] with `items` written at the indices `rows`.
    The copy has a wider dtype if the items need it.

    Raises:
        ShapeMismatch: the items have another shape, or no dtype holds them and the others without loss.
    """
    if type(leaf) is Ragged:
        return with_ragged_items(leaf, rows, items, name)
    items = nested.as_array(items)
    if items.shape[1:] != leaf.shape[1:]:
        raise ShapeMismatch(f"{name}: new items have shape {items.shape[1:]}, the track's have {leaf.shape[1:]}")
    dtype, cast_items = leaf.dtype, try_cast(items, leaf.dtype)
    if cast_items is None:
        dtype, cast_items = widened_dtype(dtype, items), items
    if dtype is None:
        raise ShapeMismatch(
            f"{name}: new items of dtype {items.dtype} do not go with {leaf.dtype} without loss; give such items"
        )
    new = leaf.astype(dtype)
    new[rows] = cast_items
    return new


def ones(num: int, dtype: type) -> np.ndarray:
    """Return a new array [num] filled with 1. A copy of a cached array takes a tenth of the time of `np.ones`."""
    return _ones(num, dtype).copy()


@lru_cache(maxsize=16)
def _ones(num: int, dtype: type) -> np.ndarray:
    return np.ones(num, dtype)
