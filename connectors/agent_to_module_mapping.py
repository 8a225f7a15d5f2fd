"""Grouping of agents by module (policy): which agent each row of a module's batch belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from connectors.connector import ColumnDict, Connector
from episodes.columns import DEFAULT_MODULE_ID, Columns
from episodes.errors import ShapeMismatch
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

__all__ = ["SEATS", "AgentToModuleMapping", "AgentRow"]

SEATS = "seats"  # key in `shared_data` of the agent behind each row: {module_id: [AgentRow, ...]}


class AgentRow(NamedTuple):
    """Agent to which one row of a module's batch belongs: index of its multi-agent episode, agent id and single-agent
    episode.
    """

    place: int  # index of the multi-agent episode
    agent_id: Any
    episode: SingleAgentEpisode


class AgentToModuleMapping(Connector):
    """First connector of multi-agent pipelines, which groups the agents by module (policy).

    While acting, `rows_by_module` returns the agents that must act. A call writes `{module_id: {"obs": [n, ...]}}` of
    their newest observations, and stores the agent of each row in `shared_data["seats"]`. While learning, `packs`
    returns the episodes of each module's agents.
    """

    writes = (Columns.OBS,)

    def __call__(
        self,
        *,
        batch: ColumnDict,
        episodes: Sequence[MultiAgentEpisode] = (),
        shared_data: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> ColumnDict:
        seats = self.rows_by_module(episodes)
        if shared_data is not None:
            shared_data[SEATS] = seats
        for module_id, rows in seats.items():
            columns = batch.setdefault(module_id, {})
            if Columns.OBS not in columns:
                columns[Columns.OBS] = newest_rows(module_id, [seat.episode for seat in rows])
        return batch

    @staticmethod
    def rows_by_module(episodes: Sequence[MultiAgentEpisode]) -> dict[Any, list[AgentRow]]:
        """Return for each module id the list of agents that must act now, in the order of the episodes."""
        seats: dict[Any, list[AgentRow]] = {}
        for place, episode in enumerate(episodes):
            for agent_id, agent_episode in episode.episodes_to_act():
                seats.setdefault(agent_episode.module_id, []).append(AgentRow(place, agent_id, agent_episode))
        return seats

    @staticmethod
    def packs(episodes: Iterable[MultiAgentEpisode | SingleAgentEpisode]) -> dict[Any, EpisodePack]:
        """Return for each module id the single-agent episodes of its agents, as one `EpisodePack` (arrays of many
        episodes).

        Args:
            episodes: multi-agent episodes, agents' episodes, or a pack of agents' episodes. Agents without a step are
                left out of multi-agent episodes. Episodes without a module id belong to the default module.
        """
        episodes_by_module = AgentToModuleMapping.episodes_by_module(episodes)
        return {
            module_id: EpisodePack.from_episodes(agent_episodes)
            for module_id, agent_episodes in episodes_by_module.items()
        }

    @staticmethod
    def episodes_by_module(
        episodes: Iterable[MultiAgentEpisode | SingleAgentEpisode],
    ) -> Mapping[Any, Sequence[SingleAgentEpisode]]:
        """Return for each module id the single-agent episodes of its agents."""
        if isinstance(episodes, EpisodePack):
            return _split_by_module(episodes)
        by_module: dict[Any, list[SingleAgentEpisode]] = {}
        for episode in episodes:
            for agent_episode in _agents_of(episode):
                by_module.setdefault(_module_id(agent_episode.module_id), []).append(agent_episode)
        return by_module


def newest_rows(module_id: object, owners: Sequence[SingleAgentEpisode]) -> Any:
    """Return the newest observations of the episodes `owners`, stacked to one batch [n, ...] of the module `module_id`.

    Raises:
        ShapeMismatch: the observations have different shapes. The error names two of the agents.
    """
    items = [owner.observations.get(-1) for owner in owners]
    try:
        return nested.stack(items)
    except (ValueError, KeyError, TypeError) as error:
        shapes = [str(nested.map_leaves(lambda leaf: list(np.shape(leaf)), item)) for item in items]
        differing = next((i for i, owner in enumerate(shapes) if owner != shapes[0]), 0)
        raise ShapeMismatch(
            f"module {module_id!r}: agent {owners[differing].agent_id!r} observes arrays of shape {shapes[differing]}, "
            f"agent {owners[0].agent_id!r} of {shapes[0]}; map agents with different observations to separate modules, "
            "or bring their observations into one shape by a joint preprocessor"
        ) from error


def _agents_of(episode: MultiAgentEpisode | SingleAgentEpisode) -> list[SingleAgentEpisode]:
    """Return the agents' episodes that have steps. A single-agent episode is returned as the only one."""
    if isinstance(episode, SingleAgentEpisode):
        return [episode]
    return [agent_episode for agent_episode in episode.agent_episodes.values() if len(agent_episode)]


def _split_by_module(pack: EpisodePack) -> dict[Any, EpisodePack]:
    """Return for each module id its episodes in the pack. Episodes without a module id belong to the default module."""
    if pack.module_ids is None:
        return {DEFAULT_MODULE_ID: pack}
    rows: dict[Any, list[int]] = {}
    for row, module_id in enumerate(pack.module_ids):
        rows.setdefault(_module_id(module_id), []).append(row)
    if len(rows) == 1:
        return dict.fromkeys(rows, pack)
    return {module_id: pack.select(np.array(indices)) for module_id, indices in rows.items()}


def _module_id(module_id: object) -> Any:
    """Return the id of a module, `DEFAULT_MODULE_ID` for None."""
    return DEFAULT_MODULE_ID if module_id is None else module_id
