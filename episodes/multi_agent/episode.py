"""`MultiAgentEpisode`: an episode of several agents in one environment, each with its own sequence of steps.

The agents are in `agents` (`Agents`), with a `Timeline` for each; timeline.py draws a timeline and explains pending
actions. This module has the rest: env steps, ids, endings; growing, slicing, cutting and joining.

A chunk holds the steps that *complete* in it. So the step of a pending action, with its reward, belongs to the chunk in
which the next observation arrives, and neither slices nor cuts count a step twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from episodes.columns import DEFAULT_MODULE_ID, Columns
from episodes.errors import (
    ChunkMismatch,
    EpisodeStateError,
    ShapeMismatch,
    TrackMismatch,
    WrongType,
    rejected_type,
)
from episodes.facts import Ending, EpisodeFacts
from episodes.facts.facts import checked_start, new_id, own_data
from episodes.facts.short_id import short_id
from episodes.format_versions import PickleVersion, check_mark
from episodes.multi_agent.agents import ALL, COMMON, Agents, ByAgent, Endings
from episodes.multi_agent.getters import MultiAgentGetters
from episodes.multi_agent.timeline import NOTHING, WAITS, Chunk, complete_steps, place_of
from episodes.single_agent import SingleAgentEpisode
from episodes.single_agent.attributes import fact_of
from episodes.single_agent.duration import HasDuration
from episodes.tracks import action_units, indexing
from episodes.tracks.casting import BOUNDED_TYPES, checked_reward
from episodes.tracks.copies import copied
from episodes.tracks.indexing import checked_lookback
from episodes.tracks.infos.infos import same_info
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.policy_box import env_space_of, has_policy_actions, to_env_actions
from episodes.tracks.ragged_items import as_plain_kinds, declared_kinds, from_plain_kinds
from episodes.tracks.spaces import as_item
from episodes.tracks.validation import checked_choice, reading_state

if TYPE_CHECKING:
    from episodes.data_types import AgentID, Item, Space

__all__ = ["ALL", "COMMON", "MultiAgentEpisode"]


def _sent(
    space: Space | None, action: Item | None, outputs: Mapping[str, Any] | None
) -> tuple[Any, Mapping[str, Any] | None]:
    """Convert an agent's pending action to the action sent to the environment, and return it with its extra outputs.

    Extra outputs that describe the policy's own action only are left out.
    """
    outputs = outputs or {}
    if action is None or not (has_policy_actions(space) or Columns.ACTIONS_FOR_ENV in outputs):
        return action, outputs or None
    dropped = {Columns.ACTIONS_FOR_ENV, *action_units.dropped_outputs(space, outputs)}
    extra = {name: value for name, value in outputs.items() if name not in dropped}
    recorded = outputs.get(Columns.ACTIONS_FOR_ENV)
    return (to_env_actions(space, action) if recorded is None else recorded), extra or None


def default_module(agent_id: AgentID, episode: MultiAgentEpisode) -> str:
    """Return `DEFAULT_MODULE_ID`, so that all agents share one module if the user gives no mapping function."""
    return DEFAULT_MODULE_ID


class MultiAgentEpisode(MultiAgentGetters, HasDuration):
    """Episode (or chunk of an episode) of several agents in one environment. Agents may join late and end early.

    An agent that acted and has no next observation yet has a *pending* action and a running sum of rewards. Its next
    observation completes the step. The constructor takes lists of the arguments of `add_env_reset` and `add_env_step`,
    one dict from agent to value per env step. With `len_lookback_buffer="auto"` all of it becomes lookback.

    Args:
        id_: id of the episode, by default a random one.
        observations: L + T + 1 dicts.
        observation_space: space of each agent's observations, by agent.
        infos: L + T + 1 dicts, by default empty ones.
        actions: L + T dicts.
        action_space: space of each agent's actions, by agent.
        rewards: L + T dicts.
        terminateds: agents that terminated at the last step, or True for all.
        truncateds: agents that were truncated at the last step, or True for all.
        extra_model_outputs: L + T dicts, `{agent: {key: value}}`.
        env_t_started: env step of step 0, by default 0.
        agent_t_started: index of each agent's own step at which this chunk begins, by default 0.
        len_lookback_buffer: L, the number of given env steps before step 0, or "auto" for all.
        agent_episode_ids: id of each agent's episode, by default made of the episode's id and the agent's.
        agent_module_ids: module of each agent, by default from `agent_to_module_mapping_fn`.
        agent_to_module_mapping_fn: function `(agent_id, episode) -> module_id`.
        missing_final_observation: if an agent is truncated in mid-step without a last observation, `"raise"` an error
            or `"repeat"` the previous observation.
        ragged: ragged tracks of each agent that has some, as in `SingleAgentEpisode`, for example
            `{"white": {"observations": "i4"}}`.

    Raises:
        TrackMismatch: actions, rewards, infos or extra outputs are given without observations.
        InvalidArgument: `missing_final_observation` has another value.
        WrongType: `ragged` is not a dict of dicts.

    >>> episode = MultiAgentEpisode(id_="game")
    >>> episode.add_env_reset(observations={"white": 0})
    >>> episode.add_env_step({"black": 1}, {"white": 10}, {})
    >>> episode.add_env_step({"white": 2}, {"black": 11}, {"white": 0.5})
    >>> episode.get_observations(), episode.get_actions(-1), episode.get_rewards(0)
    ({'white': [0, 2], 'black': [1]}, {'black': 11}, {'white': 0.5})
    >>> episode
    MultiAgentEpisode(game: 2 env steps, 2 agents, 1 pending, return 0.5, ongoing)
    """

    __slots__ = (
        "_began",
        "_duration",
        "agent_to_module_mapping_fn",
        "custom_data",
        "missing_final_observation",
        "ragged",
    )

    id_: Any = fact_of("id_", "Id of the episode, the same for all its chunks.")
    env_t_started: int = fact_of("t_started", "Env step of the chunk's first observations.", checked_start)
    ending: Ending = fact_of("ending", "How the chunk stops: an `Ending`.")
    observation_space: Any = fact_of("observation_space", "Space of each agent's observations by agent, or None.")
    action_space: Any = fact_of("action_space", "Space of each agent's actions by agent, or None.")
    _repr_html_ = notebook_repr("episodes.inspect.html", "multi_agent_episode")

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Sequence[ByAgent] | None = None,
        observation_space: ByAgent | None = None,
        infos: Sequence[ByAgent] | None = None,
        actions: Sequence[ByAgent] | None = None,
        action_space: ByAgent | None = None,
        rewards: Sequence[ByAgent] | None = None,
        terminateds: ByAgent | bool = False,
        truncateds: ByAgent | bool = False,
        extra_model_outputs: Sequence[ByAgent] | None = None,
        env_t_started: int | None = None,
        agent_t_started: ByAgent | None = None,
        len_lookback_buffer: int | str = "auto",
        agent_episode_ids: ByAgent | None = None,
        agent_module_ids: ByAgent | None = None,
        agent_to_module_mapping_fn: Callable[[Any, Any], Any] | None = None,
        missing_final_observation: str = "raise",
        ragged: Mapping[Any, Mapping[str, Any]] | None = None,
    ) -> None:
        checked_choice("missing_final_observation", missing_final_observation, ("raise", "repeat"))
        num_steps = max(len(observations or ()) - 1, 0)
        lookback = (
            num_steps
            if len_lookback_buffer == "auto"
            else min(checked_lookback(len_lookback_buffer, "env steps"), num_steps)
        )
        start = checked_start("env_t_started", env_t_started or 0, num_steps - lookback)
        for agent_id, agent_start in (agent_t_started or NOTHING).items():
            checked_start(f"agent_t_started[{agent_id!r}]", agent_start, num_steps - lookback)
        begin = start - lookback
        spaces: tuple[Any, Any] = (observation_space, action_space)
        facts = EpisodeFacts(
            new_id() if id_ is None else id_, begin, Ending.OPEN, observation_space=spaces[0], action_space=spaces[1]
        )
        self._set(
            facts,
            Agents(facts.id_, modules=agent_module_ids),
            env_t=begin,
            lookback=0,
            agent_to_module_mapping_fn=agent_to_module_mapping_fn or default_module,
            missing_final_observation=missing_final_observation,
            is_reset=False,
            ragged=_declared_by_agent(ragged, f"episode {facts.id_}"),
        )
        if observations:
            ending = _flags(terminateds), _flags(truncateds)
            self._replay(observations, actions or (), rewards or (), infos, extra_model_outputs, ending)
            self._move_start(lookback, agent_t_started or NOTHING)
        elif actions or rewards or infos or extra_model_outputs:
            raise TrackMismatch(f"episode {self.id_}: data without observations; give one dict more than actions")
        for agent_id, own_id in (agent_episode_ids or NOTHING).items():
            self.agents.timeline(agent_id).episode.id_ = own_id

    def _replay(
        self,
        observations: Sequence[ByAgent],
        actions: Sequence[ByAgent],
        rewards: Sequence[ByAgent],
        infos: Sequence[ByAgent] | None,
        extra: Sequence[ByAgent] | None,
        ending: tuple[Any, Any],
    ) -> None:
        """Build the episode from lists with one dict per env step. `ending` holds the last step's end flags.

        Raises:
            TrackMismatch: the lists do not have lengths that fit.
        """
        num = len(observations) - 1
        lengths = {"actions": len(actions), "rewards": len(rewards)}
        lengths |= {"infos": num if infos is None else len(infos) - 1}
        lengths |= {"extra_model_outputs": num if extra is None else len(extra)}
        for name, length in lengths.items():
            if length != num:
                raise TrackMismatch(
                    f"episode {self.id_}: {len(observations)} dicts of observations do not go with the {name} given; "
                    f"there must be {num} of actions, rewards and extra outputs, and {num + 1} of infos"
                )
        infos = infos or [NOTHING] * (num + 1)
        self.add_env_reset(observations=observations[0], infos=infos[0])
        for i in range(num):
            flags = ending if i == num - 1 else (None, None)
            outputs = None if extra is None else extra[i]
            step = (observations[i + 1], actions[i], rewards[i], infos[i + 1])
            self.add_env_step(*step, terminateds=flags[0], truncateds=flags[1], extra_model_outputs=outputs)
        if not num and any(ending):
            self._end(self.agents.endings(NOTHING, *ending), *ending)
        for agent_id in {**ending[0], **ending[1]}:  # a flagged agent ended at its last observation
            if agent_id != ALL and agent_id in self.agents.timelines and self.agents.has_ended(agent_id):
                timeline = self.agents.timelines[agent_id]
                timeline.ended_at = int(timeline.observation_times[-1])

    def _move_start(self, lookback: int, agent_t_started: ByAgent) -> None:
        """Turn the first `lookback` env steps of this episode into its lookback (context before step 0)."""
        begin = self._facts.t_started + lookback
        self.agents = self.agents.window(Chunk(begin, self.env_t, lookback, True))
        self.facts, self.lookback = self._facts._replace(t_started=begin), lookback
        for agent_id, timeline in self.agents.timelines.items():
            timeline.episode.t_started = agent_t_started.get(agent_id, 0)

    def _set(
        self,
        facts: EpisodeFacts,
        agents: Agents,
        *,
        env_t: int,
        lookback: int,
        agent_to_module_mapping_fn: Callable[[Any, Any], Any] = default_module,
        missing_final_observation: str = "raise",
        is_reset: bool = True,
        is_numpy: bool = False,
        custom_data: Mapping[str, Any] | None = None,
        ragged: Mapping[Any, Any] | None = None,
    ) -> None:
        """Set all attributes. The dicts `custom_data` and `ragged` are copied, but not their values."""
        self._facts = facts
        self.agents = agents
        self.env_t = env_t
        self.lookback = lookback
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self.missing_final_observation = missing_final_observation
        self.is_reset = is_reset
        self.is_numpy = is_numpy
        self.custom_data = dict(custom_data) if custom_data else {}
        self.ragged = dict(ragged) if ragged else {}  # plain kinds of the ragged tracks by agent
        self._began, self._duration = None, 0.0

    @classmethod
    def of(cls, facts: EpisodeFacts, agents: Agents, **attributes: Any) -> Self:
        """Create an episode from metadata, agents and other attributes. Nothing is checked."""
        episode = cls.__new__(cls)
        episode._set(facts, agents, **attributes)
        return episode

    @property
    def facts(self) -> EpisodeFacts:
        """Immutable metadata of the episode: id, start time, ending, and spaces by agent."""
        return self._facts

    @facts.setter
    def facts(self, facts: EpisodeFacts) -> None:
        self._facts, self.agents.episode_id = facts, facts.id_

    def module_for(self, agent_id: AgentID) -> Any:
        """Return the id of the module that acts for the agent `agent_id`.

        `agent_to_module_mapping_fn` is called once per agent.
        """
        modules = self.agents.modules
        if agent_id not in modules:
            modules[agent_id] = self.agent_to_module_mapping_fn(agent_id, self)
        return modules[agent_id]

    # --- growing -----------------------------------------------------------------------------------------------

    def add_env_reset(self, *, observations: ByAgent, infos: ByAgent | None = None, copy: bool = True) -> None:
        """Start the episode with the observations that the environment's reset returned.

        Args:
            observations: observation of each agent that the environment returned.
            infos: infos by agent, and under `"__common__"` those of no agent.
            copy: see `add_env_step`.

        Raises:
            EpisodeStateError: the episode was reset already.
            WrongType: an argument is not a dict by agent.
        """
        if self.is_reset:
            raise EpisodeStateError(
                f"episode {self.id_}: add_env_reset after a reset; make a new episode for a new reset"
            )
        infos = NOTHING if infos is None else infos
        self._check_dicts("add_env_reset", observations=observations, infos=infos)
        self._check_infos("add_env_reset", infos)
        if copy is not False:
            observations, infos = copied(observations), {**copied(infos)}
        entering = self._entering(observations, observations, infos)
        self.is_reset = True
        self.agents.keep_infos(observations, infos, self.env_t)
        for agent_episode in entering:
            self.agents.add_agent(agent_episode, self.env_t)
        self._began = perf_counter()

    def add_env_step(
        self,
        observations: ByAgent,
        actions: ByAgent,
        rewards: ByAgent,
        infos: ByAgent | None = None,
        *,
        terminateds: ByAgent | None = None,
        truncateds: ByAgent | None = None,
        extra_model_outputs: ByAgent | None = None,
        copy: bool = True,
    ) -> None:
        """Add one env step, given as dicts from agent to observation, action, reward and so on.

        All arguments are checked before anything is stored. Errors name the agent and the env step. The episode stores
        copies, because environments and policies may reuse their arrays.

        Args:
            observations: observations of agents that got one. An agent's first observation adds the agent.
            actions: actions of the agents that acted on their last observation.
            rewards: rewards of any agents; they are summed until the agent's next observation.
            infos: infos of any agents, and under `"__common__"` those of no agent. An info without an observation is
                stored at its env step.
            terminateds: flags of agents, and `"__all__"` for the episode. Without `"__all__"` in either dict, the
                episode ends if every agent has ended: terminated if all of them terminated.
            truncateds: flags of agents, and `"__all__"` for the episode.
            extra_model_outputs: `{agent: {key: value}}` of the agents that acted.
            copy: False to store the given arrays, dicts and lists themselves. The caller must never change them.

        Raises:
            EpisodeStateError: the episode does not grow.
            InvalidArgument: an agent acts that was not observed, has a pending action or has ended; an observation is
                given for an agent that has not acted or has ended; a reward is missing; or an agent is truncated in
                mid-step without a last observation.
            ShapeMismatch: an observation has another shape than the agent's earlier ones.
            TrackMismatch: extra model outputs have other keys than the agent's earlier ones.
            WrongType: an argument is not a dict by agent, or a reward is not a real number.
        """
        if not self.is_reset or self.is_numpy or self._facts.ending is not _OPEN:
            raise self._not_growing_error("add_env_step")
        agents, now = self.agents, self.env_t + 1
        if agents.passed_on is not None:
            raise self._not_growing_error("add_env_step")
        infos = NOTHING if infos is None else infos
        extra = NOTHING if extra_model_outputs is None else extra_model_outputs
        if not (type(observations) is type(actions) is type(rewards) is type(infos) is type(extra) is dict):
            by_agent = {"observations": observations, "actions": actions, "rewards": rewards}
            self._check_dicts("add_env_step", **by_agent, infos=infos, extra_model_outputs=extra)
        if infos:
            self._check_infos("add_env_step", infos)
        ending: tuple[Any, ...] = ()  # worked out only where some flag is set
        if (terminateds and _may_end(terminateds)) or (truncateds and _may_end(truncateds)):
            terminateds, truncateds = terminateds or NOTHING, truncateds or NOTHING
            ending = (agents.endings(observations, terminateds, truncateds), terminateds, truncateds)
            may_repeat = self.missing_final_observation == "repeat"
            observations = agents.with_repeated_last_observations(
                observations, actions, ending[0], now, may_repeat=may_repeat
            )
        if not BOUNDED_TYPES.issuperset(map(type, rewards.values())):
            place = partial(place_of, self.id_)
            rewards = {a: checked_reward(reward, partial(place, a, now)) for a, reward in rewards.items()}
        try:
            newcomers, waiting, has_more_rewards = agents.check_step(observations, actions, rewards, extra, now)
        except ShapeMismatch:
            observations = self._with_tuples(observations)
            newcomers, waiting, has_more_rewards = agents.check_step(observations, actions, rewards, extra, now)
        if self.ragged:
            actions, extra = agents.with_ragged_items(actions, extra, now - 1)
        if copy is not False:
            observations, actions = copied(observations), copied(actions)
            infos, extra = {**copied(infos)} if infos else infos, extra and copied(extra)
        entering = self._entering(newcomers, observations, infos) if newcomers else ()
        # Everything was checked. What follows writes, and does not fail.
        self.env_t = now
        if infos:
            agents.keep_infos(observations, infos, now)
        timelines = agents.timelines
        for agent_id in waiting:
            timelines[agent_id].set_pending_action(actions[agent_id], extra.get(agent_id), now - 1)
        if has_more_rewards:
            agents.keep_rewards(observations, rewards, now)
        complete_steps(timelines, observations, actions, rewards, infos, extra, now)
        for agent_episode in entering:
            agents.add_agent(agent_episode, now, rewards.get(agent_episode.agent_id))
        if ending:
            self._end(*ending)

    def _check_dicts(self, call: str, **by_agent: object) -> None:
        """Raise `WrongType` unless all arguments of the method `call` are dicts."""
        for name, value in by_agent.items():
            if not isinstance(value, Mapping):
                raise WrongType(f"episode {self.id_}: {call}: {name}={value!r}; give a dict from agent to value")

    def _check_infos(self, call: str, infos: ByAgent) -> None:
        """Raise `WrongType` unless the info of each agent is a dict or None."""
        for agent_id, info in infos.items():
            if info is not None and not isinstance(info, Mapping):
                raise WrongType(f"episode {self.id_}: {call}: infos[{agent_id!r}]={info!r}; give a dict")

    def _entering(self, newcomers: Iterable[Any], observations: ByAgent, infos: ByAgent) -> list[SingleAgentEpisode]:
        """Return a `SingleAgentEpisode` with the first observation for each agent that joins in this env step."""
        episodes = []
        for agent_id in newcomers:
            agent_episode = SingleAgentEpisode(
                f"{self.id_}_{agent_id}",
                observation_space=(self.observation_space or NOTHING).get(agent_id),
                action_space=(self.action_space or NOTHING).get(agent_id),
                agent_id=agent_id,
                module_id=self.module_for(agent_id),
                multi_agent_episode_id=self.id_,
                ragged=from_plain_kinds(self.ragged.get(agent_id, NOTHING)) if self.ragged else None,
            )
            agent_episode.begin(observations[agent_id], infos.get(agent_id) or {}, copy=False)
            episodes.append(agent_episode)
        return episodes

    def _with_tuples(self, observations: ByAgent) -> ByAgent:
        """Return the observations by agent, with lists converted to tuples if the agent's space is a `Tuple`."""
        spaces = self.observation_space or NOTHING
        return {agent_id: as_item(observation, spaces.get(agent_id)) for agent_id, observation in observations.items()}

    def _end(self, endings: Endings, terminateds: ByAgent, truncateds: ByAgent) -> None:
        """Mark agents as ended, and end the episode if the flag `"__all__"` is set or all agents have ended.

        If the flag is missing, the episode is terminated if all agents are terminated, else truncated.
        """
        agents = self.agents
        agents.end(endings, self.env_t)
        ending = Ending.OPEN
        if ALL in terminateds or ALL in truncateds:
            ending = Ending.of(terminateds.get(ALL, False), truncateds.get(ALL, False))
        elif endings and agents.all_ended():
            terminated = all(agent_ending.is_terminated for agent_ending in agents.endings_so_far().values())
            ending = Ending.TERMINATED if terminated else Ending.TRUNCATED
        if ending.is_done:
            self.facts = self._facts._replace(ending=ending)
            self._stop_clock()

    def _not_growing_error(self, call: str) -> EpisodeStateError:
        """Return the error for a method `call` on an episode that was not reset, has ended, or was cut or finalized."""
        if not self.is_reset:
            problem, advice = "before the reset", "call add_env_reset(observations=...) first"
        elif self.is_done:
            ending = "terminated" if self.is_terminated else "truncated"
            problem, advice = f"after the end ({ending} at env step {self.env_t})", "make a new episode"
        elif self.agents.passed_on is not None:
            problem, advice = f"after the cut at env step {self.env_t}", "go on with the successor that cut() gave"
        else:
            problem, advice = "on a finalized episode", "go on with its successor: cut()"
        return EpisodeStateError(f"episode {self.id_}: {call} {problem}; {advice}")

    # --- slicing, cutting, joining -----------------------------------------------------------------------------

    def __getitem__(self, slice_: slice) -> Self:
        """Return the part of the episode with the env steps `[a:b]`, equal to `slice(slice(a, b))`.

        Raises:
            WrongType: the index is not a slice.
        """
        if not isinstance(slice_, slice):
            raise WrongType(
                f"episode[{slice_!r}]: an episode is sliced by env steps, episode[a:b]; read one item with a getter"
            )
        return self.slice(slice_)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Self:
        """Return the part of the episode with the given env steps, clipped as for a list. O(agents).

        The result of a finalized episode shares its memory.

        The result equals the chunk between cuts at both ends: a step belongs to the chunk in which it completes, and
        pending steps belong to the end of the episode. Ids, modules, spaces, infos and a copy of `custom_data` stay.

        Args:
            slice_: env steps of this chunk.
            len_lookback_buffer: maximal number of env steps before the slice to keep, by default this episode's
                lookback.

        Raises:
            WrongType: `slice_` is not a slice.
            InvalidArgument: its step is not 1, or the lookback is negative or not an int.
        """
        start, stop = indexing.chunk_bounds(slice_, len(self))
        max_lookback = (
            self.lookback if len_lookback_buffer is None else checked_lookback(len_lookback_buffer, "env steps")
        )
        begin, end = self.env_t_started + start, self.env_t_started + stop
        chunk = Chunk(begin, end, min(max_lookback, self.lookback + start), end == self.env_t)
        return self._part(self.agents.window(chunk), chunk)

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """End this chunk of the episode at its newest env step, and return the next chunk, which continues the episode.

        Pending steps move to the next chunk. A second cut of this chunk returns an equal next chunk. Before the reset,
        both chunks can still be reset.

        Args:
            len_lookback_buffer: maximal number of env steps of this chunk that the next chunk keeps as lookback.

        Raises:
            EpisodeStateError: the episode has ended.
            InvalidArgument: the lookback is negative or not an int.
        """
        if self.is_done:
            raise self._not_growing_error("cut")
        now, lookback = self.env_t, min(checked_lookback(len_lookback_buffer, "env steps"), self.lookback + len(self))
        successor = self._part(self.agents.cut(now, lookback), Chunk(now, now, lookback, True))
        successor.is_numpy = False
        if self.is_reset:
            successor._began = perf_counter()
        self._stop_clock()
        return successor

    def _part(self, agents: Agents, chunk: Chunk) -> Self:
        """Return an episode with this episode's metadata, but only the given `agents` and range of env steps."""
        return self.of(
            self._facts.window(chunk.begin, chunk.end - chunk.begin, chunk.end == self.env_t),
            agents,
            env_t=chunk.end,
            lookback=chunk.lookback,
            agent_to_module_mapping_fn=self.agent_to_module_mapping_fn,
            missing_final_observation=self.missing_final_observation,
            is_reset=self.is_reset,
            is_numpy=self.is_numpy,
            custom_data=own_data(self.custom_data),
            ragged=self.ragged,
        )

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Append the next chunk of the same episode in place, without its lookback. This reverses `cut`.

        A rejected call changes nothing.

        Raises:
            ChunkMismatch: `other` has another id, or does not begin at this chunk's end, with its agents and
                observations.
            EpisodeStateError: this episode has ended, or was not reset.
            ShapeMismatch: this episode is finalized, and items of the other have another shape.
            WrongType: `other` is not a `MultiAgentEpisode`.
        """
        self._check_follows(other)
        self.agents.append(other.agents, Chunk(other.env_t_started, other.env_t, 0, True), is_numpy=self.is_numpy)
        if self.agent_to_module_mapping_fn is default_module:  # that of a pickled chunk is lost
            self.agent_to_module_mapping_fn = other.agent_to_module_mapping_fn
        self.custom_data.update(other.custom_data)
        self.env_t = other.env_t
        self.facts = self._facts.followed_by(other.facts)
        self._add_duration(other)

    def _check_follows(self, later: MultiAgentEpisode) -> None:
        """Raise an error unless `later` is the next chunk of this episode and can be appended.

        Raises:
            EpisodeStateError: this episode was not reset, or has ended.
            WrongType: `later` is not a `MultiAgentEpisode`.
            ChunkMismatch: `later` has another id, or another start than where this chunk stops.
        """
        if self.is_done or not self.is_reset:
            raise self._not_growing_error("concat_episode")
        if not isinstance(later, MultiAgentEpisode):
            raise WrongType(
                f"episode {self.id_}: concat_episode takes a MultiAgentEpisode, not a "
                f"{rejected_type(later, MultiAgentEpisode)}"
            )
        if later.id_ != self.id_:
            raise ChunkMismatch(
                f"episode {self.id_}: a chunk of episode {later.id_} does not follow it; join chunks of one id"
            )
        if later.env_t_started != self.env_t:
            raise ChunkMismatch(
                f"episode {self.id_}: a chunk that begins at env step {later.env_t_started} does not follow one that "
                f"stops at {self.env_t}; join chunks in order, none left out"
            )
        self.agents.check_follows(later.agents, self.env_t)

    def with_env_actions(self) -> Self:
        """Return an episode that stores the actions sent to the environment, with the environment's action spaces.

        Outputs that describe the policies' own actions are left out: "action_logp", "action_prob",
        "action_dist_inputs". The episode itself is returned if it stores the environment's actions already.

        Raises:
            EpisodeStateError: a connector computed an agent's actions, and they were not recorded.
        """
        spaces = {agent_id: timeline.episode.action_space for agent_id, timeline in self.agents.timelines.items()}
        if not any(has_policy_actions(space) for space in spaces.values()) and (
            Columns.ACTIONS_FOR_ENV not in self._extra_keys()
        ):
            return self
        copied = deepcopy(self)
        for agent_id, timeline in copied.agents.timelines.items():
            timeline.action, timeline.extra = _sent(spaces[agent_id], timeline.action, timeline.extra)
            timeline.episode = timeline.episode.with_env_actions()
        for agent_id, pending in (copied.agents.passed_on or {}).items():
            action, extra = _sent(spaces[agent_id], pending.action, pending.extra)
            copied.agents.passed_on[agent_id] = pending._replace(action=action, extra=extra)  # type: ignore[index]
        if self.action_space is not None:
            copied.action_space = {agent_id: env_space_of(space) for agent_id, space in self.action_space.items()}
        return copied

    def to_numpy(self) -> Self:
        """Convert the data of all agents to read-only arrays in place, and return this episode.

        If the items of one agent differ in shape, no agent is converted. Later calls do nothing.

        Raises:
            ShapeMismatch: names the first item of another shape.
        """
        if not self.is_numpy:
            self.agents.finalize()
            self._stop_clock()
            self.is_numpy = True
        return self

    finalize = to_numpy

    # --- state -------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise `TrackMismatch` unless every observation and action of each agent has its env step."""
        self.agents.validate()

    def __getstate__(self) -> tuple[PickleVersion, dict[str, Any]]:
        """Return the format version, and the attributes to pickle.

        Ended and cut episodes leave out the mapping from agents to modules.
        """
        names = [name for cls in type(self).__mro__ for name in getattr(cls, "__slots__", ())]
        slots = {name: getattr(self, name) for name in names} | {"_began": None, "_duration": self.get_duration_s()}
        if self.is_done or self.agents.passed_on is not None:
            slots["agent_to_module_mapping_fn"] = default_module
        return PickleVersion(type(self).__name__), slots

    def __setstate__(self, state: tuple[object, dict[str, Any]]) -> None:
        """Set the attributes that `__getstate__` returned. Raise `UnreadableData` for another format version."""
        version, slots = state
        check_mark(version, type(self).__name__)
        for name, value in slots.items():
            setattr(self, name, value)

    def get_state(self) -> dict[str, Any]:
        """Return the episode as a dict of plain values and copied arrays, without `agent_to_module_mapping_fn`."""
        state = self._facts._asdict() | {"ending": self.ending.code} | {name: getattr(self, name) for name in _STATE}
        state |= {"ragged": self.ragged} if self.ragged else {}
        return {**deepcopy(state), **self.agents.get_state(), "duration_s": self.get_duration_s()}

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], *, agent_to_module_mapping_fn: Callable[[Any, Any], Any] = default_module
    ) -> Self:
        """Create an episode from the dict that `get_state` returned. Nothing shares memory with `state`.

        Args:
            state: the state.
            agent_to_module_mapping_fn: called for agents that enter later; known agents keep their modules.

        Raises:
            StateMismatch: `state` is no such dict.
        """
        with reading_state(cls):
            facts = EpisodeFacts._make(deepcopy(state[name]) for name in EpisodeFacts._fields)
            agents = Agents.from_state(facts.id_, state)
            attributes = deepcopy({name: state[name] for name in _STATE} | {"ragged": state.get("ragged")})
            attributes["agent_to_module_mapping_fn"] = agent_to_module_mapping_fn
            episode = cls.of(facts._replace(ending=Ending(facts.ending)), agents, **attributes)
            episode._duration = state["duration_s"]
            return episode

    def equals(self, episode: object) -> bool:
        """Return True if both episodes have equal metadata, agents, steps, pending actions, infos and custom data."""
        if not isinstance(episode, MultiAgentEpisode) or not self.agents.equals(episode.agents):
            return False
        facts = episode.facts._replace(observation_space=self.observation_space, action_space=self.action_space)
        attributes = ([getattr(chunk, name) for name in _STATE] for chunk in (self, episode))
        return (
            self._facts == facts  # the spaces of each agent were compared above
            and same_info(*attributes)
            and self.ragged == episode.ragged
            and all(self.module_for(a) == episode.module_for(a) for a in self.agents.endings_so_far())
        )

    def __repr__(self) -> str:
        begin = f" from t={self.env_t_started}" if self.env_t_started else ""
        ending = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "ongoing"
        ending = "cut" if self.agents.passed_on is not None else ending
        steps = "1 env step" if len(self) == 1 else f"{len(self)} env steps"
        timelines = self.agents.timelines.values()
        agents = "1 agent" if len(timelines) == 1 else f"{len(timelines)} agents"
        waiting = sum(timeline.phase == WAITS for timeline in timelines)
        pending = f", {waiting} pending" if waiting else ""
        total = f"return {self.get_return():g}"
        return f"MultiAgentEpisode({short_id(self.id_)}: {steps}{begin}, {agents}{pending}, {total}, {ending})"


def _declared_by_agent(ragged: object, label: str) -> dict[Any, Any]:
    """Return the dtypes and shapes that the user declared for ragged items (of varying length), by agent. Empty for
    None.

    Raises:
        WrongType: `ragged` is not a dict.
    """
    if ragged is not None and not isinstance(ragged, Mapping):
        raise WrongType(f"{label}: ragged={ragged!r}; give a dict from agent to a dict")
    by_agent = (ragged or NOTHING).items()
    return {agent: as_plain_kinds(declared_kinds(kinds, f"{label}: agent {agent!r}")) for agent, kinds in by_agent}


_OPEN = Ending.OPEN  # faster than looking up the enum's member in each step
_STATE = ("env_t", "lookback", "missing_final_observation", "is_reset", "is_numpy", "custom_data")


def _flags(flags: ByAgent | bool) -> ByAgent:
    """Return end flags by agent. True means `{"__all__": True}`, and False or None no flag."""
    return {ALL: True} if flags is True else flags or NOTHING


def _may_end(flags: ByAgent) -> bool:
    """Return True if any of the end flags by agent is not False, so that an agent or the episode may end.

    Raises:
        WrongType: `flags` is not a dict.
    """
    try:
        return list(flags.values()).count(False) < len(flags)
    except (ValueError, RuntimeError):  # arrays, which `Ending.of` rejects by name
        return True
    except AttributeError:
        raise WrongType(f"flags of agents: {flags!r}; give a dict from agent to flag, `'__all__'` for all") from None
