"""R2D2 (Kapturowski et al., 2019, https://openreview.net/forum?id=r1lyTjAqYX): recurrent deep Q-learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from connectors.actor import Actor
from connectors.learner import LearnerPipeline
from episode_learners.algorithms.algorithm import MakeScheduler, Measured, split_actor
from episode_learners.algorithms.config_checks import count, flag, whole
from episode_learners.algorithms.dqn import DQN, DQNConfig
from episode_learners.algorithms.replay_algorithm import DISCOUNTS
from episode_learners.policies.q_policies import LSTMQPolicy
from episodes.columns import Columns
from episodes.errors import InvalidArgument, rejected_type
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.sampling.sampler import Sampler
from episodes.tracks.nested import map_leaves

__all__ = ["R2D2", "R2D2Config", "rescaled", "unscaled"]

_EPSILON = 0.001  # slope of the linear part of the value rescaling


@dataclass(frozen=True, slots=True, kw_only=True)
class R2D2Config(DQNConfig):
    """Hyperparameters of recurrent deep Q-learning (`R2D2`).

    Attributes:
        batch_size: Sequences in a gradient step.
        sequence_length: Steps of a sequence that the loss counts.
        burn_in: Steps before these steps, which only update the recurrent state.
        rescale_values: Learn h(Q) instead of Q, with h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, as in the paper. It
            replaces reward clipping if returns are large (Pohlen et al., 2018, https://arxiv.org/abs/1805.11593).
    """

    batch_size: int = 16
    sequence_length: int = count(20)
    burn_in: int = whole(10)
    rescale_values: bool = flag(False)

    def __post_init__(self) -> None:
        DQNConfig.__post_init__(self)
        if self.n_step > self.sequence_length:
            raise InvalidArgument(
                f"R2D2Config: n_step is {self.n_step}, more than the {self.sequence_length} steps of a sequence"
            )


class R2D2(DQN):
    """Recurrent deep Q-learning algorithm (R2D2). It learns from replayed sequences, each of which begins with the
    recurrent state that was stored while acting.

    The buffer must store that state: fill it with `sample_into(buffer, extra_model_outputs=("state_out",))`. The loss
    counts only the steps after the burn-in. An "action_mask" in the observations also masks the targets.

    Differences from the paper: gradients flow into the burn-in, and an n-step target near the end of a sequence uses
    only the steps that the sequence has.

    Args:
        policy: the recurrent policy to train, or its actor. The algorithm changes its `epsilon`.
        config: hyperparameters; by default `R2D2Config()`.
        pipeline: the learner pipeline whose rewriters and views apply to sampled sequences, instead of the actor's
            views.
        scheduler: function that returns the learning rate schedule of an optimizer, for instance `linear_decay(100)`.
        seed: seed of the algorithm's random numbers.

    Raises:
        InvalidArgument: the policy is not an `LSTMQPolicy`.
    """

    config: R2D2Config
    stored_outputs = (Columns.STATE_OUT,)

    def __init__(
        self,
        policy: LSTMQPolicy | Actor,
        config: R2D2Config | None = None,
        *,
        pipeline: LearnerPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        trained, _ = split_actor(policy)
        if not isinstance(trained, LSTMQPolicy):
            raise InvalidArgument(f"R2D2 trains an LSTMQPolicy, not a {rejected_type(trained, LSTMQPolicy)}")
        super().__init__(policy, config or R2D2Config(), pipeline=pipeline, scheduler=scheduler, seed=seed)

    def update(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, float]:
        """Raise `InvalidArgument`: R2D2 learns from sequences of a replay buffer (`update_from`), and not from episodes
        directly.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(
            "R2D2 learns from sequences out of replay: add the episodes to a buffer, and update_from it"
        )

    def draw(self, replay: EpisodeReplayBuffer | Sampler, n: int) -> dict[str, Any]:
        """Return `n` sequences sampled from replay, as columns of arrays [n, burn_in + length, ...].

        Raises:
            InvalidArgument: the buffer stores no recurrent states, or its priorities are those of steps instead of
                sequences.
        """
        if isinstance(replay, PrioritizedEpisodeReplayBuffer) and replay.unit != "sequence":
            raise InvalidArgument(
                "R2D2 has an error for each sequence, this buffer priorities of each step: make it with unit='sequence'"
            )
        config = self.config
        drawn = replay.sample_sequences(n, config.sequence_length, burn_in=config.burn_in, views=self.views).to_dict()
        if Columns.STATE_IN not in drawn:
            raise InvalidArgument(
                "R2D2: the buffer stores no states; feed it with sample_into(..., extra_model_outputs=('state_out',))"
            )
        drawn[DISCOUNTS] = config.gamma * ~drawn[Columns.TERMINATEDS]
        return drawn

    def loss(self, minibatch: Mapping[str, Any], optimizer: str = "policy") -> tuple[Tensor, Measured]:
        """Return the TD loss of replayed sequences [B, W], without burn-in and padding, and scalars to log. The TD
        errors are kept to set priorities.
        """
        learned = minibatch[Columns.LOSS_MASK]  # [B, W]
        policy, target = cast(LSTMQPolicy, self.policy), cast(LSTMQPolicy, self._target("policy").module)
        observations, first = self._observations_of(minibatch)
        values = policy.unrolled(observations, minibatch[Columns.STATE_IN], first)  # [B, W + 1, n]
        with torch.no_grad():
            next_values = target.unrolled(observations, minibatch[Columns.STATE_IN], first)[:, 1:]
            chooser = values.detach()[:, 1:] if self.config.double else next_values
            best = next_values.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1)
            targets = self._targets(minibatch, best)
        chosen = (minibatch[Columns.ACTIONS].long() - policy.start).clamp(min=0).unsqueeze(-1)
        chosen_values = values[:, :-1].gather(-1, chosen).squeeze(-1)
        chosen_values = chosen_values.masked_fill(~learned, 0.0)  # the action in padding may be illegal
        losses = functional.smooth_l1_loss(chosen_values, targets, reduction="none") * learned
        per_sequence = losses.sum(-1) * minibatch[Columns.WEIGHTS]
        errors = ((chosen_values - targets).detach() * learned).abs()
        counts = learned.sum(-1).clamp(min=1)
        q_value = chosen_values.detach().sum() / counts.sum()
        priorities = 0.9 * errors.amax(-1) + 0.1 * errors.sum(-1) / counts  # eta of the paper is 0.9
        loss = per_sequence.sum() / counts.sum()
        if self.measures_rows:
            weights = minibatch[Columns.WEIGHTS].unsqueeze(-1).expand_as(losses)
            columns = {"first_value": chosen_values, "value_target": targets, Columns.WEIGHTS: weights}
            self.measure_rows(minibatch, {name: column[learned] for name, column in columns.items()}, learned)
        return loss, {"q_value": q_value, **self.measured_errors(priorities)}

    def _targets(self, minibatch: Mapping[str, Any], best: Tensor) -> Tensor:
        """Return the n-step TD targets [B, W] of sequences.

        A step near the end of its sequence uses only the rewards that the sequence still has. `best` are the target
        network's values of the next observations.

        The recursion is G[n, t] = r[t] + discount[t] * G[n - 1, t + 1].
        """
        rewards, discounts = minibatch[Columns.REWARDS], minibatch[DISCOUNTS]
        best = unscaled(best) if self.config.rescale_values else best
        targets = rewards + discounts * best
        if self.config.n_step > 1:
            at = torch.arange(targets.shape[1], device=targets.device)
            is_last = at >= minibatch[Columns.SEQ_LENS][:, None] - 1
            for _ in range(self.config.n_step - 1):
                after = torch.cat([targets[:, 1:], best[:, -1:]], 1)
                targets = rewards + discounts * torch.where(is_last, best, after)
        return rescaled(targets) if self.config.rescale_values else targets

    def _observations_of(self, minibatch: Mapping[str, Any]) -> tuple[Any, Tensor]:
        """Return the W + 1 observations before and after the steps of each sequence, [B, W + 1, ...], and the index of
        each row's first valid step, [B].

        The last observation of a sequence is taken from the column "new_obs". The first valid step is not the
        row's first one if the episode began during the burn-in.
        """
        stops = minibatch[Columns.SEQ_LENS].long()  # [B]
        rows = torch.arange(len(stops), device=stops.device)

        def whole(obs: Tensor, new_obs: Tensor) -> Tensor:
            """Return T + 1 observations of each sequence: one before each step, and one after the last step."""
            extended = torch.cat([obs, obs[:, -1:]], 1)
            extended[rows, stops] = new_obs[rows, stops - 1]
            return extended

        observations = map_leaves(whole, minibatch[Columns.OBS], minibatch[Columns.NEXT_OBS])
        return observations, minibatch[Columns.IS_FIRST].int().argmax(-1)


def rescaled(values: Tensor) -> Tensor:
    """Return values rescaled as in the R2D2 paper, by h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, which shrinks large
    values.

    >>> rescaled(torch.tensor([0.0, 3.0, -99.0]))
    tensor([ 0.0000,  1.0030, -9.0990])
    """
    return values.sign() * ((values.abs() + 1.0).sqrt() - 1.0) + _EPSILON * values


def unscaled(values: Tensor) -> Tensor:
    """Return the Q-values from which `rescaled` computed `values`. This is the inverse of R2D2's value rescaling.

    >>> unscaled(rescaled(torch.tensor([1.0, 3.0, -99.0]))).round(decimals=2)
    tensor([  1.,   3., -99.])
    """
    root = ((1.0 + 4.0 * _EPSILON * (values.abs() + 1.0 + _EPSILON)).sqrt() - 1.0) / (2.0 * _EPSILON)
    return values.sign() * (root.square() - 1.0)
