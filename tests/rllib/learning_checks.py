"""Learning of RLlib's algorithms with `install`, with settings and goals like those of RLlib's tuned examples.

Tests run the tasks of `QUICK`, which take less than ten minutes on one core. Each task also runs from the command line,
and prints the steps and mean return of one side:

    python -m tests.rllib.learning_checks "DQN CartPole" --seed 0
    python -m tests.rllib.learning_checks "DQN CartPole" --seed 0 --rllib    # RLlib alone
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from ray.rllib.examples.envs.classes.stateless_cartpole import StatelessCartPole

from episode_runners.rllib import install

pytestmark = pytest.mark.slow

SMALL_NET: dict[str, Any] = {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True}


def ppo(env: Any, num_envs: int = 8, **training: Any) -> PPOConfig:
    """Return the config of PPO with `num_envs` environments in this process."""
    config = PPOConfig().environment(env).env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
    return config.training(**{"lr": 3e-4, "num_epochs": 6, **training})


def cartpole() -> PPOConfig:
    """Return the config of PPO on CartPole."""
    return ppo("CartPole-v1", vf_loss_coeff=0.01).rl_module(model_config=DefaultModelConfig(**SMALL_NET))


def cartpole_of_two() -> PPOConfig:
    """Return the config of PPO with two agents and a module for each. Each agent has its own cart."""
    config = ppo(MultiAgentCartPole, vf_loss_coeff=0.01).environment(env_config={"num_agents": 2})
    config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: f"p{agent_id}")
    return config.rl_module(model_config=DefaultModelConfig(**SMALL_NET))


def stateless_cartpole() -> PPOConfig:
    """Return the config of PPO with an LSTM on CartPole without velocities."""
    config = ppo(StatelessCartPole, vf_loss_coeff=0.05)
    config.env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    return config.rl_module(model_config=DefaultModelConfig(**SMALL_NET, use_lstm=True, max_seq_len=20))


def pendulum() -> PPOConfig:
    """Return the config of PPO on Pendulum."""
    config = ppo("Pendulum-v1", 40, lr=2e-4, num_epochs=30, gamma=0.95, lambda_=0.5)
    config.training(train_batch_size_per_learner=1024, minibatch_size=128)
    return config.rl_module(model_config=DefaultModelConfig(fcnet_activation="relu"))


def dqn() -> DQNConfig:
    """Return the config of DQN on CartPole."""
    replay = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 50_000, "alpha": 0.6, "beta": 0.4}
    config = DQNConfig().environment("CartPole-v1").env_runners(num_env_runners=0)
    config.training(
        lr=5e-4,
        train_batch_size_per_learner=32,
        replay_buffer_config=replay,
        n_step=(2, 5),
        double_q=True,
        dueling=True,
        epsilon=[(0, 1.0), (10_000, 0.02)],
    )
    return config.rl_module(
        model_config=DefaultModelConfig(
            fcnet_hiddens=[256], fcnet_activation="tanh", head_fcnet_hiddens=[256], head_fcnet_activation="tanh"
        )
    )


def sac() -> SACConfig:
    """Return the config of SAC on Pendulum."""
    replay = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 100_000, "alpha": 1.0, "beta": 0.0}
    config = SACConfig().environment("Pendulum-v1").env_runners(num_env_runners=0)
    config.training(
        initial_alpha=1.001,
        actor_lr=2e-4,
        critic_lr=8e-4,
        alpha_lr=9e-4,
        lr=None,
        target_entropy="auto",
        n_step=(2, 5),
        tau=0.005,
        train_batch_size_per_learner=256,
        target_network_update_freq=1,
        replay_buffer_config=replay,
        num_steps_sampled_before_learning_starts=256,
    )
    config.rl_module(
        model_config=DefaultModelConfig(fcnet_hiddens=[256, 256], fcnet_activation="relu", head_fcnet_hiddens=[])
    )
    return config.reporting(metrics_num_episodes_for_smoothing=5)


def impala() -> IMPALAConfig:
    """Return the config of IMPALA on CartPole, with one remote env runner."""
    config = IMPALAConfig().environment("CartPole-v1").env_runners(num_env_runners=1, num_envs_per_env_runner=8)
    config.learners(num_aggregator_actors_per_learner=0)
    config.training(train_batch_size_per_learner=500, grad_clip=40.0, grad_clip_by="global_norm", lr=5e-4)
    config.training(vf_loss_coeff=0.05, entropy_coeff=0.0)
    return config.rl_module(model_config=DefaultModelConfig(vf_share_layers=True))


@dataclass(frozen=True)
class Task:
    """A config, the mean return to reach, and the most environment steps to take."""

    make: Callable[[], Any]
    goal: float
    num_steps: int


TASKS = {
    "PPO CartPole": Task(cartpole, 450, 300_000),
    "PPO CartPole, two agents": Task(cartpole_of_two, 900, 300_000),
    "PPO CartPole with an LSTM": Task(stateless_cartpole, 350, 2_000_000),
    "PPO Pendulum": Task(pendulum, -300, 400_000),
    "DQN CartPole": Task(dqn, 450, 100_000),
    "SAC Pendulum": Task(sac, -250, 20_000),
    "IMPALA CartPole": Task(impala, 450, 2_000_000),
}


QUICK = tuple(name for name in TASKS if name.startswith("PPO"))


@dataclass(frozen=True)
class Outcome:
    """Steps, best and last mean return, and CPU seconds of this process, after training."""

    steps: int
    best: float
    last: float
    seconds: float


def learn(task: Task, *, installed: bool, seed: int, num_steps: int | None = None) -> Outcome:
    """Train until the mean return reaches the goal of the task, or the steps are used up."""
    config = task.make().debugging(seed=seed, log_level="ERROR")
    algorithm = (install(config) if installed else config).build_algo()
    steps, best, last, began = 0, float("-inf"), float("-inf"), time.process_time()
    try:
        while steps < (num_steps or task.num_steps) and best < task.goal:
            result = algorithm.train()
            steps = int(result["num_env_steps_sampled_lifetime"])
            last = float(result["env_runners"].get("episode_return_mean", np.nan))  # nan: no episode has ended
            best = float(np.fmax(best, last))
    finally:
        algorithm.stop()
    return Outcome(steps, best, last, time.process_time() - began)


@pytest.fixture(scope="module", autouse=True)
def ray_session() -> Iterator[None]:
    torch.set_num_threads(1)
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    yield
    ray.shutdown()


@pytest.mark.parametrize("name", QUICK)
def test_installed_algorithm_reaches_the_goal(name: str) -> None:
    assert learn(TASKS[name], installed=True, seed=0).best >= TASKS[name].goal


def main() -> None:
    """Run one task and print its outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rllib", action="store_true", help="RLlib alone")
    parser.add_argument("--steps", type=int, help="most environment steps; by default those of the task")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    outcome = learn(TASKS[options.task], installed=not options.rllib, seed=options.seed, num_steps=options.steps)
    print("RLlib" if options.rllib else "installed", options.task, options.seed, outcome, flush=True)


if __name__ == "__main__":
    main()
