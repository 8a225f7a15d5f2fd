"""`ReplayAlgorithm`: base class of off-policy algorithms, which learn from transitions sampled from replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from connectors.actor import Actor
from connectors.fingerprint import check_views
from connectors.learner import LearnerPipeline
from connectors.learner.pipeline import learner_pipeline
from episode_learners.algorithms.acting_pipelines import check_recorded_alike, check_stored_alike
from episode_learners.algorithms.action_units import check_stored_units, to_policy_units
from episode_learners.algorithms.algorithm import Algorithm, Measured, stored_inputs, tensors_of
from episode_learners.algorithms.config import AlgorithmConfig
from episode_learners.algorithms.config_checks import count, fraction
from episode_learners.algorithms.minibatches import rows_of
from episode_learners.policies.policy import Policy
from episodes.columns import Columns
from episodes.errors import InvalidArgument, UnknownKey
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.sampling.sampler import Sampler

__all__ = ["ReplayAlgorithm", "ReplayConfig"]

DISCOUNTS = "discounts"  # what the value after a transition counts: gamma ** n_step, 0 after a termination
TD_ERRORS = "td_errors"
INDICES = "indices"  # only draws have them
_SAMPLED_COLUMNS = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS)
_TRANSITION_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS, Columns.TERMINATEDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig(AlgorithmConfig):
    """Hyperparameters of algorithms that learn from replayed transitions (`ReplayAlgorithm`).

    Attributes:
        gamma: Discount per step.
        n_step: Rewards in a target before the bootstrapped value.
        batch_size: Transitions in a gradient step.
    """

    gamma: float = fraction(0.99)
    n_step: int = count(1)
    batch_size: int = count(64)


Numbers = TypeVar("Numbers", bound=ReplayConfig)


class ReplayAlgorithm(Algorithm, Generic[Numbers]):
    """Base class of off-policy algorithms, such as DQN and SAC. They learn from transitions of a replay buffer, a data
    set or episodes.

    Args:
        config: hyperparameters.
        actor: the policy's actor, whose views apply to episodes and to samples of a buffer.
        pipeline: the pipeline from episodes to a train batch, instead of the default pipeline with these views. Its
            rewriters and views also apply to samples of a buffer, which stores observations as the runner's pipeline
            rewrote them.
        of_algorithm: the other arguments of `Algorithm`.
    """

    action_mapping = "normalize"  # of the policy's actions to the environment's: all act in [-1, 1], or in Discrete

    def __init__(
        self,
        policy: Policy,
        config: Numbers,
        actor: Actor | None,
        pipeline: LearnerPipeline | None,
        **of_algorithm: Any,
    ) -> None:
        super().__init__(policy, actor=actor, **of_algorithm)
        self.config = config
        self.views: Any = None  # what the policy sees of the stored observations; None: the observations themselves
        if pipeline is not None:
            self.views = pipeline.draw_views()
        elif actor is not None:
            self.views = actor.views or None
        self.pipeline = pipeline or learner_pipeline(
            **stored_inputs(policy, actor), next_observations=True, device=policy.device
        )
        self._view_settings = self.pipeline.view_settings
        self._errors: list[torch.Tensor] = []  # of the targets in this update
        self._window_lengths = np.zeros(0, int)  # steps of the newest samples' n-step returns, [n]

    def explore_after(self, num_env_steps: int) -> None:
        """Set the policy's exploration, such as epsilon, as scheduled after `num_env_steps` environment steps. By
        default it does nothing.
        """

    def draw(self, replay: EpisodeReplayBuffer | Sampler, n: int) -> dict[str, Any]:
        """Return `n` transitions sampled from replay, as columns of arrays [n, ...]. The column "weights" is added if
        sampling is prioritized.
        """
        n_step, gamma = self.config.n_step, self.config.gamma
        columns = replay.sample(
            n, n_step=n_step, gamma=gamma, views=self.views, keys=(*_SAMPLED_COLUMNS, *self.extra_columns)
        ).to_dict()
        steps, later = columns.pop(Columns.N_STEP), ~columns[Columns.TERMINATEDS]
        self._window_lengths = steps
        columns[DISCOUNTS] = np.multiply(later, np.float32(gamma) if n_step == 1 else gamma**steps, dtype=np.float32)
        if not isinstance(replay, PrioritizedEpisodeReplayBuffer):
            del columns[Columns.WEIGHTS]
        return columns

    def update_from(self, replay: EpisodeReplayBuffer | Sampler, num_steps: int = 1) -> dict[str, float]:
        """Take `num_steps` gradient steps on transitions sampled from a replay buffer or data set, and return metrics.

        All transitions are sampled at once. The priorities of a prioritized buffer become the absolute TD errors.

        Raises:
            InvalidArgument: gradients are not finite, or the stored actions are not the policy's. Nothing has changed.
            EpisodeStateError: nothing is stored to sample from.
            StateMismatch: the policy acted through other views than this algorithm applies, or stored episodes were
                recorded with other rewriters.
        """
        check_views(self.policy, self._view_settings)
        check_stored_alike(replay, self)
        check_stored_units(replay, self.policy.action_space, self.action_mapping, type(self).__name__)
        columns = self.draw(replay, num_steps * self.config.batch_size)
        indices = columns[INDICES]
        batch = self._batch_of_samples(columns)
        metrics = self._updated(batch, num_steps=num_steps)
        if isinstance(replay, PrioritizedEpisodeReplayBuffer):
            errors = torch.cat(self._errors).abs().cpu().numpy()
            replay.update_priorities(indices, errors)
        return metrics

    def update(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, float]:
        """Take gradient steps on all transitions of `episodes`, without a replay buffer, and return metrics. `n_step`
        must be 1.

        Raises:
            InvalidArgument: `n_step` is larger than 1, or see `Algorithm.update`.
            UnknownKey, StateMismatch: see `preprocess`.
        """
        if self.config.n_step > 1:
            raise InvalidArgument(
                f"{type(self).__name__}: n_step={self.config.n_step} needs a replay buffer: add the episodes to "
                "a buffer and call update_from(buffer), or set n_step=1"
            )
        return super().update(episodes)

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        """Return a train batch with all transitions of `episodes`: observations, actions in the policy's units,
        rewards, next observations and discounts.

        Raises:
            UnknownKey: the batch lacks a column of a transition.
            InvalidArgument: the units of the recorded actions are unknown, or are those of another policy.
            StateMismatch: the episodes were recorded with other rewriters.
        """
        check_recorded_alike(episodes, self)
        episodes = to_policy_units(episodes, self.policy.action_space, self.action_mapping, type(self).__name__)
        batch = self.pipeline(rl_module=self.policy, batch={}, episodes=episodes)
        missing = [name for name in _TRANSITION_COLUMNS if name not in batch]
        if missing:
            raise UnknownKey(f"{type(self).__name__}: the train batch has no {', '.join(missing)}")
        batch[DISCOUNTS] = self.config.gamma * ~batch[Columns.TERMINATEDS]
        return batch

    def _row_facts(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the number of steps [B] of the return of each sampled row."""
        lengths = self._window_lengths
        is_sampled = INDICES in batch and len(batch[INDICES]) == len(lengths)
        return {"n_step": lengths.astype(np.float32)} if is_sampled else {}

    def learn(self, batch: Mapping[str, Any]) -> dict[str, float]:
        self._errors.clear()
        return super().learn(batch)

    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield minibatches of `batch_size` rows of a train batch.

        Rows sampled from replay keep their order. Rows of episodes are shuffled.

        Raises:
            InvalidArgument: the batch has no steps.
        """
        columns = tensors_of(batch)
        num_rows, size = columns[Columns.REWARDS].shape[0], self.config.batch_size
        if not num_rows:
            raise InvalidArgument(f"{type(self).__name__}: the batch has no steps; sample some first")
        if INDICES not in columns:
            order = torch.randperm(num_rows, generator=self.generator, device="cpu").to(columns[Columns.REWARDS].device)
            columns = rows_of(columns, order)
        if num_rows == size:
            yield columns
            return
        for start in range(0, num_rows, size):
            yield rows_of(columns, slice(start, start + size))

    def measured_errors(self, errors: torch.Tensor) -> Measured:
        """Store the TD errors [B] of a gradient step, from which replay priorities are set later, and return their mean
        absolute value in a dict to log.
        """
        errors = errors.detach()
        self._errors.append(errors)
        return {"td_error": errors.abs().mean()}
