"""Connector that writes episodes into a rollout buffer."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from connectors.connector import ColumnDict, Connector
from connectors.learner.values import ValueFunction
from connectors.policy import module_of
from connectors.rollout.buffer import RolloutBuffer, add_advantages
from connectors.rollout.episodes import BlockEdge, episodes_to_rollout
from connectors.views.pack_views import PackViews
from episodes.pack import EpisodePack
from episodes.returns.checks import check_fraction
from episodes.tracks.validation import reading_state

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = ["EpisodesToRolloutBuffer"]


class EpisodesToRolloutBuffer(Connector):
    """Connector that adds "rollout", a TensorDict [N, T + 1] with the steps of N environments and their advantages.

    Chunks of a runner or `VectorRecorder` get the rows from which they came. An episode that continues in the next call
    stays in its environment. Values come from `rl_module.compute_values`, or from the recorded "vf_preds" if the policy
    has no value function. The rollout is the storage of the buffer and is valid until the next call.

    Args:
        buffer: the buffer, for `num_envs` environments and `rollout_len` rows.
        autoreset_mode: the autoreset mode of the environments.
        gamma: the discount factor.
        lambda_: the parameter of GAE.
        minibatch_size: number of observations in one forward pass of the value function.

    Raises:
        InvalidArgument: `gamma` or `lambda_` is outside [0, 1].
    """

    writes = ("rollout",)
    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        buffer: RolloutBuffer,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        gamma: float = 0.99,
        lambda_: float = 0.95,
        minibatch_size: int = 8192,
        name: str | None = None,
    ) -> None:
        self.buffer = buffer
        self.gamma, self.lambda_ = check_fraction("gamma", gamma), check_fraction("lambda_", lambda_)
        self._edge = BlockEdge(buffer.num_envs, autoreset_mode)
        self._values = ValueFunction(minibatch_size)
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(
        self,
        *,
        rl_module: Policy | None = None,
        batch: ColumnDict,
        episodes: EpisodePack,
        pack_views: PackViews | None = None,
        **kwargs: object,
    ) -> ColumnDict:
        values = None
        if module_of(rl_module).has_values:
            values = self._values(rl_module, episodes, pack_views or PackViews(episodes))
        rollout = self.buffer.start_rollout()
        try:
            episodes_to_rollout(episodes, rollout, self._edge, values)
            self.buffer.add(rollout)
        except Exception:
            self.buffer.discard()
            raise
        batch["rollout"] = add_advantages(self.buffer.get(flatten=False), gamma=self.gamma, lambda_=self.lambda_)
        return batch

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        """Return the ids and the numbers of steps of the environments' unfinished episodes, and pending resets."""
        return self._edge.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the unfinished episodes and pending resets that `get_state` returned.

        Raises:
            StateMismatch: the state is malformed. Nothing is changed.
        """
        edge = BlockEdge(self.buffer.num_envs, self._edge.autoreset_mode)
        with reading_state(type(self)):
            edge.set_state(state)
        self._edge = edge

    def reset_state(self) -> None:
        """Discard the unfinished episodes, so that each environment continues with a new episode."""
        self._edge = BlockEdge(self.buffer.num_envs, self._edge.autoreset_mode)
