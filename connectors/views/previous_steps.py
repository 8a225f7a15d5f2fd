"""The last actions and rewards beside the observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from connectors.views.piece import ViewPiece
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.history import History, HistorySpaces
from episodes.tracks.validation import checked_count, checked_flag

__all__ = ["PrevActionsPrevRewards"]

OBSERVATION, ACTIONS, REWARDS = "_orig_obs", "prev_n_actions", "prev_n_rewards"  # the keys, as in RLlib


class PrevActionsPrevRewards(ViewPiece):
    """A view: "obs" is a dict of "_orig_obs", "prev_n_actions" [B, n * size] and "prev_n_rewards" [B, n], oldest first.

    Discrete and MultiDiscrete actions are one-hot, others raveled, all float32; before an episode's start there are
    zeros. `FlattenObservations` behind it makes one vector of each.

    Args:
        multi_agent: accepted as RLlib has it, and says nothing: a module's pipeline sees its agents one by one.
    """

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        n_prev_actions: int = 1,
        n_prev_rewards: int = 1,
        multi_agent: bool = False,
        name: str | None = None,
    ) -> None:
        checked_flag("multi_agent", multi_agent)
        n_prev_actions = checked_count("n_prev_actions", n_prev_actions, 0)
        n_prev_rewards = checked_count("n_prev_rewards", n_prev_rewards, 0)
        if not n_prev_actions + n_prev_rewards:
            raise InvalidArgument(
                f"n_prev_actions={n_prev_actions}, n_prev_rewards={n_prev_rewards}: give at least one, none negative"
            )
        self.n_prev_actions, self.n_prev_rewards = n_prev_actions, n_prev_rewards
        super().__init__(input_observation_space, input_action_space, name=name)

    def see(self, history: History) -> dict[str, Any]:
        parts = {OBSERVATION: history.observations()}
        if self.n_prev_actions:
            flat = history.flat_actions(self.n_prev_actions)
            parts[ACTIONS] = flat.reshape(-1, self.n_prev_actions * flat.shape[2])
        if self.n_prev_rewards:
            parts[REWARDS] = history.rewards(self.n_prev_rewards)
        return {Columns.OBS: parts}

    def spaces(self, given: HistorySpaces) -> dict[str, gym.Space]:
        """A Dict of the observations and what goes with them."""
        if given.observation_space is None:
            return {}
        parts: dict[str, gym.Space] = {OBSERVATION: given.observation_space}
        if self.n_prev_actions:
            size = self.n_prev_actions * given.flat_actions.size
            parts[ACTIONS] = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        if self.n_prev_rewards:
            parts[REWARDS] = spaces.Box(-np.inf, np.inf, (self.n_prev_rewards,), np.float32)
        return {Columns.OBS: spaces.Dict(parts)}
