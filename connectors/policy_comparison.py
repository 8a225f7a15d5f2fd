"""`compare_policies`: how much two policies disagree at the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from connectors.episode_explanation import KEY, explain_episode
from connectors.learner.pipeline import LearnerPipeline
from episodes.errors import InvalidArgument
from episodes.single_agent import SingleAgentEpisode

__all__ = ["compare_policies"]


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
