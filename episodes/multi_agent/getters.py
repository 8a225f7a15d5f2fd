"""Getters and setters of `MultiAgentEpisode` for the observations, actions, rewards and infos of its agents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.columns import Columns, check_extra_output_names
from episodes.errors import EpisodeStateError, StepOutOfRange, UnknownKey, WrongType
from episodes.facts import Ending, EpisodeFacts
from episodes.facts.facts import HasEnding
from episodes.multi_agent import queries
from episodes.multi_agent.agents import ALL, Agents
from episodes.multi_agent.queries import AgentTrack, ItemKind, Request
from episodes.multi_agent.timeline import RESTS, WAITS, Timeline
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import ListTrack
from episodes.tracks.field import INFOS, extra_field
from episodes.tracks.indexing import INTEGERS, Indices
from episodes.tracks.policy_box import to_env_actions, to_env_items
from episodes.tracks.track_access import new_track, with_items_set
from episodes.tracks.validation import checked_count, checked_key, checked_mapping

if TYPE_CHECKING:
    from episodes.data_types import AgentID, Item

AgentIds = Collection[Hashable] | Hashable | None


class MultiAgentGetters(HasEnding):
    """Base class of `MultiAgentEpisode` with the getters and setters of its agents' items.

    Getters return a dict from agent to item or batch, without agents that have no items. They share arguments:

    Args:
        indices: an int gives one item per agent; a slice, list, tuple, range or integer array gives batches. Negative
            indices mean the same as in `SingleAgentEpisode`.
        agent_ids: an agent or a collection of agents to read, all by default. Unknown ones are left out. A tuple that
            is an agent's id is that agent.
        env_steps: True if indices are env steps of this chunk. Observations and infos count at the env step at which
            they arrived, actions, rewards and extra outputs at the env step of their action, pending ones included.
            False if indices are each agent's own steps: None then means its complete steps, and -1 may be the pending
            one.
        neg_index_as_lookback: True if -1 is the step just before step 0.
        fill: value for env steps at which an agent has no item, so that all agents' batches have one length.
        one_hot_discrete: return discrete values as one-hot vectors; the episode needs the agents' spaces.
        return_list: return one dict from agent to item per env step, instead of one batch per agent.

    Raises:
        StepOutOfRange: an index has no env step or, by agents' steps, an agent has no such step; and there is no
            `fill`.
    """

    __slots__ = ("_facts", "agents", "env_t", "is_numpy", "is_reset", "lookback")

    _facts: EpisodeFacts
    agents: Agents
    id_: Any
    env_t_started: int
    env_t: int  # env step of the newest observations
    lookback: int  # number of env steps before `env_t_started` that are kept
    is_reset: bool
    is_numpy: bool  # True after `to_numpy`

    # --- properties --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.env_t - self._facts.t_started

    def env_steps(self) -> int:
        """Return the number of env steps of this episode or chunk, without the lookback: `len(self)`."""
        return self.env_t - self._facts.t_started

    def agent_steps(self) -> int:
        """Return the number of complete agent steps of this episode or chunk, summed over agents."""
        return sum(len(timeline.episode) for timeline in self.agents.timelines.values())

    @property
    def is_finalized(self) -> bool:
        """True if the data of the episode are arrays, as after `to_numpy`."""
        return self.is_numpy

    @property
    def agent_ids(self) -> set[Any]:
        """Set of the agents that were observed in this episode or chunk, lookback included."""
        return set(self.agents.timelines)

    @property
    def agent_episodes(self) -> dict[Any, SingleAgentEpisode]:
        """Dict from agent to the `SingleAgentEpisode` of its complete steps, without pending actions."""
        return {agent_id: timeline.episode for agent_id, timeline in self.agents.timelines.items()}

    @property
    def agent_t_started(self) -> dict[Any, int]:
        """Dict from agent to the number of steps that it had completed in earlier chunks of the episode."""
        return {agent_id: timeline.episode.t_started for agent_id, timeline in self.agents.timelines.items()}

    @property
    def agent_episode_ids(self) -> dict[Any, Any]:
        """Dict from agent to the id of its `SingleAgentEpisode`."""
        return {agent_id: timeline.episode.id_ for agent_id, timeline in self.agents.timelines.items()}

    def has_agent(self, agent_id: AgentID) -> bool:
        """Return True if the agent was observed in this episode or chunk, lookback included."""
        return isinstance(agent_id, Hashable) and agent_id in self.agents.timelines

    def env_times(self, agent_id: AgentID) -> tuple[np.ndarray, np.ndarray]:
        """Return the env steps of an agent's observations, int64 [L + T + 1], and of its actions, int64 [L + T].

        With a pending action, the second array has one entry more.

        Raises:
            UnknownKey: the agent was not observed.
        """
        return self.agents.timeline(agent_id).env_times()

    clocks = env_times

    def env_steps_back(self, num_steps: int) -> int:
        """Return the number of env steps that a lookback needs to hold the last `num_steps` steps of every agent.

        A cut with that lookback keeps all these steps, and pending steps. Agents that have ended do not count.

        Raises:
            InvalidArgument: `num_steps` is not an int of at least 0.
        """
        checked_count("num_steps", num_steps, 0)
        return max(
            (timeline.env_steps_back(num_steps, self.env_t) for timeline in self.agents.timelines.values()), default=0
        )

    def get_agents_to_act(self) -> set[Any]:
        """Return the set of agents that act next: those observed in the newest env step that have not ended."""
        return {agent_id for agent_id, _ in self.episodes_to_act()}

    def episodes_to_act(self) -> list[tuple[Any, SingleAgentEpisode]]:
        """Return a list of (agent, `SingleAgentEpisode`) for the agents that act next. The list is empty if the episode
        has ended.
        """
        if self.is_done:
            return []
        now, timelines = self.env_t, self.agents.timelines
        return [
            (a, timeline.episode)
            for a, timeline in timelines.items()
            if timeline.phase == RESTS and timeline.observation_times[-1] == now
        ]

    def get_agents_that_stepped(self) -> set[Any]:
        """Return the set of agents that got an observation in the newest env step."""
        now = self.env_t
        return {
            agent_id for agent_id, timeline in self.agents.timelines.items() if timeline.observation_times[-1] == now
        }

    def get_terminateds(self) -> dict[Any, bool]:
        """Return a dict from agent to its terminated flag, and from `"__all__"` to the flag of the whole episode."""
        return {agent_id: ending.is_terminated for agent_id, ending in self._endings().items()}

    def get_truncateds(self) -> dict[Any, bool]:
        """Return a dict from agent to its truncated flag, and from `"__all__"` to the flag of the whole episode."""
        return {agent_id: ending.is_truncated for agent_id, ending in self._endings().items()}

    def _endings(self) -> dict[Any, Ending]:
        return self.agents.endings_so_far() | {ALL: self._facts.ending}

    def get_returns(self, include_pending: bool = True) -> dict[Any, float]:
        """Return a dict from agent to the sum of all rewards that the environment gave it, without the lookback.

        Args:
            include_pending: also count rewards that belong to no complete step, and from which no policy learns: those
                of pending steps, and those before an agent's first observation or after its end. False: only the
                rewards of complete steps, as in the agents' episodes.
        """
        agents = self.agents
        returns = {agent_id: timeline.episode.get_return() for agent_id, timeline in agents.timelines.items()}
        if include_pending:
            pending = [(a, timeline.reward) for a, timeline in agents.timelines.items() if timeline.reward is not None]
            for agent_id, reward in [*pending, *((agent_id, reward) for _, agent_id, reward in agents.rewards_apart)]:
                returns[agent_id] = returns.get(agent_id, 0.0) + float(reward)
        return returns

    def get_return(self, include_pending: bool = True, *, include_hanging_rewards: bool | None = None) -> float:
        """Return the sum of all rewards that the environment gave the agents, without the lookback.

        Args:
            include_pending: see `get_returns`.
            include_hanging_rewards: RLlib's name of `include_pending`, which it replaces if given.
        """
        included = include_pending if include_hanging_rewards is None else include_hanging_rewards
        return float(sum(self.get_returns(included).values()))

    # --- items -------------------------------------------------------------------------------------------------

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Item | None = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Return a dict from agent to observations, by default all from step 0 to the newest env step."""
        is_plain = agent_ids is None and env_steps and fill is None and not one_hot_discrete and not return_list
        if is_plain and type(indices) is int and indices == -1 and not neg_index_as_lookback:
            return queries.newest_observations(self.agents.timelines.items(), self.env_t)
        options = indices, agent_ids, env_steps, neg_index_as_lookback, fill, return_list, one_hot_discrete
        return self._read(queries.OBSERVATIONS, *options)

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Item | None = None,
        return_list: bool = False,
    ) -> Any:
        """Return a dict from agent to info dicts. The key `"__common__"` holds infos that belong to no agent.

        By env steps, infos without an observation are included. By agents' steps, there is one info per observation.
        """
        return self._read(queries.INFOS, indices, agent_ids, env_steps, neg_index_as_lookback, fill, return_list)

    def _with_loose_infos(
        self, agent_tracks: dict[Any, AgentTrack | None], agent_ids: AgentIds
    ) -> dict[Any, AgentTrack | None]:
        """Add the infos that arrived without an observation to each agent's infos, sorted by env step."""
        loose: dict[Any, dict[int, Any]] = {}
        for t, infos in self.agents.loose_infos.items():
            for agent_id, info in infos.items():
                loose.setdefault(agent_id, {})[t] = info
        chosen_ids = loose.keys() if agent_ids is None else loose.keys() & set(self._chosen(agent_ids))
        for agent_id in chosen_ids:
            agent_track = agent_tracks.get(agent_id)
            infos_by_time = (
                {}
                if agent_track is None
                else dict(zip(agent_track.times, agent_track.track.item_list(0, agent_track.track.total), strict=True))
            )
            infos_by_time |= loose[agent_id]
            times: list[Any] = sorted(infos_by_time)
            track = ListTrack([infos_by_time[t] for t in times], 0, False, INFOS)
            agent_tracks[agent_id] = AgentTrack(track, times, 0, (), None)
        return agent_tracks

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Item | None = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Return a dict from agent to actions, including an action whose next observation has not arrived yet."""
        options = indices, agent_ids, env_steps, neg_index_as_lookback, fill, return_list, one_hot_discrete
        return self._read(queries.ACTIONS, *options)

    def get_env_actions(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
    ) -> dict[Any, Any]:
        """Return a dict from agent to its actions as sent to the environment, pending actions included.

        The stored actions are the policies'. See `SingleAgentEpisode.get_env_actions`.

        Raises:
            EpisodeStateError: a connector computed an agent's actions, and they were not recorded.
        """
        options: Any = {"env_steps": env_steps, "neg_index_as_lookback": neg_index_as_lookback}
        actions = self.get_actions(indices, agent_ids, **options)
        sent = {}
        if Columns.ACTIONS_FOR_ENV in self._extra_keys():
            sent = self.get_extra_model_outputs(Columns.ACTIONS_FOR_ENV, indices, agent_ids, **options)
        change = to_env_actions if isinstance(indices, INTEGERS) else to_env_items
        spaces = {agent_id: timeline.episode.action_space for agent_id, timeline in self.agents.timelines.items()}
        return {a: sent[a] if a in sent else change(spaces[a], items) for a, items in actions.items()}

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Item | None = None,
        return_list: bool = False,
    ) -> Any:
        """Return a dict from agent to rewards. Rewards between two observations of an agent are summed.

        The reward of a pending step is the sum so far.
        """
        return self._read(queries.REWARDS, indices, agent_ids, env_steps, neg_index_as_lookback, fill, return_list)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Item | None = None,
        return_list: bool = False,
    ) -> Any:
        """Return a dict from agent to the extra model output `key`, or to a dict of all outputs without `key`.

        Pending steps are included.

        Raises:
            UnknownKey: no agent has that key.
        """
        keys = self._extra_keys()
        if key is not None and checked_key("key", key) not in keys:
            raise UnknownKey(f"episode {self.id_}: no agent has an extra model output {key!r}; there are {keys}")
        options = indices, agent_ids, env_steps, neg_index_as_lookback, fill, return_list
        names = keys if key is None else [key]
        answers = {name: self._read(queries.extra_output(name), *options) for name in names}
        return answers[key] if key is not None else _by_agent(answers, return_list)

    def _extra_keys(self) -> list[str]:
        keys: dict[str, None] = {}
        for timeline in self.agents.timelines.values():
            keys.update(dict.fromkeys(timeline.episode.extra_model_outputs))
            keys.update(dict.fromkeys(timeline.extra or ()))
        return list(keys)

    def _columns(
        self, track_of: Callable[[Timeline], AgentTrack | None], agent_ids: AgentIds
    ) -> Iterator[tuple[Any, AgentTrack | None]]:
        """Return pairs of agent id and items of the chosen agents, or of all for None. Unknown agents are left out."""
        timelines = self.agents.timelines
        if agent_ids is None:
            return ((agent_id, track_of(timeline)) for agent_id, timeline in timelines.items())
        return ((a, track_of(timelines[a])) for a in self._chosen(agent_ids) if a in timelines)

    def _chosen(self, agent_ids: AgentIds) -> Collection[Any]:
        """Return the getter argument `agent_ids` as a collection of agent ids. A single id becomes a 1-tuple.

        A tuple or frozenset counts as one id if an agent has that id.

        Raises:
            WrongType: an agent id is not hashable.
        """
        if isinstance(agent_ids, (tuple, frozenset)):
            return (agent_ids,) if self.agents.knows(agent_ids) else agent_ids
        is_collection = isinstance(agent_ids, (list, set, dict, KeysView, ValuesView))
        agent_ids = agent_ids if is_collection else (agent_ids,)
        unhashable = next((agent_id for agent_id in agent_ids if not isinstance(agent_id, Hashable)), None)
        if unhashable is not None:
            raise WrongType(f"agent_ids: {unhashable!r} cannot be an agent's id; give an agent, or a list of agents")
        return agent_ids

    def _read(self, kind: ItemKind, *options: Any) -> Any:
        """Return the items of a kind that a getter was asked for, by agent or by env step.

        `options` are the fields of a `Request` after its kind.

        Raises:
            StepOutOfRange: there is no such step. The message names the episode.
        """
        request = Request(kind, *options)
        agent_tracks: Any = self._columns(kind.track_of, request.agent_ids)
        if kind is queries.INFOS and request.env_steps and self.agents.loose_infos:
            agent_tracks = self._with_loose_infos(dict(agent_tracks), request.agent_ids).items()
        read = queries.per_env_step if request.return_list else queries.per_agent
        begin = self._facts.t_started
        try:
            return read(request, agent_tracks, (begin, self.lookback), self.env_t - begin + kind.per_observation)
        except StepOutOfRange as error:
            raise StepOutOfRange(f"episode {self.id_}: {error}") from None

    # --- setters ---------------------------------------------------------------------------------------------

    def set_observations(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace observations of the agents in `new_data` at each agent's step indices, by default all from step 0."""
        self._write("observations", new_data, at_indices, neg_index_as_lookback)

    def set_actions(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace actions of the agents in `new_data` at each agent's step indices, by default all complete steps."""
        self._write("actions", new_data, at_indices, neg_index_as_lookback)

    def set_rewards(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace rewards of the agents in `new_data` at each agent's step indices, by default all complete steps."""
        self._write("rewards", new_data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace an extra model output of the agents in `new_data`. A new key needs an item for each step.

        Raises:
            EpisodeStateError: a new key for an agent whose pending action does not have it.
            UnknownKey: the agent was not observed, or a new key was given with `at_indices`.
            ShapeMismatch: items have another shape, or a new key has not one item per step.
            StepOutOfRange: there is no step at an index.
            TrackMismatch: the new key is the name of a column that batches get anyway.
        """
        check_extra_output_names([checked_key("key", key)], f"episode {self.id_}")
        tracks = {}
        new_data = checked_mapping("new_data", new_data, "from agent to items")
        for agent_id, data in new_data.items():
            timeline = self.agents.timeline(agent_id)
            agent_episode, track = timeline.episode, timeline.episode.tracks.extra.get(key)
            if track is None and timeline.phase == WAITS:
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
                tracks[agent_id] = new_track(extra_field(key), data, agent_episode.rewards)
        self._replace(tracks)

    def _write(self, name: str, new_data: Mapping[Any, Any], at_indices: Indices, neg: bool) -> None:
        """Set items of one time series of several agents. Nothing changes if an agent is unknown or its items are
        invalid.
        """
        new_data = checked_mapping("new_data", new_data, "from agent to items")
        owners = {agent_id: self.agents.timeline(agent_id).episode for agent_id in new_data}
        self._replace(
            {
                a: with_items_set(getattr(agent_episode, name), new_data[a], at_indices, neg)
                for a, agent_episode in owners.items()
            }
        )

    def _replace(self, tracks: dict[Any, Any]) -> None:
        for agent_id, track in tracks.items():
            agent_episode = self.agents.timelines[agent_id].episode
            agent_episode.tracks = agent_episode.tracks.replaced(track)


def _by_agent(answers: dict[str, Any], return_list: bool) -> Any:
    """Regroup a getter's result by agent: turn `{key: {agent: items}}` into `{agent: {key: items}}`.

    With `return_list`, return one such dict per env step.
    """
    if return_list:
        steps = zip(*answers.values(), strict=True)
        return [_by_agent(dict(zip(answers, step, strict=True)), False) for step in steps]
    agents: dict[Any, dict[str, Any]] = {}
    for key, items in answers.items():
        for agent_id, item in items.items():
            agents.setdefault(agent_id, {})[key] = item
    return agents
