"""`Timeline`: one agent's life in a multi-agent episode. Its own episode, its two clocks, and the step that waits.

An agent that observes at the env steps 0, 2 and 4 and has acted on each, at env step 5:

    env step            0     1     2     3     4     5 (now)
    seen   [0, 2, 4]    o           o           o            its observations arrived
    acted  [0, 2, 4]    a           a           a            it acted, each time on its newest observation
    own steps           |---- 0 ----|---- 1 ----|-- pending

A step goes from an observation to the next one. Complete steps are in `episode`, the agent's `SingleAgentEpisode`: here
three observations, two actions and two rewards. The **pending** step, whose next observation has not arrived, lives in
the timeline: its action in `action`, that action's extra model outputs in `extra`, and its env step as the last of
`acted`, which then has one entry more than the episode has actions. `reward` is what came since the newest observation.
`complete_steps` moves all four into the episode.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

import numpy as np

from episodes.columns import check_extra_output_names
from episodes.errors import ChunkMismatch, InvalidArgument, ShapeMismatch, TrackMismatch
from episodes.facts import Ending
from episodes.multi_agent import env_step_index
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import Tracks, track_access
from episodes.tracks.infos.infos import same_info
from episodes.tracks.nested import equal

RESTS: Final = "rests"  # it has an observation and has not acted on it
WAITS: Final = "waits"  # it has acted and waits for its next observation
ENDED: Final = "ended"  # it terminated or was truncated

NOTHING: Final[Mapping[Any, Any]] = {}

Clock = Sequence[int] | np.ndarray
_CLOCKS = (array, np.ndarray)  # a env_step_index that grows, a finished one
_NOTHING_WAITS = None, None, None  # no action, no outputs, no reward
_blank: Any = object.__new__  # where an episode is sliced, of each agent


class Chunk(NamedTuple):
    """A range of env steps of an episode."""

    begin: int  # the env step of the chunk's first observation
    end: int  # the env step of its last one
    lookback: int  # how many env steps before `begin` stay within reach
    is_last: bool  # True when the chunk reaches the episode's newest env step


class Pending(NamedTuple):
    """What an agent has beyond its newest observation."""

    phase: str
    action: Any
    extra: Mapping[str, Any] | None
    reward: Any
    acted_at: int | None  # the env step of the action; None while it rests


class Timeline:
    """An agent's own episode, the env steps of its observations and actions, and its pending step."""

    __slots__ = ("acted", "action", "ended_at", "episode", "extra", "item_shape", "phase", "reward", "seen")

    def __init__(self, episode: SingleAgentEpisode, seen: Clock, acted: Clock = (), phase: str = RESTS) -> None:
        self.episode = episode
        self.seen: Any = seen if type(seen) in _CLOCKS else array("q", seen)  # [L + T + 1] env steps
        self.acted: Any = acted if type(acted) in _CLOCKS else array("q", acted)  # [L + T (+ 1 while it waits)]
        self.phase = phase
        self.action: Any = None  # of the pending step
        self.extra: Mapping[str, Any] | None = None  # of the pending step
        self.reward: Any = None  # the sum since the newest observation; None when there was none
        self.ended_at: Any = None  # the env step at which it ended
        self.item_shape: Any = None  # of the observations added; a stored one may have been rewritten

    # --- what may happen: nothing is written here --------------------------------------------------------------

    def check_action(self, outputs: Mapping[str, Any] | None, env_t: int) -> None:
        """Raise unless it may act at an env step, with the extra model outputs that its steps have had so far."""
        if self.phase != RESTS:
            raise self._cannot_act(env_t)
        growth = self.episode.growth
        if outputs or not growth or growth[4]:
            self._check_outputs(outputs or NOTHING, env_t)

    def _check_outputs(self, given: Mapping[str, Any], env_t: int) -> None:
        own = self.episode.tracks
        known = own.extra
        if given and not known:
            check_extra_output_names(given, self._at(env_t, "acts"))
        if known.keys() != given.keys() and (known or own.rewards.total):
            raise TrackMismatch(
                f"{self._at(env_t, 'acts')} with the extra model outputs {list(given)}, its steps so far have "
                f"{list(known)}; every step of an agent has the same"
            )
        for key, track in known.items():
            items, new = track.whole(), given[key]
            first = items[0] if len(items) else None
            if type(first) is np.ndarray and (new.shape if type(new) is np.ndarray else np.shape(new)) != first.shape:
                raise ShapeMismatch(
                    f"{self._at(env_t, 'acts')}: {track.field.label} has shape {np.shape(new)}, those before it "
                    f"have {first.shape}; give that shape"
                )

    def check_shape(self, observation: Any, env_t: int) -> None:
        """Raise unless an observation has the shape of those before it."""
        newest = self.episode.observations.get(-1)
        shape = self.item_shape
        if shape is None:
            shape = self.item_shape = track_access.shape_of(newest)
        if observation is newest:
            return

        def whose() -> str:
            return self._place(env_t)

        if (
            track_access.checked_observation(observation, shape, self.episode.observation_space, whose)
            is not observation
        ):
            raise ShapeMismatch(f"{whose()}: the observation has lists where its space has tuples; give tuples")

    def _place(self, env_t: int) -> str:
        """Whose timeline it is, for errors."""
        own = self.episode
        return place_of(own.multi_agent_episode_id, own.agent_id, env_t)

    def _at(self, env_t: int, does: str) -> str:
        own = self.episode
        return f"episode {own.multi_agent_episode_id}: agent {own.agent_id!r} {does} at env step {env_t}"

    def _cannot_act(self, env_t: int) -> InvalidArgument:
        place = self._at(env_t, "cannot act")
        if self.phase == ENDED:
            return InvalidArgument(done_since(place, self.ended_at))
        return InvalidArgument(f"{place}: it acted at env step {self.acted[-1]} and still waits for an observation")

    def no_reward(self, env_t: int) -> InvalidArgument:
        """The error for an observation that completes a step without a reward."""
        return InvalidArgument(
            f"{self._place(env_t)}: no reward came since it acted, though its next observation is here; "
            "give a reward (0.0 counts)"
        )

    def cannot_observe(self, env_t: int) -> InvalidArgument:
        """The error for an observation that completes no step."""
        if self.phase == ENDED:
            return InvalidArgument(after_end(self._place(env_t), self.ended_at))
        return InvalidArgument(
            f"{self._place(env_t)}: an observation, though it has not acted on that of env step {self.seen[-1]}; "
            "give its action first, or leave the observation out while it rests"
        )

    # --- growing -----------------------------------------------------------------------------------------------

    def set_pending_action(self, action: Any, extra: Mapping[str, Any] | None, env_t: int) -> None:
        """Keep the action taken at an env step until the next observation comes."""
        self.acted.append(env_t)
        self.action, self.extra, self.phase = action, extra, WAITS

    def end(self, ending: Ending, env_t: int) -> None:
        """It is done at an env step; what came after its newest observation is no reward of a step."""
        self.episode.end(ending)
        self.phase, self.ended_at, self.reward = ENDED, env_t, None

    def finish(self, tracks: Tracks) -> None:
        """Put the `finalized_tracks` of the agent's episode in place of the growing ones, and finalize the clocks."""
        self.episode.finish(tracks)
        self.seen, self.acted = _finished(self.seen), _finished(self.acted)

    def as_finished(self) -> Timeline:
        """Return this timeline if it is finalized, else a finalized copy."""
        if self.episode.is_numpy:
            return self
        own = self.episode
        timeline = copy(self)
        timeline.episode = own.of(own.facts, own.finalized_tracks(), own.custom_data)
        timeline.seen, timeline.acted = _finished(self.seen), _finished(self.acted)
        return timeline

    # --- windows, and what waits at their borders --------------------------------------------------------------

    def window(self, chunk: Chunk) -> Timeline | None:
        """The agent's part of a range of env steps; None when it has none there. Views where it is finished."""
        begin, end, lookback, is_last = chunk
        first, zero, last = env_step_index.chunk_rows(self.seen, self.acted, (begin, end), lookback)
        if last == env_step_index.MISSING or (self.ended_at is not None and self.is_gone(chunk)):
            return None
        ends = self.ended_at is not None and self.ended_at <= end
        own = self.episode
        before = own.lookback
        part = own.window(zero - before, last - before, zero - first, ends)
        waits = is_last and self.phase == WAITS
        piece = _blank(Timeline)
        piece.episode, piece.seen, piece.acted = part, self.seen[first : last + 1], self.acted[first : last + waits]
        piece.phase = ENDED if ends else WAITS if waits else RESTS
        piece.item_shape, piece.ended_at = self.item_shape, self.ended_at if ends else None
        goes_on = is_last and not ends
        piece.action, piece.extra, piece.reward = (self.action, self.extra, self.reward) if goes_on else _NOTHING_WAITS
        return piece

    def is_gone(self, chunk: Chunk) -> bool:
        """True when the agent ended before the chunk and left nothing within reach of it."""
        return (
            self.ended_at is not None and self.ended_at <= chunk.begin and self.seen[-1] < chunk.begin - chunk.lookback
        )

    def as_growing(self) -> Timeline:
        """This timeline where it grows; a copy with lists where it is finished."""
        own = self.episode
        if not own.is_numpy:
            return self
        timeline = Timeline(own.as_growing(), self.seen.tolist(), self.acted.tolist(), self.phase)
        timeline.item_shape, timeline.ended_at = self.item_shape, self.ended_at
        timeline.action, timeline.extra, timeline.reward = self.action, self.extra, self.reward
        return timeline

    def pending(self) -> Pending:
        """What it has beyond its newest observation."""
        acted_at = int(self.acted[-1]) if self.phase == WAITS else None
        return Pending(self.phase, self.action, self.extra, self.reward, acted_at)

    def give_up(self) -> None:
        """Forget what it has beyond its newest observation: it belongs to the next chunk."""
        acted = self.acted[:-1] if self.phase == WAITS else self.acted
        self.acted, self.phase, self.action, self.extra, self.reward = acted, RESTS, None, None, None

    def take_back(self, pending: Pending) -> None:
        """Undo `give_up`."""
        self.phase, self.action, self.extra, self.reward, acted_at = pending
        if acted_at is not None:
            self.acted = _joined(self.acted, [acted_at])

    def check_follows(self, later: Timeline | None, env_t: int) -> None:
        """Raise unless a timeline of the chunk that begins at an env step goes on where this one stops."""
        if self.phase == ENDED:
            return
        if later is None:
            raise ChunkMismatch(f"{self._at(env_t, 'goes on')}, and the chunk that begins there does not know it")
        self.episode.check_follows(later.episode)

    def append(self, later: Timeline, tracks: Tracks | None = None) -> None:
        """Go on with the timeline of the next chunk, whose lookback is dropped; what waited is the next chunk's.

        Args:
            later: a timeline that passed `check_follows`.
            tracks: the `joined_tracks` of the agent's episode if it is finalized.
        """
        if self.phase == ENDED:
            return
        lookback = later.episode.lookback
        self.give_up()
        self.episode.extend(later.episode, tracks)
        self.item_shape = self.item_shape or later.item_shape
        self.seen = _joined(self.seen, later.seen[lookback + 1 :])
        self.acted = _joined(self.acted, later.acted[lookback:])
        self.phase, self.ended_at = later.phase, later.ended_at
        self.action, self.extra, self.reward = later.action, later.extra, later.reward

    # --- state -------------------------------------------------------------------------------------------------

    def reach(self, num_steps: int, env_t: int) -> int:
        """How many env steps before `env_t` its last `num_steps` complete steps and its pending one began."""
        if not num_steps or self.phase == ENDED or not len(self.acted):
            return 0
        return env_t - self.acted[max(self.episode.actions.total - num_steps, 0)]

    def validate(self) -> None:
        """Raise `TrackMismatch` unless tracks and clocks go together."""
        own = self.episode
        own.validate()
        if len(self.seen) != own.observations.total or len(self.acted) - own.actions.total not in (0, 1):
            raise TrackMismatch(
                f"episode {own.multi_agent_episode_id}: agent {own.agent_id!r} has {own.observations.total} "
                f"observations and {own.actions.total} actions, its clocks {len(self.seen)} and {len(self.acted)} "
                "env steps"
            )

    def clocks(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of `seen` and `acted`."""
        return np.array(self.seen, np.int64), np.array(self.acted, np.int64)

    def record(self) -> dict[str, Any]:
        """All but the agent's own episode, as plain values and arrays; what waits is not copied."""
        seen, acted = self.clocks()
        waiting = {"action": self.action, "extra": self.extra, "reward": self.reward}
        return {"seen": seen, "acted": acted, "phase": self.phase, "ended_at": self.ended_at, **waiting}

    @classmethod
    def of(cls, episode: SingleAgentEpisode, record: Mapping[str, Any]) -> Timeline:
        """The timeline of an agent's own episode and a `record`."""
        seen, acted = np.array(record["seen"], np.int64), np.array(record["acted"], np.int64)
        done = episode.is_numpy
        line = cls(episode, _finished(seen) if done else seen.tolist(), _finished(acted) if done else acted.tolist())
        line.phase, line.ended_at = record["phase"], record["ended_at"]
        line.action, line.extra, line.reward = record["action"], record["extra"], record["reward"]
        return line

    def equals(self, other: Timeline) -> bool:
        """True when both are the same: clocks, phase, ending, episode and pending step."""
        return (
            list(self.seen) == list(other.seen)
            and list(self.acted) == list(other.acted)
            and (self.phase, self.ended_at) == (other.phase, other.ended_at)
            and self.episode.equals(other.episode)
            and equal((self.action, self.reward), (other.action, other.reward))
            and same_info(self.extra, other.extra)
        )


def complete_steps(
    timelines: Mapping[Any, Timeline],
    observations: Mapping[Any, Any],
    actions: Mapping[Any, Any],
    rewards: Mapping[Any, Any],
    infos: Mapping[Any, Any],
    extra: Mapping[Any, Any],
    env_t: int,
) -> None:
    """Add the step that each observation completes: the pending one, else that of an action of the env step before.

    All agents in one loop, here and in `Agents.check_step`: a call for each would be a tenth of an agent's step.

    Args:
        observations: by agent, which passed the check; those without a timeline are left out.
        actions: taken at the env step before; not looked at while one is pending. Likewise `extra`.
        rewards: of this env step; what came before is added.
    """
    acted_at = env_t - 1
    for agent_id, observation in observations.items():
        if agent_id not in timelines:
            continue
        line = timelines[agent_id]
        is_pending = False
        if line.phase == WAITS:
            action, outputs, is_pending = line.action, line.extra, True
        else:
            action, outputs = actions[agent_id], extra.get(agent_id) if extra else None
            line.acted.append(acted_at)
        reward = rewards.get(agent_id)
        if line.reward is not None:
            reward, is_pending = line.reward if reward is None else line.reward + reward, True
        own = line.episode
        observed, acted, paid, told, pairs = own.growth or own.growing("add_env_step")
        if outputs:
            for key, items in pairs or own.create_extra_tracks(outputs):
                items.append(outputs[key])
        observed.append(observation)
        acted.append(action)
        paid.append(reward)
        told.append(infos.get(agent_id) or {} if infos else {})
        line.seen.append(env_t)
        if is_pending:
            line.phase, line.action, line.extra, line.reward = RESTS, None, None, None


def place_of(episode_id: Any, agent_id: Any, env_t: int) -> str:
    """An agent at an env step, for errors."""
    return f"episode {episode_id}: agent {agent_id!r} at env step {env_t}"


def done_since(place: str, env_t: int) -> str:
    """What is wrong with an action after the end."""
    return f"{place}: it is done since env step {env_t}; leave its action out"


def after_end(place: str, env_t: int) -> str:
    """What is wrong with an observation after the end."""
    return f"{place}: an observation after its end (env step {env_t})"


def _finished(times: Any) -> np.ndarray:
    """The env_step_index as a read-only array."""
    finished = times if type(times) is np.ndarray else np.array(times, np.int64)
    finished.flags.writeable = False
    return finished


def _joined(times: Any, later: Any) -> Any:
    if type(times) is np.ndarray:
        return _finished(np.concatenate([times, later]))
    times.extend(array("q", later))
    return times
