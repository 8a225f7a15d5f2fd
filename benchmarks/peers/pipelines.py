"""Workloads of RLlib's connector pipelines, built from a PPO configuration as in RLlib's algorithms."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE, Steps, rllib_episode
from benchmarks.device import finish
from benchmarks.figure import Size, Timed

MODULE = "default_policy"


def train_batch(
    size: Size, make_steps: Callable[[Size], list[Steps]], *, gae: bool = False, lstm: bool = False, device: Any = None
) -> Timed:
    """Time RLlib's learner pipeline on finalized episodes, optionally with advantages (GAE) or an LSTM.

    PPO's pipeline appends a step to the episodes, so each call gets copies, which are made outside of the timed
    part.
    """
    data = make_steps(size)
    episodes = [rllib_episode(with_rllib_state(steps) if lstm else steps) for steps in data]
    pipeline, module = learner_pipeline(gae=gae, lstm=lstm, device=device)

    def run(episodes: Any) -> Any:
        batch = pipeline(rl_module=module, batch={}, episodes=episodes, shared_data={})
        finish(device)
        return batch

    if gae:
        return Timed(run, fresh=lambda: deepcopy(episodes))
    return Timed(lambda: run(episodes))


def learner_pipeline(*, gae: bool, lstm: bool, device: Any = None) -> tuple[Any, Any]:
    """Return RLlib's learner pipeline, and a module whose value function returns zeros immediately."""
    from ray.rllib.connectors.learner import AddOneTsToEpisodesAndTruncate, GeneralAdvantageEstimation

    config = ppo_config(use_lstm=lstm)
    pipeline = config.build_learner_connector(OBSERVATION_SPACE, ACTION_SPACE, device=device)
    if gae:
        pipeline.prepend(AddOneTsToEpisodesAndTruncate())
        pipeline.append(GeneralAdvantageEstimation(gamma=0.99, lambda_=0.95))
    module = config.get_multi_rl_module_spec(spaces={MODULE: (OBSERVATION_SPACE, ACTION_SPACE)}).build()
    values = torch.zeros(100_000)

    def compute_values(batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        shape = batch["obs"].shape[: 2 if lstm else 1]
        return values[: shape.numel()].view(shape)

    module[MODULE].compute_values = compute_values
    return pipeline, module


def ppo_config(*, num_envs: int = 1, use_lstm: bool = False) -> Any:
    """Return RLlib's PPO configuration for CartPole, with a tanh perceptron of two layers of 64, or with an LSTM."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    model = DefaultModelConfig(
        fcnet_hiddens=[64] if use_lstm else [64, 64],
        fcnet_activation="tanh",
        use_lstm=use_lstm,
        lstm_cell_size=64,
        max_seq_len=20,
    )
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config=model)
    return config.env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)


def with_rllib_state(data: Steps) -> Steps:
    """Return an episode with its recurrent states as extra output in RLlib's shape, which has an axis of layers."""
    state = {name: values[:, None] for name, values in data.states.items()}
    return data.with_states_as_extras(state)


def module_to_env(size: Size, num_envs: int) -> Timed:
    """Time RLlib's pipeline from distribution inputs [N, 2] to the actions of the environment."""
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    count = size(num_envs)
    config = ppo_config(num_envs=count)
    envs = gym.make_vec("CartPole-v1", num_envs=count, vectorization_mode="sync")
    before = config.build_env_to_module_connector(envs)
    pipeline = config.build_module_to_env_connector(envs)
    spaces = {MODULE: (OBSERVATION_SPACE, ACTION_SPACE)}
    module = config.get_multi_rl_module_spec(spaces=spaces).build()[MODULE]
    episodes = []
    for observation in np.random.default_rng(0).standard_normal((count, 4), np.float32):
        episode = SingleAgentEpisode(observation_space=OBSERVATION_SPACE, action_space=ACTION_SPACE)
        episode.add_env_reset(observation)
        episodes.append(episode)
    shared: dict[str, Any] = {}
    batch = before(rl_module=module, batch={}, episodes=episodes, explore=True, shared_data=shared)
    with torch.no_grad():
        outputs = module.forward_exploration(batch)

    def run() -> None:
        pipeline(rl_module=module, batch=dict(outputs), episodes=episodes, explore=True, shared_data=dict(shared))

    return Timed(run)


def mean_std_filter(size: Size, num_envs: int, width: int) -> Timed:
    """Time RLlib's `MeanStdFilter` on the newest observation of each episode."""
    from ray.rllib.connectors.env_to_module import MeanStdFilter
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    space = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)
    piece: Any = MeanStdFilter()
    piece.input_action_space = ACTION_SPACE
    piece.input_observation_space = space
    episodes = []
    for observation in np.random.default_rng(0).standard_normal((size(num_envs), width), np.float32):
        episode = SingleAgentEpisode(observation_space=space, action_space=ACTION_SPACE)
        episode.add_env_reset(observation)
        episodes.append(episode)
    return Timed(lambda: piece(rl_module=None, batch={}, episodes=episodes, explore=True, shared_data={}))
