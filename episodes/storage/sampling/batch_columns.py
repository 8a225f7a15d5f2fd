"""The columns of batches, under the names and of the kinds that draws from a replay buffer have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from episodes.columns import Columns
from episodes.errors import UnknownKey, WrongType
from episodes.storage.sampling.draws import Draw, StepDraw, WindowDraw
from episodes.storage.sampling.n_step import as_sums
from episodes.storage.sampling.stored_tracks import StoredTracks
from episodes.tracks import nested

TRANSITION_KEYS = (
    Columns.OBS,
    Columns.NEXT_OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
)
INDICES = "indices"
_FACTS = {Columns.EPS_ID: "ids", Columns.AGENT_ID: "agent_ids", Columns.MODULE_ID: "module_ids"}
_OF_STEPS = (Columns.T, Columns.IS_FIRST)
_ALWAYS = (Columns.N_STEP, Columns.WEIGHTS, Columns.LOSS_MASK, Columns.SEQ_LENS, Columns.STATE_IN, INDICES)


def checked_keys(tracks: StoredTracks, keys: Sequence[str] | None) -> Sequence[str]:
    """The names of the columns to draw. `UnknownKey` for one that there is not."""
    if keys is None:
        return TRANSITION_KEYS
    if isinstance(keys, str):
        raise WrongType(f"keys={keys!r}: give a list of column names")
    known = (*TRANSITION_KEYS, *_OF_STEPS, *_FACTS, *tracks.extra)
    for key in keys:
        if key in _ALWAYS and key not in tracks.extra:
            raise UnknownKey(f"the column {key!r} always comes; leave it out of keys")
        if key not in known:
            raise UnknownKey(f"no column {key!r} to draw; there are {[*known]}")
    return keys


def columns_of(
    draw: Draw, keys: Sequence[str], known: Mapping[str, np.ndarray] = MappingProxyType({})
) -> dict[str, Any]:
    """The columns of these names; those that are `known` are taken from there."""
    columns = dict(known)
    if Columns.TERMINATEDS in keys or Columns.TRUNCATEDS in keys:
        terminated, truncated = draw.endings()
        columns |= {Columns.TERMINATEDS: terminated, Columns.TRUNCATEDS: truncated}
    return {key: columns[key] if key in columns else _column(draw, key) for key in keys}


def _column(draw: Draw, key: str) -> Any:
    tracks = draw.tracks
    if key == Columns.REWARDS:
        return as_sums(draw.items(tracks.structure[key]))
    if key in tracks.structure:
        return nested.map_leaves(draw.items, tracks.structure[key])
    if key == Columns.OBS:
        return nested.map_leaves(draw.items, tracks.structure["observations"])
    if key == Columns.NEXT_OBS:
        return nested.map_leaves(partial(draw.items, after=True), tracks.structure["observations"])
    if key == Columns.T:
        return draw.times()
    if key == Columns.IS_FIRST:
        return draw.is_first()
    found = draw.of_episodes(tracks.facts(_FACTS[key]))
    if key == Columns.EPS_ID:
        return np.array([id_ or "" for id_ in found.ravel().tolist()]).reshape(found.shape)
    return found


def states_before(draw: WindowDraw, burn_in: int) -> Any:
    """The recurrent states [B, ...] that the steps `burn_in` before the drawn ones were made from.

    Zeros where there is none: the chunk begins there, or later.
    """
    there = draw.before > burn_in
    steps = StepDraw(draw.tracks, draw.numbers[there], draw.episodes[there])

    def states(place: int) -> np.ndarray:
        column = draw.tracks.columns[place]
        found = np.zeros((len(there), *column.shape), column.dtype)
        found[there] = steps.at(place, steps.numbers - burn_in - 1)
        return found

    return nested.map_leaves(states, draw.tracks.structure[Columns.STATE_OUT])
