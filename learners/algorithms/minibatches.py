"""Rows and columns of a train batch: some at a time, in random order, or those of one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from episodes.batch import TrainBatch
from episodes.batch.origin import taken_later
from episodes.tracks.nested import map_leaves

__all__ = ["after", "rows_of", "shuffled"]

_NEW = "new_"  # what the names of columns after a transition begin with


def rows_of(columns: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """The rows, by index, mask or slice, of columns of nested tensors."""
    taken = {name: map_leaves(lambda leaf: leaf[rows], column) for name, column in columns.items()}
    return TrainBatch(taken, taken_later(getattr(columns, "came", None), rows))


def shuffled(
    columns: Mapping[str, Any], num_rows: int, size: int, generator: torch.Generator, device: torch.device
) -> Iterator[dict[str, Any]]:
    """All rows once, in random order, `size` at a time.

    Rows that are left over and fewer than half of that join the last ones: a step on a handful is mostly noise.
    """
    order = torch.randperm(num_rows, generator=generator).to(device)
    mixed = rows_of(columns, order)
    starts = range(0, max(num_rows - size // 2, 1), size)
    for start, stop in zip(starts, [*starts[1:], num_rows], strict=True):
        yield rows_of(mixed, slice(start, stop))


def after(minibatch: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that a policy sees after the transitions: "obs" is "new_obs", and so on."""
    return {name.removeprefix(_NEW): column for name, column in minibatch.items() if name.startswith(_NEW)}
