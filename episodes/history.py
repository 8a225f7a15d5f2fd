"""`History`: what an episode held up to and including B observations of it, wherever it lies.

Row i is one observation. What comes before it is read in windows that end at it, the oldest item first; where nothing
is, because the episode began later, there are zeros.

    k = 3    observations(3)    o[t-2]  o[t-1]  o[t]        observed(3)
             actions(3)         a[t-3]  a[t-2]  a[t-1]      stepped(3)     a[t-1] led to o[t], and gave r[t-1]
             rewards(3)         r[t-3]  r[t-2]  r[t-1]

A recorder's newest row, rows of a pack, slots of a replay ring and episodes that grow each have a history of their own,
beside their data. All answer alike, so a function of a history means the same wherever it is called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import gymnasium as gym
import numpy as np

from episodes.errors import InvalidArgument
from episodes.tracks import nested
from episodes.tracks.flattening import Flattener
from episodes.tracks.spaces import empty_items

__all__ = ["History", "HistorySpaces", "OtherObservations", "zeroed"]


@dataclass(frozen=True, eq=False)
class HistorySpaces:
    """The spaces of what a history gives, and what makes vectors of their items."""

    observation_space: gym.Space | None = None  # behind a view: of that view's "obs"
    action_space: gym.Space | None = None

    @cached_property
    def flat_observations(self) -> Flattener:
        """Makes float32 vectors of observations."""
        return Flattener(self.known_observation_space, np.float32)

    @cached_property
    def flat_actions(self) -> Flattener:
        """Makes float32 vectors of actions, discrete ones one-hot."""
        return Flattener(self.known_action_space, np.float32)

    @property
    def known_observation_space(self) -> gym.Space:
        """The observation space; `InvalidArgument` when there is none."""
        if self.observation_space is None:
            raise InvalidArgument("flat observations need the observation space; give it to the pipeline")
        return self.observation_space

    @property
    def known_action_space(self) -> gym.Space:
        """The action space; `InvalidArgument` when there is none."""
        if self.action_space is None:
            raise InvalidArgument("previous actions need the action space; give it to the pipeline")
        return self.action_space


class History(ABC):
    """B observations and what came before them in their episodes; rows do not know of each other.

    What is given may be memory of the store itself, and is read-only then: make new arrays.

    Args:
        spaces: of the observations and actions.
        lookback: how many steps back may be asked for; None: no limit. What is bound to a history (a chain of views)
            knows how far it looks; asking for more later means that it looks as far as the data say.
    """

    def __init__(self, spaces: HistorySpaces, lookback: int | None = None) -> None:
        self.spaces = spaces
        self.lookback = lookback

    # --- what a source of histories gives --------------------------------------------------------------------------

    @cached_property
    def depth(self) -> np.ndarray:
        """How many steps before each observation can be read, int [B]; each source has its own."""
        raise NotImplementedError(f"{type(self).__name__} has no depth")

    @property
    @abstractmethod
    def t(self) -> np.ndarray:
        """Time step of each observation in its episode, int [B]."""

    @abstractmethod
    def newest(self) -> Any:
        """The observations themselves, nested arrays [B, ...]."""

    @abstractmethod
    def last_observations(self, k: int) -> Any:
        """The last k observations up to each, nested arrays [B, k, ...], zeros where there is none."""

    @abstractmethod
    def last_steps(self, track: str, k: int) -> Any:
        """Of the last k steps "actions", "rewards" or an extra model output, nested arrays [B, k, ...].

        Zeros where there is no step; None where nothing of that name was ever recorded.
        """

    @abstractmethod
    def window(self, k: int) -> History:
        """The history of the last k observations up to each, [B * k] rows; the oldest is repeated past the start."""

    @property
    @abstractmethod
    def infos(self) -> list[dict[str, Any]]:
        """The info of each observation: B dicts, made when they are read. Slow while acting."""

    @abstractmethod
    def episode(self, i: int) -> Any:
        """The `SingleAgentEpisode` of row i up to its observation. Slow: for code that was written for episodes."""

    @property
    def agent_ids(self) -> np.ndarray:
        """The agent of each observation, object [B]; None where episodes have no agents."""
        return np.full(len(self), None, object)

    @property
    def module_ids(self) -> np.ndarray:
        """Likewise the module."""
        return np.full(len(self), None, object)

    # --- what is read ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.depth)

    def observed(self, k: int) -> np.ndarray:
        """Which of the last k observations there are, bool [B, k]; the last column is True."""
        return self.depth[:, None] >= back(k)

    def stepped(self, k: int) -> np.ndarray:
        """Which of the last k steps there are, bool [B, k]: one fewer than observations."""
        return self.depth[:, None] > back(k)

    def observations(self, k: int | None = None) -> Any:
        """The observations, nested arrays [B, ...], or with k the last k up to each, [B, k, ...]."""
        if k is None:
            return self.newest()
        self._check("observations", k, k - 1)
        return self.last_observations(k)

    def actions(self, k: int) -> Any:
        """The last k actions as they were recorded, nested arrays [B, k, ...]; the last one led to the observation."""
        self._check("actions", k, k)
        items = self.last_steps("actions", k)
        return self._none_yet(empty_items(self.spaces.known_action_space, 1), k) if items is None else items

    def rewards(self, k: int) -> np.ndarray:
        """The last k rewards, float32 [B, k]; the last one came with the observation."""
        self._check("rewards", k, k)
        items = self.last_steps("rewards", k)
        return np.zeros((len(self), k), np.float32) if items is None else items.astype(np.float32)

    def extra(self, key: str, k: int, like: Any) -> Any:
        """The last k items of an extra model output, nested arrays [B, k, ...].

        Args:
            like: what one item looks like, for when none was recorded yet.
        """
        self._check("extra", k, k)
        items = self.last_steps(key, k)
        return (
            self._none_yet(nested.map_leaves(lambda leaf: np.asarray(leaf)[None], like), k) if items is None else items
        )

    def flat_actions(self, k: int) -> np.ndarray:
        """The last k actions as vectors, float32 [B, k, D]; discrete ones are one-hot, zeros where there is none."""
        self._check("flat_actions", k, k)
        flatten, num_rows = self.spaces.flat_actions, len(self)
        items = self.last_steps("actions", k)
        if items is None:
            return np.zeros((num_rows, k, flatten.size), np.float32)
        items = nested.map_leaves(lambda leaf: leaf.reshape(num_rows * k, *leaf.shape[2:]), items)
        if self._reaches(k):
            return flatten(items).reshape(num_rows, k, flatten.size)
        there = np.flatnonzero(self.stepped(k))  # zeros are not always an action of the space
        flat = np.zeros((num_rows * k, flatten.size), np.float32)
        flat[there] = flatten(nested.take(items, there))
        return flat.reshape(num_rows, k, flatten.size)

    def flat_observations(self) -> np.ndarray:
        """The observations as vectors, float32 [B, D], as `gymnasium.spaces.flatten` makes them."""
        return self.spaces.flat_observations(self.newest())

    def _reaches(self, num_steps: int) -> bool:
        """Whether every row has that many steps before it."""
        return self._least_depth >= num_steps

    @cached_property
    def _least_depth(self) -> int:
        depth = self.depth
        return int(depth.min()) if len(depth) else 0

    def _none_yet(self, one: Any, k: int) -> Any:
        return nested.map_leaves(lambda leaf: np.zeros((len(self), k, *leaf.shape[1:]), leaf.dtype), one)

    def _check(self, call: str, k: int, num_steps: int) -> None:
        if self.lookback is not None and num_steps > self.lookback:
            raise InvalidArgument(
                f"history.{call}({k}) goes {num_steps} steps back; on samples of the spaces no more than "
                f"{self.lookback} were asked for: how far a view looks must not depend on the data"
            )

    def _left(self, k: int) -> int | None:
        """The lookback of a window of k observations."""
        return None if self.lookback is None else max(self.lookback - (k - 1), 0)


@lru_cache(maxsize=64)
def back(k: int) -> np.ndarray:
    """k - 1, ..., 1, 0: how far each item of a window lies back."""
    return np.arange(k - 1, -1, -1)


class OtherObservations(History):
    """A history with other observations, all else being that of `source`.

    What derives from it says `newest`, `last_observations` and `window`.
    """

    def __init__(self, source: History, spaces: HistorySpaces) -> None:
        super().__init__(spaces)
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    @cached_property
    def depth(self) -> np.ndarray:
        return self._source.depth

    @property
    def t(self) -> np.ndarray:
        return self._source.t

    def last_steps(self, track: str, k: int) -> Any:
        return self._source.last_steps(track, k)

    def flat_actions(self, k: int) -> np.ndarray:
        return self._source.flat_actions(k)

    @property
    def infos(self) -> list[dict[str, Any]]:
        return self._source.infos

    @property
    def agent_ids(self) -> np.ndarray:
        return self._source.agent_ids

    @property
    def module_ids(self) -> np.ndarray:
        return self._source.module_ids

    def episode(self, i: int) -> Any:
        return self._source.episode(i)


def zeroed(items: Any, missing: np.ndarray) -> Any:
    """The nested arrays [B, k, ...] with zeros where `missing` [B, k]; arrays of their own are changed in place."""

    def blank(leaf: np.ndarray) -> np.ndarray:
        leaf = leaf if leaf.flags.owndata and leaf.flags.writeable else leaf.copy()
        leaf[missing] = np.zeros((), leaf.dtype)
        return leaf

    return nested.map_leaves(blank, items)
