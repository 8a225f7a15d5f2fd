"""What a pack is pickled as: bytes, strings, tuples and buffers, at which no pickler looks in Python.

Ray's pickler takes along classes that other processes cannot import, and for that it looks at every object and every
function, which takes longer than all else about a pack. So what is numpy's, Gymnasium's or ours comes in pieces that
need no looking; what is a user's own is among them as it is.
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.facts.facts import PackFacts, from_band, in_band
from episodes.tracks import Tracks, seeds
from episodes.tracks.infos.info_columns import from_parts
from episodes.tracks.infos.infos import EmptyInfos
from episodes.tracks.nested import map_leaves

_SMALL = 256  # bytes of a buffer that goes in band
_KINDS = "biufcSU"  # of dtypes that their string tells all about, and whose arrays have buffers
_UNTOLD = "-"  # the name of all other dtypes
_MOST_SPACES = 64
_MOST_NAMES = 1024

_names: dict[np.dtype, str] = {}
_known: dict[tuple[int, int], tuple[bytes, tuple[Any, Any]]] = {}  # pickles of spaces by their ids, and they


def to_pickle_parts(columns: Tracks, facts: PackFacts, *counts: np.ndarray) -> tuple[Any, ...]:
    """The arguments of `from_pickle_parts`."""
    observations, infos, actions, rewards = (track.data for track in columns[:4])
    extra = {key: track.data for key, track in columns.extra.items()}
    arrays = [map_leaves(_in_pieces, data) for data in (observations, actions, rewards, extra)]
    bands = [in_band(column) for column in (*facts.columns, *counts)]
    return arrays, _infos_in_pieces(infos), bands, _spaces_in_pieces(facts), facts.custom_data


def from_pickle_parts(arrays: Any, infos: Any, bands: Any, own_spaces: Any, custom_data: Any) -> tuple[Any, ...]:
    """The columns, the facts, the lengths and the lookbacks that `to_pickle_parts` was given."""
    observations, actions, rewards, extra = (map_leaves(_from_pieces, data) for data in arrays)
    columns = Tracks.finished(observations, _infos_from_pieces(infos), actions, rewards, extra)
    *own, lengths, lookbacks = map(from_band, bands)
    spaces_ = _unpickled_spaces(own_spaces) if type(own_spaces) is bytes else own_spaces
    return columns, PackFacts._make([*own, *spaces_, custom_data]), lengths, lookbacks


# --- arrays ----------------------------------------------------------------------------------------------------------


def _in_pieces(array: Any) -> Any:
    """A list (no container, as nested values go) of what an array is made of; one of another kind as it is."""
    name = _names.get(array.dtype) or _named(array.dtype)
    if name is _UNTOLD or not array.flags.c_contiguous:
        return array
    return [array.tobytes() if array.nbytes < _SMALL else pickle.PickleBuffer(array), name, array.shape]


def _named(dtype: np.dtype) -> str:
    """What the dtype is called, looked up once: numpy makes the string anew, for a quarter of a piece."""
    if len(_names) >= _MOST_NAMES:
        _names.clear()
    return _names.setdefault(dtype, dtype.str if dtype.kind in _KINDS else _UNTOLD)


def _from_pieces(own: Any) -> np.ndarray:
    if type(own) is not list:
        return own
    data, dtype, shape = own
    return np.ndarray(shape, dtype, memoryview(data))


def _infos_in_pieces(infos: Any) -> Any:
    """The number of infos that are empty; of others their parts, each array once: columns share masks."""
    if type(infos) is EmptyInfos:
        return infos.num
    paths, parts, num = infos.parts()
    pieces: dict[int, Any] = {}
    for own in chain.from_iterable(parts):
        if type(own) is np.ndarray and id(own) not in pieces:
            pieces[id(own)] = _in_pieces(own)
    return paths, [(pieces.get(id(a), a), pieces.get(id(b), b), pieces.get(id(c), c)) for a, b, c in parts], num


def _infos_from_pieces(own: Any) -> Any:
    if type(own) is int:
        return EmptyInfos(own)
    paths, parts, num = own
    made = {id(piece): _from_pieces(piece) for part in parts for piece in part}
    return from_parts(paths, [(made[id(a)], made[id(b)], made[id(c)]) for a, b, c in parts], num)


# --- spaces ----------------------------------------------------------------------------------------------------------


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


def _spaces_in_pieces(facts: PackFacts) -> Any:
    """Two spaces as a pickle, which is made once, as most packs have those of others; a user's own as they are."""
    own = facts.spaces
    key = (id(own[0]), id(own[1]))
    known = _known.get(key)
    if known is not None:
        return known[0]
    bare = unseeded(facts).spaces
    if not all(map(_is_gymnasiums, own)):
        return bare
    if len(_known) >= _MOST_SPACES:
        _known.clear()
    pickled = pickle.dumps(bare, 5)
    _known[key] = pickled, own  # kept, so that no other space gets its id
    return pickled


@lru_cache(maxsize=_MOST_SPACES)
def _unpickled_spaces(data: bytes) -> Any:
    return pickle.loads(data)
