"""What can be sent, as the packs that it travels as."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from episodes.errors import WrongType
from episodes.multi_agent import MultiAgentEpisode, pack_agents
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.transport.messages import Kind

Sendable = (
    EpisodePack | SingleAgentEpisode | MultiAgentEpisode | Sequence[SingleAgentEpisode] | Sequence[MultiAgentEpisode]
)


def finished(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    """The episode as it is now; its owner may go on growing it."""
    if episode.is_numpy:
        return episode
    return SingleAgentEpisode.of(episode.facts, episode.finalized_tracks(), dict(episode.custom_data))


def packed(episodes: Any) -> tuple[Kind, list[list[EpisodePack]]]:
    """What messages are made of: packs, each by itself; those of multi-agent episodes together."""
    if isinstance(episodes, EpisodePack):
        return Kind.DATA, [[episodes]]
    if isinstance(episodes, SingleAgentEpisode):
        return Kind.DATA, [[EpisodePack.from_episodes([episodes])]]
    given = [episodes] if isinstance(episodes, MultiAgentEpisode) else episodes
    if not isinstance(given, Iterable):
        raise WrongType(f"send({type(episodes).__name__}); give a pack, an episode, or a list of episodes")
    own: list[Any] = list(given)
    if not own:
        return Kind.DATA, []
    several = [episode for episode in own if isinstance(episode, MultiAgentEpisode)]
    if len(several) == len(own):
        return Kind.MULTI_AGENT, [pack_agents(several)]
    return Kind.DATA, [[EpisodePack.from_episodes(own)]]
