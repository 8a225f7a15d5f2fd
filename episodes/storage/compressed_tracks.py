"""Array columns that are stored as small compressed (zstd) blocks, so that single items can be read quickly.

An episode of 7 frames in blocks of 3. Reading frame 4 decodes block 1 only:

    frame      0  1  2 | 3  4  5 | 6
    block      0         1         2         at most 256 KiB of raw bytes each, and at least one item
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import UnreadableData
from episodes.storage.arrow import documents_column, documents_of, pyarrow
from episodes.storage.track_schema import TrackField
from episodes.tracks.indexing import offsets_of, ranges
from episodes.tracks.ragged import Ragged

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 18
"""Size limit of a block before compression, in bytes. A single larger item is a block of its own."""


def rows_per_block(field: TrackField) -> int:
    """Return the number of array items that form one compressed block, about 256 KiB, but at least 1.

    The last block of an episode may have fewer.
    """
    item_bytes = np.dtype(field.dtype).itemsize * int(np.prod(field.value_shape, dtype=np.int64))
    return max(1, BLOCK_BYTES // max(item_bytes, 1))


@cache
def codec() -> Any:
    """Return Arrow's codec for zstd compression at level 1."""
    return pyarrow().Codec("zstd", compression_level=1)


def compressed_column(array: np.ndarray, offsets: np.ndarray, num_rows: int) -> Any:
    """Return an Arrow column with one list per episode: the items `array[offsets[i]:offsets[i + 1]]` of episode i as
    compressed blocks. A block has `num_rows` items, the last one of an episode perhaps fewer.
    """
    starts, stops, lists = _blocks(offsets, num_rows)
    array, compress = np.ascontiguousarray(array), codec().compress
    rows = array.reshape(len(array), -1).view(np.uint8) if array.size else np.zeros((len(array), 0), np.uint8)
    parts = [compress(rows[a:b], asbytes=True) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    bounds = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return documents_column(b"".join(parts), bounds, lists)


def _blocks(offsets: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide the items of each episode into blocks of `num_rows` items. Return each block's first and stop item, and
    each episode's first block."""
    sizes = np.diff(offsets)
    counts = -(-sizes // num_rows)
    place = ranges(np.zeros_like(counts), counts)
    starts = np.repeat(offsets[:-1], counts) + place * num_rows
    stops = np.minimum(starts + num_rows, np.repeat(offsets[1:], counts))
    return starts, stops, offsets_of(counts)


@dataclass(frozen=True, slots=True)
class CompressedTrack:
    """Array of a record batch that is stored in compressed blocks. Items are decompressed when they are read."""

    name: str
    field: TrackField
    data: np.ndarray  # [bytes] uint8
    bounds: np.ndarray  # [k + 1], of the blocks in `data`
    starts: np.ndarray  # [k], first row of each block
    stops: np.ndarray  # [k]

    @staticmethod
    def of(column: pa.Array, field: TrackField, offsets: np.ndarray, num_rows: int, name: str) -> CompressedTrack:
        """Open the compressed array in an Arrow column that `compressed_column` has created. Raise `UnreadableData` if
        its blocks are inconsistent."""
        data, bounds, lists = documents_of(column, name)
        num_blocks = int((-(-np.diff(offsets) // num_rows)).sum())
        if num_blocks != len(bounds) - 1:
            raise UnreadableData(f"column {name!r}: {len(bounds) - 1} blocks where there should be {num_blocks}")
        starts, stops, expected = _blocks(offsets, num_rows)
        if not np.array_equal(lists, expected):
            raise UnreadableData(f"column {name!r}: its lists are not as long as the episodes")
        return CompressedTrack(name, field, data, bounds, starts, stops)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the items at the indices `rows` [k] as an array [k, *shape].
        Only the blocks that contain them are decompressed.

        Raises:
            UnreadableData: a block is damaged.
        """
        out = self.field.empty(len(rows))
        if not out.size:
            return out
        block_of = np.searchsorted(self.starts, rows, side="right") - 1
        order = None if (np.diff(block_of) >= 0).all() else np.argsort(block_of, kind="stable")
        if order is not None:
            rows, block_of = rows[order], block_of[order]
        edges = np.flatnonzero(np.diff(block_of, prepend=-1)).tolist()
        for start, stop in zip(edges, [*edges[1:], len(rows)], strict=True):
            block = int(block_of[start])
            rows_of_block = rows[start:stop] - self.starts[block]
            out[slice(start, stop) if order is None else order[start:stop]] = self.decoded(block)[_span(rows_of_block)]
        return out

    def span(self, start: int, stop: int) -> np.ndarray:
        """Return the items at the indices start ... stop - 1 as an array [stop - start, *shape].

        Raises:
            UnreadableData: a block is damaged.
        """
        first, last = np.searchsorted(self.starts, [start, stop], side="right") - 1
        parts = [
            self.decoded(block)[max(start - int(self.starts[block]), 0) : stop - int(self.starts[block])]
            for block in range(max(int(first), 0), int(last) + 1)
        ]
        return np.concatenate([self.field.empty(), *parts])

    def decoded(self, block: int) -> np.ndarray:
        """Return the items of the compressed block with index `block`, [num_rows, ...].

        Raises:
            UnreadableData: the block is damaged.
        """
        num_rows = int(self.stops[block] - self.starts[block])
        dtype = np.dtype(self.field.dtype)
        size = num_rows * dtype.itemsize * int(np.prod(self.field.shape, dtype=np.int64))
        data = self.data[self.bounds[block] : self.bounds[block + 1]]
        try:
            raw = codec().decompress(data, size)
        except (OSError, ValueError) as error:
            raise UnreadableData(f"track {self.name!r}: block {block} cannot be decompressed: {error}") from None
        return np.frombuffer(raw, dtype).reshape(num_rows, *self.field.shape)


def _span(rows: np.ndarray) -> slice | np.ndarray:
    """Return an index array as a slice if its indices are consecutive, because slices copy faster.
    Otherwise return it unchanged."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first == len(rows) - 1 and (np.diff(rows) == 1).all() else rows


@dataclass(frozen=True, slots=True)
class CompressedRaggedTrack:
    """Ragged array of a record batch (items have different lengths), whose values are stored in compressed blocks."""

    values: CompressedTrack
    offsets: np.ndarray  # int64 [num_rows + 1], of the items in the values

    def take(self, rows: np.ndarray) -> Ragged:
        """Return the items at the indices `rows` [k]. Only the blocks that contain their values are decompressed."""
        starts, lengths = self.offsets[:-1][rows], np.diff(self.offsets)[rows]
        if len(rows) and (np.diff(rows) == 1).all():
            values = self.values.span(int(starts[0]), int(starts[-1] + lengths[-1]))
        else:
            values = self.values.take(ranges(starts, lengths))
        return Ragged.from_lengths(values, lengths)
