"""The rows that a recorder holds: one block a leaf, all of the same length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from episodes.errors import ShapeMismatch, TrackMismatch
from episodes.recorder.info_rows import InfoRows
from episodes.recorder.row_blocks import RowBlock, as_numbers, fitted_row, gather, make_blocks, put_fitted, put_row
from episodes.tracks import nested
from episodes.tracks.field import extra_field
from episodes.tracks.spaces import as_rows, dtypes_of, empty_items, irregular_part, of_no_shape

_FIRST_CAPACITY = 32
_ARRAY: Any = np.ndarray  # looked up once


@dataclass(frozen=True, slots=True)
class LastObservations:
    """True last observations of episodes whose row already holds the next episode's first."""

    row: int
    envs: np.ndarray  # [k] int, ascending
    observations: Any  # nested arrays [k, ...]
    info_slot: int


def last_observations_at(kept: Sequence[LastObservations], keys: np.ndarray, num_envs: int) -> tuple[np.ndarray, Any]:
    """Which of those kept have the last observation of row * N + env [k], as numbers [k]; and these, [k, ...]."""
    all_keys = np.concatenate([one.row * num_envs + one.envs for one in kept])
    numbers = np.repeat(np.arange(len(kept)), [len(one.envs) for one in kept])
    order = np.argsort(all_keys)
    at = order[np.searchsorted(all_keys, keys, sorter=order)]
    return numbers[at], nested.take(nested.concatenate([one.observations for one in kept]), at)


@dataclass(frozen=True, slots=True)
class ResetInfo:
    """The vector info of a reset that replaced observations of a row."""

    row: int
    envs: np.ndarray  # [k] int
    info_slot: int


class _Started(NamedTuple):
    """With which row columns began, and what was there before it."""

    row: int
    actions: Any
    rewards: Any
    extras: dict[str, Any]
    in_order: list[Any]
    steps_from: int
    extras_from: int


class RecordedRows:
    """Rows [num_rows, N, ...] of observations, and of the steps that led to them. Row 0 holds no step."""

    def __init__(
        self, num_envs: int, observation_space: spaces.Space | None, action_space: spaces.Space | None
    ) -> None:
        self.num_envs = num_envs
        self.num_rows = 0
        # The rows after this one hold steps. With rows 0 (reset), 1 and 2 it is 0; once `keep(1)` has made rows 1 and
        # 2, which both hold steps, rows 0 and 1, it is -1: row 0 holds one too.
        self.steps_from = 0
        self.extras_from = 0  # likewise, the present extra outputs
        self.infos = InfoRows(num_envs)
        self.info_slots: list[int] = []  # of each row
        self.reset_infos: list[ResetInfo] = []
        self.observations: Any = None
        self.actions: Any = None
        self.rewards: Any = None
        self.extras: dict[str, Any] = {}
        self.stand_ins: dict[str, Any] = {}  # see `VectorRecorder.stand_ins`
        flags = np.zeros(num_envs, bool)
        self.terminateds = RowBlock("terminateds", flags, num_envs, _FIRST_CAPACITY, bool)
        self.truncateds = RowBlock("truncateds", flags, num_envs, _FIRST_CAPACITY, bool)
        self.replaced = RowBlock("replaced", flags, num_envs, _FIRST_CAPACITY, bool)
        self.resets = RowBlock("resets", flags, num_envs, _FIRST_CAPACITY, bool)
        self._in_order: list[Any] = []  # the tracks as `write` gets them
        self._started: _Started | None = None  # with which row the columns began that are there
        self.any_replaced = False
        self._capacity = _FIRST_CAPACITY
        self._observation_dtypes, self._observation_space = dtypes_of(observation_space), observation_space
        self._action_space = action_space

    # --- writing -----------------------------------------------------------------------------------------------

    def begin(self, observations: Any, info: dict[str, Any]) -> None:
        """Write row 0: observations without a step."""
        observations = self._regular("observations", observations, self._observation_space)
        blocks = make_blocks("observations", observations, self.num_envs, self._capacity, self._observation_dtypes)
        put_row(blocks, 0, observations)
        slot = self.infos.add(info)
        self.observations = blocks
        self.commit(slot)

    def write(self, at: int, rows: tuple[Any, ...], extras: Mapping[str, Any], base: int) -> None:
        """Write row `at` without counting it yet (`commit` does), so that a call that fails changes nothing.

        Args:
            rows: observations, actions, rewards, terminateds and truncateds, [N, ...] each.
            base: the newest row at the last take, after which the extra outputs' keys may change.
        """
        if at >= self._capacity:
            self._grow()
        if extras.keys() != self.extras.keys() or self.actions is None:
            self._start_columns(at, rows[1], rows[2], extras, base)
        span, others = slice(at * self.num_envs, (at + 1) * self.num_envs), []
        for blocks, row in zip(self._in_order, (*rows, *map(extras.__getitem__, self.extras)), strict=True):
            if type(row) is _ARRAY and type(blocks) is RowBlock:
                if blocks.numbers is not None:
                    try:  # half the time of an array: a memoryview accepts nothing of another shape or dtype
                        blocks.numbers[span] = row
                        continue
                    except (TypeError, ValueError, NotImplementedError):
                        pass
                elif row.dtype is blocks.dtype and row.shape == blocks.shape:
                    blocks.data[at] = row
                    continue
            others.append((blocks, row))
        if not others:
            return
        fitted = [fitted_row(blocks, row) for blocks, row in others]  # before any block changes its dtype
        for (blocks, _), row in zip(others, fitted, strict=True):
            put_fitted(blocks, at, row)

    def commit(self, info_slot: int) -> None:
        """Count the row that was written, with the slot of its infos."""
        at = self.num_rows
        self.info_slots[at:] = (info_slot,)  # no call from here on, so that an interrupt leaves all or nothing
        self.num_rows = at + 1

    def discard_uncommitted(self, at: int) -> None:
        """Row `at`, which is not counted, does not come: columns that began with it do not keep its shapes."""
        before = self._started
        if before is not None and before.row == at:
            _, self.actions, self.rewards, self.extras, self._in_order, self.steps_from, self.extras_from = before
            self._started = None

    def _start_columns(self, at: int, actions: Any, rewards: Any, extras: Mapping[str, Any], base: int) -> None:
        if at - 1 > base:
            late = [key for key in extras if key not in self.extras]
            gone = [key for key in self.extras if key not in extras]
            raise TrackMismatch(
                f"extra model outputs, row {at}: {late} start late, {gone} stop early; steps between two takes have "
                "the same keys: take() first"
            )
        if as_numbers("rewards", rewards).ndim != 1:
            raise ShapeMismatch(
                f"rewards: a row has shape {np.shape(rewards)}; give one number for each environment, [{self.num_envs}]"
            )
        made = {key: self._blocks(extra_field(key).label, value) for key, value in extras.items()}
        for key, blocks in made.items():
            if self.stand_ins.get(key) is not None:
                nested.map_leaves(lambda block, item: block.fill(at, item), blocks, self.stand_ins[key])
        columns = (self.actions, self.rewards, self.extras, self._in_order)
        self._started = _Started(at, *columns, self.steps_from, self.extras_from)
        if self.actions is None:
            actions = self._regular("actions", actions, self._action_space)
            action_blocks = self._blocks("actions", actions, dtypes_of(self._action_space))
            self.rewards = self._blocks("rewards", rewards)
            self.actions = action_blocks
            self.steps_from = at - 1
        self.extras = made  # zeros or stand-ins in the rows of the lookback, which have no outputs of these names
        self.extras_from = at - 1
        tracks = (self.observations, self.actions, self.rewards, self.terminateds, self.truncateds)
        self._in_order = [*tracks, *made.values()]

    def _regular(self, name: str, rows: Any, space: spaces.Space | None) -> Any:
        """The row as the space nests it; `ShapeMismatch` for items that no array holds."""
        rows, part = as_rows(rows, space), irregular_part(space)
        if part is not None and any(np.asarray(leaf).dtype.kind == "O" for leaf in nested.leaves(rows)):
            raise of_no_shape(name, part)
        return rows

    def _blocks(self, name: str, row: Any, dtypes: Any = None) -> Any:
        return make_blocks(name, row, self.num_envs, self._capacity, dtypes)

    def _grow(self) -> None:
        capacity = 2 * self._capacity
        for block in self._all_blocks():
            block.resize(capacity)
        self._capacity = capacity  # now that all have it

    def _all_blocks(self) -> list[RowBlock]:
        tracks = (self.observations, self.actions, self.rewards, *self.extras.values())
        blocks = [block for track in tracks if track is not None for block in nested.leaves(track)]
        return [*blocks, self.terminateds, self.truncateds, self.replaced, self.resets]

    def replace_observations(self, at: int, envs: np.ndarray, observations: Any) -> None:
        """Write the environments [k] of the row [N, ...] over row `at`."""
        self.put_observations(at, envs, nested.take(self.fitted_observations(observations, self.num_envs), envs))

    def put_observations(self, at: int, envs: np.ndarray, observations: Any) -> None:
        """Write observations [k, ...], which fit, over those of the environments [k] in row `at`."""
        nested.map_leaves(lambda block, leaf: block.put_envs(at, envs, leaf), self.observations, observations)

    def mark_replaced(self, at: int, envs: np.ndarray) -> None:
        """Say that the observations of row `at` belong to the environments' next episodes."""
        self.replaced.data[at, envs] = True
        self.any_replaced = True

    def mark_steps(self, at: Any, steps: np.ndarray) -> None:
        """Say where, bool [N] of a row or [k, N] of rows, there is a step, and no reset, whose flags mean nothing."""
        np.logical_not(steps, out=self.resets.data[at])
        for flags in (self.terminateds.data[at], self.truncateds.data[at]):
            np.logical_and(flags, steps, out=flags)

    def keep(self, first: int) -> None:
        """Forget the rows before `first`."""
        self.prepare_trim(first)()

    def prepare_trim(self, first: int) -> Callable[[], None]:
        """What forgets the rows before `first`, worked out. It may be called twice, before anything else changes."""
        stop = self.num_rows
        kept = [(block, block.data[first:stop].copy()) for block in self._all_blocks()]
        numbers = {
            "num_rows": stop - first,
            "steps_from": max(self.steps_from - first, -1),
            "extras_from": max(self.extras_from - first, -1),
            "any_replaced": self.any_replaced and bool(self.replaced.data[first:stop].any()),
            "_started": None,
        }
        resets = [replace(one, row=one.row - first) for one in self.reset_infos if one.row >= first]
        own = self.info_slots[first:stop]
        move_infos, moved = self.infos.prepare_trim(np.array([*own, *(one.info_slot for one in resets)]))
        slots = moved.tolist()
        numbers["info_slots"] = slots[: len(own)]
        numbers["reset_infos"] = [replace(one, info_slot=at) for one, at in zip(resets, slots[len(own) :], strict=True)]
        return partial(self._put_first, kept, slice(stop - first, stop), numbers, move_infos)

    def _put_first(
        self,
        kept: list[tuple[RowBlock, np.ndarray]],
        free: slice,
        numbers: dict[str, Any],
        move_infos: Callable[[], None],
    ) -> None:
        for block, rows in kept:
            block.data[: len(rows)] = rows
        self.resets.data[free] = False
        if self.any_replaced:
            self.replaced.data[free] = False
        move_infos()
        self.__dict__.update(numbers)

    def lookback_at(self, at: int) -> int:
        """How many steps and the observations before them there are up to row `at`."""
        return at - max(self.steps_from, 0)

    # --- reading -----------------------------------------------------------------------------------------------

    def done(self, at: Any) -> np.ndarray:
        """Whether an episode ended, bool [N] of a row or [k, N] of a slice of rows."""
        return self.terminateds.data[at] | self.truncateds.data[at]

    def fitted_observations(self, observations: Any, num: int) -> Any:
        """Observations [num, ...] checked against the blocks."""
        observations = nested.shaped_like(self.observations, observations)
        return nested.map_leaves(
            lambda block, leaf: block.fitted(leaf, (num, *block.shape[1:])), self.observations, observations
        )

    def steps(self, index: np.ndarray) -> tuple[Any, Any, dict[str, Any]]:
        """Actions, rewards and extra outputs [k, ...] at row * N + env."""
        if self.actions is None:
            return empty_items(self._action_space), np.zeros(0), {}
        extras = {key: gather(blocks, index) for key, blocks in self.extras.items()}
        return gather(self.actions, index), gather(self.rewards, index), extras

    def recent(self, track: str, num: int, ages: np.ndarray) -> tuple[Any, np.ndarray]:
        """The newest `num` rows of a track [num, N, ...], zeros where not valid, and valid, bool [num, N]."""
        if track == "observations":
            blocks, steps, oldest = self.observations, 0, 0
        else:
            blocks = {"actions": self.actions, "rewards": self.rewards}.get(track, self.extras.get(track))
            steps, oldest = 1, (self.extras_from if track in self.extras else self.steps_from) + 1
        if blocks is None:
            return None, np.zeros((num, len(ages)), bool)
        if self.num_rows - num >= oldest and ages.min() >= num - 1 + steps:  # all are there, mostly
            rows = slice(self.num_rows - num, self.num_rows)
            return nested.map_leaves(lambda block: block.data[rows], blocks), np.ones((num, len(ages)), bool)
        back = np.arange(num - 1, -1, -1)[:, None]
        valid = (ages >= back + steps) & (self.num_rows - 1 - back >= oldest)
        return nested.map_leaves(lambda block: self._recent_of(block, num, valid), blocks), valid

    def _recent_of(self, block: RowBlock, num: int, valid: np.ndarray) -> np.ndarray:
        there = block.data[max(self.num_rows - num, 0) : self.num_rows]
        rows = np.zeros((num, *block.shape), block.dtype)
        rows[num - len(there) :] = there
        rows[~valid] = 0
        return rows
