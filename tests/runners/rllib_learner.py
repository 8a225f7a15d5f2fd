"""RLlib's `Learner` with episodes of this library's runners.

It is run as a process of its own, for importing RLlib changes how a process logs, and prints the mean return of each
iteration.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

from episode_runners import RayRunnerGroup, SingleAgentEnvRunner
from episodes.converters import to_rllib

MODULE, STEPS, ITERATIONS = "default_policy", 2000, 12


class Acting(torch.nn.Module):
    """Policy of this library that calls an RLModule."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        forward = self.module.forward_inference if explore is False else self.module.forward_exploration
        return forward({"obs": batch["obs"]})


def config() -> PPOConfig:
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], vf_share_layers=False))
        .training(lr=1e-3, train_batch_size_per_learner=STEPS)
    )


def make_runner(index: int, seed: int) -> SingleAgentEnvRunner:
    module = config().get_rl_module_spec(env=gym.make("CartPole-v1")).build()
    return SingleAgentEnvRunner("CartPole-v1", Acting(module), num_envs=4, seed=seed)


def main() -> None:
    """Run iterations of sampling with two actors and updates in this process."""
    torch.manual_seed(0)
    learner = config().build_learner(env=gym.make("CartPole-v1"))
    with RayRunnerGroup(make_runner, 2) as group:
        for iteration in range(ITERATIONS):
            group.set_weights(Acting(learner.module[MODULE]), iteration)
            samples = group.sample(num_timesteps=STEPS)
            assert {sample.policy_version for sample in samples} == {iteration}
            episodes = [episode for sample in samples for episode in to_rllib(sample.data)[0]]
            learner.update(
                episodes=episodes,
                timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: STEPS * (iteration + 1)},
                num_epochs=8,
                minibatch_size=128,
            )
            returns = [value for sample in samples for value in sample.stats.returns.tolist()]
            print(sum(returns) / len(returns), flush=True)


if __name__ == "__main__":
    from tests.runners import rllib_learner  # actors import make_runner from there

    rllib_learner.main()
