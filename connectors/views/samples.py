"""Random observations and actions on which views are run when they are bound, to find their columns and errors."""

from __future__ import annotations

from copy import deepcopy
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument
from episodes.history import History, HistorySpaces, back, zeroed
from episodes.tracks import nested
from episodes.tracks.nested import frozen
from episodes.tracks.spaces import empty_items, irregular_part, varying_shapes_error

_POOL = 5  # samples of a space that all rows share
_DEPTHS = np.array([60, 3, 0])  # of every third row: far from the start of the episode, near it, and there


class SampleHistory(History):
    """History of random observations and actions, on which views are tested. The contents of a row depend only on its
    index.

    Args:
        spaces: the spaces of observations and actions.
        numbers: the index of each row, int [B], which determines its contents.
        before: number of steps by which each row ends earlier than the newest observation, int [B]; 0 by default.

    Attributes:
        reach: the largest number of steps back that was read, in windows too.
    """

    def __init__(self, spaces: HistorySpaces, numbers: np.ndarray, *, before: np.ndarray | None = None) -> None:
        super().__init__(spaces)
        self._numbers = numbers  # [B]
        self._before = np.zeros_like(numbers) if before is None else before  # [B] rows from there, back
        self._first: SampleHistory = self
        self._offset = 0  # how far windows went back to come here
        self.reach = 0

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def depth(self) -> np.ndarray:  # type: ignore[override]
        raise InvalidArgument(
            "history.depth is the number of steps that happen to be stored; a view reads history.t for the time in the "
            "episode, or history.observed(k) for which of the last k observations exist"
        )

    @cached_property
    def t(self) -> np.ndarray:  # type: ignore[override]
        return _DEPTHS[self._numbers % 3] - self._before

    @cached_property
    def _least_depth(self) -> int:
        return int(self.t.min(initial=_DEPTHS[0]))

    def observed(self, k: int) -> np.ndarray:
        self._record_reach(k - 1)
        return self.t[:, None] >= back(k)

    def stepped(self, k: int) -> np.ndarray:
        self._record_reach(k)
        return self.t[:, None] > back(k)

    def newest(self) -> Any:
        return frozen(nested.take(self._first.observation_pool, (7 * self._numbers + self._before) % _POOL))

    def last_observations(self, k: int) -> Any:
        self._record_reach(k - 1)
        items = nested.take(self._first.observation_pool, self._items(k, 0))
        return frozen(zeroed(items, ~self.observed(k)))

    def last_steps(self, track: str, k: int) -> Any:
        self._record_reach(k)
        if track not in ("actions", "rewards"):
            return None
        pool = self._first.action_pool if track == "actions" else _REWARDS
        return frozen(zeroed(nested.take(pool, self._items(k, 1)), ~self.stepped(k)))

    def _items(self, k: int, steps: int) -> np.ndarray:
        return (7 * self._numbers[:, None] + self._before[:, None] + back(k) + steps) % _POOL

    def window(self, k: int) -> SampleHistory:
        self._record_reach(k - 1)
        backs = np.minimum(back(k), self.t[:, None])
        window = SampleHistory(self.spaces, np.repeat(self._numbers, k), before=(self._before[:, None] + backs).ravel())
        window._first, window._offset = self._first, self._offset + k - 1
        return window

    def _record_reach(self, num_steps: int) -> None:
        self._first.reach = max(self._first.reach, self._offset + num_steps)

    @cached_property
    def observation_pool(self) -> Any:
        """Five random observations, [5, ...], from which all rows are filled."""
        return _samples(self.spaces.observation_space, "observation_space")

    @cached_property
    def action_pool(self) -> Any:
        """Five random actions, [5, ...], from which all rows are filled."""
        return _samples(self.spaces.known_action_space, "action_space")

    @property
    def infos(self) -> list[dict[str, Any]]:
        return [{} for _ in range(len(self))]

    def episode(self, i: int) -> Any:
        raise InvalidArgument("views are tried on samples, which have no episodes; read the history itself")


_REWARDS = np.array([1.0, -2.0, 0.5, 3.0, -0.25], np.float32)


def _samples(space: gym.Space | None, name: str) -> Any:
    """Return five random items of a space, [5, ...], the same in each process. The space's own random generator is not
    used.

    Raises:
        InvalidArgument: `space` is None.
    """
    if space is None:
        raise InvalidArgument(f"views are tried on samples when they are bound; give the pipeline the {name}")
    if (part := irregular_part(space)) is not None:
        raise varying_shapes_error(name, part)
    seeded_space = deepcopy(space)
    seeded_space.seed(0)
    return nested.stack([seeded_space.sample() for _ in range(_POOL)])


def space_of(value: object) -> gym.Space:
    """Return a Gymnasium space, without bounds, that fits the items of nested arrays [B, ...] in structure, shape and
    dtype.
    """
    if isinstance(value, dict):
        return spaces.Dict({key: space_of(part) for key, part in value.items()})
    if isinstance(value, tuple):
        return spaces.Tuple([space_of(part) for part in value])
    value = np.asarray(value)
    if value.dtype == bool:
        return spaces.MultiBinary(value.shape[1:]) if value.ndim > 1 else spaces.Discrete(2)
    limits = np.iinfo(value.dtype) if value.dtype.kind in "iu" else None
    low, high = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
    return spaces.Box(low, high, value.shape[1:], value.dtype.type)


def fits(space: gym.Space | None, value: object) -> bool:
    """Return True if nested arrays [B, ...] have the structure, item shapes and dtypes of a space."""
    if space is None:
        return False
    like = empty_items(space, 1)
    if not nested.same_structure(like, value):
        return False
    pairs = zip(nested.leaves(like), nested.leaves(value), strict=True)
    return all(a.shape[1:] == b.shape[1:] and a.dtype == b.dtype for a, b in pairs)
