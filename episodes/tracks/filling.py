"""Standing in for items that are not there: fill values of the item's shape and dtype, on both sides of a span."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from episodes.errors import InvalidFill, ShapeMismatch
from episodes.tracks import indexing, nested
from episodes.tracks.casting import cast, widened_dtype

_SMALL = 65504.0  # what every float dtype holds


def place(data: np.ndarray, positions: int | range | np.ndarray, fill: Any) -> np.ndarray:
    """The items [k, ...] of `data` [n, ...] at the positions, `fill` where a position lies outside.

    A span that lies inside is a view.
    """
    total = len(data)
    if isinstance(positions, range):
        return take_span_filled(data, positions, fill)
    if isinstance(positions, int):
        return data[positions] if 0 <= positions < total else _filler(fill, data)
    inside = (positions >= 0) & (positions < total)
    out = data[np.where(inside, positions, 0)] if total else np.empty((len(positions), *data.shape[1:]), data.dtype)
    out[~inside] = check_fill(fill, data)
    return out


def take_span_filled(data: np.ndarray, span: range, fill: Any) -> np.ndarray:
    """As `place`, for the positions of a span."""
    size, start, step = len(span), span.start, span.step
    if step == 1:
        missing = start + size - len(data)
        head = 0 if start >= 0 else min(-start, size)
        tail = size if missing <= 0 else max(size - missing, head)
        inner = data[start + head : start + tail]
    else:
        head, tail = indexing.inside(span, len(data))
        last = start + tail * step
        inner = data[start + head * step : None if last < 0 else last : step] if head < tail else data[:0]
    if tail - head == size:
        return inner
    shape, dtype = (size,) + data.shape[1:], data.dtype  # noqa: RUF005 (unpacking costs more)
    if type(fill) is not float or fill != 0.0 or dtype.kind != "f":  # zeros fit among floats
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
    """The fill if it can stand in for an item of `data` [n, ...]; else `InvalidFill`."""
    dtype = data.dtype
    kind = type(fill)
    if dtype.kind == "f" and (kind is float or kind is int) and -_SMALL <= fill <= _SMALL:
        return fill
    try:
        given = np.asarray(fill)
    except ValueError:
        raise InvalidFill(f"fill={fill!r} is ragged; give a scalar, or an item of shape {data.shape[1:]}") from None
    if given.shape not in ((), data.shape[1:]):
        raise InvalidFill(
            f"fill={fill!r} has shape {given.shape}; items have {data.shape[1:]}: give a scalar or that shape"
        )
    fitting = cast(given, dtype)
    if fitting is None:
        raise InvalidFill(
            f"fill={fill!r} cannot stand in for items of dtype {dtype} without loss; give a value of that dtype"
        )
    return fitting


def _filler(fill: Any, data: np.ndarray) -> Any:
    filler = np.empty(data.shape[1:], data.dtype)
    filler[...] = check_fill(fill, data)
    return filler[()]


class ItemKinds:
    """The structure, shape and dtypes of the items of a growing list, each of which is looked at once."""

    __slots__ = ("_dtypes", "_num")

    def __init__(self) -> None:
        self._num = 0  # items that were looked at
        self._dtypes: Any = None  # sets of dtypes, nested as the items are

    def filler(self, items: Sequence[Any], fill: Any) -> Any:
        """A fill item with the structure, shape and dtype of the items; the fill itself where there are none."""
        if not items:
            return fill
        first = items[0]
        if not 0 < self._num <= len(items):
            self._num, self._dtypes = 0, nested.map_leaves(lambda leaf: set(), first)
        if self._num < len(items):
            self._look_at(items[self._num :])
        self._num = len(items)
        if nested.is_leaf(fill):
            return nested.map_leaves(lambda leaf, dtypes: _filler_like(leaf, dtypes, fill), first, self._dtypes)
        return nested.map_leaves(_filler_like, first, self._dtypes, fill)

    def _look_at(self, items: Sequence[Any]) -> None:
        if type(self._dtypes) is set:
            self._dtypes.update([item.dtype for item in items if type(item) is np.ndarray])
            items = [item for item in items if type(item) is not np.ndarray]
        for item in items:
            nested.map_leaves(lambda dtypes, leaf: dtypes.add(np.asarray(leaf).dtype), self._dtypes, item)


def _filler_like(first: Any, dtypes: set[np.dtype], fill: Any) -> Any:
    filler = _filler(fill, np.empty((0, *np.shape(first)), np.result_type(*dtypes)))
    return filler.item() if isinstance(first, (bool, int, float, str)) else filler


def written(name: str, leaf: np.ndarray, rows: Any, items: Any) -> np.ndarray:
    """A copy of an array [n, ...] with other items [k, ...] in some rows, in a wider dtype where they need one.

    Raises:
        ShapeMismatch: items of another shape, or that no dtype holds beside the others without loss.
    """
    items = np.asarray(items)
    if items.shape[1:] != leaf.shape[1:]:
        raise ShapeMismatch(f"{name}: new items have shape {items.shape[1:]}, the track's have {leaf.shape[1:]}")
    dtype, fitting = leaf.dtype, cast(items, leaf.dtype)
    if fitting is None:
        dtype, fitting = widened_dtype(dtype, items), items
    if dtype is None:
        raise ShapeMismatch(
            f"{name}: new items of dtype {items.dtype} do not go with {leaf.dtype} without loss; give such items"
        )
    new = leaf.astype(dtype)
    new[rows] = fitting
    return new


def ones(num: int, dtype: type) -> np.ndarray:
    """Ones [num], copied from some that are kept: cheaper than to make them."""
    return _ones(num, dtype).copy()


@lru_cache(maxsize=16)
def _ones(num: int, dtype: type) -> np.ndarray:
    return np.ones(num, dtype)
