"""The getters and setters of `MultiAgentEpisode`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any

from episodes.errors import EpisodeStateError, StepOutOfRange, UnknownKey
from episodes.multi_agent import reading
from episodes.multi_agent.reading import Column, Request
from episodes.multi_agent.state import MultiAgentState
from episodes.multi_agent.timeline import WAITS, AgentTimeline
from episodes.tracks.indexing import Indices
from episodes.tracks.reading import new_track, written

AgentIds = Collection[Hashable] | Hashable | None


class MultiAgentGetters(MultiAgentState):
    """Getters and setters over all agents' tracks.

    Getters give a dict from agent to what it has; agents that have nothing there are left out. They share arguments:

    Args:
        indices: an int gives one item for each agent; a slice, list, tuple, range or integer array gives batches.
            Signs mean what they mean in `SingleAgentEpisode`.
        agent_ids: an agent or a collection of agents to read; all when None. Unknown ones are left out.
        env_steps: indices are env steps of this chunk, and an item counts where it arrived (observations, infos) or
            where its action was taken (actions, rewards, extra outputs), a pending step's too. False: indices are each
            agent's own steps; None then means its complete steps, and -1 may be its pending one.
        neg_index_as_lookback: -1 is the step just before step 0.
        fill: stands in wherever an agent has no item, so that all agents' batches have one length.
        one_hot_discrete: discrete values as one-hot vectors; the episode needs the agents' spaces.
        return_list: one dict from agent to item for each env step, instead of one batch for each agent.

    Errors: `StepOutOfRange` for an index without an env step (or, by agents' steps, an agent without it), unless there
    is a `fill`.
    """

    __slots__ = ()

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Observations by agent; of env steps 0 to len(self), both included."""
        if type(indices) is int and agent_ids is None and env_steps:
            t = self.env_t + 1 + indices if indices < 0 and not neg_index_as_lookback else self.env_t_started + indices
            plain = fill is None and not one_hot_discrete and not return_list
            if plain and self.env_t_started - self.lookback <= t <= self.env_t:
                return reading.newest_or_at(self._lines.items(), t)
        request = Request("observations", indices, env_steps, neg_index_as_lookback, fill, one_hot_discrete)
        return self._read(request, self._columns(reading.observations_of, agent_ids), 1, return_list)

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Infos by agent, dicts always; those of no agent are under `"__common__"`.

        By env steps also those that came without an observation; by agents' steps one for each observation.
        """
        request = Request("infos", indices, env_steps, neg_index_as_lookback, fill)
        columns = self._columns(reading.infos_of, agent_ids)
        if self._loose_infos and env_steps:
            columns = self._with_loose_infos(dict(columns), agent_ids).items()
        return self._read(request, columns, 1, return_list)

    def _with_loose_infos(self, columns: dict[Any, Column | None], agent_ids: AgentIds) -> dict[Any, Column | None]:
        """The columns of infos, with those in their places that came without an observation."""
        loose: dict[Any, dict[int, Any]] = {}
        for t, infos in self._loose_infos.items():
            for agent_id, info in infos.items():
                loose.setdefault(agent_id, {})[t] = info
        wanted = loose.keys() if agent_ids is None else loose.keys() & set(_as_collection(agent_ids))
        for agent_id in wanted:
            column = columns.get(agent_id)
            told = {} if column is None else dict(zip(column.times, column.track, strict=True))  # type: ignore[arg-type]
            told |= loose[agent_id]
            times: list[Any] = sorted(told)
            columns[agent_id] = Column([told[t] for t in times], times, 0, (), None)
        return columns

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Actions by agent, pending ones too."""
        request = Request("actions", indices, env_steps, neg_index_as_lookback, fill, one_hot_discrete)
        return self._read(request, self._columns(reading.actions_of, agent_ids), 0, return_list)

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Rewards by agent, each at the env step of its action: all that came until the agent's next observation.

        A waiting agent's reward is the sum so far.
        """
        request = Request("rewards", indices, env_steps, neg_index_as_lookback, fill)
        return self._read(request, self._columns(reading.rewards_of, agent_ids), 0, return_list)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """An extra model output by agent, pending ones too; without a key `{agent: {key: items}}` of all keys.

        Errors: `UnknownKey` when no agent has that key.
        """
        keys = self._extra_keys()
        if key is not None and key not in keys:
            raise UnknownKey(f"episode {self.id_}: no agent has an extra model output {key!r}; there are {keys}")
        answers = {}
        for name in keys if key is None else [key]:
            request = Request(f"extra_model_outputs[{name!r}]", indices, env_steps, neg_index_as_lookback, fill)
            answers[name] = self._read(request, self._columns(reading.outputs_of(name), agent_ids), 0, return_list)
        return answers[key] if key is not None else _by_agent(answers, return_list)

    def _extra_keys(self) -> list[str]:
        keys: dict[str, None] = {}
        for line in self._lines.values():
            keys.update(dict.fromkeys(line.episode.extra_model_outputs))
            keys.update(dict.fromkeys(line.extra or ()))
        return list(keys)

    def _columns(
        self, column_of: Callable[[AgentTimeline], Column | None], agent_ids: AgentIds
    ) -> Iterator[tuple[Any, Column | None]]:
        lines = self._lines
        if agent_ids is None:
            return ((agent_id, column_of(line)) for agent_id, line in lines.items())
        return ((a, column_of(lines[a])) for a in _as_collection(agent_ids) if a in lines)

    def _read(self, request: Request, columns: Any, num_last: int, return_list: bool) -> Any:
        read = reading.per_env_step if return_list else reading.per_agent
        try:
            return read(request, columns, (self.env_t_started, self.lookback), len(self) + num_last)
        except StepOutOfRange as error:
            raise StepOutOfRange(f"episode {self.id_}: {error}") from None

    # --- setters ---------------------------------------------------------------------------------------------

    def set_observations(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace observations of the agents in `new_data`, at the agents' own steps; all from step 0 on when None."""
        self._write("observations", new_data, at_indices, neg_index_as_lookback)

    def set_actions(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace actions of the agents in `new_data`, at the agents' own complete steps."""
        self._write("actions", new_data, at_indices, neg_index_as_lookback)

    def set_rewards(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace rewards of the agents in `new_data`, at the agents' own complete steps."""
        self._write("rewards", new_data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace an extra model output of the agents in `new_data`; a new key is added whole, lookback included.

        Errors: `EpisodeStateError` for a new key of an agent that waits with an action of the old keys.
        """
        name = f"extra_model_outputs[{key!r}]"
        tracks = {}
        for agent_id, data in new_data.items():
            line = self._line(agent_id)
            track = line.episode.extra_model_outputs.get(key)
            if track is None and line.phase == WAITS:
                raise EpisodeStateError(
                    f"episode {self.id_}: agent {agent_id!r} waits with an action that has no {name}; add a new key "
                    "when its step is complete"
                )
            if track is not None or at_indices is not None:
                own = line.episode
                tracks[agent_id] = written(own._extra(key), name, data, at_indices, neg_index_as_lookback)
            else:
                tracks[agent_id] = new_track(name, data, line.episode.rewards)
        for agent_id, track in tracks.items():
            own = self._lines[agent_id].episode
            own.extra_model_outputs = {**own.extra_model_outputs, key: track}
            own._grow = None

    def _write(self, name: str, new_data: Mapping[Any, Any], at_indices: Indices, neg: bool) -> None:
        owners = {agent_id: self._line(agent_id).episode for agent_id in new_data}
        tracks = {a: written(getattr(own, name), name, new_data[a], at_indices, neg) for a, own in owners.items()}
        for agent_id, own in owners.items():
            setattr(own, name, tracks[agent_id])
            own._grow = None


def _as_collection(agent_ids: Any) -> Collection[Any]:
    """The agents named by one id or by a collection of ids."""
    if isinstance(agent_ids, (list, set, frozenset, tuple, dict)) or type(agent_ids).__name__.startswith("dict_"):
        return agent_ids
    return (agent_ids,)


def _by_agent(answers: dict[str, Any], return_list: bool) -> Any:
    """From `{key: {agent: items}}` to `{agent: {key: items}}`; for each env step when they are lists."""
    if return_list:
        steps = zip(*answers.values(), strict=True)
        return [_by_agent(dict(zip(answers, step, strict=True)), False) for step in steps]
    agents: dict[Any, dict[str, Any]] = {}
    for key, items in answers.items():
        for agent_id, item in items.items():
            agents.setdefault(agent_id, {})[key] = item
    return agents
