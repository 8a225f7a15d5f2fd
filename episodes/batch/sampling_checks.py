"""Whether what draws are asked for makes sense, and errors that say what does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from episodes.columns import TRANSITION_KEYS, Columns
from episodes.errors import InvalidArgument, UnknownKey, WrongType

INDICES = "indices"
INFO_COLUMNS = "infos/columns"
"""Asks for the column "infos", as columns of its own."""
_WITH_INFO_COLUMNS = (*TRANSITION_KEYS, INFO_COLUMNS)
_ALWAYS = (Columns.N_STEP, Columns.WEIGHTS, Columns.LOSS_MASK, Columns.SEQ_LENS, Columns.STATE_IN, INDICES)


def check_counts(least: int = 1, **counts: Any) -> None:
    """Raise `InvalidArgument` unless these are ints, and large enough."""
    are_ints = all(map(is_int, counts.values()))
    if not are_ints or min(counts.values()) < least:
        given = ", ".join(f"{name}={count!r}" for name, count in counts.items())
        raise InvalidArgument(f"{given}: give " + (f"at least {least}" if are_ints else "an int for each"))


def check_n_step(n_step: Any) -> None:
    """Raise `InvalidArgument` unless this is a number of steps, or the least and the most of them."""
    if type(n_step) is int and n_step >= 1:
        return
    bounds = n_step if isinstance(n_step, tuple) else (n_step, n_step)
    if len(bounds) != 2 or not all(map(is_int, bounds)) or not 1 <= bounds[0] <= bounds[1]:
        raise InvalidArgument(
            f"n_step={n_step!r}: give at least 1, or the bounds (least, most) of random ones, both included"
        )


def check_boundary(boundary: str, period: int | None) -> None:
    """Raise `InvalidArgument` unless sequences may stop like this."""
    if boundary not in ("pad", "stop"):
        raise InvalidArgument(f"boundary={boundary!r}: give 'pad' or 'stop'")
    if period is not None:
        check_counts(period=period)
    if boundary == "stop" and period is not None:
        raise InvalidArgument("boundary='stop' moves sequences off the grid of a period; give one of both")


def checked_keys(
    keys: Sequence[str] | None, include_infos: bool | str, tracks: Collection[str], others: Sequence[str]
) -> Sequence[str]:
    """The names of the columns to draw: those of transitions, infos, the `tracks` and what `others` there are.

    `UnknownKey` for one that there is not.
    """
    if keys is None and include_infos is False:
        return TRANSITION_KEYS
    if keys is None and isinstance(include_infos, str) and include_infos == "columns":
        return _WITH_INFO_COLUMNS
    if isinstance(keys, str):
        raise WrongType(f"keys={keys!r}: give a list of column names")
    if not isinstance(include_infos, bool) and include_infos != "columns":
        raise InvalidArgument(f"include_infos={include_infos!r}: give True for dicts, or 'columns'")
    keys = TRANSITION_KEYS if keys is None else keys
    known = (*TRANSITION_KEYS, Columns.INFOS, *others)
    for key in keys:
        if key not in known and key not in tracks:
            if key in _ALWAYS:
                raise UnknownKey(f"the column {key!r} always comes; leave it out of keys")
            raise UnknownKey(f"no column {key!r} to draw; there are {list(dict.fromkeys((*known, *tracks)))}")
    if include_infos == "columns":
        return (*(key for key in keys if key != Columns.INFOS), INFO_COLUMNS)
    return (*keys, Columns.INFOS) if include_infos and Columns.INFOS not in keys else keys


def is_int(value: Any) -> bool:
    """Whether this is a whole number, and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
