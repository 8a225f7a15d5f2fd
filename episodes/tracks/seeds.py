"""Copies of Gymnasium spaces without random generator states, which keep pickled episodes small."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from gymnasium import spaces

_MOST_KEPT = 256

_known: dict[int, tuple[Any, Any]] = {}  # id of a space -> the space, its copy without random state


def unseeded(value: Any) -> Any:
    """Return a copy of a space, or of a dict, list or tuple of spaces, without the states of their random generators.

    Other values are returned unchanged. The same space returns the same copy each time, so that a pickle with many
    references to it stores it once.
    """
    if value is None:
        return None
    if not isinstance(value, spaces.Space):
        if not spaces_in(value):
            return value
        if isinstance(value, Mapping):
            return {key: unseeded(part) for key, part in value.items()}
        return type(value)(map(unseeded, value))
    known = _known.get(id(value))
    if known is None:
        if len(_known) >= _MOST_KEPT:
            _known.clear()
        known = _known[id(value)] = value, _bare(value)  # the reference to `value` keeps its id from being reused
    return known[1]


def _bare(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return a copy of a space, and of the spaces in it, without random generators."""
    bare = copy(space)
    inner = {name: unseeded(part) for name, part in vars(space).items() if spaces_in(part)}
    vars(bare).update(inner, _np_random=None)
    return bare


def spaces_in(value: Any) -> list[Any]:
    """Return a list of the spaces directly inside a dict, list or tuple. A single space is
    returned as a list of one."""
    if isinstance(value, spaces.Space):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if type(value) in (tuple, list) else ()
    return [part for part in parts if isinstance(part, spaces.Space)]
