"""A track: one named time series of an episode. Two types, no flag: a growing list and a finished array.

Both read the same way (`track[i]`, `track.get(...)`); the index arithmetic of both is in `indexing`. A track holds
`lookback` items before step 0; `len(track)` does not count them.
"""

from __future__ import annotations

import operator
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from episodes.errors import ShapeMismatch
from episodes.tracks import indexing, nested
from episodes.tracks.filling import fill_like, place, place_span
from episodes.tracks.indexing import Indices

_INTEGERS = (int, np.integer)
_dtype_of = operator.attrgetter("dtype")


def _packing_codes() -> dict[type, str]:
    """The `struct` codes of Python numbers; no float where this numpy takes an array of shape (1,) for a number."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            float(np.zeros(1))
    except TypeError:
        return {float: "d", int: "q"}
    return {int: "q"}


_CODES = _packing_codes()


@dataclass(slots=True, eq=False)
class ListTrack:
    """A track still being recorded. Items are kept as given, never copied."""

    items: list[Any] = field(default_factory=list)  # L + n items
    lookback: int = 0  # L
    uniform: bool = False  # True when all items are known to have one shape

    def __len__(self) -> int:
        return len(self.items) - self.lookback

    def __getitem__(self, indices: Indices) -> Any:
        return self.get(indices)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items[self.lookback :])

    def get(self, indices: Indices = None, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """One item for an int, else a list of items; `fill` stands in for items that are not there."""
        if fill is not None:
            return self._get_filled(indices, neg_index_as_lookback, fill)
        items, lookback = self.items, self.lookback
        if indices is None:
            return items[lookback:]
        size = len(items) - lookback
        if isinstance(indices, slice):
            return items[indexing.clip(indexing.span_of(indices, lookback, size, neg_index_as_lookback), len(items))]
        if isinstance(indices, _INTEGERS):
            position = indexing.position_of(int(indices), lookback, size, neg_index_as_lookback)
            if not 0 <= position < len(items):
                raise indexing.out_of_range("track", indices, lookback, size)
            return items[position]
        return [items[p] for p in self.positions(indices, neg_index_as_lookback)]

    def positions(self, indices: Indices, neg_index_as_lookback: bool = False) -> Sequence[int]:
        """The positions of the items that the indices mean, all of which must be there."""
        return _positions(indices, self.lookback, len(self), neg_index_as_lookback)

    def positions_there(self, indices: Indices, neg_index_as_lookback: bool = False) -> int | range | np.ndarray:
        """The positions that the indices mean, whether or not there are items."""
        return _unchecked_positions(indices, self.lookback, len(self), neg_index_as_lookback)

    def _get_filled(self, indices: Indices, neg_index_as_lookback: bool, fill: Any) -> Any:
        positions = self.positions_there(indices, neg_index_as_lookback)
        filler = fill_like(self.items, fill)
        total = len(self.items)
        if isinstance(positions, int):
            return self.items[positions] if 0 <= positions < total else filler
        return [self.items[p] if 0 <= p < total else filler for p in positions]

    @property
    def total(self) -> int:
        """L + n: all items, the lookback's included."""
        return len(self.items)

    def view(self, start: int, stop: int, lookback: int = 0) -> ListTrack:
        """The items at positions [start, stop) as a track of their own."""
        return ListTrack(self.items[start:stop], lookback, self.uniform)

    def item_list(self, start: int, stop: int) -> list[Any]:
        """The items at positions [start, stop) as a list."""
        return self.items[start:stop]

    def joined(self, other: Track, skip: int = 0) -> ListTrack:
        """This very track, with the other's items after its lookback and the first `skip` appended."""
        self.items.extend(other.item_list(other.lookback + skip, other.total))
        self.uniform = False
        return self

    def items_or_arrays(self) -> Any:
        """The list of items."""
        return self.items

    def same_items(self, other: Track) -> bool:
        """True when both hold equal items."""
        mine, theirs = self.items, other.item_list(0, other.total)
        return len(mine) == len(theirs) and all(map(nested.equal, mine, theirs))

    def replaced(self, positions: Sequence[int], new_items: Sequence[Any]) -> ListTrack:
        """This track with other items at the positions."""
        items = list(self.items)
        for position, item in zip(positions, new_items, strict=True):
            items[position] = item
        return ListTrack(items, self.lookback)

    def finalize(self, name: str, dtypes: Any = None) -> ArrayTrack:
        """The items as arrays; `dtypes` is a dtype, or a nested value of dtypes, or None for numpy's promotion."""
        if self.uniform and (joined := _joined_bytes(self.items)) is not None:
            return ArrayTrack.of(_cast(joined, name, dtypes), self.lookback)
        return ArrayTrack.of(stack_items(self.items, name, self.lookback, dtypes), self.lookback)


@dataclass(slots=True, eq=False)
class ArrayTrack:
    """A finished track. It has no `append`, and its arrays are read-only: what is finished does not change."""

    data: Any  # nested arrays [L + n, ...]
    lookback: int = 0  # L

    @classmethod
    def of(cls, data: Any, lookback: int = 0) -> ArrayTrack:
        """A track of read-only views of the data's arrays."""
        return cls(frozen(data), lookback)

    def __reduce__(self) -> Any:
        return ArrayTrack.of, (self.data, self.lookback)

    def __len__(self) -> int:
        data = self.data
        return len(data if type(data) is np.ndarray else nested.first_leaf(data)) - self.lookback

    def __getitem__(self, indices: Indices) -> Any:
        return self.get(indices)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.get(), dtype=dtype, copy=copy)

    def get(self, indices: Indices = None, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """One item for an int, else nested arrays [k, ...]: views for slices, copies for lists.

        `fill` stands in for items that are not there, in the item's shape and dtype.
        """
        if fill is not None:
            if type(indices) is slice and type(self.data) is np.ndarray:
                span = indexing.span_of(indices, self.lookback, len(self.data) - self.lookback, neg_index_as_lookback)
                return place_span(self.data, span, fill)
            positions = _unchecked_positions(indices, self.lookback, len(self), neg_index_as_lookback)
            return self.get_at(positions, fill)
        data, lookback = self.data, self.lookback
        if type(indices) is int and type(data) is np.ndarray:
            total = len(data)
            row = indices + (lookback if indices >= 0 or neg_index_as_lookback else total)
            if not 0 <= row < total:
                raise indexing.out_of_range("track", indices, lookback, total - lookback)
            return data[row]
        if type(indices) is slice:
            if lookback or neg_index_as_lookback:
                span = indexing.span_of(indices, lookback, len(self), neg_index_as_lookback)
                indices = indexing.clip(span, len(self) + lookback)
            rows: Any = indices
        elif indices is None:
            rows = slice(lookback, None)
        elif isinstance(indices, _INTEGERS):
            size = len(self)
            rows = indexing.position_of(int(indices), lookback, size, neg_index_as_lookback)
            if not 0 <= rows < lookback + size:
                raise indexing.out_of_range("track", indices, lookback, size)
        else:
            rows = self.positions(indices, neg_index_as_lookback)
        return data[rows] if type(data) is np.ndarray else nested.take(data, rows)

    def positions(self, indices: Indices, neg_index_as_lookback: bool = False) -> Any:
        """The positions of the items that the indices mean, all of which must be there."""
        return _positions(indices, self.lookback, len(self), neg_index_as_lookback)

    def positions_there(self, indices: Indices, neg_index_as_lookback: bool = False) -> int | range | np.ndarray:
        """The positions that the indices mean, whether or not there are items."""
        return _unchecked_positions(indices, self.lookback, len(self), neg_index_as_lookback)

    def get_at(self, positions: int | range | np.ndarray, fill: Any) -> Any:
        """The items at the positions, `fill` where there is none."""
        data = self.data
        if type(data) is np.ndarray:
            return place(data, positions, fill)
        if not nested.is_leaf(fill):
            return nested.map_leaves(lambda leaf, value: place(leaf, positions, value), data, fill)
        return nested.map_leaves(lambda leaf: place(leaf, positions, fill), data)

    @property
    def total(self) -> int:
        """L + n: all items, the lookback's included."""
        return len(nested.first_leaf(self.data))

    def view(self, start: int, stop: int, lookback: int = 0) -> ArrayTrack:
        """The items at positions [start, stop) as a track of their own: views, no copy."""
        data = self.data
        if type(data) is np.ndarray:
            return ArrayTrack(data[start:stop], lookback)
        return ArrayTrack(nested.take(data, slice(start, stop)), lookback)

    def item_list(self, start: int, stop: int) -> list[Any]:
        """The items at positions [start, stop) as a list."""
        return [nested.take(self.data, i) for i in range(start, stop)]

    def joined(self, other: Track, skip: int = 0) -> ArrayTrack:
        """A track of this one's items and the other's after its lookback and the first `skip`; copies both."""
        tail = other.finalize("track").data
        tail = nested.take(tail, slice(other.lookback + skip, None))
        try:
            return ArrayTrack.of(nested.concatenate([self.data, tail]), self.lookback)
        except ValueError:
            shapes = [nested.map_leaves(lambda leaf: list(leaf.shape[1:]), data) for data in (self.data, tail)]
            raise ShapeMismatch(
                f"items of shape {shapes[1]} cannot follow items of shape {shapes[0]}; all items of a track have one "
                "shape"
            ) from None

    def items_or_arrays(self) -> Any:
        """The nested arrays."""
        return self.data

    def same_items(self, other: Track) -> bool:
        """True when both hold equal arrays of the same dtypes; tracks without items are equal."""
        if not self.total and not other.total:
            return True
        if not nested.equal(self.data, other.finalize("track").data):
            return False
        theirs = other.finalize("track").data
        return all(a.dtype == b.dtype for a, b in zip(nested.leaves(self.data), nested.leaves(theirs), strict=True))

    def replaced(self, positions: Any, new_items: Any) -> ArrayTrack:
        """A changed copy: other items (nested arrays [k, ...]) at the positions."""
        rows = list(positions) if isinstance(positions, range) else positions
        new = nested.map_leaves(lambda leaf, items: _written(leaf, rows, items), self.data, new_items)
        return ArrayTrack.of(new, self.lookback)

    def finalize(self, name: str, dtypes: Any = None) -> ArrayTrack:
        """Itself: it is finished."""
        return self


Track = ListTrack | ArrayTrack


def frozen(data: Any) -> Any:
    """Read-only views of the arrays of a nested value."""
    if type(data) is np.ndarray:
        return _frozen_array(data)
    return nested.map_leaves(_frozen_array, data)


def _frozen_array(array: Any) -> np.ndarray:
    array = np.asarray(array)
    if array.flags.writeable:
        array = array.view()
        array.setflags(write=False)
    return array


def _unchecked_positions(indices: Indices, lookback: int, size: int, neg: bool) -> int | range | np.ndarray:
    if isinstance(indices, slice):
        return indexing.span_of(indices, lookback, size, neg)
    if indices is None:
        return range(lookback, lookback + size)
    if isinstance(indices, _INTEGERS):
        return indexing.position_of(int(indices), lookback, size, neg)
    return indexing.positions_of(indexing.as_index_array(indices), lookback, size, neg)


def _positions(indices: Indices, lookback: int, size: int, neg: bool) -> Any:
    if isinstance(indices, slice):
        span = indexing.span_of(indices, lookback, size, neg)
        return range(*indexing.clip(span, lookback + size).indices(lookback + size))
    if indices is None:
        return range(lookback, lookback + size)
    array = indexing.as_index_array([indices] if isinstance(indices, _INTEGERS) else indices)
    positions = indexing.positions_of(array, lookback, size, neg)
    indexing.check_positions("track", array, positions, lookback, size)
    return positions


def _written(leaf: np.ndarray, rows: Any, items: Any) -> np.ndarray:
    items = np.asarray(items)
    if items.shape[1:] != leaf.shape[1:]:
        raise ShapeMismatch(f"new items have shape {items.shape[1:]}, the track's have {leaf.shape[1:]}")
    new = leaf.astype(np.result_type(leaf.dtype, items.dtype)) if _would_lose(items, leaf.dtype) else leaf.copy()
    new[rows] = items
    return new


def _would_lose(items: np.ndarray, dtype: np.dtype) -> bool:
    return not np.can_cast(items.dtype, dtype, "same_kind") and not np.array_equal(items.astype(dtype), items)


def stack_items(items: Sequence[Any], name: str, lookback: int = 0, dtypes: Any = None) -> Any:
    """The items as nested arrays [len(items), ...]; `ShapeMismatch` names the first item of another shape.

    Args:
        dtypes: a dtype, a nested value of dtypes of the items' structure, or None for numpy's promotion.
    """
    if not items:
        return nested.map_leaves(lambda dtype: np.zeros(0, dtype), dtypes)
    columns = nested.transpose(items) if not nested.is_leaf(items[0]) else items
    if dtypes is None or not nested.same_structure(columns, dtypes):
        return nested.map_leaves(lambda column: _stack(column, name, lookback, None), columns)
    return nested.map_leaves(lambda column, dtype: _stack(column, name, lookback, dtype), columns, dtypes)


def _stack(column: Sequence[Any], name: str, lookback: int, dtype: np.dtype | None) -> np.ndarray:
    return _cast(_quick(column, name, lookback), name, dtype)


def _joined_bytes(items: list[Any]) -> np.ndarray | None:
    """Items of one shape, joined as bytes: faster than `np.array`; None unless all are arrays of one dtype."""
    if list(map(type, items)).count(np.ndarray) != len(items):
        return None
    dtype = items[0].dtype
    if dtype.kind not in "iufb" or list(map(_dtype_of, items)).count(dtype) != len(items):
        return None
    try:
        return np.frombuffer(b"".join(items), dtype).reshape(len(items), *items[0].shape)
    except (BufferError, ValueError):
        return None


def _quick(column: Sequence[Any], name: str, lookback: int) -> np.ndarray:
    """`np.array(column)`, by a faster way for Python numbers and for numpy scalars of one type.

    Packing refuses what has no `__float__` (or `__index__`), so nothing else slips in.
    """
    kind = type(column[0])
    try:
        if kind in _CODES:
            return np.frombuffer(struct.pack(f"{len(column)}{_CODES[kind]}", *column), _CODES[kind])
        if issubclass(kind, np.number) and list(map(type, column)).count(kind) == len(column):
            return np.frombuffer(b"".join(column), kind)
    except (struct.error, OverflowError):
        pass
    return _stacked(column, name, lookback)


def _stacked(column: Sequence[Any], name: str, lookback: int) -> np.ndarray:
    try:
        array = np.array(column)
    except ValueError:
        raise _first_misfit(column, name, lookback, np.shape) from None
    if array.dtype.kind == "O":
        raise _first_misfit(column, name, lookback, lambda item: np.asarray(item).dtype.kind != "O")
    return array


def _cast(array: np.ndarray, name: str, dtype: Any) -> np.ndarray:
    if not isinstance(dtype, np.dtype) or array.dtype == dtype:
        return array
    if dtype.kind in "iub" and not np.can_cast(array.dtype, dtype) and not (array.astype(dtype) == array).all():
        raise ShapeMismatch(
            f"{name}: items of dtype {array.dtype} do not fit the space's {dtype} without loss; give such items"
        )
    return array.astype(dtype)


def _first_misfit(column: Sequence[Any], name: str, lookback: int, kind: Callable[[Any], Any]) -> ShapeMismatch:
    kinds = [kind(item) for item in column]
    step = next((i for i, k in enumerate(kinds) if k != kinds[0] or k is False), 0)
    first, other = column[0], column[step]
    return ShapeMismatch(
        f"{name}: item {step - lookback} is {_kind_of(other)}, item {-lookback} is {_kind_of(first)}; "
        "all items of a track have one shape and are numbers, strings or arrays of them"
    )


def _kind_of(item: Any) -> str:
    try:
        array = np.asarray(item)
    except ValueError:
        return "ragged"
    return f"a {type(item).__name__}" if array.dtype.kind == "O" else f"of shape {array.shape}"
