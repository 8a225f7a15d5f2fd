"""Spaces without the state of their random numbers: what pickles and copies of episodes have of them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from gymnasium import spaces

_MOST_KEPT = 256

_known: dict[int, tuple[Any, Any]] = {}  # spaces by their ids, and they without that state


def unseeded(held: Any) -> Any:
    """A space, or a container of spaces, with nothing in it that was seeded; anything else as it is.

    A space gives the same object each time, so that a pickle that meets it often has it once.
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
        known = _known[id(held)] = held, _bare(held)  # kept, so that no other space gets its id
    return known[1]


def _bare(space: spaces.Space[Any]) -> spaces.Space[Any]:
    bare = copy(space)
    inner = {name: unseeded(part) for name, part in vars(space).items() if spaces_in(part)}
    vars(bare).update(inner, _np_random=None)
    return bare


def spaces_in(held: Any) -> list[Any]:
    """The space that something is, or the spaces in a container of them."""
    if isinstance(held, spaces.Space):
        return [held]
    parts = held.values() if isinstance(held, Mapping) else held if type(held) in (tuple, list) else ()
    return [part for part in parts if isinstance(part, spaces.Space)]
