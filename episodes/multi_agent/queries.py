"""Reading of a multi-agent episode's items for its getters, indexed by env steps or by each agent's own steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument, StepOutOfRange
from episodes.multi_agent import env_step_index
from episodes.multi_agent.env_step_index import MISSING
from episodes.multi_agent.timeline import WAITS, Timeline
from episodes.tracks import ArrayTrack, ListTrack, indexing, nested, track_access
from episodes.tracks.filling import ItemKinds
from episodes.tracks.indexing import Indices
from episodes.tracks.spaces import dtypes_of, one_hot
from episodes.tracks.stacking import stack_items
from episodes.tracks.track import Track


class AgentTrack(NamedTuple):
    """Time series of one agent, such as its actions, with the env step of each item. Includes the pending item."""

    track: Track
    times: Sequence[int]
    lookback: int
    pending: tuple[Any, ...]  # the pending item, which comes after the track's last, or ()
    space: spaces.Space | None

    @property
    def num_items(self) -> int:
        """Number of items, including the lookback and a pending item (an action without a next observation)."""
        return len(self.times)

    @property
    def is_array(self) -> bool:
        """Whether the items are arrays, since the episode is finalized."""
        return type(self.track) is ArrayTrack

    @property
    def num_steps(self) -> int:
        """Number of items from step 0 on, without a pending item."""
        return len(self.times) - self.lookback - len(self.pending)


def observation_track(timeline: Timeline) -> AgentTrack:
    """Return an agent's observations with the env steps at which they arrived."""
    track = timeline.episode.tracks.observations
    return AgentTrack(track, timeline.observation_times, track.lookback, (), timeline.episode.observation_space)


def info_track(timeline: Timeline) -> AgentTrack:
    """Return the infos of an agent's observations, with the env steps at which they arrived."""
    track = timeline.episode.tracks.infos
    return AgentTrack(track, timeline.observation_times, track.lookback, (), None)


def action_track(timeline: Timeline) -> AgentTrack:
    """Return an agent's actions, pending action included, with the env steps at which it acted."""
    track = timeline.episode.tracks.actions
    pending = (timeline.action,) if timeline.phase == WAITS else ()
    return AgentTrack(track, timeline.action_times, track.lookback, pending, timeline.episode.action_space)


def reward_track(timeline: Timeline) -> AgentTrack:
    """Return an agent's rewards, pending sum included, with the env steps of the rewarded actions."""
    track = timeline.episode.tracks.rewards
    pending = (0.0 if timeline.reward is None else timeline.reward,) if timeline.phase == WAITS else ()
    return AgentTrack(track, timeline.action_times, track.lookback, pending, None)


def output_track(key: str) -> Callable[[Timeline], AgentTrack | None]:
    """Return a function that reads the extra model output `key` from an agent's `Timeline`, or None if it is absent."""

    def agent_track(timeline: Timeline) -> AgentTrack | None:
        """Return the items of one extra model output of an agent, a pending one included, or None if the agent has no
        such output.
        """
        agent_episode = timeline.episode
        track = agent_episode.extra_model_outputs.get(key)
        pending = (timeline.extra[key],) if timeline.phase == WAITS and timeline.extra and key in timeline.extra else ()
        if track is None or not (track.total or pending):
            nothing = ArrayTrack(np.zeros(0)) if agent_episode.is_numpy else ListTrack()
            return AgentTrack(nothing, timeline.action_times, 0, pending, None) if pending else None
        return AgentTrack(track, timeline.action_times, agent_episode.lookback, pending, None)

    return agent_track


class ItemKind(NamedTuple):
    """Kind of items that a getter of `MultiAgentEpisode` returns, such as actions."""

    name: str  # as error messages write it
    track_of: Callable[[Timeline], AgentTrack | None]
    per_observation: bool = False  # an env step more than actions have


OBSERVATIONS = ItemKind("observations", observation_track, per_observation=True)
INFOS = ItemKind("infos", info_track, per_observation=True)
ACTIONS = ItemKind("actions", action_track)
REWARDS = ItemKind("rewards", reward_track)


def extra_output(key: str) -> ItemKind:
    """Return the kind of the extra model output `key`."""
    return ItemKind(f"extra_model_outputs[{key!r}]", output_track(key))


class Request(NamedTuple):
    """Arguments of one call of a getter of `MultiAgentEpisode`, such as `get_actions`."""

    kind: ItemKind
    indices: Indices
    agent_ids: Any
    env_steps: bool
    neg_index_as_lookback: bool
    fill: Any
    return_list: bool
    one_hot_discrete: bool = False


class EnvSteps(NamedTuple):
    """Env steps requested by a getter call, and the earliest env step that the episode still holds."""

    env_steps: int | range | list[int]
    origin: int  # the earliest env step of the lookback


def env_steps_of(request: Request, chunk: tuple[int, int], size: int) -> EnvSteps:
    """Return the env steps that the indices of a getter call select. Without a fill, all must be within the episode.

    Args:
        chunk: env step at which the chunk begins, and its lookback in env steps.
        size: number of env steps with items, from the chunk's step 0 on.
    """
    begin, lookback = chunk
    origin, result = begin - lookback, _positions(request, lookback, size)
    if isinstance(result, int):
        return EnvSteps(origin + result, origin)
    if isinstance(result, range):
        return EnvSteps(range(origin + result.start, origin + result.stop, result.step), origin)
    return EnvSteps((result + origin).tolist(), origin)


def _positions(request: Request, lookback: int, size: int) -> int | range | np.ndarray:
    """Return the indices of a getter call as positions counted from the start of the lookback.

    Without a fill value, positions outside of the data raise `StepOutOfRange`.
    """
    if request.fill is not None:
        return indexing.positions(request.indices, lookback, size, request.neg_index_as_lookback)
    return indexing.existing_positions(
        request.indices, lookback, size, request.neg_index_as_lookback, request.kind.name
    )


def by_env_step(request: Request, agent_track: AgentTrack, steps: EnvSteps) -> tuple[Any, ...]:
    """Return one agent's item or batch at the given env steps, in a 1-tuple.

    The tuple is empty if the agent has no item at these env steps and the request has no `fill`.
    """
    env_steps, origin = steps
    if isinstance(env_steps, int):
        row = env_step_index.row_at(agent_track.times, env_steps) if env_steps >= origin else MISSING
        return (item_at(request, agent_track, row),) if row != MISSING or request.fill is not None else ()
    if request.fill is not None:
        return (filled(request, agent_track, _aligned_rows(agent_track, env_steps, origin)),)
    if isinstance(env_steps, range) and env_steps.step == 1:
        first, stop = env_step_index.rows_between(agent_track.times, env_steps.start, env_steps.stop)
        return (batch_at(request, agent_track, range(first, stop)),) if stop > first else ()
    rows = [row for row in env_step_index.rows_of(agent_track.times, env_steps, origin) if row != MISSING]
    return (batch_at(request, agent_track, rows),) if rows else ()


def _aligned_rows(agent_track: AgentTrack, env_steps: range | list[int], origin: int) -> list[int]:
    """Return, for each env step, the position of the agent's item, or `MISSING` (-1) if the env step has no item.

    Env steps before `origin` have no items.
    """
    if not isinstance(env_steps, range) or env_steps.step != 1:
        return env_step_index.rows_of(agent_track.times, env_steps, origin)
    rows = [MISSING] * len(env_steps)
    first, stop = env_step_index.rows_between(agent_track.times, max(env_steps.start, origin), env_steps.stop)
    for row in range(first, stop):
        rows[agent_track.times[row] - env_steps.start] = row
    return rows


def by_agent_step(request: Request, agent_track: AgentTrack) -> tuple[Any, ...]:
    """Return one agent's item or batch at indices of the agent's own steps, in a 1-tuple.

    The tuple is empty if the indices select no step.

    Indices of None mean the complete steps. Other indices may include the pending step, as the last one.
    """
    rows = _own_rows(request, agent_track)
    if isinstance(rows, int):
        return (item_at(request, agent_track, rows if 0 <= rows < agent_track.num_items else MISSING),)
    if not len(rows):
        return ()
    if request.fill is None:
        return (batch_at(request, agent_track, rows),)
    return (filled(request, agent_track, [row if 0 <= row < agent_track.num_items else MISSING for row in rows]),)


def _own_rows(request: Request, agent_track: AgentTrack) -> int | range | list[int]:
    """Convert a getter's indices, which count the agent's own steps, to positions in the agent's items."""
    if request.indices is None:
        return range(agent_track.lookback, agent_track.lookback + agent_track.num_steps)
    rows = _positions(request, agent_track.lookback, agent_track.num_items - agent_track.lookback)
    return rows.tolist() if isinstance(rows, np.ndarray) else rows


# --- items of one agent --------------------------------------------------------------------------------------


def item_at(request: Request, agent_track: AgentTrack, row: int) -> Any:
    """Return an agent's item at position `row`, or the fill value if `row` is `MISSING` (-1)."""
    if row == MISSING:
        stand_in = filled(request, agent_track, [MISSING])
        return nested.take(stand_in, 0) if agent_track.is_array else stand_in[0]
    item = _item(agent_track, row)
    if request.one_hot_discrete:
        return nested.take(one_hot(_stacked(agent_track, [item]), agent_track.space), 0)
    return item


def batch_at(request: Request, agent_track: AgentTrack, rows: range | list[int]) -> Any:
    """Return an agent's items at the positions `rows`: a list if the episode is growing, arrays if it is finalized."""
    batch = _arrays(agent_track, rows) if agent_track.is_array else _items(agent_track, rows)
    if not request.one_hot_discrete:
        return batch
    if agent_track.is_array:
        return one_hot(batch, agent_track.space)
    return track_access.unstacked(one_hot(_stacked(agent_track, batch), agent_track.space), len(batch))


def filled(request: Request, agent_track: AgentTrack, rows: Sequence[int]) -> Any:
    """Return an agent's items at the positions `rows`, with the request's fill value for positions `MISSING` (-1)."""
    fill = request.fill
    if agent_track.track.ragged is not None and not agent_track.is_array and not request.one_hot_discrete:
        field, kinds = agent_track.track.field, agent_track.track.ragged
        track = ListTrack(_items(agent_track, range(agent_track.num_items)), 0, False, field, None, kinds)
        return track.get([agent_track.num_items if row == MISSING else row for row in rows], fill=fill)
    if not agent_track.num_items and agent_track.track.field.holds == "arrays":
        return _filled_empty(request, agent_track, len(rows))
    if not agent_track.is_array and not request.one_hot_discrete:
        holds_infos = agent_track.track.field.holds == "infos"
        stand_in = fill if holds_infos else ItemKinds().filler(_items(agent_track, range(agent_track.num_items)), fill)
        return [stand_in if row == MISSING else _item(agent_track, row) for row in rows]
    existing_rows = [row for row in rows if row != MISSING] or list(range(min(agent_track.num_items, 1)))
    items = batch_at(request, agent_track, existing_rows)
    arrays = items if agent_track.is_array else nested.stack(items)
    compact = np.cumsum(np.array(rows) != MISSING) - 1
    compact[np.array(rows) == MISSING] = MISSING
    answer = ArrayTrack(arrays).get_at(compact, fill)
    return answer if agent_track.is_array else track_access.unstacked(answer, len(rows))


def _filled_empty(request: Request, agent_track: AgentTrack, size: int) -> Any:
    """Return `size` fill values shaped as the agent's space, for an agent that has no items to read."""
    is_array = agent_track.is_array
    if not is_array and dtypes_of(agent_track.space) is None:
        return [request.fill] * size
    items = agent_track.track.finalize(agent_track.space).data
    items = one_hot(items, agent_track.space) if request.one_hot_discrete else items
    answer = ArrayTrack(items).get_at(np.full(size, MISSING), request.fill)
    return answer if is_array else track_access.unstacked(answer, size)


def _item(agent_track: AgentTrack, row: int) -> Any:
    """Return the item of an agent in row `row`. Pending items come after the items of the track."""
    pending = row - (agent_track.num_items - len(agent_track.pending))
    return agent_track.pending[pending] if pending >= 0 else agent_track.track.item(row)


def _items(agent_track: AgentTrack, rows: range | list[int]) -> list[Any]:
    """Return the items of an agent in `rows`, pending items included, as a list."""
    if not isinstance(rows, range) or rows.step != 1:
        return [_item(agent_track, row) for row in rows]
    existing_rows = agent_track.track.item_list(rows.start, rows.stop)
    return [*existing_rows, *agent_track.pending] if len(existing_rows) < len(rows) else existing_rows


def _arrays(agent_track: AgentTrack, rows: range | list[int]) -> Any:
    """Return a finalized agent's items at the positions `rows`, pending item included, as arrays."""
    track, num_done = agent_track.track, len(agent_track.times) - len(agent_track.pending)
    if isinstance(rows, range) and rows.step == 1 and rows.stop <= num_done:
        return nested.take(track.data, slice(rows.start, rows.stop))
    if agent_track.pending and max(rows) >= num_done:
        pending = ListTrack(list(agent_track.pending), 0, False, track.field, None, track.ragged)
        pending = pending.finalize(agent_track.space)
        track = track.joined(pending) if num_done else pending
    return track.take(np.array(rows, np.int64)).data


def _stacked(agent_track: AgentTrack, items: list[Any]) -> Any:
    """Stack items to (nested) arrays with the dtypes of the agent's space."""
    if agent_track.track.ragged is not None:
        return ListTrack(items, 0, False, agent_track.track.field, None, agent_track.track.ragged).finalize().data
    return stack_items(items, "track", 0, dtypes_of(agent_track.space))


def newest_observations(timelines: Iterable[tuple[Any, Timeline]], now: int) -> dict[Any, Any]:
    """Return the observations of the newest env step `now`, as a dict from agent."""
    answers = {}
    for agent_id, timeline in timelines:
        if timeline.observation_times[-1] == now:
            growth = timeline.episode.growth  # its first list is that of the observations
            answers[agent_id] = growth[0][-1] if growth else timeline.episode.observations.get(-1)
    return answers


# --- results -------------------------------------------------------------------------------------------------


def per_agent(
    request: Request, agent_tracks: Iterable[tuple[Any, AgentTrack | None]], chunk: tuple[int, int], size: int
) -> dict[Any, Any]:
    """Return a getter's result as a dict from agent to its item or batch. Agents without such items are left out.

    Args:
        chunk, size: see `env_steps_of`.

    Raises:
        StepOutOfRange: an index has no item and there is no `fill`; the message names the agent.
    """
    steps = env_steps_of(request, chunk, size) if request.env_steps else None
    answers = {}
    for agent_id, agent_track in agent_tracks:
        if agent_track is None:
            continue
        try:
            result = by_agent_step(request, agent_track) if steps is None else by_env_step(request, agent_track, steps)
        except StepOutOfRange as error:
            raise StepOutOfRange(f"agent {agent_id!r}: {error}") from None
        if result:
            answers[agent_id] = result[0]
    return answers


def per_env_step(
    request: Request, agent_tracks: Iterable[tuple[Any, AgentTrack | None]], chunk: tuple[int, int], size: int
) -> list[dict[Any, Any]]:
    """Return a getter's result as a list with one dict from agent to item per env step.

    With a fill value, each dict holds all agents.

    Raises:
        InvalidArgument: indices are a single int or count agent steps.
    """
    env_steps, origin = env_steps_of(request, chunk, size)
    if isinstance(env_steps, int) or not request.env_steps:
        raise InvalidArgument(
            "return_list=True gives one dict for each env step of a range: give a slice, a list or None, by env steps"
        )
    answers: list[dict[Any, Any]] = [{} for _ in env_steps]
    for agent_id, agent_track in agent_tracks:
        if agent_track is None:
            continue
        rows = _aligned_rows(agent_track, env_steps, origin)
        places = [i for i, row in enumerate(rows) if row != MISSING or request.fill is not None]
        if not places:
            continue
        picked = [rows[i] for i in places]
        batch = (
            filled(request, agent_track, picked) if request.fill is not None else batch_at(request, agent_track, picked)
        )
        items = track_access.unstacked(batch, len(picked)) if agent_track.is_array else batch
        for i, item in zip(places, items, strict=True):
            answers[i][agent_id] = item
    return answers
