"""The last actions and rewards beside the observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from connectors.connector import Batch, Connector
from connectors.env_to_module.add_observations import newest_observations
from connectors.env_to_module.recent import recent
from connectors.previous import PreviousSteps, action_flattener
from episodes.columns import Columns
from episodes.tracks import nested

__all__ = ["PrevActionsPrevRewards"]


class PrevActionsPrevRewards(Connector):
    """Makes "obs" a dict: "_orig_obs", "prev_n_actions" [N, n * size], "prev_n_rewards" [N, n], oldest first.

    Discrete and MultiDiscrete actions are one-hot, others raveled, all float32; before an episode's start there are
    zeros. Episodes store observations as they are. The learner pipeline needs the piece of the same name.
    """

    writes = (Columns.OBS,)
    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        n_prev_actions: int = 1,
        n_prev_rewards: int = 1,
        name: str | None = None,
    ) -> None:
        self.previous = PreviousSteps(n_prev_actions, n_prev_rewards)
        self.lookback = self.previous.reach
        super().__init__(input_observation_space, input_action_space, name=name)

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Take new input spaces, and work out how actions become vectors."""
        super().set_input_spaces(observation_space, action_space)
        self._flatten = action_flattener(action_space)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """A Dict of the observations and what goes with them."""
        return self.previous.space(input_observation_space, input_action_space)

    def __call__(self, *, batch: Batch, episodes: Any = (), **kwargs: Any) -> Batch:
        observations = batch.get(Columns.OBS)
        observations = newest_observations(episodes) if observations is None else observations
        actions = _newest(episodes, "actions", self.previous.num_actions)
        rewards = _newest(episodes, "rewards", self.previous.num_rewards)
        batch[Columns.OBS] = self.previous.joined(observations, actions, rewards, self._flatten)
        return batch


def _newest(episodes: Any, track: str, num_items: int) -> tuple[Any, np.ndarray]:
    """(rows [N, k, ...], valid [N, k]) of the newest items."""
    if not num_items:
        return None, np.zeros((len(episodes), 0), bool)
    rows, valid = recent(episodes, track, num_items)
    if rows is None:
        return np.zeros(valid.T.shape), valid.T
    return nested.map_leaves(lambda leaf: np.moveaxis(leaf, 0, 1), rows), valid.T
