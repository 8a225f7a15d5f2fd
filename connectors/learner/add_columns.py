"""Actions, rewards, endings, and what the policy said when it acted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import all_in_batch_form
from episodes.columns import Columns
from episodes.errors import UnknownKey
from episodes.facts.ending import flags_of
from episodes.pack import EpisodePack
from episodes.tracks import nested
from episodes.tracks.validation import checked_items

__all__ = ["AddColumns"]

_STEP_COLUMNS = (Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
_POLICY_COLUMNS = (Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP, Columns.VF_PREDS)
_STATES = frozenset((Columns.STATE_IN, Columns.STATE_OUT))  # a matter of AddStates


class AddColumns(Connector):
    """Adds "actions", "rewards", "terminateds", "truncateds" [B, ...] and the extra model outputs [B, ...].

    Without a lookback the tracks are the columns: nothing is copied. Endings are set at each episode's last step, and
    nowhere for a cut one. Columns that are there are left.

    Args:
        extra_model_outputs: which ones; by default all that the episodes have, but for recurrent states.

    Raises:
        UnknownKey: the episodes lack an output that is asked for.
    """

    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        extra_model_outputs: Iterable[str] | None = None,
        name: str | None = None,
    ) -> None:
        self._extra = None
        if extra_model_outputs is not None:
            self._extra = tuple(checked_items("extra_model_outputs", extra_model_outputs, "their names"))
        self.writes = (*_STEP_COLUMNS, *(_POLICY_COLUMNS if self._extra is None else self._extra))
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(self, *, batch: ColumnDict, episodes: EpisodePack, **kwargs: Any) -> ColumnDict:
        tracks = {Columns.ACTIONS: episodes.actions, Columns.REWARDS: episodes.rewards, **self._chosen(episodes)}
        rows = episodes.step_rows()
        if not isinstance(rows, slice):
            tracks = {name: nested.take(track, rows) for name, track in tracks.items()}
        columns = {**tracks, **ending_columns(episodes)}
        for name in batch.keys() & columns.keys():
            del columns[name]
        batch |= all_in_batch_form(columns, batch, episodes)
        return batch

    def _chosen(self, pack: EpisodePack) -> dict[str, Any]:
        there = pack.extra_model_outputs
        if self._extra is None:
            return {key: track for key, track in there.items() if key not in _STATES}
        missing = [key for key in self._extra if key not in there]
        if missing:
            raise UnknownKey(
                f"{self.name}: the episodes have no extra model output {missing[0]!r}; they have {list(there)}"
            )
        return {key: there[key] for key in self._extra}


def ending_columns(pack: EpisodePack) -> dict[str, np.ndarray]:
    """Flags [num_steps] of each kind of ending: set at an episode's last step, and nowhere for a cut one."""
    some = pack.lengths.nonzero()  # an episode without steps has no last one
    codes = np.zeros(pack.num_steps, np.uint8)
    codes[pack.lengths.cumsum()[some] - 1] = pack.facts.endings[some]
    terminated, truncated = flags_of(codes)
    return {Columns.TERMINATEDS: terminated, Columns.TRUNCATEDS: truncated}
