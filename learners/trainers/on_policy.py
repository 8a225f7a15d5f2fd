"""`OnPolicyTrainer`: what was just sampled is learned from once, and is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learners.algorithms.algorithm import Algorithm
from learners.algorithms.numbers import check_numbers
from learners.trainers.trainer import Trainer, TrainerConfig
from runners import Evaluation, SingleAgentEnvRunner, evaluate

__all__ = ["OnPolicyConfig", "OnPolicyTrainer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPolicyConfig(TrainerConfig):
    """How much is sampled for an update."""

    steps_per_collect: int = 1024  # of all environments together

    def __post_init__(self) -> None:
        TrainerConfig.__post_init__(self)
        check_numbers(self, counts=("steps_per_collect",))


class OnPolicyTrainer(Trainer[OnPolicyConfig]):
    """Samples, updates, and samples with the better policy.

    Args:
        runner: with the algorithm's policy.
        of_trainer: the other arguments of `Trainer`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        runner: SingleAgentEnvRunner,
        config: OnPolicyConfig | None = None,
        **of_trainer: Any,
    ) -> None:
        super().__init__(algorithm, config or OnPolicyConfig(), **of_trainer)
        self.runner = runner

    def _collect_and_update(self) -> int:
        pack = self.runner.sample(num_timesteps=self.config.steps_per_collect)
        self.logger.log("train", self.runner.stats.as_dict(), self.num_steps)
        self._update(self.algorithm.update(pack))
        return pack.num_steps

    def test(self, seed: int) -> Evaluation:
        return evaluate(self.runner, num_episodes=self.config.num_test_episodes, seed=seed)

    def _parts(self) -> Mapping[str, Any]:
        return {"runner": self.runner}
