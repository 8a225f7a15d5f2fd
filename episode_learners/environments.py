"""Environments registered for the tested settings of algorithms:
`gymnasium.make("episode_learners.environments:ID")`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["WithoutVelocities"]


class WithoutVelocities(gym.ObservationWrapper):
    """CartPole wrapper that removes the velocities from observations, so that a policy needs a recurrent state. The
    positions of cart and pole are scaled to about 1.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]] * np.array([2.0, 10.0], np.float32)


def cartpole_without_velocities(**options: Any) -> gym.Env:
    """Return CartPole-v1 (500 steps) with observations that have no velocities, to test recurrent policies."""
    return WithoutVelocities(gym.make("CartPole-v1", **options))


gym.register("CartPoleWithoutVelocities-v1", cartpole_without_velocities, reward_threshold=475.0)
