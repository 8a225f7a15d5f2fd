"""One agent's life in a multi-agent episode: its own episode, its clocks, and what it waits with."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from episodes.multi_agent import clock
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import ListTrack

RESTS: Final = "rests"  # it has an observation and has not acted on it
WAITS: Final = "waits"  # it has acted and waits for its next observation
ENDED: Final = "ended"  # it terminated or was truncated


Clock = Sequence[int] | np.ndarray
_CLOCKS = (array, np.ndarray)  # a clock that grows, a finished one


class Chunk(NamedTuple):
    """A range of env steps of an episode."""

    begin: int  # the env step of the chunk's first observation
    end: int  # the env step of its last one
    lookback: int  # how many env steps before `begin` stay within reach
    is_last: bool  # True when the chunk reaches the episode's newest env step


class AgentTimeline:
    """An agent's episode, and the env steps at which its observations arrived and at which it acted.

    While the agent waits, `action` and `extra` hold its pending step, and `acted` one entry more than the episode has
    actions. `reward` is the sum of the rewards since its last observation, None when there was none.
    """

    __slots__ = ("acted", "action", "ended_at", "episode", "extra", "phase", "reward", "seen")

    def __init__(self, episode: SingleAgentEpisode, seen: Clock, acted: Clock = ()) -> None:
        self.episode = episode
        self.seen: Any = seen if type(seen) in _CLOCKS else array("q", seen)  # [L + T + 1] env steps
        self.acted: Any = acted if type(acted) in _CLOCKS else array("q", acted)  # [L + T (+ 1 while it waits)]
        self.phase: str = ENDED if episode.is_terminated or episode.is_truncated else RESTS
        self.action: Any = None
        self.extra: Mapping[str, Any] | None = None
        self.reward: Any = None
        self.ended_at: Any = None  # the env step at which it ended

    def wait_with(self, action: Any, extra: Mapping[str, Any] | None, env_t: int) -> None:
        """Keep the action taken at an env step until the next observation comes."""
        self.action, self.extra, self.phase = action, extra, WAITS
        self.acted.append(env_t)

    def end(self, terminated: bool, truncated: bool, env_t: int) -> None:
        """The agent is done at an env step."""
        episode = self.episode
        episode.is_terminated, episode.is_truncated, episode._grow = terminated, truncated, None
        episode._stop_clock()
        self.phase, self.ended_at = ENDED, env_t

    def to_numpy(self) -> None:
        """Finalize the agent's episode and its clocks."""
        self.episode.to_numpy()
        self.seen, self.acted = _finished(self.seen), _finished(self.acted)

    def chunk(self, chunk: Chunk) -> AgentTimeline | None:
        """The agent's part of a range of env steps; None when it has none there. Views where it is finished."""
        first, zero, last = clock.chunk_rows(self.seen, self.acted, (chunk.begin, chunk.end), chunk.lookback)
        if last == clock.MISSING or (self.ended_at is not None and self.is_gone(chunk)):
            return None
        episode, lookback = self.episode, zero - first
        infos, outputs = episode.infos, episode.extra_model_outputs
        ends = self.ended_at is not None and self.ended_at <= chunk.end
        part = episode._derived(
            observations=episode.observations.view(first, last + 1, lookback),
            actions=episode.actions.view(first, last, lookback),
            rewards=episode.rewards.view(first, last, lookback),
            infos=infos[first : last + 1] if type(infos) is list else infos.view(first, last + 1),  # type: ignore[union-attr]
            extra_model_outputs={k: v.view(first, last, lookback) for k, v in outputs.items()} if outputs else {},
            lookback=lookback,
            t_started=episode.t_started + zero - episode.lookback,
            terminated=ends and episode.is_terminated,
            truncated=ends and episode.is_truncated,
        )
        part._item_shape = episode._item_shape
        waits = chunk.is_last and self.phase == WAITS
        piece = AgentTimeline(part, self.seen[first : last + 1], self.acted[first : last + waits])
        if ends:
            piece.ended_at = self.ended_at
        elif chunk.is_last:
            piece.take_pending(self)
        return piece

    def is_gone(self, chunk: Chunk) -> bool:
        """True when the agent ended before the chunk and left nothing within reach of it."""
        return (
            self.ended_at is not None and self.ended_at <= chunk.begin and self.seen[-1] < chunk.begin - chunk.lookback
        )

    def thawed(self) -> AgentTimeline:
        """This timeline where it grows; a copy with lists where it is finished."""
        own = self.episode
        if not own.is_numpy:
            return self
        grown = lambda track: ListTrack(track.item_list(0, track.total), track.lookback)  # noqa: E731
        episode = own._derived(
            observations=grown(own.observations),
            actions=grown(own.actions),
            rewards=grown(own.rewards),
            infos=list(own.infos),
            extra_model_outputs={key: grown(track) for key, track in own.extra_model_outputs.items()},
            lookback=own.lookback,
            t_started=own.t_started,
            terminated=own.is_terminated,
            truncated=own.is_truncated,
        )
        episode._item_shape = own._item_shape
        timeline = AgentTimeline(episode, self.seen.tolist(), self.acted.tolist())
        timeline.ended_at = self.ended_at
        timeline.take_pending(self)
        return timeline

    def take_pending(self, other: AgentTimeline) -> None:
        """Wait with what the other waits with; `acted` is left as it is."""
        self.phase, self.action, self.extra, self.reward = other.phase, other.action, other.extra, other.reward

    def drop_pending(self) -> None:
        """Forget what it waits with: it belongs to the next chunk."""
        if self.phase == WAITS:
            self.acted = self.acted[:-1]
            self.phase = RESTS
        self.action = self.extra = self.reward = None

    def append(self, later: AgentTimeline) -> None:
        """Go on with the timeline of the next chunk, whose lookback is dropped."""
        lookback = later.episode.lookback
        self.drop_pending()
        self.episode.concat_episode(later.episode)
        self.episode._item_shape = self.episode._item_shape or later.episode._item_shape
        self.seen = _joined(self.seen, later.seen[lookback + 1 :])
        self.acted = _joined(self.acted, later.acted[lookback:])
        self.take_pending(later)
        self.ended_at = later.ended_at


def _finished(times: Any) -> np.ndarray:
    """The clock as a read-only array."""
    if type(times) is np.ndarray:
        return times
    finished = np.array(times, np.int64)
    finished.flags.writeable = False
    return finished


def _joined(times: Any, later: Any) -> Any:
    if type(times) is np.ndarray:
        joined = np.concatenate([times, later])
        joined.flags.writeable = False
        return joined
    times.extend(array("q", later))
    return times
