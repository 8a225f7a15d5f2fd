"""`OffPolicyTrainer`: samples are stored in a replay buffer and learned from many times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from episode_learners.algorithms.config_checks import check_numbers
from episode_learners.algorithms.replay_algorithm import ReplayAlgorithm
from episode_learners.trainers.stored_buffer import StoredBuffer
from episode_learners.trainers.trainer import Trainer, TrainerConfig, check_acts
from episode_runners import Evaluation, SingleAgentEnvRunner, evaluate
from episodes.replay import EpisodeReplayBuffer

__all__ = ["OffPolicyConfig", "OffPolicyTrainer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyConfig(TrainerConfig):
    """Settings of an off-policy run.

    Attributes:
        steps_per_collect: Environment steps between two updates, over all environments.
        gradient_steps_per_collect: Gradient steps of an update.
        warmup_steps: Environment steps with random actions before the first update.
    """

    steps_per_collect: int = 8
    gradient_steps_per_collect: int = 1
    warmup_steps: int = 500

    def __post_init__(self) -> None:
        TrainerConfig.__post_init__(self)
        check_numbers(self, counts=("steps_per_collect", "gradient_steps_per_collect"), whole=("warmup_steps",))


class OffPolicyTrainer(Trainer[OffPolicyConfig]):
    """Trainer that samples into a replay buffer, and takes gradient steps on samples of the buffer.

    Args:
        runner: a runner of the algorithm's policy.
        buffer: the buffer that the runner fills.
        of_trainer: the other arguments of `Trainer`.
    """

    def __init__(
        self,
        algorithm: ReplayAlgorithm[Any],
        runner: SingleAgentEnvRunner,
        buffer: EpisodeReplayBuffer,
        config: OffPolicyConfig | None = None,
        **of_trainer: Any,
    ) -> None:
        check_acts(runner, algorithm)
        super().__init__(algorithm, config or OffPolicyConfig(), **of_trainer)
        self.runner, self.buffer = runner, buffer
        self.learner = algorithm

    def _collect_and_update(self) -> None:
        self.learner.explore_after(self.num_steps)
        stored = self.learner.stored_outputs
        options: dict[str, Any] = {"extra_model_outputs": stored, "random_actions": False}
        if self.num_steps < self.config.warmup_steps:  # random actions have no other outputs: the policy takes its own
            options["random_actions"] = not stored
            stats = self.runner.sample_into(self.buffer, num_timesteps=self.config.warmup_steps, **options)
            self.num_steps += stats.num_steps
            return
        self.runner.policy_version = self.num_updates
        stats = self.runner.sample_into(self.buffer, num_timesteps=self.config.steps_per_collect, **options)
        self.num_steps += stats.num_steps
        if stats.num_episodes:
            self._sampled(stats)
        gradient_steps = self.config.gradient_steps_per_collect
        self._update(self.learner.update_from(self.buffer, gradient_steps), gradient_steps)

    def test(self, seed: int) -> Evaluation:
        return evaluate(self.runner, num_episodes=self.config.num_test_episodes, seed=seed)

    def _parts(self) -> Mapping[str, Any]:
        return {"runner": self.runner, "buffer": StoredBuffer(self.buffer)}
