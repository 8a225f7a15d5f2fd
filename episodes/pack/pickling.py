"""A pickle within the pickle of a pack: what picklers that look at each object in Python have to look at once.

Ray's pickler takes along classes that other processes cannot import, and for that it looks at every object and every
function, which takes longer than all else about a pack. Where all is numpy's, Gymnasium's and ours, there is no need.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.facts.facts import PackFacts
from episodes.tracks import Tracks, seeds
from episodes.tracks.nested import leaves

_SMALL = 256  # bytes of a buffer that goes in band
_MOST_SPACES = 64
_PLAIN = {str, int, type(None)}  # of ids

_known: dict[tuple[int, int], tuple[bytes, tuple[Any, Any]]] = {}  # pickles of spaces by their ids, and they


def is_plain(columns: Tracks, facts: PackFacts) -> bool:
    """Whether there is nothing but numbers, strings and Gymnasium's own spaces."""
    tracks = [leaf for data in (columns.observations, columns.actions, columns.rewards) for leaf in leaves(data.data)]
    tracks += [leaf for track in columns.extra.values() for leaf in leaves(track.data)]
    if any(array.dtype.hasobject for array in tracks) or facts.custom_data is not None:
        return False
    objects = [own for own in facts.columns if isinstance(own, np.ndarray) and own.dtype.hasobject]
    return all({*map(type, own.tolist())} <= _PLAIN for own in objects) and all(map(_is_gymnasiums, facts.spaces))


def within(columns: Tracks, facts: PackFacts, *bands: Any) -> tuple[bytes, bytes, list[pickle.PickleBuffer]]:
    """What is plain, as a pickle, one of the spaces, and the large buffers of the first one."""
    buffers: list[pickle.PickleBuffer] = []
    own = (columns, facts._replace(observation_space=None, action_space=None), *bands)
    return pickle.dumps(own, 5, buffer_callback=partial(_is_small, buffers)), _pickled_spaces(facts), buffers


def from_within(data: bytes, own_spaces: bytes, buffers: Sequence[Any]) -> tuple[Any, ...]:
    """What `within` was given."""
    columns, facts, *bands = pickle.loads(data, buffers=buffers)
    observed, acted = _unpickled_spaces(own_spaces)
    return columns, facts._replace(observation_space=observed, action_space=acted), *bands


def _is_small(large: list[pickle.PickleBuffer], buffer: pickle.PickleBuffer) -> bool:
    """Whether a buffer goes in band; else it is put to the others."""
    if buffer.raw().nbytes < _SMALL:
        return True
    large.append(buffer)
    return False


def _is_gymnasiums(space: spaces.Space[Any] | None) -> bool:
    """Whether there is no space, or it and those in it are of Gymnasium's own classes."""
    if space is None:
        return True
    parts = [part for held in vars(space).values() for part in seeds.spaces_in(held)]
    return type(space).__module__.startswith("gymnasium.spaces.") and all(map(_is_gymnasiums, parts))


def unseeded(facts: PackFacts) -> PackFacts:
    """The facts with spaces that have no state of random numbers, which would be that of their first pickle."""
    observed, acted = map(seeds.unseeded, facts.spaces)
    return facts._replace(observation_space=observed, action_space=acted)


def _pickled_spaces(facts: PackFacts) -> bytes:
    """Two spaces as one pickle, which is made once: most packs have those of others."""
    own = facts.spaces
    key = (id(own[0]), id(own[1]))
    known = _known.get(key)
    if known is None:
        if len(_known) >= _MOST_SPACES:
            _known.clear()
        known = _known[key] = pickle.dumps(unseeded(facts).spaces, 5), own  # kept, so that no other space gets its id
    return known[0]


@lru_cache(maxsize=_MOST_SPACES)
def _unpickled_spaces(data: bytes) -> Any:
    return pickle.loads(data)
