"""What returns and advantages are computed from: the batch's own rewards and endings, step after step.

A piece that changes "rewards", "terminateds" or "truncateds" has its effect on every piece of returns after it. An
ending that such a piece sets in the middle of an episode (a life that is lost, say) ends what is computed there:

    episode       o0 o1 o2 o3 o4        values  v0 v1 v2 v3 v4
    terminateds    0  1  0  0                         as two: v0 v1 v2 | v2 v3 v4
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from connectors.column_parts import joined
from connectors.connector import ColumnDict
from episodes.columns import Columns
from episodes.pack import EpisodePack
from episodes.tracks import nested


@dataclass(frozen=True, slots=True)
class StepReturns:
    """The real steps of a batch as the arguments of `episodes.returns`, m sequences one after another."""

    rewards: np.ndarray  # [S]
    terminated: np.ndarray  # bool [m]
    truncated: np.ndarray  # bool [m]
    offsets: np.ndarray  # [m + 1] where each sequence's steps begin
    observations: np.ndarray | slice  # [S + m] which of the episodes' T + 1 observations each belongs to

    @classmethod
    def of(cls, batch: ColumnDict, pack: EpisodePack) -> StepReturns:
        """Those of a batch of the pack's steps; what the batch does not have is the pack's."""
        rewards = real_steps(batch, Columns.REWARDS)
        rows = pack.step_rows()
        rewards = pack.rewards[rows] if rewards is None else rewards
        offsets = pack.offsets if isinstance(rows, slice) else np.concatenate([[0], np.cumsum(pack.lengths)])
        if not len(rewards) or Columns.TERMINATEDS not in batch or Columns.TRUNCATEDS not in batch:
            return cls(rewards, pack.terminated, pack.truncated, offsets, slice(None))
        terminateds = np.asarray(real_steps(batch, Columns.TERMINATEDS), bool)
        truncateds = np.asarray(real_steps(batch, Columns.TRUNCATEDS), bool)
        lasts = offsets[1:] - 1
        terminated, truncated = terminateds[lasts], truncateds[lasts]
        if pack.lengths.min() == 0:  # those have no last step
            terminated, truncated = terminated & (pack.lengths > 0), truncated & (pack.lengths > 0)
        if np.count_nonzero(terminateds | truncateds) > np.count_nonzero(terminated | truncated):
            return cls._split(rewards, terminateds, truncateds, offsets)
        return cls(rewards, terminated, truncated, offsets, slice(None))

    @classmethod
    def _split(
        cls, rewards: np.ndarray, terminateds: np.ndarray, truncateds: np.ndarray, episodes: np.ndarray
    ) -> StepReturns:
        """Sequences that end with their episode [n + 1 offsets] or at a step that ends; none is empty."""
        offsets = np.union1d(episodes, np.flatnonzero(terminateds | truncateds) + 1)
        starts, lasts = offsets[:-1], offsets[1:] - 1
        owners = episodes.searchsorted(starts, side="right") - 1  # each episode before has one observation more
        sequences = np.repeat(np.arange(len(starts)), np.diff(offsets) + 1)
        observations = np.arange(len(sequences)) + (owners - np.arange(len(starts)))[sequences]
        return cls(rewards, terminateds[lasts], truncateds[lasts], offsets, observations)


def real_steps(batch: ColumnDict, name: str) -> Any:
    """A column of the batch as real steps [S, ...], without the padding of its rows; None where there is none."""
    column, mask = joined(batch.get(name)), batch.get(Columns.LOSS_MASK)
    return column if mask is None or column is None else nested.map_leaves(lambda leaf: leaf[mask], column)
