"""Connector that adds actions, rewards, endings and recorded outputs of the policy."""

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
_STATES = frozenset((Columns.STATE_IN, Columns.STATE_OUT))  # AddStates adds them


class AddColumns(Connector):
    """Connector that adds "actions", "rewards", "terminateds", "truncateds" and the recorded policy outputs, [B, ...]
    each.

    Without lookbacks the columns are the tracks, without a copy. The ending flags are set at the last step of each
    episode, and nowhere for a chunk that was cut. Existing columns are kept.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        extra_model_outputs: names of the outputs to add; by default all except recurrent states.
        name: name of the connector in its pipeline.

    Raises:
        UnknownKey: the episodes lack one of the outputs.
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

    def __call__(self, *, batch: ColumnDict, episodes: EpisodePack, **kwargs: object) -> ColumnDict:
        tracks = {Columns.ACTIONS: episodes.actions, Columns.REWARDS: episodes.rewards, **self._chosen(episodes)}
        rows = episodes.step_rows()
        if not isinstance(rows, slice):
            tracks = nested.take(tracks, rows)
        columns = {**tracks, **ending_columns(episodes)}
        for name in batch.keys() & columns.keys():
            del columns[name]
        batch |= all_in_batch_form(columns, batch, episodes)
        return batch

    def _chosen(self, pack: EpisodePack) -> dict[str, Any]:
        """Return the recorded policy outputs to add, by name. Raise `UnknownKey` if one of them was not recorded."""
        outputs = pack.extra_model_outputs
        if self._extra is None:
            return {key: track for key, track in outputs.items() if key not in _STATES}
        missing = [key for key in self._extra if key not in outputs]
        if missing:
            raise UnknownKey(
                f"{self.name}: the episodes have no extra model output {missing[0]!r}; they have {list(outputs)}"
            )
        return {key: outputs[key] for key in self._extra}


def ending_columns(pack: EpisodePack) -> dict[str, np.ndarray]:
    """Return the flags "terminateds" and "truncateds", bool [num_steps] each. They are True only at the last step of an
    episode.
    """
    some = pack.lengths.nonzero()  # an episode without steps has no last one
    codes = np.zeros(pack.num_steps, np.uint8)
    codes[pack.lengths.cumsum()[some] - 1] = pack.facts.endings[some]
    terminated, truncated = flags_of(codes)
    return {Columns.TERMINATEDS: terminated, Columns.TRUNCATEDS: truncated}
