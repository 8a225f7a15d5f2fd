"""`Timeline`: the steps of one agent in a multi-agent episode, the env step of each, and its pending action.

An agent that observes at the env steps 0, 2 and 4 and has acted on each observation, at env step 5:

    env step                       0     1     2     3     4     5 (now)
    observation_times  [0, 2, 4]   o           o           o            its observations arrived
    action_times       [0, 2, 4]   a           a           a            it acted on its newest observation
    its own steps                  |---- 0 ----|---- 1 ----|-- pending

A step goes from an observation to the next one. Complete steps are in `episode`, a `SingleAgentEpisode`: here three
observations, two actions and two rewards. The **pending** step, without a next observation, is stored in the timeline:
its action in `action`, that action's extra model outputs in `extra`, and its env step as the last of `action_times`,
which then has one entry more than the episode has actions. `reward` is the sum of rewards since the newest
observation. `complete_steps` moves action, outputs and reward into the episode.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from episodes.columns import check_extra_output_names
from episodes.errors import ChunkMismatch, InvalidArgument, ShapeMismatch, TrackMismatch, WrongType
from episodes.facts import Ending
from episodes.multi_agent import env_step_index
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import Tracks, track_access
from episodes.tracks.infos.infos import same_info
from episodes.tracks.nested import equal
from episodes.tracks.ragged_items import as_ragged_item

if TYPE_CHECKING:
    from episodes.data_types import AgentID, Item

RESTS: Final = "rests"  # the agent has not acted on its newest observation
WAITS: Final = "waits"  # the agent has a pending action, without a next observation
ENDED: Final = "ended"  # the agent terminated or was truncated

NOTHING: Final[Mapping[Any, Any]] = {}

Times = array | np.ndarray  # ascending env steps, of a growing and of a finalized episode


class Chunk(NamedTuple):
    """Range of env steps of a multi-agent episode, and the number of env steps before it that are kept as lookback."""

    begin: int  # env step of the chunk's first observations
    end: int  # env step of its last observations
    lookback: int  # number of env steps before `begin` to keep
    is_last: bool  # True if the chunk includes the episode's newest env step


class Pending(NamedTuple):
    """Action of an agent whose next observation has not arrived, with its rewards so far and extra model outputs."""

    phase: str
    action: Any
    extra: Mapping[str, Any] | None
    reward: Any
    acted_at: int | None  # env step of the pending action, or None


class Timeline:
    """Steps of one agent in a multi-agent episode, with the env step of each item, and the agent's pending action."""

    __slots__ = (
        "action",
        "action_times",
        "ended_at",
        "episode",
        "extra",
        "item_shape",
        "observation_times",
        "phase",
        "reward",
    )

    def __init__(
        self, episode: SingleAgentEpisode, observation_times: Times, action_times: Times, phase: str = RESTS
    ) -> None:
        self.episode = episode
        self.observation_times: Any = observation_times  # [L + T + 1] env steps
        self.action_times: Any = action_times  # [L + T (+ 1 while it waits)]
        self.phase = phase
        self.action: Any = None  # the pending action
        self.extra: Mapping[str, Any] | None = None  # extra model outputs of the pending action
        self.reward: Any = None  # sum of rewards since the newest observation, or None
        self.ended_at: Any = None  # env step at which the agent ended
        self.item_shape: Any = None  # shape of added observations; a setter may store observations of another shape

    # --- checks, which write nothing ---------------------------------------------------------------------------

    def check_action(self, outputs: Mapping[str, Any] | None, env_t: int) -> None:
        """Check an action of the agent at env step `env_t`, with its extra model outputs, before it is stored.

        Raises:
            InvalidArgument: the agent has ended, or has no observation since its last action.
            WrongType: `outputs` is not a dict.
            TrackMismatch: a name is one of this library's, or the names differ from those of earlier steps.
            ShapeMismatch: an output has another shape than before.
        """
        if self.phase != RESTS:
            raise self._cannot_act(env_t)
        outputs = outputs or NOTHING
        if type(outputs) is not dict and not isinstance(outputs, Mapping):
            raise WrongType(f"{self._at(env_t, 'acts')} with extra_model_outputs={outputs!r}; give a dict by key")
        tracks = self.episode.tracks
        known = tracks.extra
        if outputs and not known:
            check_extra_output_names(outputs, self._at(env_t, "acts"))
        if known.keys() != outputs.keys() and (known or tracks.rewards.total):
            raise TrackMismatch(
                f"{self._at(env_t, 'acts')} with the extra model outputs {list(outputs)}, its steps so far have "
                f"{list(known)}; every step of an agent has the same"
            )
        for key, track in known.items():
            if track.ragged is not None:
                continue  # checked by `Agents.with_ragged_items`
            items, new = track.data, outputs[key]
            first = items[0] if len(items) else None
            if type(first) is np.ndarray and (new.shape if type(new) is np.ndarray else np.shape(new)) != first.shape:
                raise ShapeMismatch(
                    f"{self._at(env_t, 'acts')}: {track.field.label} has shape {np.shape(new)}, earlier items have "
                    f"shape {first.shape}; give that shape"
                )

    def check_shape(self, observation: Item, env_t: int) -> None:
        """Raise `ShapeMismatch` unless the observation has the shape of the agent's earlier observations."""
        kind = self.episode.observations.ragged
        if kind is not None:
            as_ragged_item(observation, kind, lambda: f"{self._place(env_t)}: the observation")
            return
        newest = self.episode.observations.get(-1)
        shape = self.item_shape
        if shape is None:
            shape = self.item_shape = track_access.shape_of(newest)
        if observation is newest:
            return

        space, label = self.episode.observation_space, partial(self._place, env_t)
        if track_access.checked_observation(observation, shape, space, label) is not observation:
            raise ShapeMismatch(f"{label()}: the observation has lists where its space has tuples; give tuples")

    def _place(self, env_t: int) -> str:
        """Return the prefix of error messages: episode, agent and env step."""
        agent_episode = self.episode
        return place_of(agent_episode.multi_agent_episode_id, agent_episode.agent_id, env_t)

    def _at(self, env_t: int, does: str) -> str:
        """Return the first words of an error: episode, agent, what it does, and the env step."""
        facts = self.episode.facts
        return f"episode {facts.multi_agent_episode_id}: agent {facts.agent_id!r} {does} at env step {env_t}"

    def _cannot_act(self, env_t: int) -> InvalidArgument:
        """Return the error for an action of an agent that has ended, or has no observation since its last action."""
        place = self._at(env_t, "cannot act")
        if self.phase == ENDED:
            return InvalidArgument(done_since(place, self.ended_at))
        return InvalidArgument(f"{place}: it acted at env step {self.action_times[-1]} and has no observation since")

    def no_reward(self, env_t: int) -> InvalidArgument:
        """Return the error for an agent whose step ends without a reward, at an observation or at the end."""
        acted = f" at env step {self.action_times[-1]}" if len(self.action_times) else ""
        return InvalidArgument(
            f"{self._place(env_t)}: no reward came since it acted{acted}, though its next observation is here or its "
            "episode ends; give a reward (0.0 counts)"
        )

    def cannot_observe(self, env_t: int) -> InvalidArgument:
        """Return the error for observing an agent that has ended or has not acted since its last observation."""
        if self.phase == ENDED:
            return InvalidArgument(after_end(self._place(env_t), self.ended_at))
        return InvalidArgument(
            f"{self._place(env_t)}: an observation, though it has not acted on that of env step "
            f"{self.observation_times[-1]}; give its action first, or leave out the observation"
        )

    # --- growing -----------------------------------------------------------------------------------------------

    def set_pending_action(self, action: Item | None, extra: Mapping[str, Any] | None, env_t: int) -> None:
        """Store the action taken at env step `env_t`. The agent's next observation will complete the step."""
        self.action_times.append(env_t)
        self.action, self.extra, self.phase = action, extra, WAITS

    def end(self, ending: Ending, env_t: int) -> None:
        """Mark the agent as ended at env step `env_t`, with the given ending.

        Rewards since the newest observation are dropped here.
        """
        self.episode.end(ending)
        self.phase, self.ended_at, self.reward = ENDED, env_t, None

    def finish(self, tracks: Tracks) -> None:
        """Replace the lists of the agent's episode by the arrays `tracks`."""
        self.episode.finish(tracks)
        self.observation_times, self.action_times = _finished(self.observation_times), _finished(self.action_times)

    def as_finished(self) -> Timeline:
        """Return a copy of this timeline with its data as arrays, or the timeline itself if it holds arrays already."""
        if self.episode.is_numpy:
            return self
        timeline = copy(self)
        timeline.episode = self.episode.as_finished()
        timeline.observation_times = _finished(self.observation_times)
        timeline.action_times = _finished(self.action_times)
        return timeline

    # --- windows, and pending steps at their borders -------------------------------------------------------------

    def window(self, chunk: Chunk) -> Timeline | None:
        """Return the agent's part in the range `chunk` of env steps. Return None if the agent was first observed after
        the range, or had ended before it.

        An agent without any observation in the range keeps its newest earlier observation, without steps. Arrays are
        views.
        """
        begin, end, lookback, is_last = chunk
        first, zero, last = env_step_index.chunk_rows(self.observation_times, self.action_times, (begin, end), lookback)
        if last == env_step_index.MISSING or (self.ended_at is not None and self.is_gone(chunk)):
            return None
        ends = self.ended_at is not None and self.ended_at <= end
        agent_episode = self.episode
        before = agent_episode.lookback
        part = agent_episode.window(zero - before, last - before, zero - first, ends)
        waits = is_last and self.phase == WAITS
        phase = ENDED if ends else WAITS if waits else RESTS
        piece = Timeline(part, self.observation_times[first : last + 1], self.action_times[first : last + waits], phase)
        piece.item_shape, piece.ended_at = self.item_shape, self.ended_at if ends else None
        if is_last and not ends:
            piece.action, piece.extra, piece.reward = self.action, self.extra, self.reward
        return piece

    def is_gone(self, chunk: Chunk) -> bool:
        """Return True if the agent ended before the range `chunk` and has no data in the range or its lookback."""
        return (
            self.ended_at is not None
            and self.ended_at <= chunk.begin
            and self.observation_times[-1] < chunk.begin - chunk.lookback
        )

    def as_growing(self) -> Timeline:
        """Return a copy of this timeline to which steps can be added, or the timeline itself if it can already grow."""
        if not self.episode.is_numpy:
            return self
        timeline = copy(self)
        timeline.episode = self.episode.as_growing()
        timeline.observation_times, timeline.action_times = (
            _growing(self.observation_times),
            _growing(self.action_times),
        )
        return timeline

    def pending(self) -> Pending:
        """Return the agent's pending step: its action, extra outputs, reward sum and env step."""
        acted_at = int(self.action_times[-1]) if self.phase == WAITS else None
        return Pending(self.phase, self.action, self.extra, self.reward, acted_at)

    def drop_pending(self) -> None:
        """Remove the pending action, because the next chunk of the episode takes it over."""
        action_times = self.action_times[:-1] if self.phase == WAITS else self.action_times
        self.action_times, self.phase, self.action, self.extra, self.reward = action_times, RESTS, None, None, None

    def restore_pending(self, pending: Pending) -> None:
        """Restore a pending action that `drop_pending` removed."""
        self.phase, self.action, self.extra, self.reward, acted_at = pending
        if acted_at is not None:
            self.action_times = _joined(self.action_times, [acted_at])

    def check_follows(self, later: Timeline | None, env_t: int) -> None:
        """Raise `ChunkMismatch` unless `later`, which begins at env step `env_t`, continues this agent's steps."""
        if self.phase == ENDED:
            return
        if later is None:
            raise ChunkMismatch(f"{self._at(env_t, 'is ongoing')}, and the chunk that begins there does not have it")
        self.episode.check_follows(later.episode)

    def append(self, later: Timeline, tracks: Tracks | None = None) -> None:
        """Append the agent's steps of `later`, the next chunk of the episode, and take over its pending action.

        Args:
            later: a timeline that passed `check_follows`.
            tracks: the `joined_tracks` of the agent's episode if it is finalized.
        """
        if self.phase == ENDED:
            return
        lookback = later.episode.lookback
        self.drop_pending()
        self.episode.extend(later.episode, tracks)
        self.item_shape = self.item_shape or later.item_shape
        self.observation_times = _joined(self.observation_times, later.observation_times[lookback + 1 :])
        self.action_times = _joined(self.action_times, later.action_times[lookback:])
        self.phase, self.ended_at = later.phase, later.ended_at
        self.action, self.extra, self.reward = later.action, later.extra, later.reward

    # --- state -------------------------------------------------------------------------------------------------

    def env_steps_back(self, num_steps: int, env_t: int) -> int:
        """Return how many env steps before `env_t` the agent's last `num_steps` complete steps began.

        It is 0 if the agent has ended.
        """
        if not num_steps or self.phase == ENDED or not len(self.action_times):
            return 0
        return env_t - self.action_times[max(self.episode.actions.total - num_steps, 0)]

    def validate(self) -> None:
        """Raise `TrackMismatch` unless every observation and every action has its env step."""
        self.episode.validate()
        facts, tracks = self.episode.facts, self.episode.tracks
        num_observations, num_actions = tracks.observations.total, tracks.actions.total
        times = len(self.observation_times), len(self.action_times)
        if times[0] != num_observations or times[1] - num_actions not in (0, 1):
            raise TrackMismatch(
                f"episode {facts.multi_agent_episode_id}: agent {facts.agent_id!r} has {num_observations} observations "
                f"and {num_actions} actions, with {times[0]} and {times[1]} env steps"
            )

    def env_times(self) -> tuple[np.ndarray, np.ndarray]:
        """Return copies of the env steps of the agent's observations and of its actions, as two int64 arrays."""
        return np.array(self.observation_times, np.int64), np.array(self.action_times, np.int64)

    def record(self) -> dict[str, Any]:
        """Return the timeline's data besides the steps as a dict: env steps, phase and pending action."""
        observation_times, action_times = self.env_times()
        return {"seen": observation_times, "acted": action_times} | {name: getattr(self, name) for name in _RECORD}

    @classmethod
    def of(cls, episode: SingleAgentEpisode, record: Mapping[str, Any]) -> Timeline:
        """Create a timeline from an agent's episode and the dict that `record` returned."""
        convert = _finished if episode.is_numpy else _growing
        timeline = cls(
            episode, convert(np.array(record["seen"], np.int64)), convert(np.array(record["acted"], np.int64))
        )
        for name in _RECORD:
            setattr(timeline, name, record[name])
        return timeline

    def equals(self, compared: Timeline) -> bool:
        """Return True if both agents have equal steps, env steps, phase, ending and pending action."""
        return (
            list(self.observation_times) == list(compared.observation_times)
            and list(self.action_times) == list(compared.action_times)
            and (self.phase, self.ended_at) == (compared.phase, compared.ended_at)
            and self.episode.equals(compared.episode)
            and equal((self.action, self.reward), (compared.action, compared.reward))
            and same_info(self.extra, compared.extra)
        )


_RECORD = ("phase", "ended_at", "action", "extra", "reward")  # attributes in `Timeline.record`


def complete_steps(
    timelines: Mapping[Any, Timeline],
    observations: Mapping[Any, Any],
    actions: Mapping[Any, Any],
    rewards: Mapping[Any, Any],
    infos: Mapping[Any, Any],
    extra: Mapping[Any, Any],
    env_t: int,
) -> None:
    """Complete the step of each agent that got an observation: add its action, its reward and the observation.

    One loop over all agents, as in `Agents.check_step`: a call per agent would take a tenth of an agent's step.

    Args:
        observations: by agent, checked; agents without a timeline are skipped.
        actions: actions at the previous env step, used for agents without a pending action.
        rewards: rewards of this env step, which are added to the sum since the newest observation.
        infos: infos of this env step by agent.
        extra: extra model outputs of `actions`.
        env_t: the env step of the observations.
    """
    acted_at = env_t - 1
    for agent_id, observation in observations.items():
        if agent_id not in timelines:
            continue
        timeline = timelines[agent_id]
        is_pending = False
        if timeline.phase == WAITS:
            action, outputs, is_pending = timeline.action, timeline.extra, True
        else:
            action, outputs = actions[agent_id], extra.get(agent_id) if extra else None
            timeline.action_times.append(acted_at)
        reward = rewards.get(agent_id)
        if timeline.reward is not None:
            reward, is_pending = timeline.reward if reward is None else timeline.reward + reward, True
        agent_episode = timeline.episode
        own_observations, own_actions, own_rewards, own_infos, pairs = agent_episode.growth or agent_episode.growing(
            "add_env_step"
        )
        if outputs:
            for key, items in pairs or agent_episode.create_extra_tracks(outputs):
                items.append(outputs[key])
        own_observations.append(observation)
        own_actions.append(action)
        own_rewards.append(reward)
        own_infos.append(infos.get(agent_id) or {} if infos else {})
        timeline.observation_times.append(env_t)
        if is_pending:
            timeline.phase, timeline.action, timeline.extra, timeline.reward = RESTS, None, None, None


def place_of(episode_id: str, agent_id: AgentID, env_t: int) -> str:
    """Return the prefix of error messages: episode, agent and env step."""
    return f"episode {episode_id}: agent {agent_id!r} at env step {env_t}"


def done_since(place: str, env_t: int) -> str:
    """Return the error text for an action of an agent that has ended."""
    return f"{place}: it is done since env step {env_t}; leave its action out"


def after_end(place: str, env_t: int) -> str:
    """Return the error text for an observation of an agent that has ended."""
    return (
        f"{place}: an observation after its end (env step {env_t}); leave it out, or give an agent that comes back a "
        "new id"
    )


def _growing(times: np.ndarray) -> array:
    """Convert an array of env steps to one to which env steps can be appended."""
    return array("q", times.tolist())


def _finished(times: array[int] | np.ndarray) -> np.ndarray:
    """Convert env steps to a read-only int64 array."""
    finished = times if type(times) is np.ndarray else np.array(times, np.int64)
    finished.flags.writeable = False
    return finished


def _joined(times: Any, later: Sequence[int] | np.ndarray) -> Any:
    """Append the env steps `later` to `times`, and return the result.

    The result is a new array if `times` is a numpy array. Otherwise it is `times` itself.
    """
    if type(times) is np.ndarray:
        return _finished(np.concatenate([times, later]))
    times.extend(array("q", later))
    return times
