"""`OffPolicyTrainer`: stores sampled steps in a replay buffer, and learns from random samples of the buffer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from episode_learners.algorithms.config_checks import count, whole
from episode_learners.algorithms.replay_algorithm import ReplayAlgorithm
from episode_learners.multi_agent import MultiAgentAlgorithm, learners_of
from episode_learners.trainers.config import TrainerConfig
from episode_learners.trainers.modules import num_steps_of
from episode_learners.trainers.stored_buffer import StoredBuffer
from episode_learners.trainers.trainer import Trainer, check_acts
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes.errors import InvalidArgument
from episodes.multi_agent import MultiAgentEpisode
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer

__all__ = ["OffPolicyConfig", "OffPolicyTrainer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyConfig(TrainerConfig):
    """Settings of an off-policy training run (`OffPolicyTrainer`).

    Attributes:
        steps_per_collect: Environment steps between two updates, over all environments.
        gradient_steps_per_collect: Gradient steps of an update.
        warmup_steps: Environment steps with random actions before the first update.
    """

    steps_per_collect: int = count(8)
    gradient_steps_per_collect: int = count(1)
    warmup_steps: int = whole(500)


class OffPolicyTrainer(Trainer[OffPolicyConfig]):
    """Trainer for off-policy algorithms such as DQN and SAC. It samples episodes into a replay buffer, and takes
    gradient steps on samples of the buffer.

    With several agents, modules of algorithms that do not learn from replay (such as PPO) learn from each collection
    once it is complete, so `steps_per_collect` should suit them.

    Args:
        algorithm: the algorithm to train.
        runner: a runner of the algorithm's policy or policies.
        buffer: the buffer that the runner fills; with several agents a `MultiAgentEpisodeReplayBuffer`.
        config: settings.
        of_trainer: the other arguments of `Trainer`.

    Raises:
        InvalidArgument: the runner acts with other policies, or the buffer is of the wrong kind.
    """

    def __init__(
        self,
        algorithm: ReplayAlgorithm[Any] | MultiAgentAlgorithm,
        runner: SingleAgentEnvRunner | MultiAgentEnvRunner,
        buffer: EpisodeReplayBuffer | MultiAgentEpisodeReplayBuffer,
        config: OffPolicyConfig | None = None,
        **of_trainer: Any,
    ) -> None:
        check_acts(runner, algorithm)
        several = isinstance(algorithm, MultiAgentAlgorithm)
        if several != isinstance(buffer, MultiAgentEpisodeReplayBuffer):
            raise InvalidArgument(
                f"{type(algorithm).__name__} with a {type(buffer).__name__}: a MultiAgentAlgorithm needs a "
                "MultiAgentEpisodeReplayBuffer, other algorithms an EpisodeReplayBuffer"
            )
        super().__init__(algorithm, config or OffPolicyConfig(), **of_trainer)
        self.runner, self.buffer = runner, buffer

    def _collect_and_update(self) -> None:
        """Sample steps into the replay buffer, and take gradient steps on samples of the buffer. During warmup, only
        sample.
        """
        learner: Any = self.algorithm
        learner.explore_after(self.num_steps)
        is_warmup = self.num_steps < self.config.warmup_steps
        stores_outputs = any(algorithm.stored_outputs for algorithm in learners_of(self.algorithm).values())
        if not is_warmup:
            self.runner.policy_version = self.num_updates
        number = self.config.warmup_steps if is_warmup else self.config.steps_per_collect
        # random actions have no outputs to store: a policy that needs stored outputs acts by itself
        metrics = self._collect(number, random_actions=is_warmup and not stores_outputs, learns=not is_warmup)
        if not is_warmup:
            steps = self.config.gradient_steps_per_collect
            self._update({**metrics, **learner.update_from(self.buffer, steps)}, steps)

    def _collect(self, num_timesteps: int, *, random_actions: bool, learns: bool) -> dict[Any, Any]:
        """Sample `num_timesteps` steps into the replay buffer, and update the on-policy modules, such as PPO, from
        the steps.

        Return the metrics of these modules. For a single-agent algorithm the metrics are empty, and `on_collect`
        hooks are not called, because its steps go into the buffer without episodes.
        """
        options: dict[str, Any] = {"num_timesteps": num_timesteps, "random_actions": random_actions}
        metrics: dict[Any, Any] = {}
        if isinstance(self.algorithm, MultiAgentAlgorithm):
            episodes = self.runner.sample(**options)
            stats = self.runner.stats
            self.counts.num_steps += num_steps_of(stats)
            self._call_hooks("on_collect", episodes)
            if learns:
                metrics = self._update_on_policy(self.algorithm, episodes)
            keep_outputs(episodes, {m: learner.stored_outputs for m, learner in learners_of(self.algorithm).items()})
            self.buffer.add(episodes)
        else:
            outputs = self.algorithm.stored_outputs
            stats = self.runner.sample_into(self.buffer, extra_model_outputs=outputs, **options)
            self.counts.num_steps += stats.num_steps
        if learns and stats.num_episodes:
            self._log_sample(stats)
        return metrics

    def _update_on_policy(
        self, algorithm: MultiAgentAlgorithm, episodes: Sequence[MultiAgentEpisode]
    ) -> dict[Any, Any]:
        """Update the on-policy modules, such as PPO, from sampled episodes, and return their metrics."""
        modules = [module_id for module_id in algorithm.train_ids if module_id not in algorithm.replay_ids]
        return algorithm.update(episodes, module_ids=modules) if modules else {}

    def _stateful_parts(self) -> dict[str, Any]:
        return {"runner": self.runner, "buffer": StoredBuffer(self.buffer)}


def keep_outputs(episodes: Sequence[MultiAgentEpisode], stored: Mapping[Any, Collection[str]]) -> None:
    """Remove extra model outputs from the agents' episodes, in place, except the outputs that `stored` lists for each
    module.
    """
    for episode in episodes:
        for agent_episode in episode.agent_episodes.values():
            names = stored.get(agent_episode.module_id, ())
            outputs = agent_episode.extra_model_outputs
            agent_episode.extra_model_outputs = {name: outputs[name] for name in names if name in outputs}
