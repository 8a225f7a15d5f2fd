"""PPO solves tasks that need past observations with each kind of view."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from own_views import attention, joint
from torch import Tensor, nn

from connectors import Actor, env_to_module_pipeline, multi_agent_env_to_module
from connectors.distributions import distribution_for
from connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    OneHotAgentId,
    PrevActionsPrevRewards,
    TransformerContext,
    time_steps,
)
from episode_learners import PPO, LSTMPolicy, MLPPolicy, MultiAgentAlgorithm, Policy, PPOConfig
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner

ACTIONS = spaces.Discrete(2)


class Alternate(gym.Env):
    """Environment with random bits. The right action is the opposite of the previous action or bit."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), ACTIONS

    def __init__(self, recall: bool) -> None:
        self.recall = recall
        self.t, self.wanted = 0, 0

    def _show(self) -> np.ndarray:
        self.bit = int(self.np_random.integers(2))
        return np.array([2 * self.bit - 1], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.wanted = 0, -1
        return self._show(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(self.wanted in (-1, action))
        self.wanted = self.bit if self.recall else 1 - int(action)
        self.t += 1
        return self._show(), reward, False, self.t == 10, {}


class ColumnsPolicy(Policy):
    """Policy with all columns of its views as input."""

    def __init__(self, views: Any) -> None:
        super().__init__(views.observation_space, ACTIONS)
        torch.manual_seed(0)
        self.spaces = views.spaces
        size = sum(math.prod(space.shape) for space in views.spaces.values())
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(size, 32), nn.Tanh(), nn.Linear(32, num_out)) for num_out in (2, 1)
        )

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        columns = [batch[name].float().reshape(-1, math.prod(space.shape)) for name, space in self.spaces.items()]
        inputs = torch.cat(columns, 1)
        return {"action_dist_inputs": self.actor(inputs), "vf_preds": self.critic(inputs).squeeze(-1)}

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        return self(batch)["vf_preds"]


class Twice(gym.ObservationWrapper):
    """The same bit for two agents, of which one observes the opposite."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        observation_space: Any = env.observation_space
        self.observation_space = spaces.Dict({"left": observation_space, "right": observation_space})

    def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        return {"left": observation, "right": -observation}


def perceptron(views: Any) -> MLPPolicy:
    generator = torch.Generator().manual_seed(0)
    return MLPPolicy(views.observation_space, ACTIONS, hidden_sizes=(32,), generator=generator)


def memory(views: Any) -> LSTMPolicy:
    generator = torch.Generator().manual_seed(0)
    return LSTMPolicy(views.observation_space, ACTIONS, hidden_sizes=(16,), state_size=16, generator=generator)


KINDS: dict[str, tuple[list[Any], Any, bool]] = {
    "frames": ([FrameStacking(num_frames=2)], perceptron, True),
    "previous steps, flattened": ([PrevActionsPrevRewards(), FlattenObservations()], perceptron, False),
    "previous steps with a memory": ([PrevActionsPrevRewards(), FlattenObservations()], memory, False),
    "context with mask, actions and time": ([TransformerContext(k=3), time_steps], ColumnsPolicy, True),
    "a context of one's own": ([attention], ColumnsPolicy, True),
    "what all agents observe": ([joint], perceptron, True),
}


@pytest.mark.parametrize(("chain", "make_policy", "recall"), KINDS.values(), ids=KINDS)
def test_ppo_with_views_learns_from_the_past(chain: list[Any], make_policy: Any, recall: bool) -> None:
    make_env = (lambda: Twice(Alternate(recall))) if joint in chain else lambda: Alternate(recall)
    env = gym.vector.SyncVectorEnv([make_env] * 16)
    pipeline = env_to_module_pipeline(env.single_observation_space, ACTIONS, pieces=chain)
    policy = make_policy(pipeline.views)
    actor = Actor(policy, env_to_module=pipeline)
    runner = SingleAgentEnvRunner(env, actor, seed=0)
    config = PPOConfig(learning_rate=5e-3, num_epochs=6, minibatch_size=128, gamma=0.5, max_seq_len=5)
    algorithm = PPO(actor, config)
    torch.manual_seed(0)
    for _ in range(30):
        pack = runner.sample(num_timesteps=16 * 33)
        batch = algorithm.preprocess(pack)
        with torch.no_grad():
            logits = policy(batch)["action_dist_inputs"]
        logp = distribution_for(ACTIONS).log_prob(logits, batch["actions"])
        present = batch.get("loss_mask", torch.ones(len(logp), dtype=torch.bool))
        torch.testing.assert_close(logp[present], batch["action_logp"][present], rtol=0, atol=1e-5)
        algorithm.learn(batch)
        if pack.rewards[pack.step_rows()].mean() > 0.9:
            return
    pytest.fail(f"right in {pack.rewards[pack.step_rows()].mean():.0%} of the steps after 30 updates")


class Unlike:
    """Two agents with equal observations. The right action is 0 for one agent and 1 for the other."""

    observation_spaces = dict.fromkeys(("left", "right"), spaces.Box(-1, 1, (1,), np.float32))
    action_spaces = dict.fromkeys(("left", "right"), ACTIONS)

    def _show(self) -> dict[str, np.ndarray]:
        return {name: np.ones(1, np.float32) for name in ("left", "right")}

    def reset(self, seed: int | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        self.t = 0
        return self._show(), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.t += 1
        rewards = {"left": float(actions["left"] == 0), "right": float(actions["right"] == 1)}
        return self._show(), rewards, {"__all__": False}, {"__all__": self.t == 10}, {}


def test_ppo_learns_from_agent_index() -> None:
    box, module = Unlike.observation_spaces["left"], "default_policy"
    seeing = multi_agent_env_to_module(
        {module: box}, {module: ACTIONS}, pieces=lambda: [OneHotAgentId(["left", "right"])]
    )
    views = seeing[module].views
    policy, config = ColumnsPolicy(views), PPOConfig(learning_rate=5e-3, num_epochs=6, minibatch_size=128, gamma=0.5)
    actor = Actor(policy, env_to_module=seeing[module])
    algorithm = MultiAgentAlgorithm({module: PPO(actor, config)})
    runner = MultiAgentEnvRunner(Unlike, actor, num_envs=4, seed=0)
    means = []
    for _ in range(20):
        algorithm.update(runner.sample(num_timesteps=200))
        means.append(float(np.mean(runner.stats.returns)) / 20)
        if means[-1] > 0.9:
            return
    pytest.fail(f"right in {means[-1]:.0%} of the steps after 20 updates")
