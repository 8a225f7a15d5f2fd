"""`Agents`: all timelines of a multi-agent chunk, and what belongs to none of them.

An env step touches it in two passes, each O(agents that did something): `check_step` raises before anything is written,
and finds what to do; `keep_infos`, `keep_rewards`, `Timeline.set_pending_action` and `complete_steps` write and do not
fail.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple

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
from episodes.tracks.casting import check_reward
from episodes.tracks.infos.infos import same_info

COMMON: Final = "__common__"  # the key of infos that belong to no agent
ALL: Final = "__all__"  # the key of the episode's own ending

ByAgent = Mapping[Any, Any]  # agent -> value
Flags = Mapping[Any, bool]
Endings = dict[Any, Ending]  # agent -> how it ends


class DepartedAgent(NamedTuple):
    """The ending of an agent of which nothing else is within reach."""

    ending: Ending
    env_t: int


class Agents:
    """The agents of one chunk: a `Timeline` of each that was observed, and what belongs to no timeline."""

    __slots__ = ("departed", "episode_id", "loose_infos", "modules", "passed_on", "rewards_apart", "timelines")

    def __init__(
        self,
        episode_id: Any,
        timelines: dict[Any, Timeline] | None = None,
        *,
        modules: ByAgent | None = None,
        departed: Mapping[Any, DepartedAgent] | None = None,
        loose_infos: Mapping[int, ByAgent] | None = None,
        rewards_apart: Iterable[tuple[int, Any, Any]] = (),
        passed_on: Mapping[Any, Pending] | None = None,
    ) -> None:
        self.episode_id = episode_id
        self.timelines = {} if timelines is None else timelines  # of agents that were observed
        self.modules = dict(modules or NOTHING)  # agent -> module, as far as it was asked for
        self.departed = dict(departed or NOTHING)  # agents that ended and left no data
        self.loose_infos = dict(loose_infos or NOTHING)  # env step -> agent -> info that came without an observation
        self.rewards_apart = list(
            rewards_apart
        )  # (env step, agent, reward) before its first observation, after its end
        self.passed_on = passed_on  # what waited at the cut, and is the successor's; None while nothing was cut

    def timeline(self, agent_id: Any) -> Timeline:
        """The agent's timeline; `UnknownKey` when it was not observed."""
        line = self.timelines.get(agent_id) if isinstance(agent_id, Hashable) else None
        if line is None:
            raise UnknownKey(f"episode {self.episode_id}: no agent {agent_id!r}; there are {list(self.timelines)}")
        return line

    def knows(self, agent_id: Any) -> bool:
        """True when the agent was observed, or infos of it came."""
        return agent_id in self.timelines or any(agent_id in infos for infos in self.loose_infos.values())

    def has_ended(self, agent_id: Any) -> bool:
        """True when the agent terminated or was truncated."""
        line = self.timelines.get(agent_id)
        return agent_id in self.departed if line is None else line.phase == ENDED

    # --- what may happen: nothing is written here --------------------------------------------------------------

    def check_step(
        self, observations: ByAgent, actions: ByAgent, rewards: ByAgent, extra: ByAgent, env_t: int
    ) -> tuple[list[Any], list[Any], bool]:
        """What an env step does beside completing steps; nothing is written.

        Returns:
            The agents that are observed first, those that act and then wait, and whether there are rewards of others
            than those observed.

        Raises:
            InvalidArgument: for an agent that may not act, an observation that completes no step, a missing reward.
            TrackMismatch: for other extra model outputs than before.
            ShapeMismatch: for an observation of another shape than before.
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
            line = timelines[agent_id]
            if agent_id in actions:
                num_acting += 1
                growth = line.episode.growth
                if extra or line.phase != RESTS or not growth or growth[4]:
                    line.check_action(extra.get(agent_id), acted_at)
            elif line.phase != WAITS:
                raise line.cannot_observe(env_t)
            if not is_rewarded and line.reward is None:
                raise line.no_reward(env_t)
            try:
                fits = observation.shape == line.item_shape
            except AttributeError:
                fits = False
            if not fits:
                line.check_shape(observation, env_t)
        if newcomers or extra:
            self._check_who_acts(newcomers, actions, extra, env_t)
        if num_acting < len(actions):
            for agent_id in actions:
                if agent_id not in observations:
                    line = timelines.get(agent_id)
                    if line is None:
                        raise self._cannot_act(agent_id, acted_at)
                    growth = line.episode.growth
                    if extra or line.phase != RESTS or not growth or growth[4]:
                        line.check_action(extra.get(agent_id), acted_at)
                    waiting.append(agent_id)
        return newcomers, waiting, num_rewarded < len(rewards)

    def _check_who_acts(self, newcomers: Sequence[Any], actions: ByAgent, extra: ByAgent, env_t: int) -> None:
        """Raise for newcomers that act or have ended, and for extra model outputs of agents that do not act."""
        for agent_id in newcomers:
            if agent_id in actions:
                raise self._cannot_act(agent_id, env_t - 1)
            if agent_id in self.departed:
                raise InvalidArgument(after_end(self._place(agent_id, env_t), self.departed[agent_id].env_t))
        if extra and not extra.keys() <= actions.keys():
            raise self._idle(next(agent_id for agent_id in extra if agent_id not in actions), env_t)

    def check_rewards(self, rewards: ByAgent, env_t: int) -> None:
        """Raise `ShapeMismatch` or `WrongType` unless each reward is one real number."""
        for agent_id, reward in rewards.items():
            check_reward(reward, lambda agent_id=agent_id: self._place(agent_id, env_t))  # type: ignore[misc]

    def endings(self, observations: ByAgent, terminateds: Flags, truncateds: Flags) -> Endings:
        """The agents that end in an env step: those flagged, and all others when `"__all__"` is, whatever they say."""
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

    def repeated(
        self, observations: ByAgent, actions: ByAgent, endings: Endings, env_t: int, *, may_repeat: bool
    ) -> ByAgent:
        """The observations, and the last one again of each agent that ends in the middle of a step without a new one.

        Args:
            may_repeat: False raises where such an agent is truncated.
        """
        repeated = {}
        for agent_id, ending in endings.items():
            line = self.timelines.get(agent_id)
            if line is None or agent_id in observations or (line.phase != WAITS and agent_id not in actions):
                continue
            if not ending.is_terminated and not may_repeat:
                raise InvalidArgument(
                    f"{self._place(agent_id, env_t)}: it is truncated without a last observation, which its value is "
                    'bootstrapped from; give it, or make the episode with missing_final_observation="repeat"'
                )
            repeated[agent_id] = line.episode.observations.get(-1)
        return {**observations, **repeated} if repeated else observations

    def _place(self, agent_id: Any, env_t: int) -> str:
        return place_of(self.episode_id, agent_id, env_t)

    def _idle(self, agent_id: Any, env_t: int) -> InvalidArgument:
        return InvalidArgument(
            f"{self._place(agent_id, env_t)}: extra model outputs for an agent that does not act; give them with its "
            "action"
        )

    def _cannot_act(self, agent_id: Any, env_t: int) -> InvalidArgument:
        place = f"episode {self.episode_id}: agent {agent_id!r} cannot act at env step {env_t}"
        if agent_id in self.departed:
            return InvalidArgument(done_since(place, self.departed[agent_id].env_t))
        return InvalidArgument(f"{place}: it has had no observation; there are {list(self.timelines)}")

    # --- growing -----------------------------------------------------------------------------------------------

    def keep_infos(self, observations: ByAgent, infos: ByAgent, env_t: int) -> None:
        """Keep the infos of an env step that come without an observation of their agent, or of no agent."""
        loose = {agent_id: info for agent_id, info in infos.items() if info and agent_id not in observations}
        if loose:
            self.loose_infos[env_t] = loose

    def keep_rewards(self, observations: ByAgent, rewards: ByAgent, env_t: int) -> None:
        """Keep the rewards of an env step whose agents get no observation."""
        for agent_id, reward in rewards.items():
            if agent_id not in observations:
                line = self.timelines.get(agent_id)
                if line is None or line.phase == ENDED:
                    self.rewards_apart.append((env_t, agent_id, reward))
                else:
                    line.reward = reward if line.reward is None else line.reward + reward

    def enter(self, own: SingleAgentEpisode, env_t: int, reward: Any = None) -> None:
        """Add an agent whose own episode has been reset; a reward beside its first observation is of no step."""
        line = Timeline(own, [env_t])
        line.item_shape = track_access.shape_of(own.get_observations(0))
        self.timelines[own.agent_id] = line
        if reward is not None:
            self.rewards_apart.append((env_t, own.agent_id, reward))

    def end(self, endings: Endings, env_t: int) -> None:
        """These agents are done at an env step."""
        for agent_id, ending in endings.items():
            line = self.timelines.get(agent_id)
            if line is None:
                self.departed[agent_id] = DepartedAgent(ending, env_t)
                continue
            if line.reward is not None:
                self.rewards_apart.append((env_t, agent_id, line.reward))
            line.end(ending, env_t)

    def all_ended(self) -> bool:
        """True when every agent that was observed is done."""
        return all(line.phase == ENDED for line in self.timelines.values())

    def endings_so_far(self) -> Endings:
        """How each agent stops that was ever there."""
        departed = {agent_id: departure.ending for agent_id, departure in self.departed.items()}
        return departed | {agent_id: line.episode.ending for agent_id, line in self.timelines.items()}

    def finalize(self) -> None:
        """Finalize every timeline, or none if the items of an agent cannot become arrays."""
        tracks = [line.episode.finalized_tracks() for line in self.timelines.values()]
        for line, finished in zip(self.timelines.values(), tracks, strict=True):
            line.finish(finished)

    # --- windows, and what waits at their borders --------------------------------------------------------------

    def window(self, chunk: Chunk) -> Agents:
        """The agents' parts of a range of env steps. O(agents); views where they are finished."""
        begin, end, lookback, _ = chunk
        gone, apart = self.departed, self.rewards_apart
        departed = {a: departure for a, departure in gone.items() if departure.env_t <= end} if gone else {}
        lines = {}
        for agent_id, line in self.timelines.items():
            part = line.window(chunk)
            if part is not None:
                lines[agent_id] = part
            elif line.is_gone(chunk):
                departed[agent_id] = DepartedAgent(line.episode.ending, line.ended_at)
        infos = self.loose_infos
        return Agents(
            self.episode_id,
            lines,
            modules=self.modules,
            departed=departed,
            loose_infos={t: infos[t] for t in infos if begin - lookback <= t <= end} if infos else None,
            rewards_apart=[entry for entry in apart if begin < entry[0] <= end] if apart else (),
        )

    def cut(self, env_t: int, lookback: int) -> Agents:
        """Return the agents of the next chunk, which begins at the newest env step `env_t`. Pending steps move there.

        These agents keep no pending step, but remember them in `passed_on`, so that a second `cut` gives equal agents.
        """
        later = self.window(Chunk(env_t, env_t, lookback, True))
        later.timelines = {agent_id: line.as_growing() for agent_id, line in later.timelines.items()}
        if self.passed_on is None:
            self.passed_on = {a: line.pending() for a, line in self.timelines.items() if line.phase != ENDED}
            for agent_id in self.passed_on:
                self.timelines[agent_id].give_up()
            return later
        for agent_id, line in later.timelines.items():
            if agent_id in self.passed_on:
                line.take_back(self.passed_on[agent_id])
        return later

    def check_follows(self, later: Agents, env_t: int) -> None:
        """Raise unless the agents of the chunk that begins at an env step go on where these stop."""
        for agent_id, line in self.timelines.items():
            line.check_follows(later.timelines.get(agent_id), env_t)
        for agent_id, line in later.timelines.items():
            if agent_id not in self.timelines and agent_id not in self.departed and line.seen[0] <= env_t:
                raise ChunkMismatch(
                    f"episode {self.episode_id}: agent {agent_id!r} of the chunk was there at env step {env_t}, and "
                    "this chunk does not know it"
                )

    def append(self, later: Agents, chunk: Chunk, *, is_numpy: bool) -> None:
        """Go on with the agents of the next chunk, which has the env steps of `chunk`; its lookback is dropped.

        Args:
            later: agents that passed `check_follows`.

        Raises:
            ShapeMismatch: these agents are finalized, and items of the next chunk have another shape. Nothing changes.
        """
        following, tracks = later.timelines, {}
        if is_numpy:  # the arrays are made before anything is written, since items of other shapes raise
            following = {agent_id: line.as_finished() for agent_id, line in following.items()}
            continued = [a for a in following if a in self.timelines and self.timelines[a].phase != ENDED]
            tracks = {a: self.timelines[a].episode.joined_tracks(following[a].episode) for a in continued}
        for agent_id, theirs in following.items():
            line = self.timelines.get(agent_id)
            if line is not None:
                line.append(theirs, tracks.get(agent_id))
                continue
            entered = theirs.window(chunk)
            if entered is not None:
                self.timelines[agent_id] = entered if is_numpy else entered.as_growing()
        self.rewards_apart += later.rewards_apart
        self.loose_infos |= later.loose_infos
        self.departed |= {a: departure for a, departure in later.departed.items() if a not in self.timelines}
        self.modules |= later.modules
        self.passed_on = later.passed_on

    # --- state -------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise `TrackMismatch` unless every agent's tracks and clocks go together."""
        for line in self.timelines.values():
            line.validate()

    def record(self) -> dict[str, Any]:
        """What belongs to no timeline, as plain values; not copied."""
        departed = {agent_id: (gone.ending.code, gone.env_t) for agent_id, gone in self.departed.items()}
        rest = {"modules": self.modules, "loose_infos": self.loose_infos, "rewards_apart": self.rewards_apart}
        return {"departed": departed, **rest}

    @classmethod
    def of(cls, episode_id: Any, timelines: dict[Any, Timeline], record: Mapping[str, Any]) -> Agents:
        """The agents of timelines and a `record`."""
        rest = dict(record)
        departed = {a: DepartedAgent(ENDINGS[code], env_t) for a, (code, env_t) in rest.pop("departed").items()}
        return cls(episode_id, timelines, departed=departed, **rest)

    def get_state(self) -> dict[str, Any]:
        """Everything, as plain values and arrays; it shares no memory with the agents."""
        episodes = {agent_id: line.episode.get_state() for agent_id, line in self.timelines.items()}
        lines = {a: {"episode": episodes[a], **deepcopy(line.record())} for a, line in self.timelines.items()}
        passed_on = None if self.passed_on is None else {a: tuple(p) for a, p in self.passed_on.items()}
        return {"agents": lines, **deepcopy({"passed_on": passed_on, **self.record()})}

    @classmethod
    def from_state(cls, episode_id: Any, state: Mapping[str, Any]) -> Agents:
        """The agents of a `get_state`; they share no memory with the state."""
        lines = {}
        for agent_id, line in state["agents"].items():
            record = deepcopy({name: value for name, value in line.items() if name != "episode"})
            lines[agent_id] = Timeline.of(SingleAgentEpisode.from_state(line["episode"]), record)
        rest = deepcopy({name: state[name] for name in (*_RECORD, "passed_on")})
        passed_on = rest.pop("passed_on")
        agents = cls.of(episode_id, lines, rest)
        if passed_on is not None:
            agents.passed_on = {agent_id: Pending(*pending) for agent_id, pending in passed_on.items()}
        return agents

    def equals(self, other: Agents) -> bool:
        """True when both are the same: timelines, departed agents, loose infos and rewards apart."""
        mine, theirs = ((agents.departed, agents.loose_infos, agents.rewards_apart) for agents in (self, other))
        return (
            self.timelines.keys() == other.timelines.keys()
            and same_info(list(mine), list(theirs))
            and all(line.equals(other.timelines[agent_id]) for agent_id, line in self.timelines.items())
        )


_RECORD = ("departed", "modules", "loose_infos", "rewards_apart")
