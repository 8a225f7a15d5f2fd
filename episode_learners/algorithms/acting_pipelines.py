"""Checks that episodes were recorded with the same observation preprocessing that a learning algorithm applies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectors.fingerprint import acting_parts, check_acting_pipelines
from connectors.learner import LearnerPipeline
from episode_learners.algorithms.algorithm import Algorithm
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
    """
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
