"""Connector that divides rewards by the standard deviation of discounted returns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import in_batch_form
from connectors.learner.step_returns import StepReturns
from connectors.moments import Moments
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.returns.checks import check_fraction
from episodes.tracks.indexing import offsets_of

__all__ = ["NormalizeRewards"]


class NormalizeRewards(Connector):
    """Connector that divides "rewards" [B] by the running standard deviation of discounted returns, and clips the
    result.

    Episodes keep their rewards; only the train batch changes. The statistics cover all steps that this connector has
    seen. The return of a step is the discounted sum of its episode's rewards up to the step, across chunks.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        gamma: the discount factor of the algorithm.
        clip: largest absolute value of a normalized reward; None: no limit.
        name: name of the connector in its pipeline.

    Raises:
        InvalidArgument: `clip` is not above 0, or `gamma` is not in [0, 1].
    """

    writes = (Columns.REWARDS,)
    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        gamma: float = 0.99,
        clip: float | None = 10.0,
        name: str | None = None,
    ) -> None:
        if clip is not None and not clip > 0:
            raise InvalidArgument(f"NormalizeRewards: clip is {clip!r}; it must be above 0, or None")
        self.gamma, self.clip = check_fraction("gamma", gamma), clip
        self._moments = Moments.empty(())  # of all returns
        self._ongoing: dict[Any, float] = {}  # last return of the episodes whose chunks were cut, by id
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(self, *, batch: ColumnDict, episodes: EpisodePack, **kwargs: Any) -> ColumnDict:
        rewards = np.asarray(StepReturns.of(batch, episodes).rewards, np.float64)
        returns = self._returns(rewards, offsets_of(episodes.lengths), episodes)
        self._moments = self._moments.merge(Moments.of(returns))
        count, squares = self._moments.count, self._moments.squares
        deviation = float(np.sqrt(squares / count)) if count > 1 else 1.0
        scaled = rewards / max(deviation, 1e-8)
        if self.clip is not None:
            scaled = scaled.clip(-self.clip, self.clip)
        batch[Columns.REWARDS] = in_batch_form(scaled.astype(np.float32), batch, episodes)
        return batch

    def _returns(self, rewards: np.ndarray, offsets: np.ndarray, pack: EpisodePack) -> np.ndarray:
        """Return for each step the discounted sum of its episode's rewards up to this step, [S], also across chunks."""
        returns = np.empty_like(rewards)
        lengths = np.diff(offsets)
        total = np.array([self._ongoing.get(id_, 0.0) for id_ in pack.ids])
        for t in range(int(lengths.max(initial=0))):
            alive = lengths > t
            total[alive] = self.gamma * total[alive] + rewards[offsets[:-1][alive] + t]
            returns[offsets[:-1][alive] + t] = total[alive]
        is_cut = ~(pack.terminated | pack.truncated)
        self._ongoing = {id_: float(total[i]) for i, id_ in enumerate(pack.ids) if is_cut[i]}
        return returns

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        return {**self._moments.get_state(), "ongoing": dict(self._ongoing)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._moments = Moments.from_state(state)
        self._ongoing = dict(state["ongoing"])

    def reset_state(self) -> None:
        self._moments, self._ongoing = Moments.empty(()), {}
