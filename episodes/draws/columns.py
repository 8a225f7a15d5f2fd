"""Columns of batches of sampled steps, the same for replay buffers and data sets on disk.

A new column of samples is one line in `DERIVED`, which says to which step of an n-step transition it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from episodes.batch.sampling_checks import INDICES
from episodes.columns import TRANSITION_KEYS, Columns
from episodes.draws.draw import Draw, Step, StepsDraw, WindowsDraw
from episodes.draws.n_step import n_step_sums
from episodes.errors import InvalidArgument, UnknownKey, WrongType
from episodes.facts.policy_versions import UNKNOWN
from episodes.history import BoundViews
from episodes.tracks import nested
from episodes.tracks.filling import ones

INFO_COLUMNS = "infos/columns"
"""Key for the infos as separate columns instead of the column "infos"."""
OBSERVED = (Columns.OBS, Columns.NEXT_OBS)
_ALWAYS = (Columns.N_STEP, Columns.WEIGHTS, Columns.LOSS_MASK, Columns.SEQ_LENS, Columns.STATE_IN, INDICES)


def _eps_ids(draw: Draw) -> np.ndarray:
    """Return the ids of the steps' episodes as strings. Padding gets ""."""
    ids = draw.facts(Columns.EPS_ID)
    return np.array([id_ or "" for id_ in ids.ravel().tolist()], str).reshape(ids.shape)


class Derived(NamedTuple):
    """A column that is computed from a draw.

    Attributes:
        step: to which step of an n-step transition it belongs.
        read: computes it from a draw of these steps.
        padding: its value where a row has no step. None: 0, "", None or {}.
    """

    step: Step
    read: Callable[[Draw], Any]
    padding: int | None = None


DERIVED = {
    Columns.INFOS: Derived(Step.LAST, lambda draw: draw.infos()),
    Columns.T: Derived(Step.SAMPLED, lambda draw: draw.times()),
    Columns.POLICY_VERSION: Derived(Step.SAMPLED, lambda draw: draw.versions(), padding=UNKNOWN),
    Columns.IS_FIRST: Derived(Step.SAMPLED, lambda draw: draw.is_first()),
    Columns.EPS_ID: Derived(Step.SAMPLED, _eps_ids),
    Columns.AGENT_ID: Derived(Step.SAMPLED, lambda draw: draw.facts(Columns.AGENT_ID)),
    Columns.MODULE_ID: Derived(Step.SAMPLED, lambda draw: draw.facts(Columns.MODULE_ID)),
}
"""Columns that can be sampled in addition to stored ones, by name."""


def columns_of(draw: Draw, keys: Sequence[str], views: BoundViews | None = None) -> dict[str, Any]:
    """Return the columns `keys` of a batch of sampled steps.

    Args:
        draw: the sampled steps.
        keys: names of the columns.
        views: functions that compute the policy's columns. They replace "obs" and "new_obs".
    """
    if views is not None:
        viewed = _view_columns(draw, keys, views)
        return columns_of(draw, [key for key in keys if key not in OBSERVED]) | viewed
    columns = draw.stored(keys)
    if len(columns) < len(keys):
        sampled, last = draw.single_steps()
        for key in keys:
            if key == INFO_COLUMNS:
                columns[Columns.INFOS] = last.info_columns()
            elif key not in columns:
                derived = DERIVED[key]
                columns[key] = derived.read(last if derived.step is Step.LAST else sampled)
    return columns


def _view_columns(draw: Draw, keys: Sequence[str], views: BoundViews) -> dict[str, Any]:
    """Return the columns that the views compute at the observations before the steps and, as "new_<column>", after the
    last steps.

    Columns before the steps are computed only if `keys` has "obs", and columns after them only if it has "new_obs".
    """
    before, after = Columns.OBS in keys, Columns.NEXT_OBS in keys
    if not before and not after:
        return {}
    history, half = draw.history(before, after, views.given, views.lookback)
    columns = views(history)
    result = {}
    for prefix, is_read, part in (("", before, slice(0, half)), ("new_", after, slice(half, len(history)))):
        if is_read:
            for name, column in columns.items():
                result[prefix + name] = nested.map_leaves(lambda leaf, part=part: draw.arrange(leaf[part]), column)
    return result


def transition_columns(
    draw: StepsDraw, keys: Sequence[str], n_step: int | np.ndarray, gamma: float, views: BoundViews | None
) -> dict[str, Any]:
    """Return the columns of a batch of n-step transitions, without weights and indices.

    Args:
        draw: the sampled steps, [n]. Its `last` is set to the last steps of the transitions.
        keys: names of the columns.
        n_step: number of steps: one int, or int [n].
        gamma: discount factor.
        views: functions that compute the policy's columns.
    """
    if type(n_step) is int and n_step == 1:
        columns = columns_of(draw, keys, views)
        columns[Columns.N_STEP] = ones(len(draw.slots), np.int32)
        return columns
    draw.last, sums, counts = n_step_sums(draw, n_step, gamma)
    others = [key for key in keys if key != Columns.REWARDS]
    columns = columns_of(draw, others, views)
    if len(others) < len(keys):
        columns.setdefault(Columns.REWARDS, sums)
    columns[Columns.N_STEP] = counts
    return columns


def window_columns(
    draw: WindowsDraw, keys: Sequence[str], views: BoundViews | None, lookback: int, has_states: bool
) -> dict[str, Any]:
    """Return the columns of a batch of windows, without weights and indices.

    Args:
        draw: the windows, [B, W].
        keys: names of the columns.
        views: functions that compute the policy's columns.
        lookback: number of columns before those that warm up a recurrent state.
        has_states: whether "state_out" is stored, so that there is a column "state_in".
    """
    columns = columns_of(draw, keys, views)
    layout = draw.layout
    columns[Columns.LOSS_MASK] = layout.learned()
    columns[Columns.SEQ_LENS] = layout.stops - lookback if lookback else layout.stops
    columns[Columns.IS_FIRST] = draw.is_first()
    if has_states:
        states = draw.history_at(lookback).last_steps(Columns.STATE_OUT, 1)
        columns[Columns.STATE_IN] = nested.map_leaves(lambda leaf: leaf[:, 0], states)
    return columns


def blank(column: Any, mask: np.ndarray) -> None:
    """Set the items where `mask` [...] is True to zero, None (objects) or "" (strings), in place."""
    for leaf in nested.leaves(column):
        leaf[mask] = None if leaf.dtype == object else np.zeros((), leaf.dtype)


# --- names ---------------------------------------------------------------------------------------------------------


def checked_keys(keys: Sequence[str] | None, include_infos: bool | str, tracks: Collection[str]) -> Sequence[str]:
    """Return the names of the columns to sample: `keys`, or by default the transition columns, and the infos if
    requested.

    Args:
        tracks: names of the stored extra model outputs, which can be columns.

    Raises:
        UnknownKey: there is no such column, or every batch has it anyway, such as "weights".
        WrongType: `keys` is not a collection of names, for example a single str.
        InvalidArgument: `include_infos` is neither a bool nor "columns".
    """
    if not isinstance(include_infos, bool) and not (isinstance(include_infos, str) and include_infos == "columns"):
        raise InvalidArgument(f"include_infos={include_infos!r}: give True for dicts, or 'columns'")
    if keys is None:
        keys = TRANSITION_KEYS
    else:
        _check_keys(keys, tracks)
    if include_infos == "columns":
        return (*(key for key in keys if key != Columns.INFOS), INFO_COLUMNS)
    return (*keys, Columns.INFOS) if include_infos and Columns.INFOS not in keys else keys


def _check_keys(keys: Any, tracks: Collection[str]) -> None:
    """Raise an error unless `keys` are names of columns that can be sampled. `checked_keys` describes the arguments."""
    if not isinstance(keys, Collection) or isinstance(keys, (str, bytes)) or not all(type(k) is str for k in keys):
        raise WrongType(f"keys={keys!r}: give a list of column names")
    known = (*TRANSITION_KEYS, *DERIVED)
    for key in keys:
        if key not in known and key not in tracks:
            if key in _ALWAYS:
                raise UnknownKey(f"the column {key!r} always comes; leave it out of keys")
            raise UnknownKey(f"no column {key!r} to draw; there are {list(dict.fromkeys((*known, *tracks)))}")
