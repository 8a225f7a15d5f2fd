"""Connector that adds discounted returns-to-go."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import in_batch_form
from connectors.learner.step_returns import StepReturns
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.returns import discounted_returns
from episodes.returns.checks import check_fraction
from episodes.tracks.validation import checked_flag

__all__ = ["ComputeReturnsToGo"]


class ComputeReturnsToGo(Connector):
    """Connector that adds "returns_to_go" [B], for each step the discounted sum of rewards until its episode ends.

    A time limit ends an episode here: later rewards count as 0. A chunk that was cut lacks the rewards of its next
    chunks, so its returns would be too small. It is rejected, unless `allow_cut` is true. The "value_targets" of
    `GeneralizedAdvantageEstimation(lambda_=1.0)` are returns that count the value of the last observation instead.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        gamma: the discount factor.
        allow_cut: accept chunks that were cut, and count the rewards after a cut as 0.
        name: name of the connector in its pipeline.

    Raises:
        InvalidArgument: `gamma` is outside [0, 1]; in a call: a chunk was cut.
        WrongType: `allow_cut` is not a bool.
    """

    writes = (Columns.RETURNS_TO_GO,)
    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        gamma: float = 0.99,
        allow_cut: bool = False,
        name: str | None = None,
    ) -> None:
        self.gamma = check_fraction("gamma", gamma)
        self.allow_cut = checked_flag("allow_cut", allow_cut)
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(self, *, batch: ColumnDict, episodes: EpisodePack, **kwargs: object) -> ColumnDict:
        steps = StepReturns.of(batch, episodes)
        if not self.allow_cut:
            self._check_whole(steps, episodes)
        returns = discounted_returns(
            steps.rewards, steps.terminated, steps.truncated, gamma=self.gamma, offsets=steps.offsets
        )
        batch[Columns.RETURNS_TO_GO] = in_batch_form(returns, batch, episodes)
        return batch

    def _check_whole(self, steps: StepReturns, pack: EpisodePack) -> None:
        """Raise `InvalidArgument` if steps of the pack are followed by later steps of their episode elsewhere."""
        cut = ~(steps.terminated | steps.truncated) & (np.diff(steps.offsets) > 0)
        if cut.any():
            step = steps.offsets[1:][int(cut.argmax())] - 1
            id_ = pack.ids[np.repeat(np.arange(len(pack)), pack.lengths)[step]]
            raise InvalidArgument(
                f"{self.name}: episode {id_} is a chunk that was cut, so its returns would be too small: sample whole "
                "episodes (num_episodes=, or episodes_per_collect= of a trainer), or take the 'value_targets' of "
                "GeneralizedAdvantageEstimation(lambda_=1.0); allow_cut=True counts the missing rewards as 0"
            )
