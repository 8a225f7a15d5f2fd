"""Atari and MuJoCo environments with pipeline, replay and PPO, in `make slow`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import VectorEnv
from torch import nn

from connectors import env_to_module_pipeline
from connectors.env_to_module import FrameStacking
from connectors.testing import check_policy
from episode_learners import PPO, Policy, PPOConfig
from episode_learners.run import Run
from episode_runners import SingleAgentEnvRunner, make_vector_env
from episode_runners.environments import EnvPoolVectorEnv
from episodes.replay import EpisodeReplayBuffer
from episodes.testing import check_vector_env

pytestmark = pytest.mark.slow

NUM_ENVS, NUM_FRAMES = 8, 4


def ale() -> VectorEnv:
    return AtariVectorEnv("breakout", NUM_ENVS, stack_num=1, num_threads=1, max_num_frames_per_episode=400)


def pool() -> VectorEnv:
    arguments = {"stack_num": 1, "num_threads": 1}
    return EnvPoolVectorEnv("Breakout-v5", NUM_ENVS, max_episode_steps=100, pool_kwargs=arguments)


class SmallCNN(Policy):
    """Convolutional network over stacks of frames [B, 4, 84, 84], shared by actor and critic."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__(observation_space, action_space)
        layers = [nn.Conv2d(NUM_FRAMES, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU(), nn.Flatten()]
        self.body = nn.Sequential(*layers, nn.Linear(16 * 9 * 9, 64), nn.ReLU())
        self.actor, self.critic = nn.Linear(64, self.distribution.num_inputs), nn.Linear(64, 1)

    def features(self, batch: Any) -> torch.Tensor:
        return self.body(batch["obs"] / 255)

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        features = self.features(batch)
        outputs = {"action_dist_inputs": self.actor(features)}
        return outputs if explore is not None else outputs | {"vf_preds": self.critic(features)[:, 0]}

    def compute_values(self, batch: Any) -> torch.Tensor:
        return self.critic(self.features(batch))[:, 0]


def atari_runner(env: VectorEnv) -> SingleAgentEnvRunner:
    spaces = env.single_observation_space, env.single_action_space
    pipeline = env_to_module_pipeline(*spaces, pieces=[FrameStacking(num_frames=NUM_FRAMES, axis=0)])
    policy = SmallCNN(pipeline.observation_space, spaces[1])
    return SingleAgentEnvRunner(env, policy, env_to_module=pipeline, seed=0)


@pytest.mark.parametrize("make", [ale, pool])
def test_ppo_learns_from_atari_frame_stacks(make: Callable[[], VectorEnv]) -> None:
    runner, config = atari_runner(make()), PPOConfig(minibatch_size=256, num_epochs=2)
    policy: Any = runner.policy
    check_policy(policy, runner.env_to_module.observation_space, policy.action_space)
    ppo = PPO(runner.actor, config)
    for _ in range(3):
        pack = runner.sample(num_timesteps=NUM_ENVS * 64)
        assert pack.observations.shape[1:] == (1, 84, 84)
        assert all(np.isfinite(value) for value in ppo.update(pack).values())
    assert runner.num_episodes
    runner.close()


@pytest.mark.parametrize("make", [ale, pool])
def test_replay_samples_equal_acting_frame_stacks(make: Callable[[], VectorEnv]) -> None:
    runner, buffer = atari_runner(make()), EpisodeReplayBuffer(2000, seed=0)
    views = runner.env_to_module.views
    runner.sample_into(buffer, num_timesteps=1200)
    batch = buffer.sample(64, views=views)
    assert batch.obs.shape == batch.new_obs.shape == (64, NUM_FRAMES, 84, 84)
    assert np.array_equal(batch.obs[:, 1:], batch.new_obs[:, :-1])
    stored = buffer.sample_episodes(2)
    assert all(episode.get_observations().shape[1:] == (1, 84, 84) for episode in stored)
    runner.close()


def test_atari_vector_environment_meets_contract() -> None:
    class FloatRewards(gym.vector.VectorWrapper):  # ALE's are int32
        def step(self, actions: Any) -> Any:
            observations, rewards, *remaining = self.env.step(actions)
            return observations, rewards.astype(np.float32), *remaining

    env = AtariVectorEnv("pong", 2, stack_num=1, max_num_frames_per_episode=60, use_fire_reset=False)
    check_vector_env(FloatRewards(env), num_steps=60)


def test_ppo_learns_hopper() -> None:
    run = Run(algo="ppo", env="Hopper-v5", num_envs=NUM_ENVS)
    run.algorithm = {"learning_rate": 1e-3, "num_epochs": 6, "minibatch_size": 128}
    run.trainer = {"max_epochs": 40, "steps_per_epoch": 2048, "steps_per_collect": 2048, "shows_progress": False}
    assert run.make(stop_fn=lambda score: score > 200).run().best_score > 200


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_mujoco_environment_meets_contract(mode: str) -> None:
    env = make_vector_env(lambda: gym.make("HalfCheetah-v5", max_episode_steps=20), 2, autoreset_mode=mode)
    check_vector_env(env, num_steps=60)
    env.close()
