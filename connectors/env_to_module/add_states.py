"""Connector that adds the recurrent state of each episode, while acting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from connectors.connector import ColumnDict, Connector
from connectors.env_to_module.recent import recent
from connectors.policy import module_of
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.tracks import nested

if TYPE_CHECKING:
    from connectors.policy import Policy
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["AddStates"]


class AddStates(Connector):
    """Connector that adds "state_in" [N, ...], each episode's newest recurrent state, or the initial state at its
    start.

    It adds nothing for a policy that is not recurrent.
    """

    writes = (Columns.STATE_IN,)
    reads_tracks = True
    lookback = 1

    def __call__(
        self,
        *,
        rl_module: Policy | None = None,
        batch: ColumnDict,
        episodes: Sequence[SingleAgentEpisode] = (),
        **kwargs: object,
    ) -> ColumnDict:
        initial = {} if Columns.STATE_IN in batch else module_of(rl_module).initial_state()
        if initial:
            batch[Columns.STATE_IN] = _newest_states(episodes, initial)
        return batch


def _newest_states(episodes: Sequence[SingleAgentEpisode], initial: NestedArrays) -> Any:
    """Return the newest "state_out" of each episode, [N, ...], with `initial` for episodes without steps."""
    rows, valid = recent(episodes, Columns.STATE_OUT, 1)
    going_on = valid[0]
    if rows is not None and going_on.all():
        return nested.map_leaves(lambda leaf: leaf[0].copy(), rows)  # a policy that writes to it changes no record
    initial = nested.map_leaves(np.asarray, initial)
    if rows is None:
        return nested.map_leaves(lambda leaf: np.repeat(leaf[None], len(going_on), axis=0), initial)

    def either(states: np.ndarray, first: np.ndarray) -> np.ndarray:
        return np.where(going_on.reshape(-1, *(1,) * first.ndim), states, first)

    return nested.map_leaves(either, nested.take(rows, 0), initial)
