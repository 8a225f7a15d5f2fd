"""`OnPolicyTrainer`: each sample is learned from once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.algorithms.config_checks import check_numbers
from episode_learners.trainers.trainer import Trainer, TrainerConfig, check_acts
from episode_runners import Evaluation, GroupRunner, SingleAgentEnvRunner, evaluate

__all__ = ["OnPolicyConfig", "OnPolicyTrainer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPolicyConfig(TrainerConfig):
    """Settings of an on-policy run.

    Attributes:
        steps_per_collect: Environment steps for an update, over all environments.
        episodes_per_collect: Complete episodes for an update, instead of `steps_per_collect`.
    """

    steps_per_collect: int = 1024
    episodes_per_collect: int | None = None

    def __post_init__(self) -> None:
        TrainerConfig.__post_init__(self)
        check_numbers(self, counts=("steps_per_collect", "episodes_per_collect"))


class OnPolicyTrainer(Trainer[OnPolicyConfig]):
    """Trainer that samples, updates the policy, and samples with the new policy.

    Args:
        runner: a runner of the algorithm's policy, or a `GroupRunner`.
        of_trainer: the other arguments of `Trainer`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        runner: SingleAgentEnvRunner | GroupRunner,
        config: OnPolicyConfig | None = None,
        **of_trainer: Any,
    ) -> None:
        check_acts(runner, algorithm)
        super().__init__(algorithm, config or OnPolicyConfig(), **of_trainer)
        self.runner = runner

    def _collect_and_update(self) -> None:
        self.runner.policy_version = self.num_updates
        whole = self.config.episodes_per_collect
        steps = self.config.steps_per_collect if whole is None else None
        pack = self.runner.sample(num_timesteps=steps, num_episodes=whole)
        self.num_steps += pack.num_steps
        self._sampled(self.runner.stats)
        self._tell("on_collect", pack)
        self._update(self.algorithm.update(pack))

    def test(self, seed: int) -> Evaluation:
        return evaluate(self.runner, num_episodes=self.config.num_test_episodes, seed=seed)

    def _parts(self) -> Mapping[str, Any]:
        return {"runner": self.runner}
