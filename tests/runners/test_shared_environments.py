"""A callable that returns one environment object again: environments of a runner would step each other, and so would an
evaluation and the runner. All places where environments are made refuse it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from episode_learners import MLPPolicy
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner, evaluate, make_vector_env
from episodes.errors import InvalidArgument
from tests.agents_together import Together


class Count(gym.Env):
    """Environment whose observation is the number of steps since its reset."""

    observation_space, action_space = spaces.Box(0, 100, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 0.0, False, self.t == 5, {}


def repeated(env: Any) -> Callable[[], Any]:
    """Return a callable that returns `env` in each call."""
    return lambda: env


def wrapped(env: gym.Env) -> Callable[[], gym.Env]:
    """Return a callable that wraps `env` in each call."""
    return lambda: gym.wrappers.TimeLimit(env, 3)


POLICY = MLPPolicy(Count.observation_space, Count.action_space)
RUNNERS: dict[str, Callable[[], Any]] = {
    "sync": lambda: SingleAgentEnvRunner(repeated(Count()), num_envs=2),
    "wrapped": lambda: SingleAgentEnvRunner(wrapped(Count()), num_envs=2),
    "restarted": lambda: SingleAgentEnvRunner(repeated(Count()), num_envs=2, restart_failed=True),
    "made by the user": lambda: SingleAgentEnvRunner(SyncVectorEnv([repeated(Count())] * 2)),
    "make_vector_env": lambda: make_vector_env(repeated(Count()), 2),
    "several agents": lambda: MultiAgentEnvRunner(repeated(Together({"a": Count()})), num_envs=2),
    "evaluate": lambda: evaluate(repeated(Count()), POLICY, num_episodes=4, num_envs=2),
}


@pytest.mark.parametrize("make", RUNNERS.values(), ids=list(RUNNERS))
def test_environments_of_a_runner_are_distinct(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"two environments are one object, a (Count|Together)"):
        make()


def runner_of(env: Any) -> SingleAgentEnvRunner:
    return SingleAgentEnvRunner(env, POLICY, seed=0)


EVALUATED: dict[str, Callable[[], Any]] = {
    "a callable": lambda: runner_of(repeated(Count())),
    "a vector environment": lambda: runner_of(repeated(make_vector_env(Count, 1))),
    "made by the user": lambda: runner_of(SyncVectorEnv([repeated(Count())])),
    "several agents": lambda: MultiAgentEnvRunner(repeated(Together({"a": Count()})), POLICY, seed=0),
}


@pytest.mark.parametrize("make", EVALUATED.values(), ids=list(EVALUATED))
def test_evaluation_has_other_environments_than_its_runner(make: Callable[[], Any]) -> None:
    runner = make()
    runner.sample(num_timesteps=2)
    with pytest.raises(InvalidArgument, match="two environments are one object"):
        evaluate(runner, num_episodes=1)
    assert runner.sample(num_timesteps=2) is not None


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_new_environments_are_accepted(vectorization: str) -> None:
    """Processes have copies of one object."""
    make = Count if vectorization == "sync" else repeated(Count())
    with SingleAgentEnvRunner(make, POLICY, num_envs=2, vectorization=vectorization, seed=0) as runner:
        pack = runner.sample(num_timesteps=10)
        assert all(episode.get_observations()[:, 0].tolist() == [0, 1, 2, 3, 4, 5] for episode in pack)
        assert len(evaluate(runner, num_episodes=2, seed=0).returns) == 2
