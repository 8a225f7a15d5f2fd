"""`Agents`: the steps of every agent of a multi-agent episode, and infos and rewards that belong to no step.

An env step takes two passes, each O(agents that did something). `check_step` raises all errors and lists what is to be
done, without writing. `keep_infos`, `keep_rewards`, `Timeline.set_pending_action` and `complete_steps` write and do
not fail.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from episodes.errors import ChunkMismatch, InvalidArgument, UnknownKey
from episodes.facts.ending import ENDINGS, Ending
from episodes.multi_agent.timeline import (
    ENDED,
    NOTHING,
    RESTS,
    WAITS,
    Chunk,
    Pending,
    Timeline,
    after_end,
    done_since,
    place_of,
)
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import track_access
from episodes.tracks.infos.infos import same_info

if TYPE_CHECKING:
    from episodes.data_types import AgentID

COMMON: Final = "__common__"  # key of infos that belong to no agent
ALL: Final = "__all__"  # key of the flag of the whole episode

ByAgent = Mapping[Any, Any]  # agent -> value
Flags = Mapping[Any, bool]
Endings = dict[Any, Ending]  # agent -> its ending


class DepartedAgent(NamedTuple):
    """Ending (terminated or truncated) of an agent that ended in an earlier chunk, and its env step."""

    ending: Ending
    env_t: int


class Agents:
    """Data of all agents of a multi-agent episode: a `Timeline` of steps per agent, and data outside of steps.

    Attributes:
        timelines: timeline of each agent that was observed.
        modules: module of each agent, cached by `MultiAgentEpisode.module_for`.
        departed: agents that ended and have no data in this chunk.
        loose_infos: infos without an observation, by env step and agent.
        rewards_apart: (env step, agent, reward) before the agent's first observation or after its end.
        passed_on: pending steps that `cut` moved to the next chunk; None before a cut.
    """

    __slots__ = ("departed", "episode_id", "loose_infos", "modules", "passed_on", "rewards_apart", "timelines")

    def __init__(
        self,
        episode_id: str,
        timelines: dict[Any, Timeline] | None = None,
        *,
        modules: ByAgent | None = None,
        departed: Mapping[Any, DepartedAgent] | None = None,
        loose_infos: Mapping[int, ByAgent] | None = None,
        rewards_apart: Iterable[tuple[int, Any, Any]] = (),
        passed_on: Mapping[Any, Pending] | None = None,
    ) -> None:
        self.episode_id = episode_id
        self.timelines = {} if timelines is None else timelines
        self.modules = dict(modules or NOTHING)
        self.departed = dict(departed or NOTHING)
        self.loose_infos = dict(loose_infos or NOTHING)
        self.rewards_apart = list(rewards_apart)
        self.passed_on = passed_on

    def timeline(self, agent_id: AgentID) -> Timeline:
        """Return an agent's `Timeline`, its steps with their env steps. Raise `UnknownKey` for unknown agents."""
        timeline = self.timelines.get(agent_id) if isinstance(agent_id, Hashable) else None
        if timeline is None:
            raise UnknownKey(f"episode {self.episode_id}: no agent {agent_id!r}; there are {list(self.timelines)}")
        return timeline

    def knows(self, agent_id: AgentID) -> bool:
        """Return True if the episode has an observation or an info of the agent."""
        return agent_id in self.timelines or any(agent_id in infos for infos in self.loose_infos.values())

    def has_ended(self, agent_id: AgentID) -> bool:
        """Return True if the agent terminated or was truncated."""
        timeline = self.timelines.get(agent_id)
        return agent_id in self.departed if timeline is None else timeline.phase == ENDED

    # --- checks, which write nothing ---------------------------------------------------------------------------

    def check_step(
        self, observations: ByAgent, actions: ByAgent, rewards: ByAgent, extra: ByAgent, env_t: int
    ) -> tuple[list[Any], list[Any], bool]:
        """Check the arguments of one env step. Return the new agents, and the agents whose actions stay pending.

        Returns: The agents observed for the first time, the agents whose actions become pending, and whether there are
            rewards for agents without an observation.

        Raises:
            InvalidArgument: an agent cannot act, an observation completes no step, or a reward is missing.
            TrackMismatch: extra model outputs have other keys than earlier ones.
            ShapeMismatch: an observation has another shape than earlier ones.
        """
        timelines = self.timelines
        newcomers, waiting = [], []
        num_acting = num_rewarded = 0
        acted_at = env_t - 1
        for agent_id, observation in observations.items():
            is_rewarded = agent_id in rewards
            if is_rewarded:
                num_rewarded += 1
            if agent_id not in timelines:
                newcomers.append(agent_id)
                continue
            timeline = timelines[agent_id]
            if agent_id in actions:
                num_acting += 1
                growth = timeline.episode.growth
                if extra or timeline.phase != RESTS or not growth or growth[4]:
                    timeline.check_action(extra.get(agent_id), acted_at)
            elif timeline.phase != WAITS:
                raise timeline.cannot_observe(env_t)
            if not is_rewarded and timeline.reward is None:
                raise timeline.no_reward(env_t)
            try:
                fits = observation.shape == timeline.item_shape
            except AttributeError:
                fits = False
            if not fits:
                timeline.check_shape(observation, env_t)
        if newcomers or extra:
            self._check_who_acts(newcomers, actions, extra, env_t)
        if num_acting < len(actions):
            for agent_id in actions:
                if agent_id not in observations:
                    timeline = timelines.get(agent_id)
                    if timeline is None:
                        raise self._cannot_act(agent_id, acted_at)
                    growth = timeline.episode.growth
                    if extra or timeline.phase != RESTS or not growth or growth[4]:
                        timeline.check_action(extra.get(agent_id), acted_at)
                    waiting.append(agent_id)
        return newcomers, waiting, num_rewarded < len(rewards)

    def with_ragged_items(self, actions: ByAgent, extra: ByAgent, env_t: int) -> tuple[ByAgent, ByAgent]:
        """Return actions and extra outputs by agent, with items of varying length checked and made arrays.

        Raises:
            ShapeMismatch: an item does not have the kind of its track, or an output is not as long as the action.
        """
        actions, extra = dict(actions), dict(extra)
        for agent_id, action in actions.items():
            if agent_id in self.timelines:
                actions[agent_id], extra[agent_id] = track_access.as_ragged_step(
                    self.timelines[agent_id].episode.tracks, action, extra.get(agent_id), self._place(agent_id, env_t)
                )
        return actions, extra

    def _check_who_acts(self, newcomers: Sequence[Any], actions: ByAgent, extra: ByAgent, env_t: int) -> None:
        """Raise an error if a new agent acts or had ended, or if an agent has model outputs but no action.

        Raises:
            InvalidArgument: one of these holds.
        """
        for agent_id in newcomers:
            if agent_id in actions:
                raise self._cannot_act(agent_id, env_t - 1)
            if agent_id in self.departed:
                raise InvalidArgument(after_end(self._place(agent_id, env_t), self.departed[agent_id].env_t))
        if extra and not extra.keys() <= actions.keys():
            idle = next(agent_id for agent_id in extra if agent_id not in actions)
            raise InvalidArgument(
                f"{self._place(idle, env_t)}: extra model outputs for an agent that does not act; give them with its "
                "action"
            )

    def endings(self, observations: ByAgent, terminateds: Flags, truncateds: Flags) -> Endings:
        """Return a dict from each agent that ends in this env step to its `Ending`, by its own flag or `"__all__"`."""
        over = Ending.of(terminateds.get(ALL, False), truncateds.get(ALL, False))
        endings: Endings = {}
        for agent_id in {**terminateds, **truncateds}:
            ending = Ending.of(terminateds.get(agent_id, False), truncateds.get(agent_id, False))
            if ending.is_done and agent_id != ALL and not self.has_ended(agent_id):
                endings[agent_id] = ending
        if over.is_done:
            for agent_id in {**self.timelines, **observations}:
                if agent_id not in endings and not self.has_ended(agent_id):
                    endings[agent_id] = over
        return endings

    def with_repeated_last_observations(
        self, observations: ByAgent, actions: ByAgent, endings: Endings, env_t: int, *, may_repeat: bool
    ) -> ByAgent:
        """Return the step's observations, plus the last known one of each agent that ends in mid-step without a new
        one.

        Args:
            may_repeat: if False, raise `InvalidArgument` if such an agent is truncated.
        """
        repeated = {}
        for agent_id, ending in endings.items():
            timeline = self.timelines.get(agent_id)
            if timeline is None or agent_id in observations or (timeline.phase != WAITS and agent_id not in actions):
                continue
            if not ending.is_terminated and not may_repeat:
                raise InvalidArgument(
                    f"{self._place(agent_id, env_t)}: it is truncated without a last observation, which its value is "
                    'bootstrapped from; give it, or make the episode with missing_final_observation="repeat"'
                )
            repeated[agent_id] = timeline.episode.observations.get(-1)
        return {**observations, **repeated} if repeated else observations

    def _place(self, agent_id: object, env_t: int) -> str:
        return place_of(self.episode_id, agent_id, env_t)

    def _cannot_act(self, agent_id: object, env_t: int) -> InvalidArgument:
        """Return the error for an action of an agent that is unknown or has departed."""
        place = f"episode {self.episode_id}: agent {agent_id!r} cannot act at env step {env_t}"
        if agent_id in self.departed:
            return InvalidArgument(done_since(place, self.departed[agent_id].env_t))
        return InvalidArgument(f"{place}: it has had no observation; there are {list(self.timelines)}")

    # --- growing -----------------------------------------------------------------------------------------------

    def keep_infos(self, observations: ByAgent, infos: ByAgent, env_t: int) -> None:
        """Store the infos of agents without a new observation in this env step, and the infos of `"__common__"`."""
        loose = {agent_id: info for agent_id, info in infos.items() if info and agent_id not in observations}
        if loose:
            self.loose_infos[env_t] = loose

    def keep_rewards(self, observations: ByAgent, rewards: ByAgent, env_t: int) -> None:
        """Store the rewards of agents without a new observation: they are added to the agent's pending step.

        Rewards of agents that have no steps or have ended are stored apart.
        """
        for agent_id, reward in rewards.items():
            if agent_id not in observations:
                timeline = self.timelines.get(agent_id)
                if timeline is None or timeline.phase == ENDED:
                    self.rewards_apart.append((env_t, agent_id, reward))
                else:
                    timeline.reward = reward if timeline.reward is None else timeline.reward + reward

    def add_agent(self, agent_episode: SingleAgentEpisode, env_t: int, reward: float | None = None) -> None:
        """Add an agent with its first observation. A `reward` before its first action is stored outside of steps."""
        timeline = Timeline(agent_episode, array("q", [env_t]), array("q"))
        timeline.item_shape = track_access.shape_of(agent_episode.get_observations(0))
        self.timelines[agent_episode.agent_id] = timeline
        if reward is not None:
            self.rewards_apart.append((env_t, agent_episode.agent_id, reward))

    def end(self, endings: Endings, env_t: int) -> None:
        """Mark agents as ended at env step `env_t`, each with its ending."""
        for agent_id, ending in endings.items():
            timeline = self.timelines.get(agent_id)
            if timeline is None:
                self.departed[agent_id] = DepartedAgent(ending, env_t)
                continue
            if timeline.reward is not None:
                self.rewards_apart.append((env_t, agent_id, timeline.reward))
            timeline.end(ending, env_t)

    def all_ended(self) -> bool:
        """Return True if every observed agent has ended."""
        return all(timeline.phase == ENDED for timeline in self.timelines.values())

    def endings_so_far(self) -> Endings:
        """Return a dict from every agent, ended agents included, to its ending (`OPEN` for active agents)."""
        departed = {agent_id: departure.ending for agent_id, departure in self.departed.items()}
        return departed | {agent_id: timeline.episode.ending for agent_id, timeline in self.timelines.items()}

    def finalize(self) -> None:
        """Convert the data of all agents to arrays. If one agent's items differ in shape, no agent is converted."""
        tracks = [timeline.episode.finalized_tracks() for timeline in self.timelines.values()]
        for timeline, finished in zip(self.timelines.values(), tracks, strict=True):
            timeline.finish(finished)

    # --- windows, and pending steps at their borders -------------------------------------------------------------

    def window(self, chunk: Chunk) -> Agents:
        """Return the agents' data in the range `chunk` of env steps. Arrays are not copied."""
        begin, end, lookback, _ = chunk
        all_departed, apart = self.departed, self.rewards_apart
        departed = {a: departure for a, departure in all_departed.items() if departure.env_t <= end}
        timelines = {}
        for agent_id, timeline in self.timelines.items():
            part = timeline.window(chunk)
            if part is not None:
                timelines[agent_id] = part
            elif timeline.is_gone(chunk):
                departed[agent_id] = DepartedAgent(timeline.episode.ending, timeline.ended_at)
        infos = self.loose_infos
        return Agents(
            self.episode_id,
            timelines,
            modules=self.modules,
            departed=departed,
            loose_infos={t: infos[t] for t in infos if begin - lookback <= t <= end} if infos else None,
            rewards_apart=[entry for entry in apart if begin < entry[0] <= end] if apart else (),
        )

    def cut(self, env_t: int, lookback: int) -> Agents:
        """Return the agents of the next chunk, which begins at env step `env_t` and takes over the pending actions.

        The current agents keep no pending step, but remember them in `passed_on`, so that a second `cut` returns
        equal agents.
        """
        later = self.window(Chunk(env_t, env_t, lookback, True))
        later.timelines = {agent_id: timeline.as_growing() for agent_id, timeline in later.timelines.items()}
        if self.passed_on is None:
            self.passed_on = {
                a: timeline.pending() for a, timeline in self.timelines.items() if timeline.phase != ENDED
            }
            for agent_id in self.passed_on:
                self.timelines[agent_id].drop_pending()
            return later
        for agent_id, timeline in later.timelines.items():
            if agent_id in self.passed_on:
                timeline.restore_pending(self.passed_on[agent_id])
        return later

    def check_follows(self, later: Agents, env_t: int) -> None:
        """Raise `ChunkMismatch` unless `later`, a chunk that begins at env step `env_t`, continues these agents."""
        for agent_id, timeline in self.timelines.items():
            timeline.check_follows(later.timelines.get(agent_id), env_t)
        for agent_id, timeline in later.timelines.items():
            if (
                agent_id not in self.timelines
                and agent_id not in self.departed
                and timeline.observation_times[0] <= env_t
            ):
                raise ChunkMismatch(
                    f"episode {self.episode_id}: agent {agent_id!r} of the chunk was there at env step {env_t}, and "
                    "this chunk does not know it"
                )

    def append(self, later: Agents, chunk: Chunk, *, is_numpy: bool) -> None:
        """Append the agents' steps of `later`, the next chunk of the episode, without its lookback.

        Args:
            later: agents that passed `check_follows`.
            chunk: range of env steps of the next chunk.
            is_numpy: whether these agents are finalized.

        Raises:
            ShapeMismatch: these agents are finalized, and items of the next chunk have another shape. Nothing changes.
        """
        following, tracks = later.timelines, {}
        if is_numpy:  # the arrays are made before anything is written, since items of other shapes raise
            following = {agent_id: timeline.as_finished() for agent_id, timeline in following.items()}
            continued = [a for a in following if a in self.timelines and self.timelines[a].phase != ENDED]
            tracks = {a: self.timelines[a].episode.joined_tracks(following[a].episode) for a in continued}
        for agent_id, following_timeline in following.items():
            timeline = self.timelines.get(agent_id)
            if timeline is not None:
                timeline.append(following_timeline, tracks.get(agent_id))
                continue
            entered = following_timeline.window(chunk)
            if entered is not None:
                self.timelines[agent_id] = entered if is_numpy else entered.as_growing()
        self.rewards_apart += later.rewards_apart
        self.loose_infos |= later.loose_infos
        self.departed |= {a: departure for a, departure in later.departed.items() if a not in self.timelines}
        self.modules |= later.modules
        self.passed_on = later.passed_on

    # --- state -------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise `TrackMismatch` unless every observation and action of each agent has its env step."""
        for timeline in self.timelines.values():
            timeline.validate()

    def record(self) -> dict[str, Any]:
        """Return the data outside of the steps as a dict: ended agents, modules, infos and rewards. No copies."""
        departed = {agent_id: (departure.ending.code, departure.env_t) for agent_id, departure in self.departed.items()}
        stored = {"modules": self.modules, "loose_infos": self.loose_infos, "rewards_apart": self.rewards_apart}
        return {"departed": departed, **stored}

    @classmethod
    def of(cls, episode_id: str, timelines: dict[Any, Timeline], record: Mapping[str, Any]) -> Agents:
        """Create `Agents` from a `Timeline` per agent and a dict that `record` returned."""
        attributes = dict(record)
        departed = {a: DepartedAgent(ENDINGS[code], env_t) for a, (code, env_t) in attributes.pop("departed").items()}
        return cls(episode_id, timelines, departed=departed, **attributes)

    def get_state(self) -> dict[str, Any]:
        """Return the data of all agents as a dict of plain values and copied arrays."""
        episodes = {agent_id: timeline.episode.get_state() for agent_id, timeline in self.timelines.items()}
        timelines = {
            a: {"episode": episodes[a], **deepcopy(timeline.record())} for a, timeline in self.timelines.items()
        }
        passed_on = None if self.passed_on is None else {a: tuple(p) for a, p in self.passed_on.items()}
        return {"agents": timelines, **deepcopy({"passed_on": passed_on, **self.record()})}

    @classmethod
    def from_state(cls, episode_id: str, state: Mapping[str, Any]) -> Agents:
        """Create `Agents` from the dict that `get_state` returned. Nothing shares memory with `state`."""
        timelines = {}
        for agent_id, timeline in state["agents"].items():
            record = deepcopy({name: value for name, value in timeline.items() if name != "episode"})
            timelines[agent_id] = Timeline.of(SingleAgentEpisode.from_state(timeline["episode"]), record)
        attributes = deepcopy({name: state[name] for name in (*_RECORD, "passed_on")})
        passed_on = attributes.pop("passed_on")
        agents = cls.of(episode_id, timelines, attributes)
        if passed_on is not None:
            agents.passed_on = {agent_id: Pending(*pending) for agent_id, pending in passed_on.items()}
        return agents

    def equals(self, compared: Agents) -> bool:
        """Return True if both objects have equal steps, ended agents, infos and rewards."""
        return (
            self.timelines.keys() == compared.timelines.keys()
            and same_info(*([agents.departed, agents.loose_infos, agents.rewards_apart] for agents in (self, compared)))
            and all(timeline.equals(compared.timelines[agent_id]) for agent_id, timeline in self.timelines.items())
        )


_RECORD = ("departed", "modules", "loose_infos", "rewards_apart")
