"""Observations with the actions and rewards before them: their form, shared by acting and learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument
from episodes.tracks import nested
from episodes.tracks.flattening import Flattener

OBSERVATION = "_orig_obs"  # the keys of what comes out, as in RLlib
PREVIOUS_ACTIONS = "prev_n_actions"
PREVIOUS_REWARDS = "prev_n_rewards"


@dataclass(frozen=True, slots=True)
class PreviousSteps:
    """How many actions and rewards go with an observation, oldest first."""

    num_actions: int = 1
    num_rewards: int = 1

    def __post_init__(self) -> None:
        if self.num_actions < 0 or self.num_rewards < 0 or not self.num_actions + self.num_rewards:
            raise InvalidArgument(
                f"n_prev_actions={self.num_actions}, n_prev_rewards={self.num_rewards}: "
                "give at least one, none negative"
            )

    @property
    def reach(self) -> int:
        """How many steps back it goes."""
        return max(self.num_actions, self.num_rewards)

    def space(self, observation_space: gym.Space, action_space: gym.Space | None) -> spaces.Dict:
        """The space of the observations with what goes with them."""
        parts: dict[str, gym.Space] = {OBSERVATION: observation_space}
        if self.num_actions:
            if action_space is None:
                raise InvalidArgument(NO_ACTION_SPACE)
            size = self.num_actions * spaces.flatdim(action_space)
            parts[PREVIOUS_ACTIONS] = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        if self.num_rewards:
            parts[PREVIOUS_REWARDS] = spaces.Box(-np.inf, np.inf, (self.num_rewards,), np.float32)
        return spaces.Dict(parts)

    def joined(
        self,
        observations: Any,
        actions: tuple[Any, np.ndarray],
        rewards: tuple[Any, np.ndarray],
        flatten: Flattener | None,
    ) -> dict[str, Any]:
        """The observations [B, ...] with `prev_n_actions` [B, n * flat size] and `prev_n_rewards` [B, n], float32.

        Args:
            actions: (nested arrays [B, n, ...], valid [B, n]); what is not valid becomes zeros.
            rewards: (array [B, n], valid [B, n]).
            flatten: what makes vectors of actions.
        """
        parts = {OBSERVATION: observations}
        if self.num_actions:
            parts[PREVIOUS_ACTIONS] = _flat_actions(*actions, flatten)
        if self.num_rewards:
            values, valid = rewards
            parts[PREVIOUS_REWARDS] = np.where(valid, values, 0).astype(np.float32)
        return parts


def _flat_actions(actions: Any, valid: np.ndarray, flatten: Flattener | None) -> np.ndarray:
    if flatten is None:
        raise InvalidArgument(NO_ACTION_SPACE)
    num_rows, num_actions = valid.shape
    flat = np.zeros((num_rows * num_actions, flatten.size), np.float32)
    there = np.flatnonzero(valid)
    if len(there):
        flat[there] = flatten(nested.map_leaves(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[there], actions))
    return flat.reshape(num_rows, num_actions * flatten.size)


def action_flattener(action_space: gym.Space | None) -> Flattener | None:
    """What makes float32 vectors of the space's actions; None without a space."""
    return None if action_space is None else Flattener(action_space, np.float32)


NO_ACTION_SPACE = "previous actions need the action space; give it to the pipeline"
