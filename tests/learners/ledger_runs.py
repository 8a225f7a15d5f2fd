"""Short runs with a ledger, which can be killed: `python -m tests.learners.ledger_runs KIND FOLDER UPDATES KILL_AT`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces

from episode_learners import DQN, PPO, DQNConfig, MLPPolicy, PPOConfig, QPolicy
from episode_learners.trainers import OffPolicyConfig, OffPolicyTrainer, OnPolicyConfig, OnPolicyTrainer
from episode_learners.trainers.trainer import Trainer
from episode_runners import SingleAgentEnvRunner
from episodes.replay import EpisodeReplayBuffer

PER_EPOCH = 4  # updates


class Killed:
    """Hook that kills the process after a number of updates."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_update(self, trainer: Trainer[Any], metrics: dict[str, float]) -> None:
        if trainer.algorithm.num_updates == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def trainer_of(kind: str, folder: Path, updates: int, kill_at: int = 0) -> Trainer[Any]:
    """Return a trainer with a number of updates, each of 8 steps."""
    generator = torch.Generator().manual_seed(0)
    shape = (spaces.Box(-10, 10, (4,)), spaces.Discrete(2))
    numbers: dict[str, Any] = {
        "max_epochs": updates // PER_EPOCH,
        "steps_per_epoch": 8 * PER_EPOCH,
        "num_test_episodes": 0,
        "checkpoint_every": max(updates // 3 // PER_EPOCH // 4, 1),
        "shows_progress": False,
        "steps_per_collect": 8,
    }
    of_trainer: dict[str, Any] = {"folder": folder, "ledger": folder / "ledger", "hooks": [Killed(kill_at)]}
    if kind == "ppo":
        policy = MLPPolicy(*shape, hidden_sizes=(8,), generator=generator)
        ppo = PPO(policy, PPOConfig(minibatch_size=8, num_epochs=1), seed=0)
        runner = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=0)
        return OnPolicyTrainer(ppo, runner, OnPolicyConfig(**numbers), **of_trainer)
    policy = QPolicy(*shape, hidden_sizes=(8,), generator=generator)
    dqn = DQN(policy, DQNConfig(batch_size=16, n_step=2), seed=0)
    runner = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=0)
    buffer = EpisodeReplayBuffer(400, seed=0)
    return OffPolicyTrainer(dqn, runner, buffer, OffPolicyConfig(warmup_steps=8, **numbers), **of_trainer)


if __name__ == "__main__":
    torch.set_num_threads(1)
    made = trainer_of(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    made.resume()
    made.run()
