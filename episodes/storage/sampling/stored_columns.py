"""Columns of batches that are sampled from disk, with the same names and dtypes as in replay buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from episodes.batch.sampling_checks import INFO_COLUMNS
from episodes.columns import Columns
from episodes.history import BoundViews
from episodes.storage.sampling.draws import Draw, StepDraw, WindowDraw
from episodes.storage.sampling.infos import StoredInfos
from episodes.storage.sampling.n_step import as_summable
from episodes.storage.sampling.step_index import LocatedSteps
from episodes.storage.sampling.stored_history import StoredHistory
from episodes.tracks import nested
from episodes.tracks.infos.dicts import as_object_array

_FACTS = {Columns.EPS_ID: "ids", Columns.AGENT_ID: "agent_ids", Columns.MODULE_ID: "module_ids"}


def columns_of(
    draw: Draw,
    keys: Sequence[str],
    known: Mapping[str, np.ndarray] = MappingProxyType({}),
    views: BoundViews | None = None,
) -> dict[str, Any]:
    """Return the columns `keys` of a batch of sampled steps or windows, as a dict of arrays.

    Args:
        draw: the sampled steps or windows. `draw.endings()` gives the columns "terminateds" and "truncateds".
        keys: names of the columns.
        known: other columns that need not be computed, such as n-step rewards.
        views: functions that compute the policy's columns. They replace "obs" and "new_obs".
    """
    view_columns = {} if views is None else _view_columns(draw, keys, views)
    names = keys if views is None else [key for key in keys if key not in (Columns.OBS, Columns.NEXT_OBS)]
    computed = dict(known)
    if Columns.TERMINATEDS in keys or Columns.TRUNCATEDS in keys:
        computed[Columns.TERMINATEDS], computed[Columns.TRUNCATEDS] = draw.endings()
    columns = {key: computed[key] if key in computed else _column(draw, key) for key in names}
    if INFO_COLUMNS in columns:
        columns[Columns.INFOS] = columns.pop(INFO_COLUMNS)
    return {**columns, **view_columns}


def _view_columns(draw: Draw, keys: Sequence[str], views: BoundViews) -> dict[str, Any]:
    """Return the columns that the views compute at the sampled observations and, as "new_<column>", at the next
    observations.

    Columns at the sampled observations are computed only if `keys` has `obs`, and columns at the next observations only
    if it has `new_obs`.
    """
    steps, last, episodes = draw.places()
    none = steps[:0]
    before, after = (steps if Columns.OBS in keys else none), (last + 1 if Columns.NEXT_OBS in keys else none)
    if not len(before) + len(after):
        return {}
    owners = np.concatenate([episodes[: len(before)], episodes[: len(after)]])
    numbers = np.concatenate([before, after])
    columns = views(StoredHistory(draw.tracks, numbers, owners, views.given, views.lookback))
    parts = {"": (0, len(before)), "new_": (len(before), len(numbers))}
    return {
        f"{prefix}{name}": nested.map_leaves(lambda leaf, part=part: draw.arrange(leaf[slice(*part)]), column)
        for prefix, part in parts.items()
        if part[0] < part[1]
        for name, column in columns.items()
    }


def _column(draw: Draw, key: str) -> Any:
    """Return the batch column `key`, such as "rewards", for the sampled steps or windows `draw`."""
    tracks = draw.tracks
    if key in tracks.plain:
        place, after = tracks.plain[key]
        return draw.items(place, after=after)
    if key == Columns.REWARDS:
        return as_summable(draw.items(tracks.structure[key]))
    if key in tracks.structure:
        return nested.map_leaves(draw.items, tracks.structure[key])
    if key == Columns.NEXT_OBS:
        return nested.map_leaves(partial(draw.items, after=True), tracks.structure[Columns.OBS])
    if key == Columns.POLICY_VERSION:
        return tracks.versions_at(draw.step_indices())
    if key == Columns.T:
        return draw.times()
    if key == Columns.IS_FIRST:
        return draw.is_first()
    if key in (Columns.INFOS, INFO_COLUMNS):
        return _infos(draw, key == Columns.INFOS)
    values = draw.of_episodes(tracks.facts(_FACTS[key]))
    if key == Columns.EPS_ID:
        return np.array([id_ or "" for id_ in values.ravel().tolist()]).reshape(values.shape)
    return values


def _infos(draw: Draw, as_dicts: bool) -> Any:
    """Return the infos that were returned with the next observations, as dicts [n] or as a
    dict of columns by key path."""
    _, last, episodes = draw.places()
    infos = StoredInfos.of(draw.tracks)
    if not as_dicts:
        return {path: draw.arrange(values) for path, values in infos.columns(last + 1, episodes).items()}
    result = draw.arrange(as_object_array(infos.dicts(last + 1, episodes)))
    flat = result.reshape(-1)
    flat[:] = [{} if info is None else info for info in flat.tolist()]
    return result


def states_before(draw: WindowDraw, burn_in: int) -> Any:
    """Return the recurrent state of the policy, [B, ...], before the first burn-in step of each window.
    It is 0 if no earlier step is stored."""
    has_state = draw.before > burn_in
    numbers, indices = draw.numbers[has_state], draw.steps.indices[has_state]
    steps = StepDraw(draw.tracks, LocatedSteps(draw.tracks.table, numbers, draw.episodes[has_state], indices))

    def states(place: int) -> np.ndarray:
        """Return the stored state before each window, zeros if no state is stored."""
        column = draw.tracks.columns[place]
        result = np.zeros((len(has_state), *column.shape), column.dtype)
        result[has_state] = steps.at(place, steps.numbers - burn_in - 1)
        return result

    return nested.map_leaves(states, draw.tracks.structure[Columns.STATE_OUT])
