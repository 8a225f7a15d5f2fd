"""Time series of an episode in three forms: a list that grows, read-only arrays, or the info
dicts of a finished episode.

A `ListTrack` grows, an `ArrayTrack` is finished, and an `InfoTrack` is finished and holds dicts. All are read in the
same way (`track[i]`, `track.get(...)`); the module `indexing` defines which items an index means. A track holds
`lookback` items before step 0, which `len(track)` does not count and `track.total` does:

    position   0 .. lookback - 1 | lookback .. total - 1
    index      -lookback .. -1   | 0 .. len(track) - 1         (negative ones with neg_index_as_lookback)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import ShapeMismatch
from episodes.tracks import indexing, nested
from episodes.tracks.casting import MOST_DIMENSIONS
from episodes.tracks.field import INFOS, UNNAMED, Field
from episodes.tracks.filling import ItemKinds, take_filled, take_span_filled, with_items_written
from episodes.tracks.indexing import Indices
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.infos.infos import Infos, same_info
from episodes.tracks.infos.joining import joined_infos
from episodes.tracks.ragged import RaggedKind
from episodes.tracks.ragged_items import Kinds, as_ragged_items, finished_items, kinds_of, ragged_filler
from episodes.tracks.spaces import dtypes_of, empty_items
from episodes.tracks.stacking import cast_without_loss, joined_bytes, joined_encoded, stack_items

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from episodes.data_types import Item, Items, Space

_blank: Any = object.__new__  # takes half the time of calling the class, which counts in slices of all tracks
MOST_BYTES = 4096
"""Largest array that a growing time series stores as bytes. A read copies it once more."""
ArrayChange = Callable[[str, np.ndarray], np.ndarray]  # (path of an array, array) -> new array


class _Items:
    """Base class of one time series of an episode: L items before step 0 (the lookback), and n items from step 0 on."""

    __slots__ = ()

    def __len__(self: Any) -> int:
        return self.total - self.lookback

    def __getitem__(self: Any, indices: Indices) -> Any:
        return self.get(indices)

    def __iter__(self: Any) -> Iterator[Any]:
        return iter(self.item_list(self.lookback, self.total))

    def __eq__(self: Any, track: object) -> bool:
        return same_track(self, track)

    def state(self: Any) -> Any:
        """Return all items, lookback included, in the form that the episode's `get_state` returns:
        a list or nested arrays."""
        return self.data

    def finalize(self: Any, space: Space | None = None) -> Any:
        """Return the time series as read-only arrays, or the same object if it consists of arrays already."""
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        """Return a dict of all arrays of this time series, by paths such as "observations/camera"."""
        return {}

    def map_arrays(self: Any, change: ArrayChange) -> Any:
        """Return a copy of this time series in which each array is replaced by `change(path, array)`."""
        return self

    def first_wrong_length(self: Any, total: int) -> tuple[str, int] | None:
        """Return (path, length) of the first array whose length is not `total`, or None if
        all arrays have this length."""
        lengths = {path: len(array) for path, array in self.arrays().items()} or {self.field.path: self.total}
        return next(((path, length) for path, length in lengths.items() if length != total), None)


@dataclasses.dataclass(slots=True, eq=False)
class ListTrack(_Items):
    """Time series of an episode that can still grow, stored as a list of L lookback items and n items.

    The list may hold arrays as bytes, which take less time and memory than copies. The first read decodes them.
    """

    stored: list[Any] = dataclasses.field(default_factory=list)  # L + n items
    lookback: int = 0  # L
    uniform: bool = False  # True if all items are known to have one shape
    field: Field = UNNAMED
    kinds: ItemKinds | None = None  # created by the first read with a fill
    ragged: Kinds | None = None  # kind of the items if the track is ragged
    encoding: tuple[np.dtype, tuple[int, ...]] | None = None  # dtype and shape of items stored as bytes, set once
    num_decoded: int = 0  # items before this position are not bytes

    def __len__(self) -> int:
        return len(self.stored) - self.lookback

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if self.ragged is not None:
            return np.asarray(self.finalize())
        return np.array(self.items[self.lookback :], dtype=dtype)

    @property
    def items(self) -> list[Any]:
        """List of all L + n items, beginning with the lookback. Items stored as bytes are decoded in place."""
        stored = self.stored
        if self.encoding is not None and self.num_decoded < len(stored):
            dtype, shape = self.encoding
            start = self.num_decoded
            stored[start:] = [
                np.ndarray(shape, dtype, bytearray(item)) if type(item) is bytes else item for item in stored[start:]
            ]
            self.num_decoded = len(stored)
        return stored

    @property
    def data(self) -> Any:
        """List of all items, beginning with the lookback."""
        return self.items

    def encode(self, shape: Any) -> np.dtype | None:
        """Let arrays of a shape that are appended from now on be stored as bytes: return the dtype that they must have.
        Return None if they are not stored as bytes: if the newest item is no small array of numbers of this shape.
        """
        stored = self.items
        newest = stored[-1] if stored and self.ragged is None else None
        if type(newest) is not np.ndarray or not shape or newest.shape != shape or not 0 < newest.nbytes <= MOST_BYTES:
            return None
        dtype = newest.dtype
        if dtype.kind not in "iufb" or not dtype.isnative or newest.ndim > MOST_DIMENSIONS:
            return None
        if (self.encoding or (dtype, shape)) != (dtype, shape):
            return None
        self.encoding, self.num_decoded = (dtype, shape), len(stored) - 1
        stored[-1] = newest.tobytes()
        return dtype

    def drop_after(self, total: int) -> None:
        """Remove all items but the first `total`."""
        items = self.items
        self.num_decoded = min(total, len(items))
        del items[total:]

    def copied(self) -> ListTrack:
        """Return a copy of the time series: a new list of the same items."""
        return ListTrack(list(self.items), self.lookback, self.uniform, self.field, None, self.ragged)

    def item(self, position: int) -> Any:
        """Return one item by its position in the stored list, where position 0 is the first lookback item."""
        return self.items[position]

    @property
    def total(self) -> int:
        """Number of stored items: L + n, with the lookback."""
        return len(self.stored)

    def get(self, indices: Indices = None, neg_index_as_lookback: bool = False, fill: Item | None = None) -> Any:
        """Return the item at an int index, or a list of items for a slice, a list of indices or None.

        None selects all items from step 0 on. `fill` replaces missing items. With `neg_index_as_lookback`, -1 is
        the item just before step 0.
        """
        if fill is not None:
            return self._get_filled(indices, neg_index_as_lookback, fill)
        items, lookback = self.items, self.lookback
        if indices is None:
            return items[lookback:]
        size = len(items) - lookback
        if type(indices) is int:
            position = indices + (lookback if indices >= 0 or neg_index_as_lookback else len(items))
            if 0 <= position < len(items):
                return items[position]
        if isinstance(indices, slice):
            return items[indexing.clip(indexing.span_of(indices, lookback, size, neg_index_as_lookback), len(items))]
        positions = indexing.existing_positions(indices, lookback, size, neg_index_as_lookback, self.field.label)
        return items[positions] if isinstance(positions, int) else [items[p] for p in positions]

    def _get_filled(self, indices: Indices, neg_index_as_lookback: bool, fill: Item) -> Any:
        """Return the items at a user's indices, with `fill` in place of items that do not exist."""
        positions = indexing.positions(indices, self.lookback, len(self), neg_index_as_lookback)
        items = self.items
        total = len(items)
        if isinstance(self.ragged, RaggedKind) or (self.ragged is not None and not total):
            fill = ragged_filler(fill, self.ragged)
        elif self.ragged is not None:
            finished: Any = self.finalize()
            filled = finished.get_at(positions, fill)
            return filled if isinstance(positions, int) else [nested.take(filled, i) for i in range(len(positions))]
        elif self.field is not INFOS:
            self.kinds = self.kinds or ItemKinds()
            fill = self.kinds.filler(items, fill)
        if isinstance(positions, int):
            return items[positions] if 0 <= positions < total else fill
        return [items[p] if 0 <= p < total else fill for p in positions]

    def view(self, rows: slice, lookback: int = 0) -> ListTrack:
        """Return a new time series of the items in `rows`, a slice of stored positions. The first `lookback` of these
        items become its lookback."""
        return ListTrack(self.items[rows], lookback, self.uniform, self.field, None, self.ragged)

    def item_list(self, start: int, stop: int) -> list[Any]:
        """Return the items at the stored positions [start, stop) as a list."""
        return self.items[start:stop]

    def take(self, rows: slice | np.ndarray) -> ListTrack:
        """Return a new time series without lookback, of the items at the stored positions `rows`."""
        items = self.items
        items = items[rows] if isinstance(rows, slice) else [items[p] for p in rows]
        return ListTrack(items, 0, self.uniform, self.field, None, self.ragged)

    def joined(self, later: Track, skip: int = 0) -> ListTrack:
        """Append the items of `later`, except its lookback and the next `skip` items, to this list.
        Return this object."""
        self.items.extend(later.item_list(later.lookback + skip, later.total))
        self.num_decoded, self.uniform = len(self.stored), False
        return self

    def replaced(self, positions: Sequence[int] | np.ndarray, new_items: Sequence[Any]) -> ListTrack:
        """Return a copy of the time series with `new_items` at the given stored positions."""
        items = list(self.items)
        if self.ragged is not None:
            new_items = as_ragged_items(new_items, self.ragged, f"new {self.field.label}")
        for position, item in zip(positions, new_items, strict=True):
            items[position] = item
        return ListTrack(items, self.lookback, False, self.field, None, self.ragged)

    def finalize(self, space: Space | None = None) -> ArrayTrack | InfoTrack:
        """Return the time series as read-only arrays, with the dtypes of `space`, or without a space the
        dtypes that numpy chooses.

        Raises:
            ShapeMismatch: items have different shapes, or a dtype of `space` would change them.
        """
        lookback, field = self.lookback, self.field
        if self.encoding is not None and not self.num_decoded:
            joined = joined_encoded(self.stored, *self.encoding)
            if joined is not None:
                return self._finished(joined, space)
        items = self.items
        if field is INFOS:
            return InfoTrack(infos_of(items), lookback)
        if self.ragged is not None:
            return ArrayTrack.of(finished_items(items, self.ragged, field.label, lookback, space), lookback, field)
        if not items:
            return ArrayTrack.of(np.zeros(0) if space is None else empty_items(space), lookback, field)
        joined = joined_bytes(items, self.uniform)
        if joined is None:
            return ArrayTrack.of(stack_items(items, field.label, lookback, dtypes_of(space)), lookback, field)
        return self._finished(joined, space)

    def _finished(self, joined: np.ndarray, space: Space | None) -> ArrayTrack:
        """Return the time series with the read-only array `joined`, cast to the dtype of the space if given."""
        dtype = dtypes_of(space)
        if dtype is not None and dtype is not joined.dtype:
            joined = nested.frozen(cast_without_loss(joined, self.field.label, dtype))
        return ArrayTrack(joined, self.lookback, self.field)

    def as_growing(self) -> ListTrack:
        """Return this object, because it can grow already."""
        return self


@dataclasses.dataclass(slots=True, eq=False)
class ArrayTrack(_Items):
    """Time series of a finished episode, stored as read-only nested arrays [L + n, ...] of L
    lookback items and n items."""

    data: Any  # nested arrays [L + n, ...]
    lookback: int = 0  # L
    field: Field = UNNAMED

    @classmethod
    def of(cls, data: object, lookback: int = 0, field: Field = UNNAMED) -> ArrayTrack:
        """Create a finished time series from nested arrays, which are not copied.
        Its views of these arrays are read-only."""
        return cls(nested.frozen(data), lookback, field)

    def __reduce__(self) -> Any:
        return ArrayTrack.of, (self.data, self.lookback, self.field)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.get(), dtype=dtype, copy=copy)

    @property
    def ragged(self) -> Kinds | None:
        """Dtype and value shape of items with different lengths, or None if all items have one shape."""
        return None if type(self.data) is np.ndarray else kinds_of(self.data)

    @property
    def total(self) -> int:
        """Number of stored items: L + n, with the lookback."""
        data = self.data
        return len(data if type(data) is np.ndarray else nested.first_leaf(data))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return a dict of all arrays of this time series, by paths such as "observations/camera"."""
        return nested.flatten(self.data, self.field.path)

    def map_arrays(self, change: ArrayChange) -> ArrayTrack:
        """Return a copy of this time series in which each array is replaced by `change(path, array)`."""
        data, path = self.data, self.field.path
        if type(data) is np.ndarray:
            return ArrayTrack.of(change(path, data), self.lookback, self.field)
        changed = [change(path, leaf) for path, leaf in nested.flatten(data, path).items()]
        return ArrayTrack.of(nested.unflatten_like(data, changed), self.lookback, self.field)

    def copied(self) -> ArrayTrack:
        """Return a copy of the time series, with copies of all arrays."""
        return self.map_arrays(lambda path, array: array.copy())

    def item(self, position: int) -> Any:
        """Return one item by its position in the stored arrays, where position 0 is the first lookback item."""
        return nested.take(self.data, position)

    def get(self, indices: Indices = None, neg_index_as_lookback: bool = False, fill: Item | None = None) -> Any:
        """Return the item at an int index, or nested arrays [k, ...] for a slice, a list of
        indices or None (all items from step 0 on).

        `fill` replaces missing items, in the item's shape and dtype. With `neg_index_as_lookback`, -1 is the item just
        before step 0.
        """
        data, lookback = self.data, self.lookback
        if fill is None and type(indices) is slice and not lookback and not neg_index_as_lookback:
            try:
                return data[indices] if type(data) is np.ndarray else nested.take(data, indices)
            except (TypeError, ValueError):
                pass  # `span_of` raises an error that names the slice
        if fill is not None:
            if type(indices) is slice and type(data) is np.ndarray:
                span = indexing.span_of(indices, lookback, len(data) - lookback, neg_index_as_lookback)
                return take_span_filled(data, span, fill)
            return self.get_at(indexing.positions(indices, lookback, len(self), neg_index_as_lookback), fill)
        if type(indices) is int and type(data) is np.ndarray:
            total = len(data)
            row = indices + (lookback if indices >= 0 or neg_index_as_lookback else total)
            if not 0 <= row < total:
                raise indexing.out_of_range(self.field.label, indices, lookback, total - lookback)
            return data[row]
        if type(indices) is slice:
            span = indexing.span_of(indices, lookback, len(self), neg_index_as_lookback)
            rows: Any = indexing.clip(span, len(self) + lookback)
        elif indices is None:
            rows = slice(lookback, None)
        else:
            rows = indexing.existing_positions(indices, lookback, len(self), neg_index_as_lookback, self.field.label)
        return data[rows] if type(data) is np.ndarray else nested.take(data, rows)

    def get_at(self, positions: int | range | np.ndarray, fill: Item) -> Any:
        """Return the items at the given stored positions, where position 0 is the first lookback item.
        `fill` replaces missing items."""
        data = self.data
        if type(data) is np.ndarray:
            return take_filled(data, positions, fill)
        if not nested.is_leaf(fill):
            return nested.map_leaves(lambda leaf, value: take_filled(leaf, positions, value), data, fill)
        return nested.map_leaves(lambda leaf: take_filled(leaf, positions, fill), data)

    def view(self, rows: slice, lookback: int = 0) -> ArrayTrack:
        """Return a new time series of the items in `rows`, a slice of stored positions, without copies. The first
        `lookback` of these items become its lookback."""
        data, part = self.data, _blank(ArrayTrack)
        part.data = data[rows] if type(data) is np.ndarray else nested.take(data, rows)
        part.lookback, part.field = lookback, self.field
        return part

    def item_list(self, start: int, stop: int) -> list[Any]:
        """Return the items at the stored positions [start, stop) as a list."""
        data, rows = self.data, range(start, stop)
        return list(data[start:stop]) if type(data) is np.ndarray else [nested.take(data, i) for i in rows]

    def take(self, rows: slice | np.ndarray) -> ArrayTrack:
        """Return a new time series without lookback, of the items at the stored positions `rows`.
        A slice gives views."""
        return ArrayTrack.of(nested.take(self.data, rows), 0, self.field)

    def joined(self, later: Track, skip: int = 0) -> ArrayTrack:
        """Return a new time series of these items followed by the items of `later`, except the lookback of `later`
        and the next `skip` items.

        Raises:
            ShapeMismatch: the items have different shapes.
        """
        tail = later.finalize().data
        tail = nested.take(tail, slice(later.lookback + skip, None))
        try:
            return ArrayTrack.of(nested.concatenate([self.data, tail]), self.lookback, self.field)
        except ValueError:
            shapes = [nested.map_leaves(lambda leaf: list(leaf.shape[1:]), data) for data in (self.data, tail)]
            raise ShapeMismatch(
                f"{self.field.label}: items of shape {shapes[1]} cannot follow items of shape {shapes[0]}; all items "
                "of a track have one shape"
            ) from None

    def replaced(self, positions: Sequence[int] | np.ndarray, new_items: Items) -> ArrayTrack:
        """Return a copy of the time series with `new_items`, nested arrays [k, ...], at k stored positions.
        Dtypes are widened if needed.

        Raises:
            ShapeMismatch: `new_items` have another shape.
        """
        rows = list(positions) if isinstance(positions, range) else positions
        name = self.field.label
        if type(new_items) is list and not nested.is_leaf(self.data):
            new_items = nested.transpose(new_items)
        new = nested.map_leaves(lambda leaf, items: with_items_written(name, leaf, rows, items), self.data, new_items)
        return ArrayTrack.of(new, self.lookback, self.field)

    def as_growing(self) -> ListTrack:
        """Return a copy of the time series that can grow: a list of the same items."""
        return ListTrack(self.item_list(0, self.total), self.lookback, False, self.field, None, self.ragged)


class InfoTrack(_Items):
    """Info dicts of a finished episode, one per observation, stored as one array per key."""

    __slots__ = ("data", "lookback")

    field = INFOS
    ragged = None

    def __init__(self, data: Infos, lookback: int = 0) -> None:
        self.data: Any = data  # L + n infos
        self.lookback = lookback  # L

    def __reduce__(self) -> Any:
        return InfoTrack, (self.data, self.lookback)

    def __repr__(self) -> str:
        return f"InfoTrack({self.data!r}, lookback={self.lookback})"

    @property
    def total(self) -> int:
        """Number of stored infos: L + n, with the lookback."""
        return len(self.data)

    def copied(self) -> InfoTrack:
        """Return a copy of the infos, with copies of all arrays."""
        return InfoTrack(self.data.copied(), self.lookback)

    def item(self, position: int) -> Any:
        """Return one info dict by its position in the stored sequence, where position 0 is the first lookback item."""
        return self.data[position]

    def get(self, indices: Indices = None, neg_index_as_lookback: bool = False, fill: Item | None = None) -> Any:
        """Return the info dict at an int index, or a list of dicts for a slice, a list of indices or None.

        None selects all infos from step 0 on. `fill` replaces missing infos. With `neg_index_as_lookback`, -1 is
        the info just before step 0.
        """
        infos, size = self.data, len(self)
        if fill is None:
            positions = indexing.existing_positions(
                indices, self.lookback, size, neg_index_as_lookback, self.field.label
            )
            return infos[positions] if isinstance(positions, int) else list(infos.take(np.array(positions, np.intp)))
        positions = indexing.positions(indices, self.lookback, size, neg_index_as_lookback)
        if isinstance(positions, int):
            return infos[positions] if 0 <= positions < len(infos) else fill
        return [infos[p] if 0 <= p < len(infos) else fill for p in positions]

    def view(self, rows: slice, lookback: int = 0) -> InfoTrack:
        """Return a new time series of the infos in `rows`, a slice of stored positions, without copies. The first
        `lookback` of these infos become its lookback."""
        part = _blank(InfoTrack)
        part.data, part.lookback = self.data.view(rows.start, rows.stop), lookback
        return part

    def item_list(self, start: int, stop: int) -> list[Any]:
        """Return the info dicts at the stored positions [start, stop) as a list."""
        return list(self.data.view(start, stop))

    def take(self, rows: slice | np.ndarray) -> InfoTrack:
        """Return a new time series without lookback, of the infos at the stored positions `rows`.
        A slice gives views."""
        return InfoTrack(self.data[rows] if isinstance(rows, slice) else self.data.take(rows))

    def joined(self, later: Track, skip: int = 0) -> InfoTrack:
        """Return a new time series of these infos followed by the infos of `later`, except the lookback of `later`
        and the next `skip` infos."""
        following = later.finalize().data
        return InfoTrack(
            joined_infos([self.data, following.view(later.lookback + skip, len(following))]), self.lookback
        )

    def replaced(self, positions: Sequence[int] | np.ndarray, new_items: Sequence[Any]) -> InfoTrack:
        """Return a copy of the time series with `new_items`, info dicts, at the given stored positions."""
        return InfoTrack(infos_of(self.as_growing().replaced(positions, new_items).items), self.lookback)

    def state(self) -> list[Any]:
        """Return the infos as a list of dicts, the form in which the episode's `get_state` returns infos."""
        return list(self.data)

    def as_growing(self) -> ListTrack:
        """Return a copy of the infos that can grow: a list of info dicts."""
        return ListTrack(list(self.data), self.lookback, False, INFOS)


Track = ListTrack | ArrayTrack | InfoTrack


def same_extra(a: Mapping[str, Track], b: Mapping[str, Track]) -> bool:
    """Return True if the extra model outputs of two episodes, dicts of time series, are equal.
    An output without items equals a missing one."""
    filled = [{key: track for key, track in extra.items() if track.total} for extra in (a, b)]
    return filled[0].keys() == filled[1].keys() and all(same_track(t, filled[1][key]) for key, t in filled[0].items())


def same_track(a: Track, b: object) -> bool:
    """Return True if two time series have the same name, lookback and items.

    Two finished time series must also have equal dtypes.
    """
    if not isinstance(b, (ListTrack, ArrayTrack, InfoTrack)) or a.field is not b.field or a.total != b.total:
        return False
    if a.lookback != b.lookback or not a.total:
        return a.lookback == b.lookback
    if type(a) is ArrayTrack and type(b) is ArrayTrack:
        return nested.equal(a.data, b.data) and _dtypes(a.data) == _dtypes(b.data)
    if a.ragged != b.ragged:
        return False
    same = same_info if a.field.holds == "infos" else nested.equal
    return all(map(same, a.item_list(0, a.total), b.item_list(0, b.total)))


def _dtypes(data: object) -> list[np.dtype]:
    return [leaf.dtype for leaf in nested.leaves(data)]
