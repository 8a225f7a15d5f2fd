"""Hypothesis strategies that generate spaces (nested ones too), and items of them in many memory layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from episodes.testing.samples import ItemSource, arranged

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
    """Return a strategy that calls one of the functions `makers`, so that each generated space is a new object."""
    return st.sampled_from(list(makers)).map(lambda make: make())


def _box(kind: type[np.floating] | type[np.integer], low: float, high: float, shape: tuple[int, ...]) -> gym.Space:
    return gym.spaces.Box(np.full(shape, low, kind), np.full(shape, high, kind), dtype=kind)


_LEAVES = st.one_of(
    _any_of(partial(_box, kind, *bound, shape) for kind, bounds in _NUMBERS for bound in bounds for shape in _SHAPES),
    _any_of(partial(gym.spaces.Discrete, n, start=start) for n in (7, 1, 2) for start in (0, 2, -2)),
    _any_of(partial(gym.spaces.MultiDiscrete, np.array(nvec)) for nvec in ([3, 4], [2], [[2, 3], [1, 4]])),
    _any_of(partial(gym.spaces.MultiBinary, n) for n in (5, 1, (2, 3))),
)


@cache
def spaces(*, nested: bool = True, text: bool = False) -> st.SearchStrategy[gym.Space]:
    """Return a strategy that generates spaces: Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple.

    Args:
        nested: also draw Dict and Tuple spaces, of any depth.
        text: also draw Text spaces. Their items are strings, which most algorithms cannot learn from.
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


@st.composite
def arrangements(draw: st.DrawFn, item: object) -> Any:
    """Generate an equal item with other memory layouts: transposed, strided, read-only, big-endian and so on.

    Single numbers are numpy's, arrays without axes, or Python's if the dtype is the same.
    """
    return arranged(item, np.random.default_rng(draw(st.integers(0, 99))))


@st.composite
def items(draw: st.DrawFn, space: gym.Space, *, arrange: bool = True) -> Any:
    """Generate an item of the given space.

    Args:
        space: the space.
        arrange: True for all memory layouts, see `arrangements`; False for results of `space.sample()`.
    """
    return ItemSource(space, draw(st.integers(0, 2**16)), arrange).next()
