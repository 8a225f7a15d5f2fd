"""The table of the kinds of Gymnasium spaces, and what the items of each kind are.

No other module tests the class of a space. A layer that treats kinds differently, for example by their distributions,
has a dictionary or a `match` by `SpaceKind`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument


class SpaceKind(Enum):
    """Kind of a space. A class that a user derives from a space of Gymnasium is of the same kind.

    Attributes:
        label: name of Gymnasium's class, or "Space" for all others.
        is_nested: items are dicts or tuples of the items of other spaces.
        is_array: items are arrays (or numbers) of one shape and dtype.
        has_choices: items are arrays of whole numbers, each of which is a choice without an order.
        is_irregular: items have no common shape.
    """

    #                label            items        choices
    BOX = "Box", "array", False
    DISCRETE = "Discrete", "array", True
    MULTI_DISCRETE = "MultiDiscrete", "array", True
    MULTI_BINARY = "MultiBinary", "array", False
    TEXT = "Text", "text", False
    DICT = "Dict", "parts", False
    TUPLE = "Tuple", "parts", False
    SEQUENCE = "Sequence", "irregular", False
    GRAPH = "Graph", "irregular", False
    ONE_OF = "OneOf", "irregular", False
    OTHER = "Space", "unknown", False  # no space, or a class that a user derives from `Space` itself

    def __init__(self, label: str, items: str, has_choices: bool) -> None:
        self.label = label
        self.has_choices = has_choices
        self.is_array = items == "array"
        self.is_nested = items == "parts"
        self.is_irregular = items == "irregular"


KIND_OF_CLASS: dict[type, SpaceKind] = {
    type(None): SpaceKind.OTHER,
    **{getattr(spaces, kind.label): kind for kind in SpaceKind if kind is not SpaceKind.OTHER},
}
"""Kinds of Gymnasium's own classes, for code that runs at each step. All other code calls `kind_of`."""
_BOX, _DICT = SpaceKind.BOX, SpaceKind.DICT  # attributes of an `Enum` take 100 ns more


def kind_of(space: gym.Space | None) -> SpaceKind:
    """Return the kind of a space. It is `OTHER` for None, and for a class that derives from `Space` itself.

    >>> kind_of(spaces.Discrete(3))
    <SpaceKind.DISCRETE: ('Discrete', 'array', True)>
    """
    known = KIND_OF_CLASS.get(type(space))
    if known is not None:
        return known
    return next((KIND_OF_CLASS[base] for base in type(space).__mro__ if base in KIND_OF_CLASS), SpaceKind.OTHER)


def exact_kind_of(space: gym.Space | None) -> SpaceKind:
    """Return the kind of a space, or `OTHER` unless its class is one of Gymnasium's own.

    The class of a user can have attributes that the library does not know.
    """
    return KIND_OF_CLASS.get(type(space), SpaceKind.OTHER)


def rejected_space(where: str, space: gym.Space | None, allowed: str, advice: str) -> InvalidArgument:
    """Return the error for a space of a kind that a part of the library does not take.

    Args:
        where: the function or argument that received the space.
        space: the space.
        allowed: the kinds of spaces that it takes.
        advice: what to do.

    >>> raise rejected_space("act", spaces.Text(3), "a Box", "encode the text")
    Traceback (most recent call last):
        ...
    episodes.errors.InvalidArgument: act: the space Text(...) is given, a Box is allowed; encode the text
    """
    return InvalidArgument(f"{where}: the space {space} is given, {allowed} is allowed; {advice}")


def contains(space: gym.Space, item: object) -> bool:
    """Return whether an item is in a space. An item that `space.contains` cannot compare is not.

    >>> contains(spaces.Sequence(spaces.Dict(a=spaces.Discrete(3)), stack=True), {})
    False
    """
    try:
        return bool(space.contains(item))
    except Exception:  # Gymnasium's spaces raise errors of many kinds for items of another type, and so may a user's
        return False


def is_nested(space: gym.Space | None) -> TypeGuard[spaces.Dict | spaces.Tuple]:
    """Return True for `Dict` and `Tuple` spaces, whose items are dicts and tuples of the items of other spaces."""
    return kind_of(space).is_nested


def is_dict(space: gym.Space | None) -> TypeGuard[spaces.Dict]:
    """Return True for `Dict` spaces, whose parts have names."""
    return kind_of(space) is _DICT


def is_box(space: gym.Space | None) -> TypeGuard[spaces.Box]:
    """Return True for `Box` spaces, whose items are arrays of numbers on a scale."""
    return kind_of(space) is _BOX


def parts_of(space: gym.Space | None) -> dict[Any, Any]:
    """Return the spaces of the parts of a `Dict` space by key, and of a `Tuple` space by index. Other spaces have none.

    >>> parts_of(spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]))
    {0: Discrete(3), 1: Discrete(2)}
    """
    if not is_nested(space):
        return {}
    return dict(space.spaces) if is_dict(space) else dict(enumerate(space.spaces))


def joined_parts(space: gym.Space, parts: Iterable[Any]) -> Any:
    """Return values for the parts of a `Dict` or `Tuple` space, in order, as a dict or tuple like an item of the space.

    >>> joined_parts(spaces.Dict(a=spaces.Discrete(3), b=spaces.Discrete(2)), [5, 6])
    {'a': 5, 'b': 6}
    """
    return dict(zip(space.spaces, parts, strict=True)) if is_dict(space) else tuple(parts)


def map_space(change: Callable[[Any], Any], space: gym.Space | None) -> Any:
    """Return a `Dict` or `Tuple` space with `change(part)` in place of each part that is not nested, or
    `change(space)` if the space is not nested itself.

    A nested space of which no part changes stays the same object.

    >>> map_space(lambda part: spaces.Discrete(2 * int(part.n)), spaces.Tuple([spaces.Discrete(3)]))
    Tuple(Discrete(6))
    """
    if not is_nested(space):
        return change(space)
    old = parts_of(space)
    new = {key: map_space(change, part) for key, part in old.items()}
    if all(new[key] is old[key] for key in old):
        return space
    return spaces.Dict(new) if is_dict(space) else spaces.Tuple(new.values())


def map_items(function: Callable[[Any, Any], Any], items: Any, space: gym.Space | None) -> Any:
    """Return `function(part of items, its space)` for each part that is not nested, in dicts and tuples like the items.

    Args:
        function: receives a part and its space.
        items: one item, or nested arrays [N, ...] of N items.
        space: the space of the items.

    >>> map_items(lambda values, part: values + int(part.n), (1, 2), spaces.Tuple([spaces.Discrete(3)] * 2))
    (4, 5)
    """
    if not is_nested(space):
        return function(items, space)
    if is_dict(space):
        return {key: map_items(function, items[key], part) for key, part in space.spaces.items()}
    known: Any = space
    return tuple(map_items(function, item, part) for item, part in zip(items, known.spaces, strict=True))


class Bounds(NamedTuple):
    """Smallest and largest values of the items of a space.

    Attributes:
        low: smallest values, in the shape of an item.
        high: largest values, in the shape of an item.
    """

    low: np.ndarray
    high: np.ndarray


def bounds_of(space: gym.Space | None) -> Bounds | None:
    """Return the smallest and largest values of items of an array space, or None for any other space.

    >>> bounds_of(spaces.MultiDiscrete([3, 2], start=[1, 0]))
    Bounds(low=array([1, 0]), high=array([3, 1]))
    """
    known: Any = space
    match kind_of(space):
        case SpaceKind.BOX:
            return Bounds(known.low, known.high)
        case SpaceKind.DISCRETE | SpaceKind.MULTI_DISCRETE:
            firsts, counts = choices_of(known)
            return Bounds(firsts, firsts + (counts - 1))
        case SpaceKind.MULTI_BINARY:
            return Bounds(np.zeros(known.shape, known.dtype), np.ones(known.shape, known.dtype))
    return None


class Choices(NamedTuple):
    """First choice and number of choices of each number in an item of a `Discrete` or `MultiDiscrete` space.

    Attributes:
        firsts: the first choices, int64, in the shape of an item.
        counts: the numbers of choices, int64, in the shape of an item.
    """

    firsts: np.ndarray
    counts: np.ndarray


def choices_of(space: gym.Space | None) -> Choices:
    """Return the choices of a space with `kind_of(space).has_choices`, which are `Discrete` and `MultiDiscrete`.

    >>> choices_of(spaces.Discrete(3, start=5))
    Choices(firsts=array(5), counts=array(3))
    """
    known: Any = space
    counts = known.n if kind_of(space) is SpaceKind.DISCRETE else known.nvec
    return Choices(np.asarray(known.start, np.int64), np.asarray(counts, np.int64))
