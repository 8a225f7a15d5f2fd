"""Connector that adds the recurrent state before each sequence of a train batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import sequences_of
from connectors.policy import module_of
from connectors.sequences import Sequences
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.tracks import nested

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = ["AddStates"]


class AddStates(Connector):
    """Connector that adds "state_in" [R, ...], the recurrent state before the first step of each of R sequences.

    It is the "state_out" of the previous step, which may be in the lookback, or the initial state at the start of an
    episode. If no states were recorded, it is the initial state for all rows. It adds nothing for a policy that is not
    recurrent.

    Raises:
        InvalidArgument: a chunk starts in the middle of an episode and has no lookback.
    """

    reads = (Columns.LOSS_MASK,)
    writes = (Columns.STATE_IN,)
    reads_tracks = True

    def __call__(
        self, *, rl_module: Policy | None = None, batch: ColumnDict, episodes: EpisodePack, **kwargs: object
    ) -> ColumnDict:
        sequences = sequences_of(batch, episodes)
        initial = module_of(rl_module).initial_state()
        if Columns.STATE_IN not in batch and sequences is not None and initial:
            batch[Columns.STATE_IN] = starting_states(sequences, episodes, initial)
        return batch


def starting_states(sequences: Sequences, pack: EpisodePack, initial: NestedArrays) -> Any:
    """Return the recurrent state before each of R sequences, [R, ...]: the recorded state, or `initial` at the start of
    an episode.
    """
    initial = nested.map_leaves(np.asarray, initial)
    recorded = pack.extra_model_outputs.get(Columns.STATE_OUT)
    num_rows = len(sequences)
    if recorded is None or not len(pack.rewards):
        return nested.map_leaves(lambda leaf: np.repeat(leaf[None], num_rows, axis=0), initial)
    lookbacks = pack.lookbacks[sequences.episodes]
    known = sequences.starts + lookbacks > 0
    _check_known(sequences, pack, known)
    before = np.where(known, pack.offsets[sequences.episodes] + lookbacks + sequences.starts - 1, 0)
    states = nested.take(recorded, before)
    if known.all():
        return states
    firsts = np.flatnonzero(~known)
    return nested.map_leaves(lambda state, first: _with_first(state, firsts, first), states, initial)


def _with_first(states: np.ndarray, rows: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the states [R, ...] in which the rows `rows` are replaced by the state `first`. The array may be changed
    in place.
    """
    states = states.astype(np.result_type(states, first), copy=False)
    states[rows] = first
    return states


def _check_known(sequences: Sequences, pack: EpisodePack, known: np.ndarray) -> None:
    """Raise `InvalidArgument` if the state before a sequence is not known, because its chunk has no lookback."""
    lost = np.flatnonzero(~known & (pack.t_started[sequences.episodes] > 0))
    if len(lost):
        i = int(sequences.episodes[lost[0]])
        raise InvalidArgument(
            f"AddStates: the chunk of episode {pack.ids[i]} that starts at t={pack.t_started[i]} has no lookback, so "
            "the state before it is not known; sample with len_lookback_buffer=1 or more"
        )
