"""Conversion of episodes to and from RLlib's `SingleAgentEpisode` and `MultiAgentEpisode`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from episodes.converters import rllib_multi_agent as several
from episodes.converters import rllib_states
from episodes.converters.action_mapping import export_actions, imported_space
from episodes.converters.bounded_packs import refuse_ragged
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefixed
from episodes.errors import WrongType, needing
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode


def to_rllib(
    episodes: Iterable[SingleAgentEpisode] | Iterable[MultiAgentEpisode],
    *,
    action_mapping: str | None = None,
    strict: bool = False,
) -> tuple[list[Any], LossReport]:
    """Convert episodes to copies that are RLlib's episodes. Return these with a report of what was lost.

    Finalized episodes are finalized, others can grow. RLlib's multi-agent episodes cannot store actions that were taken
    later than the observation, infos without an observation, rewards before an agent's first observation or after its
    end, and agents that left no data.

    Args:
        episodes: the episodes.
        action_mapping: None writes the actions that were sent to the environment. "normalize" writes actions in
            [-1, 1], as RLlib's env runners store them by default; log-probabilities belong to these. Episodes of
            several agents keep their policies' actions then.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: RLlib is not installed.
        LostInConversion: with `strict`, something would be lost.
        InvalidArgument: `action_mapping` is unknown, or given for an episode without an action space.
        TrackMismatch: an episode has ragged tracks.
    """
    episodes = refuse_ragged(episodes)
    report = LossReport()
    return list(rllib_objects(episodes, report, action_mapping)), report.check(strict)


def rllib_objects(episodes: Iterable[Any], report: LossReport, action_mapping: str | None = None) -> Iterator[Any]:
    """Yield an RLlib episode for each episode, and add losses to `report`. `action_mapping` as in `to_rllib`."""
    with needing("rllib", "RLlib's episodes need RLlib"):
        from ray.rllib.env import multi_agent_episode, single_agent_episode
    for original in episodes:
        episode = export_actions(original, report, action_mapping)
        if isinstance(episode, MultiAgentEpisode):
            yield several.object_of(multi_agent_episode.MultiAgentEpisode, episode, report)
        else:
            made = single_agent_episode.SingleAgentEpisode.from_state(rllib_states.state_of(episode, report))
            rllib_states.copy_id_and_spaces(episode, made)
            yield made


def from_rllib(
    episodes: Iterable[Any], *, action_mapping: str | None = None, prefix: str | None = None, strict: bool = False
) -> tuple[list[Any], LossReport]:
    """Convert RLlib's episodes to copies that are this library's episodes. Return these with a report of losses.

    Args:
        episodes: episodes of RLlib, of one or several agents.
        action_mapping: None for actions of the environment. "normalize" for actions in [-1, 1] of a policy,
            as RLlib's env runners store them by default; log-probabilities belong to these.
        prefix: first part of the ids, "PREFIX/ID". None: RLlib's ids.
        strict: raise if something would be lost.

    Raises:
        WrongType: an item is not an episode of RLlib.
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    converted = [prefixed(episode, prefix) for episode in rllib_episodes(episodes, report, action_mapping)]
    return converted, report.check(strict)


def rllib_episodes(episodes: Iterable[Any], report: LossReport, action_mapping: str | None = None) -> Iterator[Any]:
    """Yield an episode of this library for each RLlib episode, and add losses to `report`. `action_mapping` as in
    `from_rllib`.

    Raises:
        WrongType: an item is not an episode of RLlib.
    """
    for number, original in enumerate(episodes):
        if hasattr(original, "env_t_to_agent_t"):
            yield several.episode_of(original, report, action_mapping)
        elif hasattr(original, "get_state") and hasattr(original, "extra_model_outputs"):
            episode = rllib_states.episode_of(rllib_states.rllib_state_of(original))
            episode.observation_space = original.observation_space
            episode.action_space = imported_space(original.action_space, action_mapping)
            yield episode
        else:
            raise WrongType(f"from_rllib: item {number} is a {type(original).__name__}, no episode of RLlib's")
