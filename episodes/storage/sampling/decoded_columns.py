"""Random access to compressed arrays, whose blocks are decompressed into a memory pool or once into a cache file."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from episodes.errors import UnreadableData
from episodes.storage.arrow import as_unreadable_data
from episodes.storage.files import read_or_map
from episodes.storage.sampling.window_grid import WindowGrid


class BlockRows(Protocol):
    """Interface of an array of one record batch that is decompressed block by block."""

    @property
    def starts(self) -> np.ndarray: ...  # [k], the first row of each block

    @property
    def stops(self) -> np.ndarray: ...  # [k]

    def decoded(self, block: int) -> np.ndarray: ...


class PlainRows:
    """Uncompressed array that looks like a compressed array with blocks of `rows_per_block` items."""

    def __init__(self, array: np.ndarray, rows_per_block: int) -> None:
        self._array = array
        self.starts = np.arange(0, len(array), rows_per_block)
        self.stops = np.minimum(self.starts + rows_per_block, len(array))

    def decoded(self, block: int) -> np.ndarray:
        return self._array[self.starts[block] : self.stops[block]]


class DecodedColumn:
    """Compressed array of a data set (over all record batches), with a memory pool of decompressed
    blocks for random access.

    Sampled blocks are decompressed into a pool, and stay until others need the space. If all blocks of a batch are in
    the pool, sampling is one gather.

        pool    | block 7 | block 2 | block 9 | ...       slot_of[7] = 0, slot_of[2] = 1, ...

    Args:
        batches: rows of each batch.
        sources: file of each batch.
        dtype: of the items.
        shape: of one item.
        rows_per_block: largest number of rows in a block.
        pool_bytes: size of the pool, which has at least one slot.
    """

    step = 1

    def __init__(
        self,
        batches: Sequence[BlockRows],
        sources: Sequence[str],
        dtype: np.dtype,
        shape: tuple[int, ...],
        rows_per_block: int,
        pool_bytes: int,
    ) -> None:
        self.dtype, self.shape, self.rows_per_block = dtype, shape, rows_per_block
        self._batches, self._sources = batches, sources
        ends = np.cumsum([0, *(int(rows.stops[-1]) if len(rows.stops) else 0 for rows in batches)])
        self.bases = ends[:-1]
        self._starts = np.concatenate(
            [np.zeros(0, np.int64), *(base + b.starts for base, b in zip(self.bases, batches, strict=True))]
        )
        self._first_blocks = np.cumsum([0, *(len(batch.starts) for batch in batches)])
        block_bytes = max(rows_per_block * dtype.itemsize * math.prod(shape), 1)
        self.num_slots = max(min(pool_bytes // block_bytes, len(self._starts)), 1)
        self._pool = np.empty((self.num_slots, rows_per_block, *shape), dtype)
        self._slot_of = np.full(len(self._starts), -1, np.int32)
        self._block_in = np.full(self.num_slots, -1, np.int64)
        self._oldest = 0
        self._lock = threading.Lock()
        self.num_decoded = 0

    def take(self, units: np.ndarray) -> np.ndarray:
        """Return the items with the indices `units` [...] as an array [..., *shape].
        Blocks that are not in the pool are decompressed."""
        rows = units.ravel()
        blocks = self._starts.searchsorted(rows, side="right") - 1
        with self._lock:
            result = self._taken(rows, blocks)
        return result.reshape(*units.shape, *self.shape)

    def _taken(self, rows: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """Return the items at `rows` [n], whose blocks are `blocks` [n]. Blocks that are not in the pool are
        decompressed into it, in several rounds if it is too small for all.
        """
        distinct = np.unique(blocks)
        if len(distinct) <= self.num_slots:
            self._put(distinct)
            places = self._slot_of[blocks] * np.int64(self.rows_per_block) + rows - self._starts[blocks]
            return self._pool.reshape(-1, *self.shape)[places]
        result = np.empty((len(rows), *self.shape), self.dtype)
        for part in np.split(distinct, range(self.num_slots, len(distinct), self.num_slots)):
            rows_of_part = np.flatnonzero((blocks >= part[0]) & (blocks <= part[-1]))
            result[rows_of_part] = self._taken(rows[rows_of_part], blocks[rows_of_part])
        return result

    def _put(self, blocks: np.ndarray) -> None:
        """Decompress blocks into the memory pool, where they replace the blocks that were decompressed first."""
        slots = self._slot_of[blocks]
        missing = blocks[slots < 0]
        if not len(missing):
            return
        order = (self._oldest + np.arange(self.num_slots)) % self.num_slots
        free = order[~np.isin(order, slots[slots >= 0])][: len(missing)]
        for block, slot in zip(missing.tolist(), free.tolist(), strict=True):
            if self._block_in[slot] >= 0:
                self._slot_of[self._block_in[slot]] = -1
                self._block_in[slot] = -1
            batch = int(self._first_blocks.searchsorted(block, side="right")) - 1
            with as_unreadable_data(self._sources[batch]):
                rows = self._batches[batch].decoded(block - int(self._first_blocks[batch]))
            self._pool[slot, : len(rows)] = rows
            self._slot_of[block], self._block_in[slot] = slot, block
        self._oldest = (int(free[-1]) + 1) % self.num_slots
        self.num_decoded += len(missing)

    def windows(self, units: np.ndarray, grid: WindowGrid) -> np.ndarray:
        """Return B windows of W successive items, [B, W, *shape], which begin at the item indices `units` [B]. Items
        that `grid` marks as padding are zeros."""
        rows = units[:, None] + np.arange(grid.layout.exists.shape[1])
        if not len(grid.padding):
            return self.take(rows)
        result = np.zeros((*grid.layout.exists.shape, *self.shape), self.dtype)
        result[grid.layout.exists] = self.take(rows[grid.layout.exists])
        return result


def cached_rows(directory: Path, name: str, rows: BlockRows, like: np.ndarray, source: str) -> np.ndarray:
    """Return all items of a compressed array, memory-mapped from a file of decompressed items,
    which is created if it is missing.

    The file appears when it is complete, so a killed process leaves none, and several processes may write it at a time.

    Args:
        directory: of the file.
        name: of the file; it identifies a finished shard and a track.
        rows: of the track.
        like: an array of no rows with the dtype and item shape.
        source: the file of the shard, for error messages.

    Raises:
        UnreadableData: the file has another size, or a block is damaged.
    """
    file = directory / name
    num = int(rows.stops[-1]) if len(rows.stops) else 0
    size = num * like.dtype.itemsize * math.prod(like.shape[1:])
    if not file.exists() or file.stat().st_size != size:
        directory.mkdir(parents=True, exist_ok=True)
        draft = directory / f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            with draft.open("wb") as out:
                for block in range(len(rows.starts)):
                    with as_unreadable_data(source):
                        items = rows.decoded(block)
                    out.write(np.ascontiguousarray(items).data)
            os.replace(draft, file)
        finally:
            draft.unlink(missing_ok=True)
    data = read_or_map(file, mapped=True)
    if len(data) != size:
        raise UnreadableData(f"{file} has {len(data)} bytes where there should be {size}: remove it")
    return np.frombuffer(data, like.dtype).reshape(num, *like.shape[1:])
