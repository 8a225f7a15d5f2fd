"""Fast pickling of packs. Arrays become bytes or buffers with a dtype name and a shape, which pickle handles in C.

Ray's pickler calls Python code for every other object and function, since it also pickles classes that other processes
cannot import. That takes longer than everything else about a pack. So arrays, Gymnasium's spaces and this library's
objects are taken apart. A user's own objects stay as they are.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from episodes.facts.facts import PackFacts, from_band, in_band
from episodes.tracks import Tracks, seeds
from episodes.tracks.infos.infos import Infos, from_parts
from episodes.tracks.nested import map_leaves
from episodes.tracks.ragged import Ragged

if TYPE_CHECKING:
    from episodes.data_types import Space

_SMALL = 256  # bytes; smaller arrays are pickled in band
_KINDS = "biufcSU"  # kinds of dtypes that `dtype.str` describes completely, and whose arrays have buffers
_UNNAMED = "-"  # name of all other dtypes
_MOST_SPACES = 64
_MOST_NAMES = 1024

_names: dict[np.dtype, str] = {}
_known: dict[tuple[int, int], tuple[bytes, tuple[Any, Any]]] = {}  # ids of spaces -> (their pickle, the spaces)


def to_pickle_parts(columns: Tracks, facts: PackFacts, *counts: np.ndarray) -> tuple[Any, ...]:
    """Convert a pack's arrays, infos, metadata, spaces and custom data to the arguments of `from_pickle_parts`."""
    observations, infos, actions, rewards = (track.data for track in columns[:4])
    extra = {key: track.data for key, track in columns.extra.items()}
    arrays = [map_leaves(_to_parts, data) for data in (observations, actions, rewards)]
    arrays.append(map_leaves(_to_parts if type(actions) is not Ragged else partial(_to_parts, actions=actions), extra))
    bands = [in_band(column) for column in (*facts.columns, *counts)]
    return arrays, _infos_to_parts(infos), bands, _spaces_to_parts(facts), facts.custom_data


def from_pickle_parts(
    arrays: Sequence[Any],
    infos: int | tuple[Any, ...],
    bands: Iterable[Any],
    pickled_spaces: bytes | tuple[Space | None, ...],
    custom_data: list[dict[str, Any] | None] | None,
) -> tuple[Any, ...]:
    """Rebuild a pack's arrays, metadata, lengths and lookbacks from the parts that `to_pickle_parts` returned."""
    observations, actions, rewards = (map_leaves(_from_parts, data) for data in arrays[:3])
    extra = map_leaves(_from_parts if type(actions) is not Ragged else partial(_from_parts, actions=actions), arrays[3])
    columns = Tracks.finished(observations, _infos_from_parts(infos), actions, rewards, extra)
    *columns_of_facts, lengths, lookbacks = map(from_band, bands)
    spaces_ = _unpickled_spaces(pickled_spaces) if type(pickled_spaces) is bytes else pickled_spaces
    return columns, PackFacts._make([*columns_of_facts, *spaces_, custom_data]), lengths, lookbacks


# --- arrays ----------------------------------------------------------------------------------------------------------


def _to_parts(array: Any, actions: Ragged | None = None) -> Any:
    """Convert an array to a list [bytes or buffer, dtype name, shape]. Arrays of objects are returned unchanged.

    Args:
        actions: ragged actions. Ragged items of the same lengths are pickled without their offsets.
    """
    if type(array) is Ragged:
        same = actions is not None and array.has_lengths_of(actions)
        offsets = None if same else _to_parts(np.ascontiguousarray(array.bounds))
        return [_to_parts(np.ascontiguousarray(array.flat)), offsets]
    name = _names.get(array.dtype) or _named(array.dtype)
    if name is _UNNAMED or not array.flags.c_contiguous:
        return array
    return [array.tobytes() if array.nbytes < _SMALL else pickle.PickleBuffer(array), name, array.shape]


def _named(dtype: np.dtype) -> str:
    """Return the name of a dtype, and cache it, because numpy builds the string again at each call."""
    if len(_names) >= _MOST_NAMES:
        _names.clear()
    return _names.setdefault(dtype, dtype.str if dtype.kind in _KINDS else _UNNAMED)


def _from_parts(value: object, actions: Any = None) -> Any:
    """Return the array or ragged array that a list of parts describes. Anything else is returned unchanged.

    Args:
        actions: the pack's ragged actions, whose offsets are used if the parts have none.
    """
    if type(value) is not list:
        return value
    if len(value) == 2:
        values, offsets = value
        return Ragged.of(_from_parts(values), actions.offsets if offsets is None else _from_parts(offsets))
    data, dtype, shape = value
    return np.ndarray(shape, dtype, memoryview(data))


def _infos_to_parts(infos: Any) -> Any:
    """Convert infos for pickling: to their number if all are empty, else to arrays, with shared arrays stored once."""
    if not infos.columns:
        return infos.num
    paths, parts, num = infos.parts()
    parts_by_id: dict[int, Any] = {}
    for array in chain.from_iterable(parts):
        if type(array) is np.ndarray and id(array) not in parts_by_id:
            parts_by_id[id(array)] = _to_parts(array)
    return (
        paths,
        [(parts_by_id.get(id(a), a), parts_by_id.get(id(b), b), parts_by_id.get(id(c), c)) for a, b, c in parts],
        num,
    )


def _infos_from_parts(value: Any) -> Any:
    """Return the infos that `value` describes: a number means infos without keys."""
    if type(value) is int:
        return Infos({}, value)
    paths, parts, num = value
    made = {id(piece): _from_parts(piece) for part in parts for piece in part}
    return from_parts(paths, [(made[id(a)], made[id(b)], made[id(c)]) for a, b, c in parts], num)


# --- spaces ----------------------------------------------------------------------------------------------------------


def _is_gymnasiums(space: spaces.Space[Any] | None) -> bool:
    """Return True if Gymnasium defines the classes of the space and of all its subspaces, or if there is no space."""
    if space is None:
        return True
    parts = [part for held in vars(space).values() for part in seeds.spaces_in(held)]
    return type(space).__module__.startswith("gymnasium.spaces.") and all(map(_is_gymnasiums, parts))


def unseeded(facts: PackFacts) -> PackFacts:
    """Return the metadata with spaces whose random generators are removed, so that equal spaces pickle equally."""
    observation_space, action_space = map(seeds.unseeded, facts.spaces)
    return facts._replace(observation_space=observation_space, action_space=action_space)


def _spaces_to_parts(facts: PackFacts) -> Any:
    """Return the two spaces pickled as one cached bytes object, or as spaces if a space has a class of the user."""
    both = facts.spaces
    key = (id(both[0]), id(both[1]))
    known = _known.get(key)
    if known is not None:
        return known[0]
    bare = unseeded(facts).spaces
    if not all(map(_is_gymnasiums, both)):
        return bare
    if len(_known) >= _MOST_SPACES:
        _known.clear()
    pickled = pickle.dumps(bare, 5)
    _known[key] = pickled, both  # the reference keeps the ids from being reused
    return pickled


@lru_cache(maxsize=_MOST_SPACES)
def _unpickled_spaces(data: bytes) -> Any:
    """Unpickle the two spaces of a pack. It is only called while the user unpickles that pack."""
    return pickle.loads(data)
