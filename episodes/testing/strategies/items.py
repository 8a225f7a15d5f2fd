"""Spaces of every kind, nested, and items of them in every arrangement of memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from episodes.tracks import nested

_FLOATS = ((-1000, 1000), (0, 1), (-np.inf, np.inf))
_NUMBERS: list[tuple[Any, tuple[tuple[float, float], ...]]] = [  # dtypes of boxes, and bounds for each
    (np.float32, _FLOATS),
    (np.float16, _FLOATS),
    (np.float64, _FLOATS),
    (np.uint8, ((0, 255), (0, 3))),
    (np.int8, ((-128, 127), (0, 3))),
    (np.int32, ((-(2**31), 2**31 - 1), (0, 3))),
    (np.int64, ((-(2**53), 2**53), (0, 3))),
    (np.bool_, ((False, True),)),
]
_SHAPES = ((3,), (), (1,), (2, 2), (2, 3, 1))
_KEYS = ("camera", "joints", "a/b", "~", "0")  # a slash and a tilde are escaped in paths of tracks


def _any_of(makers: Iterable[Callable[[], gym.Space]]) -> st.SearchStrategy[gym.Space]:
    """A space of any of the makers: one draw, and a new space each time, since spaces have a generator inside."""
    return st.sampled_from(list(makers)).map(lambda make: make())


def _box(kind: Any, low: float, high: float, shape: tuple[int, ...]) -> gym.Space:
    return gym.spaces.Box(np.full(shape, low, kind), np.full(shape, high, kind), dtype=kind)


_LEAVES = st.one_of(
    _any_of(partial(_box, kind, *bound, shape) for kind, bounds in _NUMBERS for bound in bounds for shape in _SHAPES),
    _any_of(partial(gym.spaces.Discrete, n, start=start) for n in (7, 1, 2) for start in (0, 2, -2)),
    _any_of(partial(gym.spaces.MultiDiscrete, np.array(nvec)) for nvec in ([3, 4], [2], [[2, 3], [1, 4]])),
    _any_of(partial(gym.spaces.MultiBinary, n) for n in (5, 1, (2, 3))),
)


@cache
def spaces(*, nested: bool = True, text: bool = False) -> st.SearchStrategy[gym.Space]:
    """Spaces whose items can be stacked: Box of every dtype, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple.

    Args:
        nested: draw Dict and Tuple spaces too, of any depth.
        text: draw Text spaces too; their items are strings, which most algorithms cannot learn from.
    """
    leaves = _LEAVES | st.just(gym.spaces.Text(4)) if text else _LEAVES
    if not nested:
        return leaves
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.dictionaries(st.sampled_from(_KEYS), parts, min_size=1, max_size=3).map(
                lambda d: gym.spaces.Dict({**d})
            ),
            st.lists(parts, min_size=1, max_size=3).map(gym.spaces.Tuple),
        ),
        max_leaves=3,
    )


def _cropped(array: np.ndarray) -> np.ndarray:
    around = np.zeros([n + 2 for n in array.shape], array.dtype)
    inside = around[(slice(1, -1),) * array.ndim]
    inside[...] = array
    return inside


def _read_only(array: np.ndarray) -> np.ndarray:
    twin = array.copy()
    twin.setflags(write=False)
    return twin


# An array in another arrangement of memory; each is equal to the array in shape, dtype and values.
_ARRANGED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it is": lambda array: array,
    "transposed": lambda array: array.T.copy().T,
    "cropped": _cropped,
    "reversed": lambda array: np.flip(array).copy()[(slice(None, None, -1),) * array.ndim],
    "every other": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "read-only": _read_only,
}


def _as_python(value: Any) -> Any:
    number = np.asarray(value).item()
    return number if np.asarray(number).dtype == np.asarray(value).dtype else value


_ARRANGED_SCALARS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda value: value,
    "array": np.array,
    "Python": _as_python,
}


def arranged(item: Any, rng: np.random.Generator) -> Any:
    """The nested item with each leaf in an arrangement drawn by `rng`: equal in values, different in memory."""

    def of_leaf(leaf: Any) -> Any:
        if isinstance(leaf, str):
            return leaf
        kinds = _ARRANGED if np.ndim(leaf) else _ARRANGED_SCALARS
        return list(kinds.values())[rng.integers(len(kinds))](leaf)

    return nested.map_leaves(of_leaf, item)


@st.composite
def arrangements(draw: st.DrawFn, item: Any) -> Any:
    """The nested item, equal in values: its arrays transposed, cropped, reversed, strided or read-only.

    Single numbers come as numpy's, as arrays without axes, and, where the dtype is theirs, as Python's.
    """
    return arranged(item, np.random.default_rng(draw(st.integers(0, 99))))


@st.composite
def items(draw: st.DrawFn, space: gym.Space, *, arrange: bool = True) -> Any:
    """Items of a space.

    Args:
        arrange: in every arrangement of memory, see `arrangements`; False for what `space.sample()` gives.
    """
    return ItemSource(space, draw(st.integers(0, 2**16)), arrange).next()


class ItemSource:
    """Items of a space one after another, the same ones for the same seed; the space itself is left as it is."""

    def __init__(self, space: gym.Space, seed: int, arrange: bool = True) -> None:
        self._space = copy.deepcopy(space)
        self._space.seed(seed)
        self._rng = np.random.default_rng(seed)
        self._arrange = arrange

    def next(self) -> Any:
        """One more item."""
        item = self._space.sample()
        return arranged(item, self._rng) if self._arrange else item

    def take(self, count: int) -> list[Any]:
        """The next `count` items."""
        return [self.next() for _ in range(count)]
