"""Connector for hindsight experience replay, which replaces goals by goals that the same episode reached."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike

from connectors.connector import ColumnDict, Connector
from connectors.views.pack_views import PackViews
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import UnknownKey
from episodes.history import History, OtherObservations, zeroed
from episodes.pack import EpisodePack
from episodes.tracks import nested
from episodes.tracks.validation import checked_choice, checked_number, reading_state

__all__ = ["HindsightRelabel"]

STRATEGIES = ("future", "final", "episode")

GoalFunction = Callable[[Any, Any, Any], np.ndarray]


class HindsightRelabel(Connector):
    """Connector that replaces the goals of some steps by goals that the same episode reached, and recomputes the
    rewards.

    The observations must have "achieved_goal" and "desired_goal". All observations that a view reads for a relabelled
    step get the new goal. The episodes stay unchanged. Insert it after the connectors that write "obs", "new_obs" and
    "rewards".
    Source: https://arxiv.org/abs/1707.01495

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        compute_reward: the environment's `compute_reward(achieved_goals [k, ...], goals [k, ...], infos) -> [k]`;
            `infos` is a list of dicts.
        compute_terminated: a function with the same arguments for "terminateds"; without it they stay unchanged.
        fraction: fraction of the steps that get another goal.
        strategy: the goals to choose from: `"future"`, a random observation after the step; `"final"`, the last
            observation; `"episode"`, a random observation other than the first.
        seed: seed of the random generator.
        name: name of the connector in its pipeline.

    Raises:
        InvalidArgument: `fraction` is not in [0, 1], or `strategy` is unknown.
        UnknownKey: the observations have no goals, for example because they are flattened.
    """

    reads = (Columns.OBS, Columns.NEXT_OBS, Columns.REWARDS)
    writes = (Columns.OBS, Columns.NEXT_OBS, Columns.REWARDS)
    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        compute_reward: GoalFunction,
        compute_terminated: GoalFunction | None = None,
        fraction: float = 0.8,
        strategy: str = "future",
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        self._compute_reward = compute_reward
        self._compute_terminated = compute_terminated
        self.fraction = checked_number("fraction", fraction, 0.0, 1.0)
        self.strategy = checked_choice("strategy", strategy, STRATEGIES)
        self._generator = np.random.default_rng(seed)
        if compute_terminated is not None:
            self.reads = self.writes = (*self.reads, Columns.TERMINATEDS)
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(
        self, *, batch: ColumnDict, episodes: EpisodePack, pack_views: PackViews | None = None, **kwargs: object
    ) -> ColumnDict:
        pack_views = pack_views or PackViews(episodes)
        achieved = self._achieved_goals(episodes.observations)
        steps = np.flatnonzero(self._generator.random(episodes.num_steps) < self.fraction)
        goals = nested.take(achieved, self._goal_rows(episodes, steps))
        for prefix, shift in (("", 0), ("new_", 1)):
            history = pack_views.history(episodes.observation_rows(shift))
            columns = pack_views.views(_Relabelled(history, goals, steps, np.arange(episodes.num_steps)))
            batch |= {f"{prefix}{name}": column for name, column in columns.items()}
        after = episodes.observation_rows(shift=1)[steps]
        arguments = (nested.take(achieved, after), goals, [episodes.infos[row] for row in after.tolist()])
        batch[Columns.REWARDS] = _replaced(batch[Columns.REWARDS], steps, self._compute_reward(*arguments))
        if self._compute_terminated is not None:
            flags = self._compute_terminated(*arguments)
            batch[Columns.TERMINATEDS] = _replaced(batch[Columns.TERMINATEDS], steps, flags)
        return batch

    def _achieved_goals(self, observations: NestedArrays) -> Any:
        """Return the achieved goals of all observations. Raise `UnknownKey` if the observations have no goals."""
        if not isinstance(observations, dict) or not {"achieved_goal", "desired_goal"} <= observations.keys():
            raise UnknownKey(
                f"{self.name}: the observations are {nested.describe(observations)}; a goal environment's have "
                "'achieved_goal' and 'desired_goal': store them as they come, and flatten them after relabelling"
            )
        return observations["achieved_goal"]

    def _goal_rows(self, pack: EpisodePack, steps: np.ndarray) -> np.ndarray:
        """Choose new goals for the k steps `steps`. Return the index of the observation that reached each goal, [k]."""
        episode_of = np.repeat(np.arange(len(pack)), pack.lengths)[steps]
        after = pack.observation_rows(shift=1)[steps]
        last = (pack.observation_offsets[1:] - 1)[episode_of]
        if self.strategy == "final":
            return last
        first = after if self.strategy == "future" else last - pack.lengths[episode_of] + 1
        return first + (self._generator.random(len(steps)) * (last - first + 1)).astype(np.int64)

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        """Return the state of the random generator that chooses steps and goals."""
        return {"generator": self._generator.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of the random generator that `get_state` returned.

        Raises:
            StateMismatch: the state is malformed. Nothing is changed.
        """
        with reading_state(type(self)):
            self._generator.bit_generator.state = state["generator"]


class _Relabelled(OtherObservations):
    """History in which all observations that are read for the relabelled steps have a new desired goal.

    Args:
        source: the history with the original goals.
        goals: the new goals, nested arrays [m, ...].
        steps: indices [m] of the steps that get them, ascending.
        owners: index [B] of the step of each row.
    """

    def __init__(self, source: History, goals: NestedArrays, steps: np.ndarray, owners: np.ndarray) -> None:
        super().__init__(source, source.spaces)
        self._goals, self._steps, self._owners = goals, steps, owners

    def newest(self) -> Any:
        return self._with_goals(self._source.observations())

    def last_observations(self, k: int) -> Any:
        observations = self._with_goals(self._source.observations(k))
        return observations if self._reaches(k - 1) else zeroed(observations, ~self.observed(k))

    def _with_goals(self, observations: Mapping[str, NestedArrays]) -> Any:
        """Return observations whose "desired_goal" is the new goal, if they belong to a relabelled step."""
        rows = np.flatnonzero(np.isin(self._owners, self._steps))
        goals = nested.take(self._goals, self._steps.searchsorted(self._owners[rows]))

        def wanted(leaf: np.ndarray, new: np.ndarray) -> np.ndarray:
            return _replaced(leaf, rows, new if leaf.ndim == new.ndim else new[:, None])

        return {**observations, "desired_goal": nested.map_leaves(wanted, observations["desired_goal"], goals)}

    def window(self, k: int) -> History:
        return _Relabelled(self._source.window(k), self._goals, self._steps, np.repeat(self._owners, k))


def _replaced(column: np.ndarray, steps: np.ndarray, values: ArrayLike) -> np.ndarray:
    """Return a copy of a column with new values at `steps`. Its dtype is widened if it cannot hold them."""
    fits = np.can_cast(np.asarray(values).dtype, column.dtype, "same_kind")
    changed = column.copy() if fits else column.astype(np.result_type(column, values))
    changed[steps] = values
    return changed
