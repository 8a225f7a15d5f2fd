"""Copies of Gymnasium spaces without the state of their random generators, so that pickles of episodes are small."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from gymnasium import spaces

_MOST_KEPT = 256

_known: dict[int, tuple[Any, Any]] = {}  # id of a space -> the space, its copy without random state


def unseeded(held: Any) -> Any:
    """Return a copy of a space, or of a dict or list of spaces, without the states of random generators.

    Other values are returned unchanged. The same space returns the same copy each time, so that a pickle with many
    references to it stores it once.
    """
    if held is None:
        return None
    if not isinstance(held, spaces.Space):
        if not spaces_in(held):
            return held
        if isinstance(held, Mapping):
            return {key: unseeded(part) for key, part in held.items()}
        return type(held)(map(unseeded, held))
    known = _known.get(id(held))
    if known is None:
        if len(_known) >= _MOST_KEPT:
            _known.clear()
        known = _known[id(held)] = held, _bare(held)  # the reference to `held` keeps its id from being reused
    return known[1]


def _bare(space: spaces.Space[Any]) -> spaces.Space[Any]:
    bare = copy(space)
    inner = {name: unseeded(part) for name, part in vars(space).items() if spaces_in(part)}
    vars(bare).update(inner, _np_random=None)
    return bare


def spaces_in(held: Any) -> list[Any]:
    """Return the spaces directly inside a dict, list or tuple, or a single space, as a list."""
    if isinstance(held, spaces.Space):
        return [held]
    parts = held.values() if isinstance(held, Mapping) else held if type(held) in (tuple, list) else ()
    return [part for part in parts if isinstance(part, spaces.Space)]
