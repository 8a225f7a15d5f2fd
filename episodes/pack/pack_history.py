"""`PackHistory`: selected observations of a pack and their preceding steps, as input of connectors."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.history import History, HistorySpaces, back
from episodes.pack.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.data_types import NestedArrays

__all__ = ["PackHistory"]


class PackHistory(History):
    """Batch of B selected observations of a pack and of their preceding steps, read by connectors.

    Args:
        pack: the pack.
        rows: rows of its observations, int [B], or a slice.
        spaces: spaces of the observations and actions.
        lookback: see `History`.
    """

    def __init__(
        self, pack: EpisodePack, rows: np.ndarray | slice, spaces: HistorySpaces, lookback: int | None = None
    ) -> None:
        super().__init__(spaces, lookback)
        self.pack = pack
        self._rows = rows  # a slice reads views

    @cached_property
    def rows(self) -> np.ndarray:
        """Position of each selected observation in the pack's observations, int [B]."""
        if isinstance(self._rows, slice):
            return np.arange(*self._rows.indices(int(self.pack.observation_offsets[-1])))
        return self._rows

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def owners(self) -> np.ndarray:
        """For each selected observation, the index of its episode in the pack, int [B]."""
        owners = self.pack.row_owners
        return owners[self._rows] if isinstance(self._rows, slice) else owners.take(self._rows)

    @cached_property
    def depth(self) -> np.ndarray:
        depths = self.pack.row_depths
        return depths[self._rows] if isinstance(self._rows, slice) else depths.take(self._rows)

    @property
    def t(self) -> np.ndarray:
        return (self.pack.t_started - self.pack.lookbacks).take(self.owners) + self.depth

    def newest(self) -> Any:
        return nested.take(self.pack.observations, self._rows)

    def last_observations(self, k: int) -> Any:
        return _windows(self.pack.observations, self.rows, self.depth + 1, k)

    def last_steps(self, track: str, k: int) -> Any:
        pack = self.pack
        column = {"actions": pack.actions, "rewards": pack.rewards}.get(track, pack.extra_model_outputs.get(track))
        return None if column is None or not len(pack.rewards) else self._steps(column, k)

    def _steps(self, column: NestedArrays, k: int) -> Any:
        return _windows(column, self.rows - self.owners - 1, self.depth, k)

    def flat_actions(self, k: int) -> np.ndarray:
        """Return the last `k` actions before each selected observation as flat vectors, float32 [B, k, D]."""
        pack = self.pack
        if len(self) * k <= len(pack.rewards) or not len(pack.rewards):
            return super().flat_actions(k)
        self._check("flat_actions", k, k)
        return self._steps(self.spaces.flat_actions(pack.actions), k)

    def window(self, k: int) -> PackHistory:
        rows = self.rows[:, None] - np.minimum(back(k), self.depth[:, None])
        return PackHistory(self.pack, rows.ravel(), self.spaces, self._left(k))

    @property
    def infos(self) -> list[dict[str, Any]]:
        return [self.pack.infos[row] for row in self.rows.tolist()]

    @property
    def agent_ids(self) -> np.ndarray:
        return super().agent_ids if self.pack.agent_ids is None else self.pack.agent_ids.take(self.owners)

    @property
    def module_ids(self) -> np.ndarray:
        return super().module_ids if self.pack.module_ids is None else self.pack.module_ids.take(self.owners)

    def episode(self, i: int) -> SingleAgentEpisode:
        """Return the episode of batch row `i`, without the steps after the row's observation. No arrays are copied."""
        owner = int(self.owners[i])
        return self.pack[owner][: int(self.depth[i] - self.pack.lookbacks[owner])]


def _windows(column: NestedArrays, newest: np.ndarray, num_items: np.ndarray, k: int) -> Any:
    """Return the `k` items of `column` that end at each index in `newest` [B], as [B, k, ...].

    Items before the start of an episode are zeros.

    Args:
        num_items: number of items [B] up to each row that belong to its episode.
    """
    rows = newest[:, None] - back(k)
    young = num_items < k
    if not np.count_nonzero(young):
        return nested.take(column, rows)
    missing = _missing(num_items, young, k)

    def window(leaf: np.ndarray) -> np.ndarray:
        """Return the windows of one array, with zeros before the first item of an episode."""
        items = leaf.take(rows, axis=0, mode="clip")  # rows before row 0 read row 0, and are set to zero below
        items[missing] = np.zeros((), leaf.dtype)
        return items

    return nested.map_leaves(window, column)


_FEW = 1024  # items of all windows; below, a mask is twice as fast as indices


def _missing(num_items: np.ndarray, young: np.ndarray, k: int) -> Any:
    """Return an index (a mask, or rows and columns) of the window items [B, k] before the start of their episode."""
    if len(num_items) * k <= _FEW:
        return num_items[:, None] <= back(k)
    windows = young.nonzero()[0]  # few, mostly: a mask of all places would cost as much as the gather
    rows_of_windows, missing = (num_items[windows, None] <= back(k)).nonzero()
    return windows[rows_of_windows], missing
