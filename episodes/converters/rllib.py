"""Episodes to and from RLlib's `SingleAgentEpisode` and `MultiAgentEpisode`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from episodes.converters import rllib_multi_agent as several
from episodes.converters import rllib_states
from episodes.converters.action_mapping import exported, imported_space
from episodes.converters.loss_report import LossReport
from episodes.errors import WrongType, needing
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode


def to_rllib(
    episodes: Iterable[SingleAgentEpisode] | Iterable[MultiAgentEpisode],
    *,
    action_mapping: str | None = None,
    strict: bool = False,
) -> tuple[list[Any], LossReport]:
    """RLlib's episodes with copies of the data of ours, and what was lost.

    Finalized ones are finalized, others grow on. Of several agents RLlib cannot say when one acted, if that was later
    than it saw; nor keep infos that came without an observation, rewards before an agent's first observation or after
    its end, and agents that left no data.

    Args:
        action_mapping: None writes the actions that were sent to the environment. "normalize" writes actions in
            [-1, 1], as RLlib's env runners store them by default; log-probabilities belong to these. Episodes of
            several agents keep their policies' actions then.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: without RLlib.
        LostInConversion: with `strict`, when something would be lost.
    """
    report = LossReport()
    return list(rllib_objects(episodes, report, action_mapping)), report.check(strict)


def rllib_objects(episodes: Iterable[Any], report: LossReport, action_mapping: str | None = None) -> Iterator[Any]:
    """RLlib's episodes one after another; `report` is told what is lost."""
    with needing("rllib", "RLlib's episodes need RLlib"):
        from ray.rllib.env import multi_agent_episode, single_agent_episode
    for given in episodes:
        episode = exported(given, report, action_mapping)
        if isinstance(episode, MultiAgentEpisode):
            yield several.object_of(multi_agent_episode.MultiAgentEpisode, episode, report)
        else:
            yield _with_spaces(
                single_agent_episode.SingleAgentEpisode.from_state(rllib_states.state_of(episode, report)), episode
            )


def _with_spaces(made: Any, episode: SingleAgentEpisode) -> Any:
    """RLlib's episode with the very spaces, also those that its states have no form for, and the very id."""
    made.id_ = episode.id_  # RLlib takes an id such as 0 or "" for none, and makes another
    made.observation_space, made.action_space = episode.observation_space, episode.env_action_space
    return made


def from_rllib(
    episodes: Iterable[Any], *, action_mapping: str | None = None, strict: bool = False
) -> tuple[list[Any], LossReport]:
    """Our episodes with copies of the data of RLlib's, of one agent or of several, and what was lost.

    Args:
        action_mapping: None for actions of the environment. "normalize" for actions in [-1, 1] of a policy,
            as RLlib's env runners store them by default; log-probabilities belong to these.
        strict: raise if something would be lost.

    Raises:
        WrongType: something else than episodes of RLlib's.
        LostInConversion: with `strict`, when something would be lost.
    """
    report = LossReport()
    return list(rllib_episodes(episodes, report, action_mapping)), report.check(strict)


def rllib_episodes(episodes: Iterable[Any], report: LossReport, action_mapping: str | None = None) -> Iterator[Any]:
    """Our episodes one after another; `report` is told what is lost."""
    for number, given in enumerate(episodes):
        if hasattr(given, "env_t_to_agent_t"):
            yield several.episode_of(given, report, action_mapping)
        elif hasattr(given, "get_state") and hasattr(given, "extra_model_outputs"):
            found = rllib_states.episode_of(rllib_states.asked(given))
            found.observation_space = given.observation_space
            found.action_space = imported_space(given.action_space, action_mapping)
            yield found
        else:
            raise WrongType(f"from_rllib: item {number} is a {type(given).__name__}, no episode of RLlib's")
