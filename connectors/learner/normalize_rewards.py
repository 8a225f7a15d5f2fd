"""Connector that divides rewards by the standard deviation of discounted returns."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import in_batch_form
from connectors.learner.running_returns import RunningReturns
from connectors.learner.step_returns import StepReturns
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.facts.chunk_order import keys_of
from episodes.pack import EpisodePack
from episodes.returns.checks import check_fraction
from episodes.tracks.validation import reading_state

__all__ = ["NormalizeRewards"]


class NormalizeRewards(Connector):
    """Connector that divides "rewards" [B] by the running standard deviation of discounted returns, and clips the
    result.

    Episodes keep their rewards; only the train batch changes. The statistics cover all steps that this connector has
    seen. Each step counts once, however often its pack comes. The return of a step is the discounted sum of its
    episode's rewards up to the step, across chunks, which may come from several runners and in any order: an episode's
    id and `t_started` identify them. Until the earlier steps of a chunk have come, their rewards count as 0. The steps
    of 10,000 episodes are remembered, those with the newest chunks.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        gamma: the discount factor of the algorithm.
        clip: largest absolute value of a normalized reward; None: no limit.
        name: name of the connector in its pipeline.

    Raises:
        InvalidArgument: `clip` is not above 0, or `gamma` is not in [0, 1]; in a call: a reward is not finite.
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
        self._returns = RunningReturns(self.gamma)
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(self, *, batch: ColumnDict, episodes: EpisodePack, **kwargs: object) -> ColumnDict:
        rewards = np.asarray(StepReturns.of(batch, episodes).rewards, np.float64)
        if not np.isfinite(rewards).all():
            step = int(np.argmin(np.isfinite(rewards)))
            owner = int(np.repeat(np.arange(len(episodes)), episodes.lengths)[step])
            t = episodes.t_started[owner] + step - episodes.lengths[:owner].sum()
            raise InvalidArgument(
                f"{self.name}: episode {episodes.ids[owner]} has the reward {rewards[step]} at step {t}; rewards must "
                "be finite: correct or remove the episode"
            )
        facts = episodes.facts
        keys = keys_of(facts.ids, facts.agent_ids, facts.multi_agent_episode_ids)
        self._returns.add(rewards, keys, episodes.t_started, episodes.lengths)
        known = self._returns.moments()
        deviation = float(np.sqrt(known.squares / known.count)) if known.count > 1 else 1.0
        scaled = rewards / max(deviation, 1e-8)
        if self.clip is not None:
            scaled = scaled.clip(-self.clip, self.clip)
        batch[Columns.REWARDS] = in_batch_form(scaled.astype(np.float32), batch, episodes)
        return batch

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        return self._returns.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        with reading_state(type(self)):
            self._returns = RunningReturns.from_state(self.gamma, state)

    def reset_state(self) -> None:
        self._returns = RunningReturns(self.gamma)
