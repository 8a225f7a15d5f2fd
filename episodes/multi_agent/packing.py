"""Conversion of multi-agent episodes to packs of the agents' single-agent episodes, and back.

The rest of a multi-agent episode (env steps of items, pending steps, items of no agent) is stored in the agents'
`custom_data` under one key, as numbers, strings and arrays. So these packs can be written, sent, pickled, replayed and
learned from like all others.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable, Sequence
from copy import copy
from typing import Any, NamedTuple

from episodes.errors import InvalidArgument, TrackMismatch
from episodes.facts import EpisodeFacts
from episodes.facts.ending import ENDINGS
from episodes.multi_agent.agents import Agents
from episodes.multi_agent.episode import MultiAgentEpisode
from episodes.multi_agent.timeline import Timeline
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.infos.info_column import copy_mutable

__all__ = ["pack_agents", "unpack_agents"]

KEY = "multi_agent"  # key in `custom_data`

_COPIED = frozenset(("seen", "acted"))  # entries of a timeline's record that are copies already
_HEADER = ("env_t", "lookback", "missing_final_observation", "custom_data")


def pack_agents(episodes: Iterable[MultiAgentEpisode]) -> list[EpisodePack]:
    """Convert multi-agent episodes to packs of single-agent episodes. Agents with equal shapes and spaces share a pack.

    Agents of equal schema share a pack, whichever episode they belong to. An agent without a complete step joins any
    pack with its observations and spaces. The given episodes do not change; those in the packs are finalized.

    Raises:
        InvalidArgument: an episode has no agents, so that nothing of it would be left.
    """
    agents: list[tuple[SingleAgentEpisode, dict[str, Any], _Schema]] = []
    call = uuid.uuid4().hex[:12]
    for index, episode in enumerate(episodes):
        if not episode.agent_ids:
            raise InvalidArgument(f"episode {episode.id_} has no agents, and cannot be packed; leave it out")
        for place, timeline in enumerate(episode.agents.timelines.values()):
            agent_episode = timeline.episode.as_finished()
            agents.append(
                (agent_episode, _record(episode, timeline, place, call=call, index=index), _schema(agent_episode))
            )
    schemas: list[_Schema] = []
    for _, _, schema in sorted(agents, key=lambda agent: agent[2].stepped is None):  # agents with steps first
        if not any(schema.joins(known) for known in schemas):
            schemas.append(schema)
    groups = [_AgentsOfOneSchema([], []) for _ in schemas]
    for agent_episode, record, schema in agents:
        alike = next(group for known, group in zip(schemas, groups, strict=True) if schema.joins(known))
        alike.episodes.append(agent_episode)
        alike.records.append(record)
    return [alike.packed() for alike in groups]


class _Schema(NamedTuple):
    """Properties that all episodes of one pack must share: spaces, and the shape and dtype of each array."""

    spaces: tuple[Any, Any]
    observed: dict[str, Any]
    stepped: dict[str, Any] | None  # None without a step, since actions and outputs are unknown

    def joins(self, shared: _Schema) -> bool:
        """Return True if an episode with this schema fits into a pack of episodes with the schema `shared`."""
        if self.spaces != shared.spaces or self.observed != shared.observed:
            return False
        return self.stepped is None or self.stepped == shared.stepped


class _AgentsOfOneSchema(NamedTuple):
    """Single-agent episodes that go into one pack, and each agent's additional data (env steps, pending action)."""

    episodes: list[SingleAgentEpisode]
    records: list[dict[str, Any]]

    def packed(self) -> EpisodePack:
        pack = EpisodePack.from_episodes(self.episodes)
        customs = pack.facts.custom_data or [{}] * len(self.records)
        records = [{**(data or {}), KEY: record} for data, record in zip(customs, self.records, strict=True)]
        return EpisodePack.of(pack.columns, pack.facts._replace(custom_data=records), pack.lengths, pack.lookbacks)


def unpack_agents(packs: Sequence[EpisodePack]) -> list[MultiAgentEpisode]:
    """Convert the packs of `pack_agents` back to multi-agent episodes, in order. Arrays are not copied.

    Packs of several calls of `pack_agents` are allowed: the episodes of a call stay together, in the order of the
    packs. Modules are restored. The mapping function of an episode is not packed.

    Raises:
        TrackMismatch: an agent of an episode is missing, or a pack holds other episodes.
    """
    agents = [[taken_apart(episode) for episode in pack] for pack in packs]
    keys = [[(episode.multi_agent_episode_id, record) for episode, record in pack] for pack in agents]
    games = games_of(keys)
    return [episode_of({place: agents[pack][row] for place, (pack, row) in game.items()}) for game in games]


def taken_apart(agent_episode: SingleAgentEpisode) -> tuple[SingleAgentEpisode, dict[str, Any]]:
    """Return a copy of an agent's episode without the data of its multi-agent episode, and these data.

    Raises:
        TrackMismatch: the episode does not belong to a multi-agent episode.
    """
    agent_episode = copy(agent_episode)
    record = agent_episode.custom_data.pop(KEY, None)
    if record is None:
        raise TrackMismatch(
            f"episode {agent_episode.id_} does not belong to a multi-agent episode: it has no "
            f"custom_data[{KEY!r}]; give packs of pack_agents"
        )
    return agent_episode, record


def games_of(sources: Sequence[Sequence[tuple[Any, dict[str, Any]]]]) -> list[dict[int, tuple[int, int]]]:
    """Return for each multi-agent episode where its agents are: by an agent's place the (source, row).

    Args:
        sources: for each row of each source the id of the multi-agent episode, and the agent's record.
    """
    games: dict[Any, list[dict[int, tuple[int, int]]]] = {}  # a list: the same episode may be given twice
    for number, rows in enumerate(sources):
        for row, (id_, record) in enumerate(rows):
            sizes = record.get("num_steps"), record.get("num_agents")
            key = record.get("call"), record["index"], id_, record["env_t_started"], *sizes
            chunks, place = games.setdefault(key, []), record["place"]
            chunk = next((chunk for chunk in chunks if place not in chunk), None)
            if chunk is None:
                chunks.append(chunk := {})
            chunk[place] = (number, row)
    calls = _merged([[record.get("call") for _, record in rows] for rows in sources])
    order = {call: rank for rank, call in enumerate(calls)}
    return [game for key in sorted(games, key=lambda key: (order[key[0]], key[1])) for game in games[key]]


def is_whole(places: Iterable[int], num_agents: int | None) -> bool:
    """Return True if these are the places of all agents of a multi-agent episode."""
    return {*places} == {*range(num_agents or 0)}


def _merged(sequences: Sequence[Sequence[Hashable]]) -> list[Any]:
    """Merge sequences to one without repetitions, in which the order of each sequence is kept if that is possible.

    >>> _merged([["a", "a", "c"], ["b", "c"]])
    ['a', 'b', 'c']
    """
    rests = [[*dict.fromkeys(sequence)][::-1] for sequence in sequences]
    number_of: dict[Hashable, int] = {}
    for rest in rests:
        for item in rest:
            number_of[item] = number_of.get(item, 0) + 1
    at_front: dict[Hashable, int] = {}
    result: dict[Any, None] = {}
    for rest in rests:
        if rest:
            at_front[rest[-1]] = at_front.get(rest[-1], 0) + 1
    while len(result) < len(number_of):
        fronts = [rest[-1] for rest in rests if rest]
        chosen = next((front for front in fronts if at_front[front] == number_of[front]), fronts[0])
        result[chosen] = None
        for rest in rests:
            while rest and rest[-1] in result:
                rest.pop()
                if rest:
                    at_front[rest[-1]] = at_front.get(rest[-1], 0) + 1
    return [*result]


def _record(episode: MultiAgentEpisode, timeline: Timeline, place: int, *, call: str, index: int) -> dict[str, Any]:
    """Return an agent's data that a single-agent episode cannot hold, such as env steps and pending action.

    The dict of the first agent also holds the data of the whole chunk.

    Args:
        place: index of the agent in the episode.
        call: identifies the call of `pack_agents`.
        index: index of the episode in this call.
    """
    record = timeline.record()
    waiting = {name: copy_mutable(value) for name, value in record.items() if name not in _COPIED}
    record = {**record, **waiting, "call": call, "index": index, "place": place}
    record |= {"env_t_started": episode.env_t_started}
    record |= {"num_steps": len(episode), "num_agents": len(episode.agents.timelines)}
    if place == 0:
        facts = {"id_": episode.id_, "ending": episode.ending.code}
        attributes = {name: getattr(episode, name) for name in _HEADER}
        attributes |= {"ragged": episode.ragged} if episode.ragged else {}
        record["episode"] = facts | copy_mutable(attributes) | {"num_agents": len(episode.agents.timelines)}
        record["rest"] = copy_mutable(episode.agents.record())
    return record


def _schema(agent_episode: SingleAgentEpisode) -> _Schema:
    """Return spaces, shapes and dtypes of an agent's episode. Without a step, some are unknown."""
    tracks = agent_episode.tracks
    observed, stepped = ({}, {}) if tracks.rewards.total else ({}, None)
    for track in tracks.all():
        kinds = observed if track.field.more else stepped
        if kinds is not None:
            kinds |= {path: (array.shape[1:], array.dtype) for path, array in track.arrays().items()}
    return _Schema((agent_episode.observation_space, agent_episode.action_space), observed, stepped)


def episode_of(agents: dict[int, tuple[SingleAgentEpisode, dict[str, Any]]]) -> MultiAgentEpisode:
    """Return the multi-agent episode that consists of these agents.

    Args:
        agents: episode and stored record of each agent, by the agent's place. The one at place 0 has the episode's
            data.

    Raises:
        TrackMismatch: an agent is missing.
    """
    example = next(iter(agents.values()))[0].multi_agent_episode_id
    header: dict[str, Any] = dict(agents[0][1]["episode"]) if 0 in agents else {"num_agents": None}
    if not is_whole(agents, header.pop("num_agents")):
        raise TrackMismatch(f"multi-agent episode {example}: not all of its agents are in the packs; give all of them")
    timelines: dict[Any, Timeline] = {}
    for place in sorted(agents):
        agent_episode, record = agents[place]
        timelines[agent_episode.agent_id] = Timeline.of(agent_episode, record)
    first = agents[0][1]
    facts = EpisodeFacts(
        header.pop("id_"),
        first["env_t_started"],
        ENDINGS[header.pop("ending")],
        observation_space=_by_agent(timelines, "observation_space"),
        action_space=_by_agent(timelines, "action_space"),
    )
    return MultiAgentEpisode.of(facts, Agents.of(facts.id_, timelines, first["rest"]), is_numpy=True, **header)


def _by_agent(timelines: dict[Any, Timeline], name: str) -> Any:
    """Return a dict from agent to the space in its episode's attribute `name`, or None if no agent has a space."""
    spaces = {agent_id: getattr(timeline.episode, name) for agent_id, timeline in timelines.items()}
    return spaces if any(space is not None for space in spaces.values()) else None
