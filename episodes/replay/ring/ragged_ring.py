"""`RaggedRing`: ring of items of different lengths, with a start and a length per item and a ring of values.

    positions   0      1      2      3            start and length of each item
    values      | item 4 | free ... | item 1 | item 2 | item 3 |

Values are written one after another. Those of overwritten positions are free again. So memory follows the number of
values that are stored, while the number of items is limited by the ring.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.tracks.indexing import ranges
from episodes.tracks.ragged import LENGTH, Ragged, RaggedKind

_LEAST = 1024  # values of a new ring


class RaggedRing:
    """Ring of `size` items of different lengths. Position `size` holds an empty item, for padding.

    It is a leaf of the nested arrays of a `TrackRing`.

    Args:
        size: number of positions.
        kind: dtype and shape of the items.
    """

    __slots__ = ("_contents", "_lengths", "kind", "size")

    def __init__(self, size: int, kind: RaggedKind) -> None:
        self.size, self.kind = size, kind
        self._lengths = np.zeros(size + 1, np.int64)
        values, starts = np.zeros((_LEAST, *kind.value_shape), kind.dtype), np.zeros(size + 1, np.int64)
        # The values [A, ...], the start of each item, the start of the oldest item, and the end of the newest item.
        # Starts count all values that were ever written: a value is at its number modulo A. One attribute, so that an
        # interrupt leaves no part of a change.
        self._contents = values, starts, 0, 0

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the items' values."""
        return self.kind.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the ring as shown to callers: `(size + 1, -1, ...)`, with -1 for the variable length."""
        return (self.size + 1, LENGTH, *self.kind.value_shape)

    @property
    def size_of_values(self) -> int:
        """Number of values for which memory is allocated."""
        return len(self._contents[0])

    @property
    def nbytes(self) -> int:
        """Size in bytes of the items' values, starts and lengths."""
        return self._contents[0].nbytes + self._contents[1].nbytes + self._lengths.nbytes

    def write(self, start: int, items: Ragged) -> None:
        """Write up to `size` items from position `start` on, and wrap around at the end. The call may be repeated."""
        slots, flat = (start + np.arange(len(items))) % self.size, items.flat
        self._make_room(slots, len(flat))
        values, starts, tail, head = self._contents
        first = head % len(values)
        stop = min(first + len(flat), len(values))
        values[first:stop] = flat[: stop - first]
        values[: len(flat) - (stop - first)] = flat[stop - first :]
        starts[slots] = head + items.bounds[:-1]
        self._lengths[slots] = items.lengths
        self._contents = values, starts, tail, head + len(flat)

    def _make_room(self, slots: np.ndarray, num: int) -> None:
        """Free the values of the old items at `slots`, and allocate a larger array if `num` new values do not fit."""
        values, starts, tail, head = self._contents
        if head + num - tail <= len(values):
            return
        is_live = self._lengths > 0
        is_live[slots] = False
        live = np.flatnonzero(is_live)
        tail = int(starts[live].min(initial=head))
        if head + num - tail > len(values):  # also if values are scattered
            items = self.take(live)
            total = len(items.flat)
            values = np.zeros((max(len(values), 2 * (total + num)), *values.shape[1:]), values.dtype)
            values[:total] = items.flat
            starts = starts.copy()
            starts[live] = items.offsets[:-1]
            tail, head = 0, total
        self._contents = values, starts, tail, head

    def take(self, slots: np.ndarray, axis: int = 0) -> Ragged:
        """Return copies of the items at the positions `slots` [k]. `axis`, an argument of numpy's `take`, has no
        effect.
        """
        values, starts, _, _ = self._contents
        firsts, lengths = starts[slots], self._lengths[slots]
        if len(slots) and (firsts[1:] == firsts[:-1] + lengths[:-1]).all():
            start = int(firsts[0]) % len(values)
            stop = start + int(lengths.sum())
            flat = values[start:stop].copy() if stop <= len(values) else _wrapped(values, start, stop)
        else:
            flat = values[ranges(firsts, lengths) % len(values)]
        return Ragged.from_lengths(flat, lengths)

    def __getitem__(self, slots: slice) -> Ragged:
        return self.take(np.arange(*slots.indices(self.size + 1)))


def _wrapped(values: np.ndarray, start: int, stop: int) -> Any:
    """Return the values from `start` to `stop` in a ring, if `stop` is beyond the end of the array."""
    return np.concatenate([values[start:], values[: stop - len(values)]])
