"""Behavior cloning: what was done is what is to be done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from connectors.learner import LearnerPipeline, learner_pipeline
from connectors.pipeline import ConnectorPipeline
from connectors.policy import check_asked
from connectors.tensors import NumpyToTensor
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.sampling import Sampler
from learners.algorithms.algorithm import Algorithm, MakeScheduler, Measured, tensors_of
from learners.algorithms.flat_optimizer import FlatOptimizer, adam
from learners.algorithms.minibatches import rows_of, shuffled
from learners.algorithms.numbers import check_numbers
from learners.policies.policy import Policy

__all__ = ["BC", "BCConfig"]

_ASKED = ("parameters", "device", "distribution", "observation_space", "action_space")


@dataclass(frozen=True, slots=True, kw_only=True)
class BCConfig:
    """The numbers of behavior cloning."""

    learning_rate: float = 1e-3
    num_epochs: int = 1  # passes over a train batch
    minibatch_size: int = 256  # steps; of a recurrent policy, sequences
    entropy_coefficient: float = 0.0
    max_gradient_norm: float | None = None

    def __post_init__(self) -> None:
        check_numbers(
            self,
            counts=("num_epochs", "minibatch_size"),
            positive=("learning_rate", "max_gradient_norm"),
            not_negative=("entropy_coefficient",),
        )


class BC(Algorithm):
    """Makes the actions of episodes, an expert's for instance, likelier; their rewards do not matter.

    Args:
        policy: one whose `forward(batch)` gives `action_dist_inputs`; with a memory too.
        pipeline: episodes to a train batch with "obs" and "actions"; the default learner pipeline otherwise. What its
            rewriters and views make of observations they make of draws too.
    """

    def __init__(
        self,
        policy: Policy,
        config: BCConfig | None = None,
        *,
        pipeline: ConnectorPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        check_asked(policy, type(self).__name__, _ASKED)
        config = config or BCConfig()
        make, norm = adam(config.learning_rate), config.max_gradient_norm
        optimizer = FlatOptimizer(policy.parameters(), make, max_norm=norm)
        super().__init__(policy, {"policy": optimizer}, scheduler=scheduler, seed=seed)
        self.config = config
        self._given = pipeline
        self._to_tensors = NumpyToTensor(device=policy.device)
        self.pipeline = pipeline or learner_pipeline(
            policy.observation_space, policy.action_space, policy=policy, device=policy.device
        )

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        return self.pipeline(rl_module=self.policy, batch={}, episodes=episodes)

    def update_from(self, draws: EpisodeReplayBuffer | Sampler, num_steps: int = 1) -> dict[str, float]:
        """Take gradient steps on steps that are drawn all at once; returns metrics.

        Raises:
            InvalidArgument: a policy with a memory, which learns from episodes; gradients are not finite.
        """
        if self.policy.get_initial_state():
            raise InvalidArgument(
                f"BC: {type(self.policy).__name__} has a memory, so it learns from episodes, not from single steps: "
                "give dataset.sampler(episodes=...)"
            )
        num = num_steps * self.config.minibatch_size
        views = self._given.draw_views() if isinstance(self._given, LearnerPipeline) else None
        columns = draws.sample(num, views=views, keys=(Columns.OBS, Columns.ACTIONS)).to_dict()
        device = next(iter(self.optimizers.values())).parameters[0].device
        if self._to_tensors.device != device:
            self._to_tensors = NumpyToTensor(device=device)
        return self._updated(self._to_tensors.to_tensors(columns))

    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        columns = tensors_of(batch)
        num_rows = len(columns[Columns.ACTIONS])
        if not num_rows:
            raise InvalidArgument("BC: the batch has no steps")
        for _ in range(self.config.num_epochs):
            yield from shuffled(columns, num_rows, self.config.minibatch_size, self.generator, self.policy.device)

    def loss(self, minibatch: Mapping[str, Any], optimizer: str = "policy") -> tuple[Tensor, Measured]:
        inputs, actions = self.policy(minibatch, explore=False)[Columns.ACTION_DIST_INPUTS], minibatch[Columns.ACTIONS]
        mask = minibatch.get(Columns.LOSS_MASK)
        if mask is not None:
            inputs, actions = inputs[mask], rows_of({"": actions}, mask)[""]
        log_prob = self.policy.distribution.log_prob(inputs, actions).mean()
        entropy = self.policy.distribution.entropy(inputs).mean()
        loss = -log_prob - self.config.entropy_coefficient * entropy
        return loss, {"loss": loss.detach(), "log_prob": log_prob.detach(), "entropy": entropy.detach()}
