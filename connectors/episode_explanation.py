"""`explain_episode`: adds the values, advantages and probabilities that a learner computes to each step of an
episode. `compare_policies`: how much policies disagree at each step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from connectors.connector import ColumnDict, Connector
from connectors.learner.generalized_advantage_estimation import GeneralizedAdvantageEstimation
from connectors.learner.pipeline import LearnerPipeline
from connectors.learner.step_returns import StepReturns
from connectors.learner.values import ValueFunction
from connectors.policy import distribution_of, module_of, seen_columns
from connectors.tensors import NumpyToTensor
from connectors.views.pack_views import PackViews
from episodes.batch import leaves
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.returns import discounted_returns, gae
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.space_kinds import SpaceKind, choices_of, kind_of

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = ["compare_policies", "explain_episode"]

KEY = "learner"  # of the tracks
MOST_PROBABILITIES = 32  # actions of a Discrete space with a probability each


def explain_episode(
    episode: SingleAgentEpisode, learner_pipeline: LearnerPipeline, policy: Policy, *, gamma: float = 0.99
) -> SingleAgentEpisode:
    """Return a copy of an episode with the learner's values, advantages and action probabilities as extra outputs of
    each step.

    The tracks are `learner/values`, `learner/td_errors`, `learner/advantages` and `learner/value_targets` (if the
    policy has values), `learner/rewards_to_go`, and `learner/action_prob`, `learner/entropy` and, for a Discrete action
    space, `learner/action_probs` (if the policy has a distribution). `learner/logp_difference` is the recorded
    log-probability of the action minus the policy's: it is 0 if the policy that acted is this one and saw the same.
    Each has one item per step; items of the lookback are NaN. All views of the episode show them: notebooks,
    `plot_episode`, and the page.

    Args:
        episode: an episode or a chunk.
        learner_pipeline: the pipeline of the learner. It is copied and not changed.
        policy: the policy, such as one loaded from a checkpoint.
        gamma: the discount factor, unless the pipeline has `GeneralizedAdvantageEstimation`, which has its own.

    Raises:
        InvalidArgument: the episode has no steps, or the pipeline's batch does not have one row per step.
    """
    if not len(episode):
        raise InvalidArgument(f"episode {episode.id_} has no steps to explain")
    pipeline, step_values = copy.deepcopy(learner_pipeline), _StepValues(gamma)
    if GeneralizedAdvantageEstimation in pipeline:
        estimation = pipeline[GeneralizedAdvantageEstimation]
        step_values.gamma, step_values.lambda_ = estimation.gamma, estimation.lambda_
        pipeline.insert_after(GeneralizedAdvantageEstimation, step_values)
    elif NumpyToTensor in pipeline:
        pipeline.insert_before(NumpyToTensor, step_values)
    else:
        pipeline.append(step_values)
    pack = EpisodePack.from_episodes([episode])
    batch = pipeline(episodes=pack, rl_module=policy)
    columns = step_values.columns | _outputs(batch, policy, episode.action_space)
    lookback = int(pack.lookbacks[0])
    before = {name: np.full((lookback, *column.shape[1:]), np.nan) for name, column in columns.items()}
    tracks = {name: np.concatenate([before[name], column]) for name, column in columns.items()}
    return pack.replace(extra_model_outputs={**pack.extra_model_outputs, KEY: tracks})[0]


def compare_policies(
    episode: SingleAgentEpisode, learner_pipeline: LearnerPipeline, policies: Sequence[Any]
) -> np.ndarray:
    """Return how much policies, such as versions of one policy, disagree at each step of an episode, float64 [T].

    For a Discrete action space it is the largest total variation distance of two policies, in 0..1: the largest
    difference of the probabilities of any set of actions. For other spaces it is the largest difference of the
    probabilities (or densities) of the recorded action.

    Args:
        episode: an episode or a chunk.
        learner_pipeline: the pipeline of the learner. It is copied and not changed.
        policies: at least two.

    Raises:
        InvalidArgument: there are fewer than two policies, or one has no distribution; or see `explain_episode`.
    """
    if len(policies) < 2:
        raise InvalidArgument(f"compare_policies: {len(policies)} policies; give at least two")
    tracks = [explain_episode(episode, learner_pipeline, policy).get_extra_model_outputs(KEY) for policy in policies]
    if any("action_prob" not in track for track in tracks):
        raise InvalidArgument("compare_policies: a policy has no action distribution; give policies with one")
    has_all = all("action_probs" in track for track in tracks)
    name, factor = ("action_probs", 0.5) if has_all else ("action_prob", 1.0)
    outputs = np.stack([np.asarray(track[name], np.float64) for track in tracks])  # [P, T] or [P, T, n]
    distances = np.abs(outputs[:, None] - outputs[None]) * factor
    if has_all:
        distances = distances.sum(-1)
    return distances.max((0, 1))


class _StepValues(Connector):
    """Connector that stores values, TD errors, advantages and returns of each step in `columns`, without changing the
    batch.

    Args:
        gamma: the discount factor.
        lambda_: the parameter of GAE.
    """

    reads_tracks = True

    def __init__(self, gamma: float, lambda_: float = 0.95) -> None:
        super().__init__()
        self.gamma, self.lambda_ = gamma, lambda_
        self.columns: dict[str, np.ndarray] = {}  # [T] each

    def __call__(
        self,
        *,
        rl_module: Policy | None = None,
        batch: ColumnDict,
        episodes: EpisodePack,
        pack_views: PackViews | None = None,
        **unused: object,
    ) -> ColumnDict:
        steps = StepReturns.of(batch, episodes)
        flags = steps.terminated, steps.truncated
        rewards = np.asarray(steps.rewards, np.float64)
        if not module_of(rl_module).has_values:
            to_go = discounted_returns(rewards, *flags, gamma=self.gamma, offsets=steps.offsets)
            self.columns = {"rewards_to_go": to_go}
            return batch
        values = (
            ValueFunction(8192).of_batch(rl_module, batch, episodes, pack_views)[steps.observations].astype(np.float64)
        )
        factors = {"gamma": self.gamma, "offsets": steps.offsets}
        td_errors, _ = gae(rewards, values, *flags, lambda_=0.0, **factors)
        advantages, targets = gae(rewards, values, *flags, lambda_=self.lambda_, **factors)
        self.columns = {
            "values": np.delete(values, steps.offsets[1:] + np.arange(len(steps.offsets) - 1)),
            "td_errors": td_errors,
            "advantages": advantages,
            "value_targets": targets,
            "rewards_to_go": discounted_returns(rewards, *flags, values=values, **factors),
        }
        return batch


def _outputs(batch: Mapping[str, Any], policy: Policy, action_space: gym.Space | None) -> dict[str, np.ndarray]:
    """Return the policy's probability of each recorded action [T], its entropy [T], and all action probabilities [T,
    n]. The dict is empty if the policy returns no distribution inputs.
    """
    numbers = batch.origin.numbers  # type: ignore[attr-defined]
    with torch.no_grad():
        outputs = policy(seen_columns(batch))
    inputs = outputs.get(Columns.ACTION_DIST_INPUTS)
    distribution = None if inputs is None else distribution_of(policy, action_space)
    if inputs is None or distribution is None:
        return {}
    with torch.no_grad():
        columns = {
            "action_prob": distribution.log_prob(inputs, batch[Columns.ACTIONS]).exp(),
            "entropy": distribution.entropy(inputs),
        }
        if Columns.ACTION_LOGP in batch:
            columns["logp_difference"] = batch[Columns.ACTION_LOGP] - columns["action_prob"].log()
        if (
            kind_of(action_space) is SpaceKind.DISCRETE
            and inputs.shape[-1] == choices_of(action_space).counts <= MOST_PROBABILITIES
        ):
            columns["action_probs"] = inputs.softmax(-1)
    rows = np.flatnonzero(numbers.ravel() >= 0)
    order = rows[np.argsort(numbers.ravel()[rows], kind="stable")]
    flat = {name: leaves.as_numpy(column) for name, column in columns.items()}
    return {name: column.reshape(-1, *column.shape[numbers.ndim :])[order] for name, column in flat.items()}
