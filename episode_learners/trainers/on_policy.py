"""`OnPolicyTrainer`: samples episodes, updates the policy from them once, and discards them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.algorithms.config_checks import count
from episode_learners.multi_agent import MultiAgentAlgorithm
from episode_learners.trainers.config import TrainerConfig
from episode_learners.trainers.modules import num_steps_of
from episode_learners.trainers.trainer import Trainer, check_acts
from episode_runners import GroupRunner, MultiAgentEnvRunner, SingleAgentEnvRunner

__all__ = ["OnPolicyConfig", "OnPolicyTrainer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPolicyConfig(TrainerConfig):
    """Settings of an on-policy training run (`OnPolicyTrainer`).

    Attributes:
        steps_per_collect: Environment steps for an update, over all environments.
        episodes_per_collect: Complete episodes for an update, instead of `steps_per_collect`.
    """

    steps_per_collect: int = count(1024)
    episodes_per_collect: int | None = count(None)


class OnPolicyTrainer(Trainer[OnPolicyConfig]):
    """Trainer for on-policy algorithms such as PPO. It samples episodes with the current policy, updates the policy
    from them, and repeats.

    Args:
        algorithm: the algorithm to train.
        runner: a runner of the algorithm's policy or policies, or a `GroupRunner`.
        config: settings.
        of_trainer: the other arguments of `Trainer`.

    Raises:
        InvalidArgument: the runner acts with other policies than the algorithm's.
    """

    def __init__(
        self,
        algorithm: Algorithm | MultiAgentAlgorithm,
        runner: SingleAgentEnvRunner | GroupRunner | MultiAgentEnvRunner,
        config: OnPolicyConfig | None = None,
        **of_trainer: Any,
    ) -> None:
        check_acts(runner, algorithm)
        super().__init__(algorithm, config or OnPolicyConfig(), **of_trainer)
        self.runner = runner

    def _collect_and_update(self) -> None:
        """Sample episodes with the current policy, log their statistics, call the `on_collect` hooks, and update the
        policy.
        """
        self.runner.policy_version = self.num_updates
        whole = self.config.episodes_per_collect
        steps = self.config.steps_per_collect if whole is None else None
        episodes = self.runner.sample(num_timesteps=steps, num_episodes=whole)
        self.counts.num_steps += num_steps_of(self.runner.stats)
        self._log_sample(self.runner.stats)
        self._call_hooks("on_collect", episodes)
        self._update(self.algorithm.update(episodes))

    def _stateful_parts(self) -> dict[str, Any]:
        return {"runner": self.runner}
