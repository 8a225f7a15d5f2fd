"""`OnPolicyTrainer`: what was just sampled is learned from once, and is gone."""

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
    """How much is sampled for an update."""

    steps_per_collect: int = 1024  # of all environments together
    episodes_per_collect: int | None = None  # whole episodes in place of steps, for who compares their returns

    def __post_init__(self) -> None:
        TrainerConfig.__post_init__(self)
        check_numbers(self, counts=("steps_per_collect", "episodes_per_collect"))


class OnPolicyTrainer(Trainer[OnPolicyConfig]):
    """Samples, updates, and samples with the better policy.

    Args:
        runner: with the algorithm's policy; a `GroupRunner` samples with several.
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
