"""Sampling CartPole: the same 64-64 tanh MLP and the same number of environments on both sides.

The bare loop is the least that can be done: forward, sample, step, nothing stored. Every peer is used as its
documentation says, warm, and stores what it stores.
"""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from benchmarks.figure import Figure, Side, Size, Timed, at_least
from benchmarks.peers import RLLIB, SB3, TIANSHOU, samplers

ENVIRONMENT = "CartPole-v1"
ROWS = 256  # vector steps of one call: a usual rollout
COUNTED_ROWS = 2000
COUNTS = (1, 8, 64)


def bare_loop(num_envs: int) -> Callable[[Size], Timed]:
    """Forward, sample, step; sampling adds Gumbel noise, which is the leanest there is.

    Only steps are counted: a row after an ending is a reset, which takes its time and is no step.
    """

    def prepare(size: Size) -> Timed:
        envs = gym.make_vec(ENVIRONMENT, num_envs=num_envs, vectorization_mode="sync")
        network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        network[-1].weight.data *= 0.01  # a new policy is close to uniform, as ours is: episodes of the same lengths
        observations = np.asarray(envs.reset(seed=0)[0])
        rows = size(ROWS)

        def step() -> tuple[np.ndarray, np.ndarray]:
            nonlocal observations
            logits = network(torch.from_numpy(observations))
            noise = torch.empty_like(logits).exponential_().log_()
            observations, _, terminateds, truncateds, _ = envs.step((logits - noise).argmax(-1).numpy())
            return terminateds, truncateds

        def run() -> None:
            with torch.inference_mode():
                for _ in range(rows):
                    step()

        with torch.inference_mode():
            endings = int(sum(np.logical_or(*step()).sum() for _ in range(size(COUNTED_ROWS))))
        return Timed(run, rows * num_envs - endings * rows / size(COUNTED_ROWS))

    return prepare


def ours(num_envs: int) -> Callable[[Size], Timed]:
    def prepare(size: Size) -> Timed:
        from learners import MLPPolicy
        from runners import SingleAgentEnvRunner

        envs = gym.make_vec(ENVIRONMENT, num_envs=num_envs, vectorization_mode="sync")
        policy = MLPPolicy(envs.single_observation_space, envs.single_action_space, hidden_sizes=(64, 64))
        runner = SingleAgentEnvRunner(envs, policy, seed=0)
        count = size(ROWS) * num_envs
        return Timed(lambda: runner.sample(num_timesteps=count), count)

    return prepare


def figures(num_envs: int) -> tuple[Figure, ...]:
    """Ours against the bare loop and each peer, at one number of environments."""
    side = Side("ours", ours(num_envs))
    others = (
        (Side("bare loop", bare_loop(num_envs)), 0.85),
        (Side("RLlib", samplers.rllib(num_envs, ROWS), RLLIB), 3.0),
        (Side("Tianshou", samplers.tianshou(num_envs, ROWS), TIANSHOU), 2.5),
        (Side("SB3", samplers.sb3(num_envs, ROWS), SB3), 1.3),
    )
    return tuple(
        Figure(f"sampling/{num_envs} {other.name}", side, other, at_least(times), "steps/s") for other, times in others
    )


FIGURES = tuple(figure for num_envs in COUNTS for figure in figures(num_envs))
