"""Behavior cloning: supervised learning of recorded actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from connectors.actor import Actor
from connectors.learner import LearnerPipeline
from connectors.learner.pipeline import learner_pipeline
from connectors.pipeline import ConnectorPipeline
from connectors.policy import check_interface, module_of
from episode_learners.algorithms.acting_pipelines import check_recorded_alike, check_stored_alike
from episode_learners.algorithms.action_units import check_stored_units, to_policy_units
from episode_learners.algorithms.algorithm import (
    Algorithm,
    MakeScheduler,
    Measured,
    split_actor,
    stored_inputs,
    tensors_of,
)
from episode_learners.algorithms.config import EpochConfig
from episode_learners.algorithms.config_checks import choice, count
from episode_learners.algorithms.flat_optimizer import adam_optimizer
from episode_learners.algorithms.minibatches import rows_of
from episode_learners.policies.policy import Policy
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.sampling.sampler import Sampler
from episodes.tracks.nested import map_leaves

__all__ = ["BC", "BCConfig"]

_REQUIRED_MEMBERS = ("parameters", "device", "distribution", "observation_space", "action_space")


@dataclass(frozen=True, slots=True, kw_only=True)
class BCConfig(EpochConfig):
    """Hyperparameters of behavior cloning (`BC`).

    Attributes:
        minibatch_size: Steps in a minibatch; sequences, if the policy is recurrent.
        max_seq_len: Steps in a sequence of a recurrent policy.
        action_mapping: Mapping of the policy's actions to the environment's, as in `episodes.PolicyBox`: "normalize",
            "clip" or "none". Any other raises `InvalidArgument`. Actions of the environment are converted.
    """

    max_seq_len: int = count(20)
    action_mapping: str = choice("normalize", "clip", "none")


class BC(Algorithm):
    """Behavior cloning algorithm: trains a policy to imitate recorded actions by maximum likelihood. Rewards are not
    used.

    Actions of the environment, such as those of imported data, are converted to the units in which the policy acts:
    `BCConfig.action_mapping`, which is that of `module_to_env_pipeline` by default.

    A recurrent policy learns from sequences that begin with its initial state, because recorded states belong to the
    policy that acted.

    Args:
        policy: a policy with `action_dist_inputs` among its outputs, recurrent or not, or its actor.
        config: hyperparameters; by default `BCConfig()`.
        pipeline: the pipeline from episodes to a train batch with "obs" and "actions"; by default the learner pipeline.
            Its rewriters and views also apply to samples of a buffer.
        scheduler: function that returns the learning rate schedule of an optimizer, for instance `linear_decay(100)`.
        seed: seed of the order of minibatches.
    """

    def __init__(
        self,
        policy: Policy | Actor,
        config: BCConfig | None = None,
        *,
        pipeline: ConnectorPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        policy, actor = split_actor(policy)
        check_interface(policy, type(self).__name__, _REQUIRED_MEMBERS)
        config = config or BCConfig()
        optimizer = adam_optimizer(policy.parameters(), config)
        super().__init__(policy, {"policy": optimizer}, scheduler=scheduler, seed=seed, actor=actor)
        self.config = config
        self._num_passes: int | None = None  # None: `config.num_epochs`
        self._given_pipeline = pipeline
        length = config.max_seq_len if module_of(policy).is_recurrent else None
        self.pipeline = pipeline or learner_pipeline(
            **stored_inputs(policy, actor), policy=policy, device=policy.device, max_seq_len=length
        )

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        """Return a train batch made of `episodes`, with actions converted to the policy's units. By default, recorded
        recurrent states are left out.

        Raises:
            StateMismatch: the episodes were recorded with other preprocessing of observations.
        """
        check_recorded_alike(episodes, self)
        mapping = self.config.action_mapping
        episodes = to_policy_units(episodes, self.policy.action_space, mapping, type(self).__name__)
        if self._given_pipeline is None and module_of(self.policy).is_recurrent:
            episodes = EpisodePack.from_episodes(episodes)
            outputs = episodes.extra_model_outputs
            kept_outputs = {name: column for name, column in outputs.items() if name != Columns.STATE_OUT}
            episodes = episodes.replace(extra_model_outputs=kept_outputs)
        return self.pipeline(rl_module=self.policy, batch={}, episodes=episodes)

    def update_from(self, draws: EpisodeReplayBuffer | Sampler, num_steps: int = 1) -> dict[str, float]:
        """Take `num_steps` gradient steps on steps (or sequences, for a recurrent policy) sampled from a replay buffer
        or data set, and return metrics. Each gradient step has new samples: `num_epochs` is not used.

        Raises:
            InvalidArgument: gradients are not finite, or the stored actions are not the policy's. Nothing has changed.
            StateMismatch: stored episodes were recorded with other rewriters.
        """
        check_stored_alike(draws, self)
        check_stored_units(draws, self.policy.action_space, self.config.action_mapping, type(self).__name__)
        num = num_steps * self.config.minibatch_size
        views = self.pipeline.draw_views() if isinstance(self.pipeline, LearnerPipeline) else None
        keys, initial = (Columns.OBS, Columns.ACTIONS, *self.extra_columns), module_of(self.policy).initial_state()
        if initial:
            drawn = draws.sample_sequences(num, self.config.max_seq_len, views=views, keys=keys)
            columns = drawn.to_dict()
            columns[Columns.STATE_IN] = map_leaves(lambda leaf: np.repeat(np.asarray(leaf)[None], num, 0), initial)
        else:
            columns = draws.sample(num, views=views, keys=keys).to_dict()
        batch = self._batch_of_samples(columns)
        with self._one_pass():
            return self._updated(batch, num_steps=num_steps)

    @contextmanager
    def _one_pass(self) -> Iterator[None]:
        """Context manager in which an update makes one pass over its batch, instead of `num_epochs`."""
        self._num_passes = 1
        try:
            yield
        finally:
            self._num_passes = None

    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield shuffled minibatches of a train batch, for `num_epochs` passes over the batch.

        Raises:
            InvalidArgument: the batch has no steps.
        """
        columns = tensors_of(batch)
        if not len(columns[Columns.ACTIONS]):
            raise InvalidArgument("BC: the batch has no steps")
        for _ in range(self._num_passes or self.config.num_epochs):
            yield from self.shuffled(columns, self.config.minibatch_size)

    def loss(self, minibatch: Mapping[str, Any], optimizer: str = "policy") -> tuple[Tensor, Measured]:
        """Return the negative mean log-probability of the recorded actions, minus the entropy bonus, and scalars to
        log.
        """
        inputs, actions = self.policy(minibatch, explore=False)[Columns.ACTION_DIST_INPUTS], minibatch[Columns.ACTIONS]
        mask = minibatch.get(Columns.LOSS_MASK)
        if mask is not None:
            inputs, actions = inputs[mask], rows_of({"": actions}, mask)[""]
        log_probs = self.policy.distribution.log_prob(inputs, actions)
        log_prob = log_probs.mean()
        if self.measures_rows:
            self.measure_rows(minibatch, {"log_prob": log_probs}, mask)
        entropy = self.policy.distribution.entropy(inputs).mean()
        loss = -log_prob - self.config.entropy_coefficient * entropy
        return loss, {"log_prob": log_prob.detach(), "entropy": entropy.detach()}

    def row_measurements_of(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**columns, "loss": columns["log_prob"].abs()}
