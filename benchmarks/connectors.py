"""Connector benchmarks: train batches of recurrent policies, actions for the environment, frame stacks, and
normalization of observations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.batches import ReadyValues, ppo_steps
from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE, Steps, frame_episode, our_episode, random_frames
from benchmarks.device import finish
from benchmarks.figure import Figure, Side, Size, Timed, at_least, at_most
from benchmarks.peers import RLLIB, pipelines

STACK = 4


class ReadyRecurrentValues(ReadyValues):
    """Recurrent policy whose value function returns zeros [B, T] immediately, so that only the pipeline is measured."""

    is_stateful = True
    max_seq_len = 20

    def get_initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(64, np.float32), "c": np.zeros(64, np.float32)}

    def compute_values(self, batch: dict[str, Any]) -> torch.Tensor:
        shape = batch["obs"].shape[:2]
        return self.values[: shape.numel()].view(shape)


def recurrent_batch(size: Size, *, make_steps: Callable[[Size], list[Steps]] = ppo_steps, device: Any = None) -> Timed:
    """Time the train batch of a recurrent policy: 4,000 steps with LSTM states, cut into sequences of 20 steps, with
    advantages. Tensors are on `device`.
    """
    from connectors import learner_pipeline
    from connectors.learner import GeneralizedAdvantageEstimation

    episodes = [our_episode(steps.with_states_as_extras()) for steps in make_steps(size)]
    module = ReadyRecurrentValues()
    returns = GeneralizedAdvantageEstimation(gamma=0.99, lambda_=0.95)
    pipeline = learner_pipeline(
        OBSERVATION_SPACE, ACTION_SPACE, policy=module, max_seq_len=20, returns=returns, device=device
    )

    def run() -> None:
        pipeline(rl_module=module, batch={}, episodes=episodes)
        finish(device)

    return Timed(run)


def actions_for_environment(size: Size, num_envs: int) -> Timed:
    """Time the pipeline from distribution inputs [N, 2] to sampled actions, log-probabilities and environment
    actions.
    """
    from connectors import module_to_env_pipeline

    inputs = torch.randn(size(num_envs), 2)
    pipeline = module_to_env_pipeline(OBSERVATION_SPACE, ACTION_SPACE)

    def run() -> None:
        pipeline(batch={"action_dist_inputs": inputs}, explore=True)

    return Timed(run)


def mean_std_filter(size: Size) -> Timed:
    """Time `MeanStdFilter` on a batch of observations [64, 376]: update the statistics, and normalize the batch."""
    from connectors.env_to_module import MeanStdFilter

    space = gym.spaces.Box(-np.inf, np.inf, (376,), np.float32)
    piece = MeanStdFilter(space, ACTION_SPACE)
    observations = np.random.default_rng(0).standard_normal((size(64), 376), np.float32)
    return Timed(lambda: piece.rewrite(observations))


def stacked_frames(size: Size) -> Timed:
    """Time a train batch of 32 transitions whose observations are stacks of 4 frames, made from a pack."""
    from connectors.env_to_module import FrameStacking
    from connectors.learner import AddNextObservations, AddObservations, LearnerPipeline
    from episodes import EpisodePack

    episode = frame_episode(size(32))
    pack = EpisodePack.from_episodes([episode])
    pieces = [FrameStacking(num_frames=STACK), AddObservations(), AddNextObservations()]
    pipeline = LearnerPipeline(episode.observation_space, ACTION_SPACE, connectors=pieces)
    return Timed(lambda: pipeline(batch={}, episodes=pack))


def gathered_frames(size: Size) -> Timed:
    """Time stacking the same frames with numpy only, by one indexing operation for the observations and one for the
    next observations.
    """
    steps = size(32)
    rows = random_frames(steps + 1)
    before = np.arange(STACK - 1, -1, -1)

    def stacks(first: int) -> np.ndarray:
        index = np.arange(first, first + steps)[:, None] - before
        stacked = rows[np.maximum(index, 0)]
        stacked[index < 0] = 0
        return np.moveaxis(stacked[..., 0], 1, -1)

    return Timed(lambda: (stacks(0), stacks(1)))


RECURRENT = Side("RLlib", partial(pipelines.train_batch, make_steps=ppo_steps, gae=True, lstm=True), RLLIB)
ACTIONS = Side("RLlib", partial(pipelines.module_to_env, num_envs=64), RLLIB)
FILTER = Side("RLlib", partial(pipelines.mean_std_filter, num_envs=64, width=376), RLLIB)

FIGURES = (
    Figure("connectors/recurrent batch", Side("ours", recurrent_batch), RECURRENT, at_least(20), "ms"),
    Figure(
        "connectors/module to env",
        Side("ours", partial(actions_for_environment, num_envs=64)),
        ACTIONS,
        at_least(20),
        "us",
    ),
    Figure("connectors/frame stacks", Side("ours", stacked_frames), Side("numpy", gathered_frames), at_most(1.4), "ms"),
    Figure("connectors/mean-std filter", Side("ours", mean_std_filter), FILTER, at_least(5), "us"),
)
