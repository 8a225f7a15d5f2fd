"""The getters and setters of `MultiAgentEpisode`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import numpy as np

from episodes.columns import Columns, check_extra_output_names
from episodes.errors import EpisodeStateError, StepOutOfRange, UnknownKey, WrongType
from episodes.facts import EpisodeFacts
from episodes.facts.facts import HasEnding
from episodes.multi_agent import queries
from episodes.multi_agent.agents import ALL, Agents
from episodes.multi_agent.queries import Column, Request
from episodes.multi_agent.timeline import RESTS, WAITS, Timeline
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import ListTrack
from episodes.tracks.field import INFOS, extra_field
from episodes.tracks.indexing import INTEGERS, Indices
from episodes.tracks.policy_box import to_env_actions, to_env_items
from episodes.tracks.track_access import new_track, with_items_set
from episodes.tracks.validation import checked_count, checked_key, checked_mapping

AgentIds = Collection[Hashable] | Hashable | None


class MultiAgentGetters(HasEnding):
    """Getters and setters over all agents' tracks.

    Getters give a dict from agent to what it has; agents that have nothing there are left out. They share arguments:

    Args:
        indices: an int gives one item for each agent; a slice, list, tuple, range or integer array gives batches.
            Signs mean what they mean in `SingleAgentEpisode`.
        agent_ids: an agent or a collection of agents to read; all when None. Unknown ones are left out. A tuple that is
            an agent's id is that agent.
        env_steps: indices are env steps of this chunk, and an item counts where it arrived (observations, infos) or
            where its action was taken (actions, rewards, extra outputs), a pending step's too. False: indices are each
            agent's own steps; None then means its complete steps, and -1 may be its pending one.
        neg_index_as_lookback: -1 is the step just before step 0.
        fill: stands in wherever an agent has no item, so that all agents' batches have one length.
        one_hot_discrete: discrete values as one-hot vectors; the episode needs the agents' spaces.
        return_list: one dict from agent to item for each env step, instead of one batch for each agent.

    Raises:
        StepOutOfRange: an index without an env step (or, by agents' steps, an agent without it), and no `fill`.
    """

    __slots__ = ("_facts", "agents", "env_t", "is_numpy", "is_reset", "lookback")

    _facts: EpisodeFacts
    agents: Agents
    id_: Any
    env_t_started: int
    env_t: int  # the env step at which it stops
    lookback: int  # how many env steps before `env_t_started` are within reach
    is_reset: bool
    is_numpy: bool  # True once finalized by `to_numpy`

    # --- what there is -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.env_t - self._facts.t_started

    def env_steps(self) -> int:
        """The number of env steps: `len(self)`."""
        return self.env_t - self._facts.t_started

    def agent_steps(self) -> int:
        """The number of completed steps of all agents together."""
        return sum(len(line.episode) for line in self.agents.timelines.values())

    @property
    def is_finalized(self) -> bool:
        """True once finalized by `to_numpy`."""
        return self.is_numpy

    @property
    def agent_ids(self) -> set[Any]:
        """The agents that were observed in this chunk or its lookback."""
        return set(self.agents.timelines)

    @property
    def agent_episodes(self) -> dict[Any, SingleAgentEpisode]:
        """Each agent's own episode, on its own clock; without a step that waits for its next observation."""
        return {agent_id: line.episode for agent_id, line in self.agents.timelines.items()}

    @property
    def agent_t_started(self) -> dict[Any, int]:
        """Each agent's own step at which this chunk begins."""
        return {agent_id: line.episode.t_started for agent_id, line in self.agents.timelines.items()}

    @property
    def agent_episode_ids(self) -> dict[Any, Any]:
        """The id of each agent's own episode."""
        return {agent_id: line.episode.id_ for agent_id, line in self.agents.timelines.items()}

    def has_agent(self, agent_id: Any) -> bool:
        """True when the agent was observed in this chunk or its lookback."""
        return isinstance(agent_id, Hashable) and agent_id in self.agents.timelines

    def clocks(self, agent_id: Any) -> tuple[np.ndarray, np.ndarray]:
        """The env steps at which an agent's observations arrived, [L + T + 1], and at which it acted, [L + T].

        The second has one more while the agent waits. `UnknownKey` for an agent that was not observed.
        """
        return self.agents.timeline(agent_id).clocks()

    def env_steps_back(self, num_steps: int) -> int:
        """How many env steps back the last `num_steps` complete steps, and the pending one, of every agent reach.

        Cut with such a lookback, the successor has them all; agents that are done do not count.
        """
        checked_count("num_steps", num_steps, 0)
        return max((line.reach(num_steps, self.env_t) for line in self.agents.timelines.values()), default=0)

    def get_agents_to_act(self) -> set[Any]:
        """The agents that got an observation in the newest env step and are not done: they act next."""
        return {agent_id for agent_id, _ in self.episodes_to_act()}

    def episodes_to_act(self) -> list[tuple[Any, SingleAgentEpisode]]:
        """The pairs of an agent that must act next and its episode."""
        if self.is_done:
            return []
        now, lines = self.env_t, self.agents.timelines
        return [(a, line.episode) for a, line in lines.items() if line.phase == RESTS and line.seen[-1] == now]

    def get_agents_that_stepped(self) -> set[Any]:
        """The agents that got an observation in the newest env step."""
        now = self.env_t
        return {agent_id for agent_id, line in self.agents.timelines.items() if line.seen[-1] == now}

    def get_terminateds(self) -> dict[Any, bool]:
        """Which agents terminated; `"__all__"` is the episode itself."""
        endings = self.agents.endings_so_far()
        return {agent_id: ending.is_terminated for agent_id, ending in endings.items()} | {
            ALL: self._facts.ending.is_terminated
        }

    def get_truncateds(self) -> dict[Any, bool]:
        """Which agents were truncated; `"__all__"` is the episode itself."""
        endings = self.agents.endings_so_far()
        return {agent_id: ending.is_truncated for agent_id, ending in endings.items()} | {
            ALL: self._facts.ending.is_truncated
        }

    def get_returns(self, include_pending: bool = False) -> dict[Any, float]:
        """Each agent's sum of rewards from step 0 of this chunk on.

        Args:
            include_pending: count rewards that belong to no complete step too: those of waiting agents, and those that
                came before an agent's first observation or after its end.
        """
        agents = self.agents
        returns = {agent_id: line.episode.get_return() for agent_id, line in agents.timelines.items()}
        if include_pending:
            waiting = [(a, line.reward) for a, line in agents.timelines.items() if line.reward is not None]
            for agent_id, reward in [*waiting, *((agent_id, reward) for _, agent_id, reward in agents.rewards_apart)]:
                returns[agent_id] = returns.get(agent_id, 0.0) + float(reward)
        return returns

    def get_return(self, include_pending: bool = False, *, include_hanging_rewards: bool = False) -> float:
        """The sum of all agents' rewards from step 0 of this chunk on; `include_pending` as in `get_returns`.

        Args:
            include_hanging_rewards: RLlib's name of `include_pending`.
        """
        return float(sum(self.get_returns(include_pending or include_hanging_rewards).values()))

    # --- items -------------------------------------------------------------------------------------------------

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
        plain = agent_ids is None and env_steps and fill is None and not one_hot_discrete and not return_list
        if plain and type(indices) is int:
            lines, now = self.agents.timelines.items(), self.env_t
            if indices == -1 and not neg_index_as_lookback:
                return queries.newest_observations(lines, now)
            begin = self._facts.t_started
            t = now + 1 + indices if indices < 0 and not neg_index_as_lookback else begin + indices
            if begin - self.lookback <= t <= now:
                return queries.observations_at(lines, t)
        options = indices, agent_ids, env_steps, neg_index_as_lookback, fill, return_list, one_hot_discrete
        return self._read(Request("observations", *options), queries.observations_of)

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
        request = Request("infos", indices, agent_ids, env_steps, neg_index_as_lookback, fill, return_list)
        return self._read(request, queries.infos_of)

    def _with_loose_infos(self, columns: dict[Any, Column | None], agent_ids: AgentIds) -> dict[Any, Column | None]:
        """The columns of infos, with those in their places that came without an observation."""
        loose: dict[Any, dict[int, Any]] = {}
        for t, infos in self.agents.loose_infos.items():
            for agent_id, info in infos.items():
                loose.setdefault(agent_id, {})[t] = info
        wanted = loose.keys() if agent_ids is None else loose.keys() & set(self._chosen(agent_ids))
        for agent_id in wanted:
            column = columns.get(agent_id)
            told = (
                {}
                if column is None
                else dict(zip(column.times, column.track.item_list(0, column.track.total), strict=True))
            )
            told |= loose[agent_id]
            times: list[Any] = sorted(told)
            track = ListTrack([told[t] for t in times], 0, False, INFOS)
            columns[agent_id] = Column(track, times, 0, (), None)
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
        options = indices, agent_ids, env_steps, neg_index_as_lookback, fill, return_list, one_hot_discrete
        return self._read(Request("actions", *options), queries.actions_of)

    def get_env_actions(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
    ) -> dict[Any, Any]:
        """Return the actions that were sent to the environment by agent, pending ones too.

        The stored actions are the policies'. See `SingleAgentEpisode.get_env_actions`.

        Raises:
            EpisodeStateError: a connector computed an agent's actions, and they were not recorded.
        """
        where: Any = {"env_steps": env_steps, "neg_index_as_lookback": neg_index_as_lookback}
        actions = self.get_actions(indices, agent_ids, **where)
        sent = {}
        if Columns.ACTIONS_FOR_ENV in self._extra_keys():
            sent = self.get_extra_model_outputs(Columns.ACTIONS_FOR_ENV, indices, agent_ids, **where)
        change = to_env_actions if isinstance(indices, INTEGERS) else to_env_items
        spaces = {agent_id: line.episode.action_space for agent_id, line in self.agents.timelines.items()}
        return {a: sent[a] if a in sent else change(spaces[a], items) for a, items in actions.items()}

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
        request = Request("rewards", indices, agent_ids, env_steps, neg_index_as_lookback, fill, return_list)
        return self._read(request, queries.rewards_of)

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

        Raises:
            UnknownKey: no agent has that key.
        """
        keys = self._extra_keys()
        if key is not None and checked_key("key", key) not in keys:
            raise UnknownKey(f"episode {self.id_}: no agent has an extra model output {key!r}; there are {keys}")
        options = indices, agent_ids, env_steps, neg_index_as_lookback, fill, return_list
        answers = {
            name: self._read(Request(f"extra_model_outputs[{name!r}]", *options), queries.outputs_of(name))
            for name in (keys if key is None else [key])
        }
        return answers[key] if key is not None else _by_agent(answers, return_list)

    def _extra_keys(self) -> list[str]:
        keys: dict[str, None] = {}
        for line in self.agents.timelines.values():
            keys.update(dict.fromkeys(line.episode.extra_model_outputs))
            keys.update(dict.fromkeys(line.extra or ()))
        return list(keys)

    def _columns(
        self, column_of: Callable[[Timeline], Column | None], agent_ids: AgentIds
    ) -> Iterator[tuple[Any, Column | None]]:
        lines = self.agents.timelines
        if agent_ids is None:
            return ((agent_id, column_of(line)) for agent_id, line in lines.items())
        return ((a, column_of(lines[a])) for a in self._chosen(agent_ids) if a in lines)

    def _chosen(self, agent_ids: Any) -> Collection[Any]:
        """The agents that one id or a collection of ids names; a tuple that is an agent's id is that agent."""
        if isinstance(agent_ids, (tuple, frozenset)):
            return (agent_ids,) if self.agents.knows(agent_ids) else agent_ids
        is_collection = isinstance(agent_ids, (list, set, dict, KeysView, ValuesView))
        agent_ids = agent_ids if is_collection else (agent_ids,)
        unhashable = next((agent_id for agent_id in agent_ids if not isinstance(agent_id, Hashable)), None)
        if unhashable is not None:
            raise WrongType(f"agent_ids: {unhashable!r} cannot be an agent's id; give an agent, or a list of agents")
        return agent_ids

    def _read(self, request: Request, column_of: Callable[[Timeline], Column | None]) -> Any:
        """Return the items of a request, which `column_of` finds in each agent's timeline."""
        columns: Any = self._columns(column_of, request.agent_ids)
        if request.name == "infos" and request.env_steps and self.agents.loose_infos:
            columns = self._with_loose_infos(dict(columns), request.agent_ids).items()
        read = queries.per_env_step if request.return_list else queries.per_agent
        begin, is_observed = self._facts.t_started, request.name in ("observations", "infos")
        try:
            return read(request, columns, (begin, self.lookback), self.env_t - begin + is_observed)
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

        Raises:
            EpisodeStateError: a new key of an agent that waits with an action of the old keys.
            UnknownKey: an agent that is not there, or a new key with `at_indices`.
        """
        check_extra_output_names([checked_key("key", key)], f"episode {self.id_}")
        tracks = {}
        new_data = checked_mapping("new_data", new_data, "from agent to items")
        for agent_id, data in new_data.items():
            line = self.agents.timeline(agent_id)
            own, track = line.episode, line.episode.tracks.extra.get(key)
            if track is None and line.phase == WAITS:
                raise EpisodeStateError(
                    f"episode {self.id_}: agent {agent_id!r} waits with an action that has no extra_model_outputs"
                    f"[{key!r}]; add a new key when its step is complete"
                )
            if track is not None:
                tracks[agent_id] = with_items_set(track, data, at_indices, neg_index_as_lookback)
            elif at_indices is not None:
                raise UnknownKey(
                    f"episode {self.id_}: agent {agent_id!r} has no extra_model_outputs[{key!r}] to change"
                )
            else:
                tracks[agent_id] = new_track(extra_field(key), data, own.rewards)
        self._replace(tracks)

    def _write(self, name: str, new_data: Mapping[Any, Any], at_indices: Indices, neg: bool) -> None:
        new_data = checked_mapping("new_data", new_data, "from agent to items")
        owners = {agent_id: self.agents.timeline(agent_id).episode for agent_id in new_data}
        self._replace(
            {a: with_items_set(getattr(own, name), new_data[a], at_indices, neg) for a, own in owners.items()}
        )

    def _replace(self, tracks: dict[Any, Any]) -> None:
        for agent_id, track in tracks.items():
            own = self.agents.timelines[agent_id].episode
            own.tracks = own.tracks.replaced(track)


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
