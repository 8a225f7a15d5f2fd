"""Conversion of all inputs that a sender accepts (episodes, lists of episodes, packs) to packs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from episodes.errors import WrongType, rejected_type
from episodes.multi_agent import MultiAgentEpisode, pack_agents
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.transport.messages import MessageKind

Sendable = (
    EpisodePack | SingleAgentEpisode | MultiAgentEpisode | Sequence[SingleAgentEpisode] | Sequence[MultiAgentEpisode]
)


def finished(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    """Return an episode whose data are arrays: the episode itself if it is finalized, else a new episode with the same
    contents.

    The given episode stays unchanged, so that its owner can continue it. The new episode has a shallow copy of its
    custom data.
    """
    if episode.is_numpy:
        return episode
    return SingleAgentEpisode.of(episode.facts, episode.finalized_tracks(), dict(episode.custom_data))


def packed(episodes: object) -> tuple[MessageKind, list[list[EpisodePack]]]:
    """Convert the argument of `send` to packs. Return the message kind (single-agent or multi-agent) and a list of
    packs per message, which is empty if there are no episodes.

    Raises:
        WrongType: `episodes` are not a pack, an episode or an iterable of episodes.
    """
    if isinstance(episodes, EpisodePack):
        return MessageKind.DATA, [[episodes]]
    if isinstance(episodes, SingleAgentEpisode):
        return MessageKind.DATA, [[EpisodePack.from_episodes([episodes])]]
    iterable = [episodes] if isinstance(episodes, MultiAgentEpisode) else episodes
    if not isinstance(iterable, Iterable):
        kind = rejected_type(episodes, EpisodePack, SingleAgentEpisode, MultiAgentEpisode)
        raise WrongType(f"send({kind}); give a pack, an episode, or a list of episodes")
    items: list[Any] = list(iterable)
    if not items:
        return MessageKind.DATA, []
    several = [episode for episode in items if isinstance(episode, MultiAgentEpisode)]
    if len(several) == len(items):
        return MessageKind.MULTI_AGENT, [pack_agents(several)]
    return MessageKind.DATA, [[EpisodePack.from_episodes(items)]]
