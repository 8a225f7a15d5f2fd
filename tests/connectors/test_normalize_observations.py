"""Normalization of observations as a view: raw observations are stored, and every reader normalizes alike."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import Actor, env_to_module_pipeline, learner_pipeline
from connectors.env_to_module import FrameStacking, NormalizeObservations
from episode_learners import DQN, PPO, DQNConfig, MLPPolicy, QPolicy
from episode_runners import SingleAgentEnvRunner, evaluate
from episodes.errors import StateMismatch, UnwiredPipeline
from episodes.replay import EpisodeReplayBuffer

CARTPOLE = gym.make("CartPole-v1")
SPACES: tuple[Any, Any] = CARTPOLE.observation_space, CARTPOLE.action_space


def make_runner(make_policy: Any = MLPPolicy, **options: Any) -> SingleAgentEnvRunner:
    actor = Actor(make_policy, *SPACES, pieces=[NormalizeObservations(**options)])
    return SingleAgentEnvRunner("CartPole-v1", actor, num_envs=3, seed=0)


def normalized(rows: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return rows normalized by the mean and deviation of all rows that were seen."""
    seen = seen.astype(np.float64)
    return ((rows - seen.mean(0)) / (seen.std(0, ddof=1) + 1e-8)).clip(-10, 10).astype(np.float32)


def test_acting_learning_and_replay_normalize_raw_observations_alike():
    runner = make_runner()
    buffer = EpisodeReplayBuffer(500, seed=0)
    pack = runner.sample(num_timesteps=90)
    buffer.add(pack)
    seen = pack.observations  # raw, each observation once: the first sample has no lookback
    assert runner.env_to_module.recorded_observation_space == SPACES[0]
    views = runner.actor.views
    batch = learner_pipeline(*SPACES, views=views)(episodes=pack)
    raw = pack.observations[pack.observation_rows()]
    np.testing.assert_allclose(np.asarray(batch["obs"]), normalized(raw, seen), rtol=1e-4, atol=1e-5)
    sampled = buffer.sample(64, views=views)
    stored = buffer.at(sampled.indices)
    for name in ("obs", "new_obs"):
        expected = normalized(getattr(stored, name), seen)
        np.testing.assert_allclose(getattr(sampled, name), expected, rtol=1e-4, atol=1e-5)
    action, _ = runner.actor.act(raw[0])
    assert action in SPACES[1]


@pytest.mark.parametrize("options", [{"explore": False}, {"explore": True}, {"random_actions": True}])
def test_statistics_learn_only_while_sampling_with_updates(options: dict[str, bool]):
    for updates in (True, False):
        runner = make_runner()
        runner.sample(num_timesteps=9)
        runner.update_stats = updates
        before = runner.env_to_module.get_state()["NormalizeObservations"]["own"][""]["count"]
        pack = runner.sample(num_timesteps=30, **options)
        evaluate(runner, num_episodes=2, seed=0)
        learner_pipeline(*SPACES, views=runner.actor.views)(episodes=pack)
        after = runner.env_to_module.get_state()["NormalizeObservations"]["own"][""]["count"]
        learns = updates and options.get("explore", True)
        assert (after > before) == learns


def test_without_statistics_nothing_is_normalized_in_silence():
    runner = make_runner()
    with pytest.raises(StateMismatch, match="has seen no observation"):
        runner.sample(num_timesteps=9, explore=False)
    pack = runner.sample(num_timesteps=9)
    alone = learner_pipeline(*SPACES, pieces=[NormalizeObservations()])
    with pytest.raises(StateMismatch, match=r"views=actor\.views"):
        alone(episodes=pack)
    view = NormalizeObservations()
    view.learn(pack.observations)
    learner_pipeline(*SPACES, pieces=[view])(episodes=pack)


def test_it_is_the_first_view_and_later_views_see_normalized_frames():
    with pytest.raises(UnwiredPipeline, match="put it before the other views, FrameStacking"):
        env_to_module_pipeline(*SPACES, pieces=[FrameStacking(num_frames=2), NormalizeObservations()])
    view = NormalizeObservations()
    box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    pipeline = env_to_module_pipeline(box, SPACES[1], pieces=[view, FrameStacking(num_frames=2)])
    assert pipeline.recorded_observation_space == box
    rows = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    assert pipeline.rewrite(rows) is rows
    assert not view.is_empty_filter


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_algorithms_share_the_statistics_and_states_keep_them(algorithm: str):
    runner = make_runner(MLPPolicy if algorithm == "PPO" else QPolicy)
    if algorithm == "PPO":
        learner: Any = PPO(runner.actor)
        learner.update(runner.sample(num_timesteps=60))
    else:
        learner, buffer = DQN(runner.actor, DQNConfig(batch_size=8)), EpisodeReplayBuffer(500, seed=0)
        runner.sample_into(buffer, num_timesteps=60)
        learner.update_from(buffer, 2)
    pack = runner.sample(num_timesteps=9)
    expected = learner_pipeline(*SPACES, views=runner.actor.views)(episodes=pack)["obs"]
    assert torch.equal(learner.preprocess(pack)["obs"], expected)
    restored = make_runner()
    merged = restored.env_to_module.merge_states([runner.env_to_module.get_state()])
    restored.env_to_module.set_state(merged)
    obs = learner_pipeline(*SPACES, views=restored.actor.views)(episodes=pack)["obs"]
    np.testing.assert_allclose(obs, expected, rtol=1e-6)
