"""`History`: observations and the steps before them as input of connectors, the same for every kind of storage.

Row i is one observation. Earlier items are read in windows that end at it, oldest item first. Items before the start of
the episode are zeros.

    k = 3    observations(3)    o[t-2]  o[t-1]  o[t]        observed(3)
             actions(3)         a[t-3]  a[t-2]  a[t-1]      stepped(3)     a[t-1] led to o[t], and gave r[t-1]
             rewards(3)         r[t-3]  r[t-2]  r[t-1]

Recorders, packs, replay rings and growing episodes each have a class of histories. All give equal results, so a
function of a history means the same everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np

from episodes.errors import InvalidArgument
from episodes.tracks import nested
from episodes.tracks.flattening import Flattener
from episodes.tracks.spaces import empty_items

if TYPE_CHECKING:
    from episodes.data_types import Items

__all__ = ["BoundViews", "History", "HistorySpaces", "OtherObservations", "zeroed"]


@dataclass(frozen=True, eq=False)
class HistorySpaces:
    """Observation space and action space, with functions that flatten their items to vectors."""

    observation_space: gym.Space | None = None  # after a view: the space of that view's "obs"
    action_space: gym.Space | None = None

    @cached_property
    def flat_observations(self) -> Flattener:
        """Function that flattens a batch of observations to float32 vectors [B, D]."""
        return Flattener(self.known_observation_space, np.float32)

    @cached_property
    def flat_actions(self) -> Flattener:
        """Function that flattens a batch of actions to float32 vectors. Discrete actions become one-hot vectors."""
        return Flattener(self.known_action_space, np.float32)

    @property
    def known_observation_space(self) -> gym.Space:
        """Observation space. Reading it raises `InvalidArgument` if none was given."""
        if self.observation_space is None:
            raise InvalidArgument("flat observations need the observation space; give it to the pipeline")
        return self.observation_space

    @property
    def known_action_space(self) -> gym.Space:
        """Action space. Reading it raises `InvalidArgument` if none was given."""
        if self.action_space is None:
            raise InvalidArgument("previous actions need the action space; give it to the pipeline")
        return self.action_space


class History(ABC):
    """Batch of B observations and the steps before each in its episode, from which connectors compute columns.

    Returned arrays may be read-only memory of the storage, so change copies only.

    Args:
        spaces: spaces of the observations and actions.
        lookback: maximal number of steps before the observations that may be read, None for no limit. It is set after a
            chain of views has run on samples, since how far a view looks back must not depend on the data.
    """

    def __init__(self, spaces: HistorySpaces, lookback: int | None = None) -> None:
        self.spaces = spaces
        self.lookback = lookback

    # --- what a source of histories gives --------------------------------------------------------------------------

    @cached_property
    def depth(self) -> np.ndarray:
        """Number of steps before each observation that are still stored, int [B]. It depends on the storage, so views
        read `t` or `observed` instead.
        """
        raise NotImplementedError(f"{type(self).__name__} has no depth")

    @property
    @abstractmethod
    def t(self) -> np.ndarray:
        """Time step of each observation in its episode, int [B]."""

    @abstractmethod
    def newest(self) -> Any:
        """Return the B observations as nested arrays [B, ...]."""

    @abstractmethod
    def last_observations(self, k: int) -> Any:
        """Return the last `k` observations up to each of the B observations, [B, k, ...], zeros before the reset."""

    @abstractmethod
    def last_steps(self, track: str, k: int) -> Any:
        """Return the last `k` actions, rewards or extra outputs (`track`) before each observation, [B, k, ...].

        Missing steps are zeros. None if nothing of that name was recorded.
        """

    @abstractmethod
    def window(self, k: int) -> History:
        """Return a history of B * k observations: for each of the B observations, the last `k` up to it.

        If an observation has fewer before it, the oldest one is repeated.
        """

    @property
    @abstractmethod
    def infos(self) -> list[dict[str, Any]]:
        """Info dicts of the B observations. While acting, each read is slow, since it creates the dicts."""

    @abstractmethod
    def episode(self, i: int) -> Any:
        """Return the `SingleAgentEpisode` up to observation `i`. Slow, for connectors that need whole episodes."""

    @property
    def agent_ids(self) -> np.ndarray:
        """Agent id of each observation, object [B], None for single-agent episodes."""
        return np.full(len(self), None, object)

    @property
    def module_ids(self) -> np.ndarray:
        """Module id of each observation, object [B], None for episodes without modules."""
        return np.full(len(self), None, object)

    # --- what is read ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.depth)

    def observed(self, k: int) -> np.ndarray:
        """Return which of the last `k` observations lie within the episode (and are not padding), bool [B, k]."""
        self._check("observed", k, k - 1)
        return self.depth[:, None] >= back(k)

    def stepped(self, k: int) -> np.ndarray:
        """Return which of the last `k` steps lie within the episode (and are not padding), bool [B, k]."""
        self._check("stepped", k, k)
        return self.depth[:, None] > back(k)

    def observations(self, k: int | None = None) -> Any:
        """Return the B observations, nested arrays [B, ...], or with `k` the last `k` up to each, [B, k, ...]."""
        if k is None:
            return self.newest()
        self._check("observations", k, k - 1)
        return self.last_observations(k)

    def actions(self, k: int) -> Any:
        """Return the last `k` actions before each observation as recorded, nested arrays [B, k, ...]."""
        self._check("actions", k, k)
        items = self.last_steps("actions", k)
        return self._zero_steps(empty_items(self.spaces.known_action_space, 1), k) if items is None else items

    def rewards(self, k: int) -> np.ndarray:
        """Return the last `k` rewards up to each observation, float32 [B, k].

        The last of them is the reward that the environment returned together with the observation.
        """
        self._check("rewards", k, k)
        items = self.last_steps("rewards", k)
        return np.zeros((len(self), k), np.float32) if items is None else items.astype(np.float32)

    def extra(self, key: str, k: int, like: Items) -> Any:
        """Return the last `k` items of the extra model output `key` before each observation, nested arrays [B, k, ...].

        Args:
            like: an example item, for histories in which none was recorded.
        """
        self._check("extra", k, k)
        items = self.last_steps(key, k)
        return (
            self._zero_steps(nested.map_leaves(lambda leaf: np.asarray(leaf)[None], like), k)
            if items is None
            else items
        )

    def flat_actions(self, k: int) -> np.ndarray:
        """Return the last `k` actions as float32 vectors [B, k, D], one-hot if discrete, zeros before the reset."""
        self._check("flat_actions", k, k)
        flatten, num_rows = self.spaces.flat_actions, len(self)
        items = self.last_steps("actions", k)
        if items is None:
            return np.zeros((num_rows, k, flatten.size), np.float32)
        items = nested.map_leaves(lambda leaf: leaf.reshape(num_rows * k, *leaf.shape[2:]), items)
        if self._reaches(k):
            return flatten(items).reshape(num_rows, k, flatten.size)
        rows = np.flatnonzero(self.stepped(k))  # zeros are not always an action of the space
        flat = np.zeros((num_rows * k, flatten.size), np.float32)
        flat[rows] = flatten(nested.take(items, rows))
        return flat.reshape(num_rows, k, flatten.size)

    def flat_observations(self) -> np.ndarray:
        """Return the observations as vectors, float32 [B, D], flattened as by `gymnasium.spaces.flatten`."""
        return self.spaces.flat_observations(self.newest())

    def _reaches(self, num_steps: int) -> bool:
        """Return True if every observation has at least `num_steps` earlier steps in its episode."""
        return self._least_depth >= num_steps

    @cached_property
    def _least_depth(self) -> int:
        depth = self.depth
        return int(depth.min()) if len(depth) else 0

    def _zero_steps(self, item: object, k: int) -> Any:
        return nested.map_leaves(lambda leaf: np.zeros((len(self), k, *leaf.shape[1:]), leaf.dtype), item)

    def _check(self, call: str, k: int, num_steps: int) -> None:
        if self.lookback is not None and num_steps > self.lookback:
            raise InvalidArgument(
                f"history.{call}({k}) goes {num_steps} steps back; on samples of the spaces no more than "
                f"{self.lookback} were asked for: how far a view looks must not depend on the data"
            )

    def _left(self, k: int) -> int | None:
        """Return how many steps before a window of `k` observations may still be read, or None without a limit."""
        return None if self.lookback is None else max(self.lookback - (k - 1), 0)


def back(k: int) -> np.ndarray:
    """Return the array k - 1, ..., 1, 0: the distance of each item in a window of `k` items from the last item."""
    return np.arange(k - 1, -1, -1)


class BoundViews(Protocol):
    """Interface of views that were prepared for given spaces: they compute a policy's input from a history."""

    given: HistorySpaces  # spaces of stored observations and actions
    lookback: int  # number of steps that the views look back

    def __call__(self, history: History) -> dict[str, Any]: ...


class OtherObservations(History):
    """Base class of histories that replace the observations of another history, for example by stacked frames.

    Subclasses define `newest`, `last_observations` and `window`.
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

    def observed(self, k: int) -> np.ndarray:
        return self._source.observed(k)

    def stepped(self, k: int) -> np.ndarray:
        return self._source.stepped(k)

    def _reaches(self, num_steps: int) -> bool:
        return self._source._reaches(num_steps)

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


def zeroed(items: object, missing: np.ndarray) -> Any:
    """Return the nested arrays `items` [B, k, ...], set to zero where `missing` [B, k] is True.

    Writable arrays that own their memory are changed in place.
    """

    def blank(leaf: np.ndarray) -> np.ndarray:
        """Return an array with zeros where items are missing: the array itself if it owns its memory, else a copy."""
        if type(missing) is not np.ndarray:  # traced arrays are not written in place
            return np.where(missing.reshape(*missing.shape, *(1,) * (leaf.ndim - 2)), np.zeros((), leaf.dtype), leaf)
        leaf = leaf if leaf.flags.owndata and leaf.flags.writeable else leaf.copy()
        leaf[missing] = np.zeros((), leaf.dtype)
        return leaf

    return nested.map_leaves(blank, items)
