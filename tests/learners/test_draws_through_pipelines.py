"""Samples from replay pass through the same filters and views as observations during acting."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from connectors import Connector, env_to_module_pipeline, learner_pipeline
from connectors.env_to_module import FrameStacking, MeanStdFilter
from episode_learners import DQN, R2D2, SAC, DQNConfig, LSTMQPolicy, QPolicy, R2D2Config, SACConfig, SACPolicy
from episode_runners import SingleAgentEnvRunner
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer

SPACES = {
    name: (env.observation_space, env.action_space)
    for name, env in ((name, gym.make(name)) for name in ("CartPole-v1", "Pendulum-v1"))
}
CARTPOLE, PENDULUM = SPACES


def dqn(space: gym.Space, **options: Any) -> DQN:
    policy = QPolicy(space, SPACES[CARTPOLE][1], hidden_sizes=(8,), epsilon=0.5)
    return DQN(policy, DQNConfig(batch_size=64, n_step=3), **options)


def r2d2(space: gym.Space, **options: Any) -> R2D2:
    policy = LSTMQPolicy(space, SPACES[CARTPOLE][1], hidden_sizes=(8,), state_size=8)
    return R2D2(policy, R2D2Config(batch_size=16, sequence_length=4, burn_in=2), **options)


def sac(space: gym.Space, **options: Any) -> SAC:
    policy = SACPolicy(space, SPACES[PENDULUM][1], hidden_sizes=(8,))
    return SAC(policy, SACConfig(batch_size=64), **options)


KINDS = {"DQN": (CARTPOLE, dqn), "R2D2": (CARTPOLE, r2d2), "SAC": (PENDULUM, sac)}


def seen_while_acting(policy: torch.nn.Module) -> list[np.ndarray]:
    """Return a list to which all observation rows of the policy's later calls are appended."""
    observations: list[np.ndarray] = []

    def note(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        observations.extend(arguments[0]["obs"].reshape(-1, arguments[0]["obs"].shape[-1]).numpy().copy())

    policy.register_forward_pre_hook(note)
    return observations


@pytest.mark.parametrize(("env_id", "make"), KINDS.values(), ids=KINDS)
def test_filtered_policy_learns_from_filtered_samples(env_id: str, make: Any) -> None:
    pieces = [MeanStdFilter()]
    seeing = env_to_module_pipeline(*SPACES[env_id], pieces=pieces)
    algorithm = make(seeing.observation_space)
    acting = env_to_module_pipeline(*SPACES[env_id], pieces=[MeanStdFilter()], policy=algorithm.policy)
    runner = SingleAgentEnvRunner(env_id, algorithm.policy, num_envs=2, env_to_module=acting, seed=0)
    buffer = EpisodeReplayBuffer(500, seed=0)
    observations = seen_while_acting(algorithm.policy)
    runner.sample_into(buffer, num_timesteps=200, extra_model_outputs=algorithm.stored_outputs)
    drawn = algorithm.draw(buffer, 64)
    present = drawn.get("loss_mask", np.ones(64, bool))
    acted_on = {row.tobytes() for row in observations}
    assert {row.tobytes() for row in drawn["obs"][present]} <= acted_on
    assert len({row.tobytes() for row in drawn["obs"][present]}) > 30
    algorithm.update_from(buffer)


def raw_episodes(env_id: str) -> Any:
    with SingleAgentEnvRunner(env_id, num_envs=3, seed=0) as runner:
        return runner.sample(num_timesteps=400, random_actions=True)


def known_filter(pack: Any) -> MeanStdFilter:
    """Return a filter with statistics of some episodes, which are not updated any more."""
    known = MeanStdFilter(pack.observation_space)
    known.rewrite(pack.observations)
    known.update_stats = False
    return known


@pytest.mark.parametrize(("env_id", "make"), [KINDS["DQN"], KINDS["SAC"]], ids=["DQN", "SAC"])
def test_learner_filter_applies_to_samples_and_episodes(env_id: str, make: Any) -> None:
    pack = raw_episodes(env_id)
    known = known_filter(pack)
    before = known.get_state()
    buffer = EpisodeReplayBuffer(500, seed=0)
    buffer.add(pack)
    algorithm = make(
        known.observation_space, pipeline=learner_pipeline(*SPACES[env_id], pieces=[known], next_observations=True)
    )
    drawn = algorithm.draw(buffer, 64)
    raw = buffer.at(drawn["indices"], n_step=algorithm.config.n_step)
    for name in ("obs", "new_obs"):
        np.testing.assert_array_equal(drawn[name], known.rewrite(raw[name], update=False))
        assert np.abs(drawn[name] - raw[name]).max() > 0.1
    assert {row.tobytes() for row in drawn["obs"]} <= {
        row.tobytes() for row in algorithm.preprocess(pack)["obs"].numpy()
    }
    assert algorithm.update_from(buffer).keys() >= algorithm.learn(algorithm.preprocess(pack)).keys()
    after = known.get_state()
    assert all(before["own"][""][name].tolist() == after["own"][""][name].tolist() for name in ("mean", "squares"))


def test_filter_and_frame_stack_apply_to_samples_in_order() -> None:
    pack = raw_episodes(CARTPOLE)
    known = known_filter(pack)
    pipeline = learner_pipeline(*SPACES[CARTPOLE], pieces=[known, FrameStacking(num_frames=3)], next_observations=True)
    algorithm = dqn(pipeline.views.observation_space, pipeline=pipeline)
    buffer = EpisodeReplayBuffer(500, seed=0)
    buffer.add(pack)
    whole = {row.tobytes() for row in algorithm.preprocess(pack)["obs"].numpy()}
    drawn = algorithm.draw(buffer, 64)["obs"]
    assert drawn.shape == (64, *pipeline.views.observation_space.shape)
    assert {np.ascontiguousarray(row).tobytes() for row in drawn} <= whole


class ClipRewards(Connector):
    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        return {**batch, "rewards": np.clip(batch["rewards"], -1, 1)}


def test_connectors_without_effect_on_samples_are_rejected() -> None:
    space = SPACES[CARTPOLE][0]
    pipeline = learner_pipeline(*SPACES[CARTPOLE], pieces=[ClipRewards()])
    with pytest.raises(InvalidArgument, match=r"ClipRewards would not be called for draws"):
        dqn(space, pipeline=pipeline)
