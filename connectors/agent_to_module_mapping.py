"""Whose row is whose: from the agents of multi-agent episodes to the modules that act and learn for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from connectors.connector import Batch, Connector
from episodes.columns import Columns
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

__all__ = ["SEATS", "AgentToModuleMapping", "Seat", "seats_of"]

SEATS = "seats"  # the key of `shared_data` under which the rows' agents are: {module_id: [Seat, ...]}


class Seat(NamedTuple):
    """Whose row it is."""

    place: int  # of the multi-agent episode among the episodes
    agent_id: Any
    episode: SingleAgentEpisode


def seats_of(episodes: Sequence[MultiAgentEpisode]) -> dict[Any, list[Seat]]:
    """The agents that must act, by module, in the order of the episodes."""
    seats: dict[Any, list[Seat]] = {}
    for place, episode in enumerate(episodes):
        for agent_id, own in episode.episodes_to_act():
            seats.setdefault(own.module_id, []).append(Seat(place, agent_id, own))
    return seats


class AgentToModuleMapping(Connector):
    """The first piece of multi-agent pipelines: it deals out agents to modules.

    Acting, it makes `{module_id: {"obs": [n, ...]}}` of the newest observations of the agents that must act, and notes
    in `shared_data["seats"]` whose rows they are. Learning, `packs` gives each module the episodes of its agents.
    """

    writes = (Columns.OBS,)

    def __call__(
        self, *, batch: Batch, episodes: Any = (), shared_data: dict[str, Any] | None = None, **kwargs: Any
    ) -> Batch:
        seats = seats_of(episodes)
        if shared_data is not None:
            shared_data[SEATS] = seats
        for module_id, rows in seats.items():
            columns = batch.setdefault(module_id, {})
            if Columns.OBS not in columns:
                columns[Columns.OBS] = nested.stack([seat.episode.observations.get(-1) for seat in rows])
        return batch

    @staticmethod
    def packs(episodes: Iterable[MultiAgentEpisode]) -> Mapping[Any, EpisodePack]:
        """The episodes of all agents that have steps, as one pack for each module."""
        by_module: dict[Any, list[SingleAgentEpisode]] = {}
        for episode in episodes:
            for own in episode.agent_episodes.values():
                if len(own):
                    by_module.setdefault(own.module_id, []).append(own)
        return {module_id: EpisodePack.from_episodes(own) for module_id, own in by_module.items()}
