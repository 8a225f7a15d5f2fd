"""The history of observations in a pack."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from episodes.history import History, HistorySpaces, back, zeroed
from episodes.pack.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

__all__ = ["PackHistory"]


class PackHistory(History):
    """Observation rows of a pack: those of a batch, all T + 1 of an episode, those after each step, of padded rows.

    Args:
        rows: [B] int, or a slice of all.
    """

    def __init__(
        self, pack: EpisodePack, rows: np.ndarray | slice, spaces: HistorySpaces, lookback: int | None = None
    ) -> None:
        super().__init__(spaces, lookback)
        self.pack = pack
        self._rows = rows  # as they were given: a slice reads views

    @cached_property
    def rows(self) -> np.ndarray:
        """The rows as an array [B]."""
        if isinstance(self._rows, slice):
            return np.arange(*self._rows.indices(int(self.pack.observation_offsets[-1])))
        return self._rows

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def owners(self) -> np.ndarray:
        """The episode of each row, int [B]."""
        owners = self.pack.row_owners
        return owners[self._rows] if isinstance(self._rows, slice) else owners.take(self._rows)

    @cached_property
    def depth(self) -> np.ndarray:
        return self.rows - self.pack.observation_offsets.take(self.owners)

    @property
    def t(self) -> np.ndarray:
        return (self.pack.t_started - self.pack.lookbacks).take(self.owners) + self.depth

    def newest(self) -> Any:
        return nested.take(self.pack.observations, self._rows)

    def _window_rows(self, k: int) -> np.ndarray:
        """The rows [B, k] of the last k observations; the oldest is repeated."""
        backs = back(k) if self._reaches(k - 1) else np.minimum(back(k), self.depth[:, None])
        return self.rows[:, None] - backs

    def last_observations(self, k: int) -> Any:
        items = nested.take(self.pack.observations, self._window_rows(k))
        return items if self._reaches(k - 1) else zeroed(items, ~self.observed(k))

    def _step_rows(self, k: int) -> np.ndarray:
        """The rows [B, k] of the last k steps; row 0 where there is none."""
        rows = (self.rows - self.owners - 1)[:, None] - back(k)
        return rows if self._reaches(k) else np.where(self.stepped(k), rows, 0)

    def last_steps(self, track: str, k: int) -> Any:
        pack = self.pack
        column = {"actions": pack.actions, "rewards": pack.rewards}.get(track, pack.extra_model_outputs.get(track))
        if column is None or not len(pack.rewards):
            return None
        items = nested.take(column, self._step_rows(k))
        return items if self._reaches(k) else zeroed(items, ~self.stepped(k))

    def flat_actions(self, k: int) -> np.ndarray:
        """As `History.flat_actions`; where windows overlap, each action of the pack is flattened once."""
        pack = self.pack
        if len(self) * k <= len(pack.rewards) or not len(pack.rewards):
            return super().flat_actions(k)
        self._check(f"flat_actions({k})", k)
        flat = self.spaces.flat_actions(pack.actions).take(self._step_rows(k), axis=0)
        return flat if self._reaches(k) else zeroed(flat, ~self.stepped(k))

    def window(self, k: int) -> PackHistory:
        return PackHistory(self.pack, self._window_rows(k).ravel(), self.spaces, self._left(k))

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
        """The chunk of row i up to its observation: views of the pack."""
        owner = int(self.owners[i])
        return self.pack[owner][: int(self.depth[i] - self.pack.lookbacks[owner])]
