"""Policies solve tasks: continuous actions, and a task that needs memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from connectors import env_to_module, env_to_module_pipeline, learner
from episode_learners import PPO, LSTMPolicy, MLPPolicy, Policy, PPOConfig, linear_decay, ppo_pipeline
from episode_learners.episode_history import EpisodeHistory
from episode_learners.run import Run
from episode_runners import SingleAgentEnvRunner
from episodes.pack import EpisodePack
from episodes.storage import EpisodeWriter

NUM_ENVS = 8
RECURRENT = PPOConfig(learning_rate=2e-3, gamma=0.98, lambda_=0.9, num_epochs=6, minibatch_size=256, max_seq_len=32)
FEED_FORWARD = PPOConfig(learning_rate=2e-3, gamma=0.98, lambda_=0.9, num_epochs=6, minibatch_size=128)
CONTINUOUS = PPOConfig(learning_rate=2e-3, gamma=0.9, lambda_=0.9, num_epochs=10, minibatch_size=128)


class WithoutVelocities(gym.ObservationWrapper):
    """CartPole whose observations have no velocities, scaled to about 1."""

    SHOWN, SCALE = [0, 2], np.array([2.0, 10.0], np.float32)

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        return observation[self.SHOWN] * self.SCALE


def cartpole_without_velocities() -> gym.Env:
    return WithoutVelocities(gym.make("CartPole-v1"))


def learned(
    make_env: Callable[[], gym.Env],
    make_policy: Callable[..., Policy],
    config: PPOConfig,
    *,
    num_steps: int,
    goal: float,
    rollout: int = 128,
    decay_steps: int | None = None,
    num_frames: int = 1,
) -> EpisodeHistory:
    """Sample and learn until the mean return of the last 50 episodes reaches the goal, or the steps are used up."""
    env = gym.vector.SyncVectorEnv([make_env] * NUM_ENVS)
    spaces = (env.single_observation_space, env.single_action_space)
    stacks = num_frames > 1
    pipeline = env_to_module_pipeline(*spaces, pieces=[env_to_module.FrameStacking(num_frames=num_frames)] * stacks)
    learned_from = [learner.FrameStackingLearner(num_frames=num_frames)] * stacks
    policy = make_policy(pipeline.observation_space, spaces[1], generator=torch.Generator().manual_seed(0))
    runner = SingleAgentEnvRunner(env, policy, env_to_module=pipeline if stacks else None, seed=0)
    ppo = PPO(
        policy,
        config,
        pipeline=ppo_pipeline(policy, config, pieces=learned_from, observation_space=spaces[0]),
        scheduler=linear_decay((decay_steps or num_steps) // (NUM_ENVS * rollout)),
    )
    history = EpisodeHistory()
    while history.num_steps < num_steps and (len(history.returns) < 50 or history.mean_return() < goal):
        pack = runner.sample(num_timesteps=NUM_ENVS * rollout)
        history.add(pack)
        ppo.update(pack)
    return history


def test_two_frames_replace_hidden_velocities():
    history = learned(cartpole_without_velocities, MLPPolicy, FEED_FORWARD, num_steps=60_000, goal=150.0, num_frames=2)
    assert history.mean_return() >= 150


@pytest.mark.slow
def test_only_recurrent_policy_solves_hidden_velocities():
    recurrent = learned(cartpole_without_velocities, LSTMPolicy, RECURRENT, num_steps=120_000, goal=450.0)
    assert recurrent.mean_return() >= 450
    blind = learned(cartpole_without_velocities, MLPPolicy, FEED_FORWARD, num_steps=120_000, goal=450.0)
    assert blind.mean_return() < 100


@pytest.mark.slow
def test_continuous_algorithms_solve_pendulum():
    history = learned(
        lambda: gym.make("Pendulum-v1"),
        MLPPolicy,
        CONTINUOUS,
        num_steps=100_000,
        goal=-250.0,
        rollout=256,
        decay_steps=120_000,
    )
    untrained = float(np.mean(history.returns[:10]))
    assert untrained < -900
    assert history.mean_return() >= -250


class SwingsUp:
    """Controller that gains energy until the pendulum is nearly upright, and balances the pendulum."""

    def __call__(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        cos, sin, speed = batch["obs"].unbind(-1)
        lacks_energy = speed.square() / 2 + 10 * cos < 10
        swinging = 2 * speed.sign() * torch.where(lacks_energy, 1, -1)
        torque = torch.where(cos > 0.8, -8 * sin - 2 * speed, swinging)
        return {"actions": (torque / 2).clamp(-1, 1).unsqueeze(-1)}


@pytest.mark.slow
def test_cql_exceeds_the_mean_return_of_mixed_data(tmp_path: Path) -> None:
    with (
        SingleAgentEnvRunner("Pendulum-v1", SwingsUp(), num_envs=4, seed=0) as runner,
        EpisodeWriter(tmp_path) as writer,
    ):
        packs = [runner.sample(num_episodes=24, random_actions=True), runner.sample(num_episodes=12)]
        for pack in packs:
            writer.add(pack)
    mean, best = EpisodePack.concat(packs).returns().mean(), packs[1].returns().mean()
    assert best > -250
    run = Run.of_preset("continuous-cql", "Pendulum-v1")
    run.data, run.trainer = str(tmp_path), {**run.trainer, "max_epochs": 8, "shows_progress": False}
    result = run.make(stop_fn=lambda score: score > mean + 100).run()
    assert result.best_score > mean + 100
