"""Batch columns under construction: connectors append rows to them, together with the ids of the episode that each row
belongs to.

A batch is a dict of columns, `{name: nested arrays [B, ...]}`. Connectors that add rows episode by episode store
`ColumnParts` in it. `BatchItems` joins the parts into arrays. Each part records the episode of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from episodes.data_types import NestedArrays
from episodes.errors import ShapeMismatch
from episodes.tracks import nested
from episodes.tracks.levels import DEEPEST, check_levels

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode


class RowOwner(NamedTuple):
    """Ids of the episode, agent and module to which rows of a batch column belong, with None for unknown ids."""

    eps_id: str | None = None
    agent_id: Any = None
    module_id: Any = None

    @classmethod
    def of(cls, episode: SingleAgentEpisode | None) -> RowOwner:
        """Return the ids of `episode` as the owner of its rows. For `episode=None` all ids are unknown."""
        if episode is None:
            return cls()
        return cls(episode.multi_agent_episode_id or episode.id_, episode.agent_id, episode.module_id)


@dataclass(slots=True)
class ColumnParts:
    """Batch column under construction: a list of nested arrays [n_i, ...] in the order of appending, and the owner of
    each.
    """

    parts: list[Any] = field(default_factory=list)
    owners: list[RowOwner] = field(default_factory=list)

    def append(self, rows: NestedArrays, owner: RowOwner) -> None:
        """Append `rows`, nested arrays [n, ...], which all belong to one owner (episode, agent and module)."""
        self.parts.append(rows)
        self.owners.append(owner)

    def __len__(self) -> int:
        return sum(num_rows(part) for part in self.parts)

    def joined(self) -> Any:
        """Return all appended arrays concatenated, as nested arrays [sum of n_i, ...]."""
        return self.parts[0] if len(self.parts) == 1 else nested.map_leaves(_concatenate, nested.transpose(self.parts))

    def row_owners(self) -> list[RowOwner]:
        """Return a list with the owner (ids of episode, agent and module) of each row."""
        pairs = zip(self.parts, self.owners, strict=True)
        return [owner for part, owner in pairs for _ in range(num_rows(part))]

    def with_known_owners(self) -> ColumnParts:
        """Return the column without the rows that were appended without their episode.

        If no episode is known for any row, the column itself is returned.
        """
        pairs = [pair for pair in zip(self.parts, self.owners, strict=True) if pair[1] != RowOwner()]
        return ColumnParts([part for part, _ in pairs], [owner for _, owner in pairs]) if pairs else self

    def with_rows(self, rows: NestedArrays) -> ColumnParts:
        """Return a copy of the column in which the values are replaced by `rows`, nested arrays [sum of n_i, ...]. The
        owners stay.
        """
        ends = np.cumsum([num_rows(part) for part in self.parts]).tolist()
        spans = zip([0, *ends], ends, strict=False)
        return ColumnParts([nested.take(rows, slice(start, end)) for start, end in spans], list(self.owners))


def joined(column: object) -> Any:
    """Return a batch column as nested arrays [B, ...]. A column under construction is concatenated first."""
    return column.joined() if isinstance(column, ColumnParts) else column


def _concatenate(arrays: list[Any]) -> Any:
    return torch.cat(arrays) if isinstance(arrays[0], torch.Tensor) else np.concatenate(arrays)


def as_rows(items: object, num_items: int, column: str) -> Any:
    """Return `items`, which are a list or nested arrays of length `num_items`, as nested arrays [num_items, ...].

    Raises:
        ShapeMismatch: there are not `num_items` items, or an item is nested too deeply or has parts of several shapes.
    """
    check_levels(items, DEEPEST + isinstance(items, list))
    rows = nested.stack(items) if isinstance(items, list) and items else nested.map_leaves(_as_array, items)
    lengths = {len(leaf) if np.ndim(leaf) else None for leaf in nested.leaves(rows)}
    if lengths != {num_items}:
        raise ShapeMismatch(
            f"add_n_batch_items({column!r}, num_items={num_items}): the items' leading axes are "
            f"{sorted(map(str, lengths))}; give a list of that many items, or arrays with that many rows"
        )
    return rows


def as_single_row(item: object) -> Any:
    """Return an item (an array, a number, or a nested dict of them) with a new leading axis, as nested arrays [1,
    ...].

    Raises:
        ShapeMismatch: the item is nested too deeply, or a list in the item has parts of several shapes.
    """
    check_levels(item)
    return nested.map_leaves(lambda leaf: _as_array(leaf)[None], item)


def _as_array(leaf: object) -> Any:
    return leaf if isinstance(leaf, torch.Tensor) else nested.as_array(leaf)


def num_rows(column: NestedArrays) -> int:
    """Return the number of rows of a batch column, which may be nested."""
    return len(column if type(column) is np.ndarray else nested.first_leaf(column))


def rows_of(column: NestedArrays) -> list[Any]:
    """Return a list of the rows of a batch column. Each row has the nested structure of the column."""
    if type(column) is np.ndarray:
        return list(column)
    return [nested.take(column, row) for row in range(num_rows(column))]


def changed_items(columns: list[Any], func: Callable[..., Any]) -> list[Any]:
    """Apply `func(items, eps_id, agent_id, module_id)` to each row of several columns, and return the changed
    columns.

    The argument `items` of `func` has one item per column.
    """
    parts = next((column for column in columns if isinstance(column, ColumnParts)), None)
    rows = list(zip(*[rows_of(joined(column)) for column in columns], strict=True))
    owners = parts.row_owners() if parts is not None else [RowOwner()] * len(rows)
    changed = [func(items, *owner) for items, owner in zip(rows, owners, strict=True)]
    arrays = [nested.stack(items) for items in zip(*changed, strict=True)]
    pairs = zip(columns, arrays, strict=True)
    return [column.with_rows(rows) if isinstance(column, ColumnParts) else rows for column, rows in pairs]
