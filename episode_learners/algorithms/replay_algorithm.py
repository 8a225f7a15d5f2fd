"""`ReplayAlgorithm`: what algorithms that learn from single transitions have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from connectors.learner import LearnerPipeline, learner_pipeline
from connectors.tensors import NumpyToTensor
from connectors.views import Views
from episode_learners.algorithms.algorithm import Algorithm, Measured, tensors_of
from episode_learners.algorithms.config_checks import check_numbers
from episode_learners.algorithms.minibatches import rows_of
from episode_learners.policies.policy import Policy
from episodes.batch import TrainBatch
from episodes.columns import Columns
from episodes.errors import InvalidArgument, UnknownKey
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.sampling import Sampler

__all__ = ["ReplayAlgorithm", "ReplayConfig"]

DISCOUNTS = "discounts"  # what the value after a transition counts: gamma ** n_step, 0 after a termination
TD_ERRORS = "td_errors"
INDICES = "indices"  # only draws have them
_DRAWN = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS)
_TRANSITION = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS, Columns.TERMINATEDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """The numbers of all algorithms that learn from transitions."""

    learning_rate: float = 1e-3
    gamma: float = 0.99  # discount per step
    n_step: int = 1  # rewards in a target before the value
    batch_size: int = 64  # transitions in a gradient step
    max_gradient_norm: float | None = None

    def __post_init__(self) -> None:
        check_numbers(
            self,
            counts=("n_step", "batch_size"),
            positive=("learning_rate", "max_gradient_norm"),
            fractions=("gamma",),
        )


Numbers = TypeVar("Numbers", bound=ReplayConfig)


class ReplayAlgorithm(Algorithm, Generic[Numbers]):
    """Learns from transitions: those that a replay buffer draws, or all those of episodes.

    Args:
        config: the numbers.
        views: what the policy sees of the observations in a buffer: `runner.env_to_module.views`.
        pipeline: episodes to a train batch, in place of the default one with `views`; what its rewriters and views
            make of observations they make of draws too. What the runner's pipeline rewrites is stored rewritten.
        of_algorithm: the other arguments of `Algorithm`.
    """

    stored_outputs: tuple[str, ...] = ()  # the policy's other outputs that a buffer must hold

    def __init__(
        self,
        policy: Policy,
        config: Numbers,
        views: Views | None,
        pipeline: LearnerPipeline | None,
        **of_algorithm: Any,
    ) -> None:
        super().__init__(policy, **of_algorithm)
        if pipeline is not None and views is not None:
            raise InvalidArgument(f"{type(self).__name__}: views are the pipeline's: give them to that, or no pipeline")
        self.config = config
        self.views = views if pipeline is None else pipeline.draw_views()
        self._pipeline = pipeline  # the default one is made when there are episodes to learn from
        self._errors: list[torch.Tensor] = []  # of the targets in this update
        self._to_tensors = NumpyToTensor(device=policy.device)  # for CUDA it keeps a page-locked buffer

    @property
    def pipeline(self) -> LearnerPipeline:
        """Episodes to a train batch."""
        if self._pipeline is None:
            spaces = (self.policy.observation_space, self.policy.action_space)
            views: Any = self.views
            self._pipeline = learner_pipeline(*spaces, views=views, next_observations=True, device=self.policy.device)
        return self._pipeline

    def explore_after(self, num_env_steps: int) -> None:
        """Let the policy explore as it is to after so many steps of the environments; by default as it does anyway."""

    def draw(self, replay: EpisodeReplayBuffer | Sampler, n: int) -> dict[str, Any]:
        """`n` transitions as columns of arrays; "weights" only where they are not all 1."""
        n_step, gamma = self.config.n_step, self.config.gamma
        columns = replay.sample(n, n_step=n_step, gamma=gamma, views=self.views, keys=_DRAWN).to_dict()
        steps, later = columns.pop(Columns.N_STEP), ~columns[Columns.TERMINATEDS]
        columns[DISCOUNTS] = np.multiply(later, np.float32(gamma) if n_step == 1 else gamma**steps, dtype=np.float32)
        if not isinstance(replay, PrioritizedEpisodeReplayBuffer):
            del columns[Columns.WEIGHTS]
        return columns

    def update_from(self, replay: EpisodeReplayBuffer | Sampler, num_steps: int = 1) -> dict[str, float]:
        """Take gradient steps on transitions drawn all at once, from a buffer or by a sampler from disk; the metrics.

        The priorities of a prioritized buffer become the absolute errors of the targets.

        Raises:
            InvalidArgument: gradients are not finite; nothing has changed.
            EpisodeStateError: nothing is stored to draw from.
        """
        columns = self.draw(replay, num_steps * self.config.batch_size)
        indices = columns[INDICES]
        batch = self._on_device(columns)
        metrics = self._updated(batch, num_steps=num_steps)
        if isinstance(replay, PrioritizedEpisodeReplayBuffer):
            errors = torch.cat(self._errors).abs().cpu().numpy()
            replay.update_priorities(indices, errors)
        return metrics

    def _on_device(self, columns: dict[str, Any]) -> dict[str, Any]:
        """The columns as tensors where the policy is now."""
        device = next(iter(self.optimizers.values())).parameters[0].device
        if self._to_tensors.device != device:
            self._to_tensors = NumpyToTensor(device=device)
        return TrainBatch(self._to_tensors(batch=columns), getattr(columns, "came", None))

    def update(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, float]:
        """See `Algorithm`. InvalidArgument for targets of several steps, which are made of draws."""
        if self.config.n_step > 1:
            raise InvalidArgument(
                f"{type(self).__name__}: targets of {self.config.n_step} steps are made of draws: add the episodes to "
                "a buffer, and update_from it; or take n_step=1"
            )
        return super().update(episodes)

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        batch = self.pipeline(rl_module=self.policy, batch={}, episodes=episodes)
        missing = [name for name in _TRANSITION if name not in batch]
        if missing:
            raise UnknownKey(f"{type(self).__name__}: the train batch has no {', '.join(missing)}")
        batch[DISCOUNTS] = self.config.gamma * ~batch[Columns.TERMINATEDS]
        return batch

    def learn(self, batch: Mapping[str, Any]) -> dict[str, float]:
        self._errors.clear()
        return super().learn(batch)

    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The rows in their order, `batch_size` at a time; of episodes, which are no draw, in random order."""
        columns = tensors_of(batch)
        num_rows, size = columns[Columns.REWARDS].shape[0], self.config.batch_size
        if not num_rows:
            raise InvalidArgument(f"{type(self).__name__}: the batch has no steps; sample some first")
        if INDICES not in columns:
            order = torch.randperm(num_rows, generator=self.generator).to(columns[Columns.REWARDS].device)
            columns = rows_of(columns, order)
        if num_rows == size:
            yield columns
            return
        for start in range(0, num_rows, size):
            yield rows_of(columns, slice(start, start + size))

    def measured_errors(self, errors: torch.Tensor) -> Measured:
        """What is told of the errors [B] of a gradient step's targets; they are kept for priorities."""
        if errors.requires_grad:
            errors = errors.detach()
        self._errors.append(errors)
        return {"td_error": errors.abs().mean()}
