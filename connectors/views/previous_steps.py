"""`PrevActionsPrevRewards`: view that gives the policy the previous actions and rewards next to the observation."""

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
    """View that adds the previous actions and rewards to the policy's observation, so that "obs" becomes a dict of the
    three.

    The dict has the observation "_orig_obs", the last n actions "prev_n_actions" [B, n * size] and the last n rewards
    "prev_n_rewards" [B, n], as in RLlib. The oldest step is first. Discrete and MultiDiscrete actions are one-hot,
    others are raveled, all as float32. Steps before the start of an episode are zeros. `FlattenObservations` after it
    returns one vector.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        n_prev_actions: number of previous actions.
        n_prev_rewards: number of previous rewards.
        multi_agent: accepted for compatibility with RLlib, without effect: a module's pipeline sees its agents one by
            one.
        name: name of the connector in its pipeline.

    Raises:
        InvalidArgument: a number is negative or not an int, or both are 0.
        WrongType: `multi_agent` is not a bool.
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
        """Return the column "obs" for a history: a dict of observations, previous actions and previous rewards."""
        parts = {OBSERVATION: history.observations()}
        if self.n_prev_actions:
            flat = history.flat_actions(self.n_prev_actions)
            parts[ACTIONS] = flat.reshape(-1, self.n_prev_actions * flat.shape[2])
        if self.n_prev_rewards:
            parts[REWARDS] = history.rewards(self.n_prev_rewards)
        return {Columns.OBS: parts}

    def spaces(self, input_spaces: HistorySpaces) -> dict[str, gym.Space]:
        """Return the space of the output column "obs": a `Dict` of the observation, the previous actions and the
        previous rewards. The dict is empty if the observation space is unknown.
        """
        if input_spaces.observation_space is None:
            return {}
        parts: dict[str, gym.Space] = {OBSERVATION: input_spaces.observation_space}
        if self.n_prev_actions:
            size = self.n_prev_actions * input_spaces.flat_actions.size
            parts[ACTIONS] = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        if self.n_prev_rewards:
            parts[REWARDS] = spaces.Box(-np.inf, np.inf, (self.n_prev_rewards,), np.float32)
        return {Columns.OBS: spaces.Dict(parts)}
