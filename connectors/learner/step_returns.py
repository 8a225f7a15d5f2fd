"""Inputs of the formulas for returns and advantages: rewards and ending flags of a batch, split into sequences.

A connector that changes "rewards", "terminateds" or "truncateds" affects all later connectors that compute returns. An
ending in the middle of an episode (for example a lost life) splits it into two sequences:

    episode       o0 o1 o2 o3 o4        values  v0 v1 v2 v3 v4
    terminateds    0  1  0  0           sequences     v0 v1 v2 | v2 v3 v4
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
from episodes.tracks.indexing import offsets_of


@dataclass(frozen=True, slots=True)
class StepReturns:
    """Rewards, ending flags and sequence boundaries of the S steps of a batch, as arguments for `gae` and similar
    functions.
    """

    rewards: np.ndarray  # [S]
    terminated: np.ndarray  # bool [m]
    truncated: np.ndarray  # bool [m]
    offsets: np.ndarray  # [m + 1] index of each sequence's first step
    observations: np.ndarray | slice  # [S + m] indices of the sequences' observations among the episodes' observations

    @classmethod
    def of(cls, batch: ColumnDict, pack: EpisodePack) -> StepReturns:
        """Return the arguments for a batch made of the steps of `pack`. Rewards and flags that the batch lacks come
        from the pack.
        """
        rewards = real_steps(batch, Columns.REWARDS)
        rows = pack.step_rows()
        rewards = pack.rewards[rows] if rewards is None else rewards
        offsets = pack.offsets if isinstance(rows, slice) else offsets_of(pack.lengths)
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
        """Return the arguments with a sequence boundary after each step that has an ending flag, and after each
        episode.
        """
        offsets = np.union1d(episodes, np.flatnonzero(terminateds | truncateds) + 1)
        starts, lasts = offsets[:-1], offsets[1:] - 1
        owners = episodes.searchsorted(starts, side="right") - 1  # each episode before has one observation more
        sequences = np.repeat(np.arange(len(starts)), np.diff(offsets) + 1)
        observations = np.arange(len(sequences)) + (owners - np.arange(len(starts)))[sequences]
        return cls(rewards, terminateds[lasts], truncateds[lasts], offsets, observations)


def real_steps(batch: ColumnDict, name: str) -> Any:
    """Return the batch column `name` without padding, one row per step, [S, ...], or None if it is missing."""
    column, mask = batch.get(name), batch.get(Columns.LOSS_MASK)
    if type(column) is not np.ndarray:
        column = joined(column)
    return column if mask is None or column is None else nested.map_leaves(lambda leaf: leaf[mask], column)
