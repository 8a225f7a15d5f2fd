"""Reading a multi-agent episode: from env steps (or agents' own steps) to items. Pure functions over timelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


class Column(NamedTuple):
    """One track of one agent, with the env steps of its items and the item that waits, if one does."""

    track: Track
    times: Sequence[int]
    lookback: int
    waiting: tuple[Any, ...]  # the pending item, which comes after the track's last
    space: spaces.Space | None

    @property
    def num_items(self) -> int:
        """All items, the lookback's and the pending one included."""
        return len(self.times)

    @property
    def num_steps(self) -> int:
        """The items from step 0 on, the pending one not counted."""
        return len(self.times) - self.lookback - len(self.waiting)


def observations_of(line: Timeline) -> Column:
    """The agent's observations."""
    track = line.episode.tracks.observations
    return Column(track, line.seen, track.lookback, (), line.episode.observation_space)


def infos_of(line: Timeline) -> Column:
    """The agent's infos."""
    track = line.episode.tracks.infos
    return Column(track, line.seen, track.lookback, (), None)


def actions_of(line: Timeline) -> Column:
    """The agent's actions, at the env steps at which it acted."""
    track = line.episode.tracks.actions
    waiting = (line.action,) if line.phase == WAITS else ()
    return Column(track, line.acted, track.lookback, waiting, line.episode.action_space)


def rewards_of(line: Timeline) -> Column:
    """The agent's rewards, at the env steps of the actions that they reward."""
    track = line.episode.tracks.rewards
    waiting = (0.0 if line.reward is None else line.reward,) if line.phase == WAITS else ()
    return Column(track, line.acted, track.lookback, waiting, None)


def outputs_of(key: str) -> Callable[[Timeline], Column | None]:
    """A function that gives an agent's extra model output of that key; None when it has none."""

    def column(line: Timeline) -> Column | None:
        own = line.episode
        track = own.extra_model_outputs.get(key)
        waiting = (line.extra[key],) if line.phase == WAITS and line.extra and key in line.extra else ()
        if track is None or not (track.total or waiting):
            nothing = ArrayTrack(np.zeros(0)) if own.is_numpy else ListTrack()
            return Column(nothing, line.acted, 0, waiting, None) if waiting else None
        return Column(track, line.acted, own.lookback, waiting, None)

    return column


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of one call of a getter. `MultiAgentGetters` documents them."""

    name: str  # of the track, as error messages write it
    indices: Indices
    agent_ids: Any
    env_steps: bool
    neg_index_as_lookback: bool
    fill: Any
    return_list: bool
    one_hot_discrete: bool = False


class EnvSteps(NamedTuple):
    """The env steps that a request means."""

    wanted: int | range | list[int]
    origin: int  # the earliest one within reach


def env_steps_of(request: Request, chunk: tuple[int, int], size: int) -> EnvSteps:
    """The env steps of a request: within the chunk, unless they are to be filled.

    Args:
        chunk: the env step at which the chunk begins, and its lookback in env steps.
        size: how many env steps from the chunk's step 0 on have items.
    """
    begin, lookback = chunk
    origin, found = begin - lookback, _positions(request, lookback, size)
    if isinstance(found, int):
        return EnvSteps(origin + found, origin)
    if isinstance(found, range):
        return EnvSteps(range(origin + found.start, origin + found.stop, found.step), origin)
    return EnvSteps((found + origin).tolist(), origin)


def _positions(request: Request, lookback: int, size: int) -> int | range | np.ndarray:
    """The positions that the request means: those there are, unless they are to be filled."""
    if request.fill is not None:
        return indexing.positions(request.indices, lookback, size, request.neg_index_as_lookback)
    return indexing.positions_there(request.indices, lookback, size, request.neg_index_as_lookback, request.name)


def by_env_step(request: Request, column: Column, steps: EnvSteps) -> tuple[Any, ...]:
    """The item or batch of one agent at the env steps, in a tuple; an empty one when it has nothing there."""
    wanted, origin = steps
    if isinstance(wanted, int):
        row = env_step_index.row_at(column.times, wanted) if wanted >= origin else MISSING
        return (item_at(request, column, row),) if row != MISSING or request.fill is not None else ()
    if request.fill is not None:
        return (filled(request, column, _aligned_rows(column, wanted, origin)),)
    if isinstance(wanted, range) and wanted.step == 1:
        first, stop = env_step_index.rows_between(column.times, wanted.start, wanted.stop)
        return (batch_at(request, column, range(first, stop)),) if stop > first else ()
    rows = [row for row in env_step_index.rows_of(column.times, wanted, origin) if row != MISSING]
    return (batch_at(request, column, rows),) if rows else ()


def _aligned_rows(column: Column, wanted: range | list[int], origin: int) -> list[int]:
    """The row of each env step wanted, `MISSING` where the agent has none."""
    if not isinstance(wanted, range) or wanted.step != 1:
        return env_step_index.rows_of(column.times, wanted, origin)
    rows = [MISSING] * len(wanted)
    first, stop = env_step_index.rows_between(column.times, max(wanted.start, origin), wanted.stop)
    for row in range(first, stop):
        rows[column.times[row] - wanted.start] = row
    return rows


def by_agent_step(request: Request, column: Column) -> tuple[Any, ...]:
    """The item or batch of one agent at its own steps, in a tuple; an empty one when there is nothing.

    `None` means the steps that are complete; other indices may mean the pending one, as the last.
    """
    rows = _own_rows(request, column)
    if isinstance(rows, int):
        return (item_at(request, column, rows if 0 <= rows < column.num_items else MISSING),)
    if not len(rows):
        return ()
    if request.fill is None:
        return (batch_at(request, column, rows),)
    return (filled(request, column, [row if 0 <= row < column.num_items else MISSING for row in rows]),)


def _own_rows(request: Request, column: Column) -> int | range | list[int]:
    """The rows that indices of the agent's own steps mean; all of them there, unless they are to be filled."""
    if request.indices is None:
        return range(column.lookback, column.lookback + column.num_steps)
    rows = _positions(request, column.lookback, column.num_items - column.lookback)
    return rows.tolist() if isinstance(rows, np.ndarray) else rows


# --- items of one column -------------------------------------------------------------------------------------


def item_at(request: Request, column: Column, row: int) -> Any:
    """The item of a row of the column; what fills in for it where it is missing."""
    if row == MISSING:
        stand_in = filled(request, column, [MISSING])
        return nested.take(stand_in, 0) if _is_array(column) else stand_in[0]
    item = _item(column, row)
    if request.one_hot_discrete:
        return nested.take(one_hot(_stacked(column, [item]), column.space), 0)
    return item


def batch_at(request: Request, column: Column, rows: range | list[int]) -> Any:
    """The items of rows that are all there: a list while the episode grows, arrays once it is finalized."""
    batch = _arrays(column, rows) if type(column.track) is ArrayTrack else _items(column, rows)
    if not request.one_hot_discrete:
        return batch
    if _is_array(column):
        return one_hot(batch, column.space)
    return track_access.unstacked(one_hot(_stacked(column, batch), column.space), len(batch))


def filled(request: Request, column: Column, rows: Sequence[int]) -> Any:
    """The items of the rows, with `request.fill` in the item's shape and dtype where a row is missing."""
    fill = request.fill
    if not column.num_items and column.track.field.holds == "arrays":
        return _filled_empty(request, column, len(rows))
    if not _is_array(column) and not request.one_hot_discrete:
        holds_infos = column.track.field.holds == "infos"
        stand_in = fill if holds_infos else ItemKinds().filler(_items(column, range(column.num_items)), fill)
        return [stand_in if row == MISSING else _item(column, row) for row in rows]
    there = [row for row in rows if row != MISSING] or list(range(min(column.num_items, 1)))
    items = batch_at(request, column, there)
    arrays = items if _is_array(column) else nested.stack(items)
    compact = np.cumsum(np.array(rows) != MISSING) - 1
    compact[np.array(rows) == MISSING] = MISSING
    answer = ArrayTrack(arrays).get_at(compact, fill)
    return answer if _is_array(column) else track_access.unstacked(answer, len(rows))


def _filled_empty(request: Request, column: Column, size: int) -> Any:
    """So many fills where no item tells their shape: the space does, where there is one."""
    is_array = _is_array(column)
    if not is_array and dtypes_of(column.space) is None:
        return [request.fill] * size
    items = column.track.finalize(column.space).whole()
    items = one_hot(items, column.space) if request.one_hot_discrete else items
    answer = ArrayTrack(items).get_at(np.full(size, MISSING), request.fill)
    return answer if is_array else track_access.unstacked(answer, size)


def _is_array(column: Column) -> bool:
    return type(column.track) is ArrayTrack


def _item(column: Column, row: int) -> Any:
    pending = row - (column.num_items - len(column.waiting))
    return column.waiting[pending] if pending >= 0 else column.track.item(row)


def _items(column: Column, rows: range | list[int]) -> list[Any]:
    if not isinstance(rows, range) or rows.step != 1:
        return [_item(column, row) for row in rows]
    there = column.track.item_list(rows.start, rows.stop)
    return [*there, *column.waiting] if len(there) < len(rows) else there


def _arrays(column: Column, rows: range | list[int]) -> Any:
    """The items of rows of a finished track; the waiting one comes after its last."""
    track, num_done = column.track, len(column.times) - len(column.waiting)
    if isinstance(rows, range) and rows.step == 1 and rows.stop <= num_done:
        return nested.take(track.whole(), slice(rows.start, rows.stop))
    if column.waiting and max(rows) >= num_done:
        pending = ListTrack(list(column.waiting), 0, False, track.field).finalize(column.space)
        track = track.joined(pending) if num_done else pending
    return track.take(np.array(rows, np.int64)).whole()


def _stacked(column: Column, items: list[Any]) -> Any:
    """Items as nested arrays, of the space's dtypes where there is one."""
    return stack_items(items, "track", 0, dtypes_of(column.space))


def newest_observations(lines: Iterable[tuple[Any, Timeline]], now: int) -> dict[Any, Any]:
    """The observations that arrived at the newest env step: what `per_agent` gives for it, on the shortest way."""
    answers = {}
    for agent_id, line in lines:
        if line.seen[-1] == now:
            growth = line.episode.growth  # its first list is that of observations; 40 ns an agent cheaper than tracks
            answers[agent_id] = growth[0][-1] if growth else line.episode.observations.get(-1)
    return answers


def observations_at(lines: Iterable[tuple[Any, Timeline]], t: int) -> dict[Any, Any]:
    """The observations that arrived at an env step: what `per_agent` gives for it, on a shorter way."""
    rows = ((agent_id, line, env_step_index.row_at(line.seen, t)) for agent_id, line in lines)
    return {a: line.episode.observations.item_list(row, row + 1)[0] for a, line, row in rows if row != MISSING}


# --- answers -------------------------------------------------------------------------------------------------


def per_agent(
    request: Request, columns: Iterable[tuple[Any, Column | None]], chunk: tuple[int, int], size: int
) -> dict[Any, Any]:
    """The item or batch of each agent that has one."""
    steps = env_steps_of(request, chunk, size) if request.env_steps else None
    answers = {}
    for agent_id, column in columns:
        if column is None:
            continue
        try:
            found = by_agent_step(request, column) if steps is None else by_env_step(request, column, steps)
        except StepOutOfRange as error:
            raise StepOutOfRange(f"agent {agent_id!r}: {error}") from None
        if found:
            answers[agent_id] = found[0]
    return answers


def per_env_step(
    request: Request, columns: Iterable[tuple[Any, Column | None]], chunk: tuple[int, int], size: int
) -> list[dict[Any, Any]]:
    """One dict for each env step, of the agents that have an item there (all of them with a fill)."""
    wanted, origin = env_steps_of(request, chunk, size)
    if isinstance(wanted, int) or not request.env_steps:
        raise InvalidArgument(
            "return_list=True gives one dict for each env step of a range: give a slice, a list or None, by env steps"
        )
    answers: list[dict[Any, Any]] = [{} for _ in wanted]
    for agent_id, column in columns:
        if column is None:
            continue
        rows = _aligned_rows(column, wanted, origin)
        places = [i for i, row in enumerate(rows) if row != MISSING or request.fill is not None]
        if not places:
            continue
        picked = [rows[i] for i in places]
        batch = filled(request, column, picked) if request.fill is not None else batch_at(request, column, picked)
        items = track_access.unstacked(batch, len(picked)) if _is_array(column) else batch
        for i, item in zip(places, items, strict=True):
            answers[i][agent_id] = item
    return answers
