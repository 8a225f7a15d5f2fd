"""Benchmarks of creating a PPO train batch from 38 episodes with 4,000 steps, with and without advantages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE, Steps, our_episode, train_steps
from benchmarks.device import finish
from benchmarks.figure import Figure, Side, Size, Timed, at_least, at_most
from benchmarks.peers import RLLIB, pipelines

EXTRAS = ("action_dist_inputs", "action_logp")


def ppo_steps(size: Size) -> list[Steps]:
    """Return the data of 38 episodes with 4,000 steps in total. The last episode has not ended."""
    return train_steps(size(4000), size(38) if size.most is None else 3, EXTRAS)


def our_batch(
    size: Size,
    *,
    packed: bool,
    gae: bool = False,
    make_steps: Callable[[Size], list[Steps]] = ppo_steps,
    device: Any = None,
) -> Timed:
    """Time this library's learner pipeline, given a list of finalized episodes or a pack, with or without
    advantages. Tensors are on `device`.
    """
    from connectors import learner_pipeline
    from connectors.learner import GeneralizedAdvantageEstimation
    from episodes import EpisodePack

    episodes: Any = [our_episode(steps) for steps in make_steps(size)]
    episodes = EpisodePack.from_episodes(episodes) if packed else episodes
    returns = GeneralizedAdvantageEstimation(gamma=0.99, lambda_=0.95) if gae else None
    pipeline = learner_pipeline(OBSERVATION_SPACE, ACTION_SPACE, returns=returns, device=device)
    module = ReadyValues()

    def run() -> None:
        pipeline(rl_module=module, batch={}, episodes=episodes)
        finish(device)

    return Timed(run)


class ReadyValues:
    """Policy whose value function returns zeros immediately, so that only the pipeline is measured and not a
    network.
    """

    is_stateful = False

    def __init__(self) -> None:
        self.values = torch.zeros(100_000)

    def compute_values(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.values[: len(batch["obs"])]


def bare_concatenation(size: Size) -> Timed:
    """Time the least work for a train batch: one `np.concatenate` and `torch.from_numpy` per column."""
    data = ppo_steps(size)

    def run() -> dict[str, torch.Tensor]:
        """Concatenate the arrays of all episodes, and return the columns as tensors."""
        terminateds = np.zeros(sum(map(len, data)), bool)
        truncateds = np.zeros_like(terminateds)
        ends = np.cumsum([len(steps) for steps in data]) - 1
        terminateds[ends] = [steps.terminated for steps in data]
        columns = {
            "obs": np.concatenate([steps.observations[:-1] for steps in data]),
            "actions": np.concatenate([steps.actions for steps in data]),
            "rewards": np.concatenate([steps.rewards for steps in data]),
            "terminateds": terminateds,
            "truncateds": truncateds,
            **{key: np.concatenate([steps.extras[key] for steps in data]) for key in EXTRAS},
        }
        return {key: torch.from_numpy(column) for key, column in columns.items()}

    return Timed(run)


LISTED = Side("ours", partial(our_batch, packed=False))
PACKED = Side("ours", partial(our_batch, packed=True))
WITH_GAE = Side("ours", partial(our_batch, packed=False, gae=True))
BARE = Side("np.concatenate", bare_concatenation)
RLLIB_BATCH = Side("RLlib", partial(pipelines.train_batch, make_steps=ppo_steps), RLLIB)
RLLIB_GAE = Side("RLlib", partial(pipelines.train_batch, make_steps=ppo_steps, gae=True), RLLIB)

FIGURES = (
    Figure("batches/list floor", LISTED, BARE, at_most(3), "ms"),
    Figure("batches/pack floor", PACKED, BARE, at_most(1), "ms"),
    Figure("batches/list", LISTED, RLLIB_BATCH, at_least(8), "ms"),
    Figure("batches/list with GAE", WITH_GAE, RLLIB_GAE, at_least(8), "ms"),
)
