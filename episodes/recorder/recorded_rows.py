"""Recorded vector steps of N environments, in one preallocated array per time series. A row is a vector step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from episodes.columns import check_extra_output_names
from episodes.errors import ShapeMismatch, TrackMismatch
from episodes.recorder.info_rows import InfoRows
from episodes.recorder.row_blocks import RowBlock, as_numbers, fitted_row, gather, make_blocks, put_fitted
from episodes.tracks import nested
from episodes.tracks.field import extra_field
from episodes.tracks.fitting import check_fits
from episodes.tracks.spaces import dtypes_of, empty_items, regular_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from episodes.data_types import Items, NestedArrays, NestedDtypes

_FIRST_CAPACITY = 32
_ARRAY: Any = np.ndarray


@dataclass(frozen=True, slots=True)
class LastObservations:
    """Last observations of ended episodes, stored apart because the rows hold the next reset observations."""

    row: int
    envs: np.ndarray  # [k] int, ascending
    observations: Any  # nested arrays [k, ...]
    info_slot: int


def last_observations_at(stored: Sequence[LastObservations], keys: np.ndarray, num_envs: int) -> tuple[np.ndarray, Any]:
    """Return the index in `stored`, int [k], and the last observation of each episode that ended at `keys` [k].

    The keys are flat indices row * N + env.
    """
    all_keys = np.concatenate([entry.row * num_envs + entry.envs for entry in stored])
    numbers = np.repeat(np.arange(len(stored)), [len(entry.envs) for entry in stored])
    order = np.argsort(all_keys)
    at = order[np.searchsorted(all_keys, keys, sorter=order)]
    return numbers[at], nested.take(nested.concatenate([entry.observations for entry in stored]), at)


@dataclass(frozen=True, slots=True)
class ResetInfo:
    """Info of a reset that replaced observations of an already recorded vector step."""

    row: int
    envs: np.ndarray  # [k] int
    info_slot: int


class RecordedInfos(InfoRows):
    """Infos of recorded rows.

    Attributes:
        slots: slot of each row's infos.
        resets: infos of resets that replaced observations of a row.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.slots: list[int] = []
        self.resets: list[ResetInfo] = []

    def prepare_trim_rows(self, first: int, stop: int) -> Callable[[], None]:
        """Return a function that drops the infos of all rows except those from `first` to `stop`. Calling it twice is
        harmless.
        """
        resets = [replace(entry, row=entry.row - first) for entry in self.resets if entry.row >= first]
        slots = self.slots[first:stop]
        move, moved = self.prepare_trim(np.array([*slots, *(entry.info_slot for entry in resets)]))
        numbers = moved.tolist()
        resets = [replace(entry, info_slot=at) for entry, at in zip(resets, numbers[len(slots) :], strict=True)]
        return partial(self._put_rows_first, move, numbers[: len(slots)], resets)

    def _put_rows_first(self, move: Callable[[], None], slots: list[int], resets: list[ResetInfo]) -> None:
        """Move the infos with `move`, and adopt the slots of the rows that are kept."""
        move()
        self.slots, self.resets = slots, resets


class _Started(NamedTuple):
    """Columns that begin with a vector step. `commit` adopts them."""

    actions: Any
    rewards: Any
    extras: dict[str, Any]
    in_order: list[Any]
    steps_from: int
    extras_from: int


class RecordedRows:
    """Recorded vector steps of N environments, [num_rows, N, ...]. A row has observations and the steps that led to
    them.

        row            0      1      2      3            next row
        observation    o0     o1     o2     o3           written uncounted, then counted by `commit`
        step                  a0 r1  a1 r2  a2 r3

    Attributes:
        num_rows: number of rows.
        steps_from: the rows after this one have steps. It is 0 after a reset, and -1 if row 0 has a step too, because
            earlier rows were dropped.
        extras_from: the same for the present extra outputs.
        infos: infos of the rows.
        stand_ins: see `VectorRecorder.stand_ins`.
    """

    def __init__(
        self, num_envs: int, observation_space: spaces.Space | None, action_space: spaces.Space | None
    ) -> None:
        self.num_envs = num_envs
        self.num_rows = 0
        self.steps_from = 0
        self.extras_from = 0
        self.infos = RecordedInfos(num_envs)
        self.observations: Any = None
        self.actions: Any = None
        self.rewards: Any = None
        self.extras: dict[str, Any] = {}
        self.stand_ins: dict[str, Any] = {}
        flags = np.zeros(num_envs, bool)
        self.terminateds = RowBlock("terminateds", flags, num_envs, _FIRST_CAPACITY, bool)
        self.truncateds = RowBlock("truncateds", flags, num_envs, _FIRST_CAPACITY, bool)
        self.replaced = RowBlock("replaced", flags, num_envs, _FIRST_CAPACITY, bool)
        self.resets = RowBlock("resets", flags, num_envs, _FIRST_CAPACITY, bool)
        self._in_order: list[Any] = []  # the tracks in the order of `write`
        self._started: _Started | None = None  # the columns that begin with the written row, before `commit`
        self.any_replaced = False
        self._capacity = _FIRST_CAPACITY
        self._observation_space, self._action_space = observation_space, action_space

    # --- writing -----------------------------------------------------------------------------------------------

    def begin(self, observations: Items, info: dict[str, Any]) -> None:
        """Write the first reset observations, which follow no step, as row 0.

        Raises:
            ShapeMismatch: observations have no array, or not one row per environment.
        """
        observations = self._regular("observations", observations, self._observation_space)
        blocks = self._blocks("observations", observations, dtypes_of(self._observation_space))
        put_fitted(blocks, 0, fitted_row(blocks, observations))
        slot = self.infos.add(info)
        self.observations = blocks
        self.commit(slot)

    def write(self, at: int, rows: tuple[Any, ...], extras: Mapping[str, Any], base: int) -> None:
        """Write one vector step at row `at`. It counts only after `commit`, so that a failed call changes nothing.

        Args:
            at: index of the row.
            rows: observations, actions, rewards, terminateds and truncateds, [N, ...] each.
            extras: extra model outputs [N, ...] by name.
            base: the newest row at the last take. The keys of extra outputs may change after it.

        Raises:
            ShapeMismatch, TrackMismatch: an item does not fit.
        """
        if at >= self._capacity:
            self._grow()
        names, in_order = self.extras, self._in_order
        self._started = None
        if extras.keys() != names.keys() or self.actions is None:
            self._started = started = self._new_columns(at, rows[1], rows[2], extras, base)
            names, in_order = started.extras, started.in_order
        unwritten = []
        for blocks, row in zip(in_order, (*rows, *map(extras.__getitem__, names)), strict=True):
            if (
                type(row) is _ARRAY
                and type(blocks) is RowBlock
                and row.dtype is blocks.dtype
                and row.shape == blocks.shape
            ):
                blocks.data[at] = row
            else:
                unwritten.append((blocks, row))
        fitted = [fitted_row(blocks, row) for blocks, row in unwritten]  # before any block changes its dtype
        for (blocks, _), row in zip(unwritten, fitted, strict=True):
            put_fitted(blocks, at, row)

    def commit(self, info_slot: int) -> None:
        """Make the vector step that was written last part of the recording. `info_slot` is the index of its info."""
        if self._started is not None:
            self.actions, self.rewards, self.extras, self._in_order, self.steps_from, self.extras_from = self._started
            self._started = None
        at = self.num_rows
        self.infos.slots[at:] = (info_slot,)
        self.num_rows = at + 1

    def _new_columns(
        self, at: int, actions: Items, rewards: ArrayLike, extras: Mapping[str, Any], base: int
    ) -> _Started:
        """Allocate blocks for actions, rewards and extra model outputs at their first row, or at other keys of extra
        outputs.

        Args:
            at: the row that is being written.
            base: first row since the last `take`. Other keys are only allowed for the row after it.

        Raises:
            TrackMismatch: the keys of `extras` differ from those of earlier rows since the last `take`.
            ShapeMismatch: rewards are not one number per environment.
        """
        if at - 1 > base:
            late = [key for key in extras if key not in self.extras]
            missing = [key for key in self.extras if key not in extras]
            raise TrackMismatch(
                f"extra model outputs, row {at}: {late} start late, {missing} stop early; steps between two takes have "
                "the same keys: take() first"
            )
        check_extra_output_names(extras, f"row {at}")
        if as_numbers("rewards", rewards).ndim != 1:
            raise ShapeMismatch(
                f"rewards: a row has shape {np.shape(rewards)}; give one number for each environment, [{self.num_envs}]"
            )
        made = {key: self._blocks(extra_field(key).label, value) for key, value in extras.items()}
        for key, blocks in made.items():
            if self.stand_ins.get(key) is not None:
                nested.map_leaves(lambda block, item: block.fill(at, item), blocks, self.stand_ins[key])
        action_blocks, reward_blocks, steps_from = self.actions, self.rewards, self.steps_from
        if action_blocks is None:
            actions = self._regular("actions", actions, self._action_space)
            action_blocks = self._blocks("actions", actions, dtypes_of(self._action_space))
            reward_blocks, steps_from = self._blocks("rewards", rewards), at - 1
        in_order = [self.observations, action_blocks, reward_blocks, self.terminateds, self.truncateds, *made.values()]
        # lookback rows without these outputs have zeros or stand-ins
        return _Started(action_blocks, reward_blocks, made, in_order, steps_from, at - 1)

    def _regular(self, name: str, rows: Items, space: spaces.Space | None) -> Any:
        """Return N items with the nesting of the space. Raise `ShapeMismatch` if they do not fit it, or cannot be
        stacked.
        """
        rows = regular_rows(name, rows, space)
        check_fits(rows, space, lambda: "a row", name, (self.num_envs,))
        return rows

    def _blocks(self, name: str, row: Items, dtypes: NestedDtypes | None = None) -> Any:
        return make_blocks(name, row, self.num_envs, self._capacity, dtypes)

    def _grow(self) -> None:
        """Double the space of all blocks."""
        capacity = 2 * self._capacity
        for block in self._all_blocks():
            block.resize(capacity)
        self._capacity = capacity  # after all blocks are resized

    def _all_blocks(self) -> list[RowBlock]:
        """Return the blocks of all time series, flags included."""
        tracks = (self.observations, self.actions, self.rewards, *self.extras.values())
        blocks = [block for track in tracks if track is not None for block in nested.leaves(track)]
        return [*blocks, self.terminateds, self.truncateds, self.replaced, self.resets]

    def replace_observations(self, at: int, envs: np.ndarray, observations: Items) -> None:
        """Overwrite the observations of the environments `envs` [k] in row `at`, from `observations` [N, ...]."""
        self.put_observations(at, envs, nested.take(self.fitted_observations(observations, self.num_envs), envs))

    def put_observations(self, at: int, envs: np.ndarray, observations: NestedArrays) -> None:
        """Overwrite the observations of the environments `envs` [k] in row `at` by validated items [k, ...]."""
        nested.map_leaves(lambda block, leaf: block.put(at, leaf, envs), self.observations, observations)

    def widen_observations(self, observations: NestedArrays) -> None:
        """Make the blocks able to store items of the dtypes of `observations`, such as last observations."""
        nested.map_leaves(lambda block, leaf: block.widen(leaf.dtype), self.observations, observations)

    def mark_replaced(self, at: int, envs: np.ndarray) -> None:
        """Mark the observations of `envs` in row `at` as the first observations of new episodes."""
        self.replaced.data[at, envs] = True
        self.any_replaced = True

    def mark_steps(self, at: int | slice, steps: np.ndarray) -> None:
        """Mark which environments stepped (and were not reset) in the rows `at`, bool [N] or [k, N]."""
        np.logical_not(steps, out=self.resets.data[at])
        for flags in (self.terminateds.data[at], self.truncateds.data[at]):
            np.logical_and(flags, steps, out=flags)

    def keep(self, first: int) -> None:
        """Drop the vector steps before row `first`."""
        self.prepare_trim(first)()

    def prepare_trim(self, first: int) -> Callable[[], None]:
        """Return a function that drops the vector steps before row `first`. Calling it twice is harmless."""
        stop = self.num_rows
        stored = [(block, block.data[first:stop].copy()) for block in self._all_blocks()]
        numbers = {
            "num_rows": stop - first,
            "steps_from": max(self.steps_from - first, -1),
            "extras_from": max(self.extras_from - first, -1),
            "any_replaced": self.any_replaced and bool(self.replaced.data[first:stop].any()),
        }
        return partial(
            self._put_first, stored, slice(stop - first, stop), numbers, self.infos.prepare_trim_rows(first, stop)
        )

    def _put_first(
        self,
        stored: list[tuple[RowBlock, np.ndarray]],
        free: slice,
        numbers: dict[str, Any],
        move_infos: Callable[[], None],
    ) -> None:
        """Move the rows that are kept to the front.

        Args:
            stored: the rows to keep of each block.
            free: the rows behind them, whose reset flags are cleared.
            numbers: attributes with their new values.
            move_infos: function that moves the infos.
        """
        for block, rows in stored:
            block.data[: len(rows)] = rows
        self.resets.data[free] = False
        if self.any_replaced:
            self.replaced.data[free] = False
        move_infos()
        self.__dict__.update(numbers)

    def lookback_at(self, at: int) -> int:
        """Return how many stored steps precede the observations of row `at`."""
        return at - max(self.steps_from, 0)

    # --- reading -----------------------------------------------------------------------------------------------

    def done(self, at: int | slice) -> np.ndarray:
        """Return which episodes terminated or were truncated in the rows `at`, bool [N] or [k, N]."""
        return self.terminateds.data[at] | self.truncateds.data[at]

    def fitted_observations(self, observations: Items, num: int) -> Any:
        """Check `num` observations, and convert them to arrays [num, ...] with the recorded nesting.

        Raises:
            ShapeMismatch, TrackMismatch: they do not fit.
        """
        observations = nested.with_tuples_like(self.observations, observations)
        return nested.map_leaves(
            lambda block, leaf: block.fitted(leaf, (num, *block.shape[1:])), self.observations, observations
        )

    def steps(self, index: np.ndarray) -> tuple[Any, Any, dict[str, Any]]:
        """Return actions, rewards and extra outputs at the flat indices (row * N + env) `index`, [k, ...] each."""
        if self.actions is None:
            return empty_items(self._action_space), np.zeros(0), {}
        extras = {key: gather(blocks, index) for key, blocks in self.extras.items()}
        return gather(self.actions, index), gather(self.rewards, index), extras

    def recent(self, track: str, num: int, ages: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return the newest `num` items of a time series, [num, N, ...], and a mask [num, N] of the valid items.

        Items from before the start of an ongoing episode or of the stored rows are not valid: they are zeros. If the
        time series was never recorded, the items are None. `ages` are the numbers of steps of the ongoing episodes,
        [N].
        """
        if track == "observations":
            blocks, steps, oldest = self.observations, 0, 0
        else:
            blocks = {"actions": self.actions, "rewards": self.rewards}.get(track, self.extras.get(track))
            steps, oldest = 1, (self.extras_from if track in self.extras else self.steps_from) + 1
        if blocks is None:
            return None, np.zeros((num, len(ages)), bool)
        if self.num_rows - num >= oldest and ages.min() >= num - 1 + steps:  # the usual case: all rows are valid
            rows = slice(self.num_rows - num, self.num_rows)
            return nested.map_leaves(lambda block: block.data[rows], blocks), np.ones((num, len(ages)), bool)
        back = np.arange(num - 1, -1, -1)[:, None]
        valid = (ages >= back + steps) & (self.num_rows - 1 - back >= oldest)
        return nested.map_leaves(lambda block: self._recent_of(block, num, valid), blocks), valid

    def _recent_of(self, block: RowBlock, num: int, valid: np.ndarray) -> np.ndarray:
        """Return a copy of the newest `num` rows [num, N, ...] of a block. Missing rows, and those where `valid` is
        False, are 0.
        """
        newest = block.data[max(self.num_rows - num, 0) : self.num_rows]
        rows = np.zeros((num, *block.shape), block.dtype)
        rows[num - len(newest) :] = newest
        rows[~valid] = 0
        return rows
