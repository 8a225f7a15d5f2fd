"""PPO solves small tasks with each kind of network, observation and action."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import Actor
from connectors.distributions import distribution_for
from connectors.env_to_module import TransformerContext
from episode_learners import (
    PPO,
    EncoderPolicy,
    GRUPolicy,
    LSTMPolicy,
    MLPPolicy,
    PPOConfig,
    TransformerPolicy,
)
from episode_learners.networks import Autoregressive
from episode_runners import SingleAgentEnvRunner
from tests.learners.weights import seeded

TWO = spaces.Discrete(2)
NUM_ENVS = 16


class Toy(gym.Env):
    """Environment with a few steps, whose reward is 1 for right actions."""

    num_steps = 4

    def show(self) -> Any:
        """Return the next observation."""
        raise NotImplementedError

    def right(self, action: Any) -> float:
        """Return the reward of an action."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(self.right(action))
        self.t += 1
        return self.show(), reward, self.t == self.num_steps, False, {}


class Remembered(Toy):
    """A bit is observed once. The right action is this bit at every later step."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,), np.float32), TWO

    def show(self) -> np.ndarray:
        if self.t == 0:
            self.bit = int(self.np_random.integers(2))
        return np.array([2 * self.bit - 1 if self.t == 0 else 0, self.t == 0], np.float32)

    def right(self, action: Any) -> bool:
        return int(action) == self.bit


class Masked(Toy):
    """The observation has the right action and a mask of legal actions. Illegal actions fail the test."""

    observation_space = spaces.Dict({"wanted": spaces.Discrete(6), "action_mask": spaces.Box(0, 1, (6,), np.int8)})
    action_space = spaces.Discrete(6)

    def show(self) -> dict[str, Any]:
        self.wanted = int(self.np_random.integers(6))
        self.legal = (self.np_random.random(6) < 0.5).astype(np.int8)
        self.legal[self.wanted] = 1
        return {"wanted": self.wanted, "action_mask": self.legal}

    def right(self, action: Any) -> bool:
        assert self.legal[int(action)]
        return int(action) == self.wanted


class Pair(Toy):
    """Two choices that must agree."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.MultiDiscrete([3, 3])

    def show(self) -> np.ndarray:
        return np.array([self.np_random.uniform(-1, 1)], np.float32)

    def right(self, action: Any) -> bool:
        return bool(action[0] == action[1])


class Nested(Toy):
    """A choice, and a number near the observation."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Dict({"which": TWO, "where": spaces.Box(-2.0, 2.0, (1,), np.float32)})

    def show(self) -> np.ndarray:
        self.shown = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.shown

    def right(self, action: Any) -> float:
        return (
            0.5 * (int(action["which"]) == (self.shown[0] > 0))
            + 0.5
            - abs(float(action["where"][0]) - self.shown[1]) / 2
        )


class Near(Toy):
    """A number near the edge of its interval."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Box(-2.0, 2.0, (1,), np.float32)

    def show(self) -> np.ndarray:
        self.sign = float(self.np_random.choice([-1.0, 1.0]))
        return np.array([self.sign], np.float32)

    def right(self, action: Any) -> float:
        return 1 - abs(float(action[0]) - 1.9 * self.sign) / 4


KINDS: dict[str, tuple[type[Toy], Callable[..., Any], list[Any], float]] = {
    "an LSTM": (Remembered, lambda *spaces: LSTMPolicy(*spaces, state_size=16, generator=seeded()), [], 0.9),
    "a GRU": (Remembered, lambda *spaces: GRUPolicy(*spaces, state_size=16, generator=seeded()), [], 0.9),
    "a transformer": (
        Remembered,
        lambda *spaces: TransformerPolicy(*spaces, size=16, generator=seeded()),
        [TransformerContext(k=4)],
        0.9,
    ),
    "masked": (Masked, lambda *spaces: EncoderPolicy(*spaces, generator=seeded()), [], 0.9),
    "an autoregressive pair": (
        Pair,
        lambda seen, done: EncoderPolicy(seen, done, distribution=Autoregressive(done, 16, generator=seeded())),
        [],
        0.95,
    ),
    "nested actions": (Nested, lambda *spaces: MLPPolicy(*spaces, generator=seeded()), [], 0.8),
    "squashed": (
        Near,
        lambda seen, done: MLPPolicy(seen, done, distribution=distribution_for(done, squashed=True)),
        [],
        0.85,
    ),
}


@pytest.mark.parametrize(("toy", "make", "views", "goal"), KINDS.values(), ids=KINDS)
def test_ppo_learns_with_each_network(toy: Any, make: Any, views: list[Any], goal: float) -> None:
    torch.manual_seed(0)
    env = gym.vector.SyncVectorEnv([toy] * NUM_ENVS)
    actor = Actor(partial(make), toy.observation_space, toy.action_space, pieces=views)
    runner = SingleAgentEnvRunner(env, actor, seed=0)
    config = PPOConfig(learning_rate=1e-2, num_epochs=4, minibatch_size=64, gamma=0.5, max_seq_len=4)
    algorithm = PPO(actor, config)
    result = []
    for _ in range(40):
        pack = runner.sample(num_timesteps=NUM_ENVS * 16)
        algorithm.update(pack)
        result.append(float(pack.rewards[pack.step_rows()].mean()))
        if result[-1] > goal:
            return
    pytest.fail(f"right in {result[-1]:.0%}: {[round(share, 2) for share in result]}")
