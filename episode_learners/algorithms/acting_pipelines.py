"""Checks that episodes were recorded with the observation preprocessing that a learning algorithm applies, and with the
log-probabilities that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from connectors.fingerprint import acting_parts, check_acting_pipelines
from connectors.learner import LearnerPipeline
from episode_learners.algorithms.algorithm import Algorithm
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.sampling.sampler import Sampler

__all__ = ["check_recorded_alike", "check_stored_alike"]


def check_recorded_alike(
    episodes: Sequence[SingleAgentEpisode], algorithm: Algorithm, *, is_on_policy: bool = False
) -> None:
    """Raise `StateMismatch` if the observations of `episodes` were preprocessed differently during recording than
    `algorithm` preprocesses them for learning.

    The rewriters (connectors that change observations before they are stored) are compared if the algorithm has an
    actor. The views (functions from stored observations to policy inputs) are compared if the algorithm is on-policy:
    its policy must get the same inputs as the acting policy. Episodes without a recorded acting pipeline, such as
    imported ones, are not checked.

    Raises:
        InvalidArgument: the algorithm is on-policy, and the log-probability of a recorded action is NaN (unknown).
    """
    if is_on_policy:
        _check_log_probs(episodes, type(algorithm).__name__)
    learner_parts: dict[str, list[Any]] = {}
    if algorithm.actor is not None:
        learner_parts["rewriters"] = acting_parts(algorithm.actor.env_to_module)["rewriters"]
    if is_on_policy and isinstance(algorithm.pipeline, LearnerPipeline):
        learner_parts["views"] = algorithm.pipeline.view_settings
    if not learner_parts:
        return
    if isinstance(episodes, EpisodePack):
        column = episodes.acting_pipelines
        texts = () if column is None else column.tolist()
    else:
        texts = [episode.acting_pipeline for episode in episodes]
    check_acting_pipelines(texts, learner_parts, type(algorithm).__name__)


def _check_log_probs(episodes: Sequence[SingleAgentEpisode], algorithm: str) -> None:
    """Raise `InvalidArgument` if the log-probability of a recorded action is NaN. Lookbacks are not checked."""
    for chunk in [episodes] if isinstance(episodes, EpisodePack) else episodes:
        log_probs = chunk.extra_model_outputs.get(Columns.ACTION_LOGP)
        if log_probs is None:
            continue
        rows = chunk.step_rows() if isinstance(chunk, EpisodePack) else slice(chunk.lookback, None)
        if np.isnan(np.asarray(log_probs)[rows]).any():
            raise InvalidArgument(
                f"{algorithm}: 'action_logp' of recorded actions is NaN, and {algorithm} compares with it; the policy "
                "chose 'actions' itself: return their 'action_logp' too, or only 'action_dist_inputs' to sample from"
            )


def check_stored_alike(replay: EpisodeReplayBuffer | Sampler, algorithm: Algorithm) -> None:
    """Raise `StateMismatch` if a replay buffer or data set contains episodes whose observations were rewritten
    differently (for example normalized with other settings) than by the actor of `algorithm`.

    An algorithm without an actor is not checked. See `check_recorded_alike`.
    """
    if algorithm.actor is None:
        return
    env_to_module, texts = algorithm.actor.env_to_module, replay.acting_pipelines()
    if texts != {getattr(env_to_module, "acting_pipeline", None)}:
        learner_parts = {"rewriters": acting_parts(env_to_module)["rewriters"]}
        check_acting_pipelines(texts, learner_parts, type(algorithm).__name__)
