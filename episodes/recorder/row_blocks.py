"""`RowBlock`: preallocated array of one time series, written by vector step and read by environment.

    data [capacity, N, ...]      env 0   env 1   env 2
    row 0                          .       .       .        write: one row
    row 1                          .       .       .
    row 2                          .       .       .        read: row * N + env for the rows of one environment

A nested track (such as a `Dict` observation) is a nested value of blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from episodes.errors import ShapeMismatch
from episodes.tracks import nested
from episodes.tracks.casting import try_cast
from episodes.tracks.levels import check_levels
from episodes.tracks.stacking import check_strings, refuse_masked

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from episodes.data_types import NestedDtypes

_ALL = slice(None)

NestedBlocks: TypeAlias = "RowBlock | Mapping[Any, NestedBlocks] | tuple[NestedBlocks, ...]"
"""A block for each array of the nested items of a vector step."""


class RowBlock:
    """Preallocated array [capacity, N, ...] of one time series, such as rewards, to which vector steps are copied.

    The shape [N, ...] is that of the first row. A given dtype stays. Otherwise the dtype is that of the first row, and
    is widened if a later row needs it.

    Args:
        name: name of the track in errors.
        row: the first row, [N, ...].
        num_envs: number of environments N.
        capacity: number of rows.
        dtype: dtype of the rows, or None.

    Raises:
        ShapeMismatch: `row` is not of `num_envs` environments.
    """

    __slots__ = ("data", "dtype", "fixed", "name", "shape")

    def __init__(self, name: str, row: ArrayLike, num_envs: int, capacity: int, dtype: DTypeLike | None = None) -> None:
        row = as_numbers(name, row)
        if row.shape[:1] != (num_envs,):
            raise ShapeMismatch(
                f"{name}: a row has shape {row.shape}; there are {num_envs} environments: give [{num_envs}, ...] "
                "(and the recorder the space, where its items are strings)"
            )
        self.name = name
        self.shape = row.shape
        self.fixed = dtype is not None
        self.dtype = row.dtype if dtype is None else np.dtype(dtype)
        self.data: np.ndarray = np.zeros((capacity, *row.shape), self.dtype)

    def put(self, at: int, items: np.ndarray, envs: slice | np.ndarray = _ALL) -> None:
        """Copy items [k, ...] that `fitted` has returned to the environments `envs` [k] of the vector step `at`."""
        self.widen(items.dtype)
        self.data[at, envs] = items

    def widen(self, dtype: np.dtype) -> None:
        """Make the block able to store items of `dtype` too, unless its own dtype was given."""
        if not self.fixed and not np.can_cast(dtype, self.dtype):
            self.data = self.data.astype(np.result_type(self.dtype, dtype))
            self.dtype = self.data.dtype

    def fitted(self, rows: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
        """Convert items to an array that this block can store. Raise `ShapeMismatch` if that is impossible.

        The array has the dtype of the block if that was given, else that of the items; `widen` then makes room.

        Raises:
            ShapeMismatch: the rows have another shape than `shape`, strings are given for numbers or the reverse, or a
                given dtype of the block cannot represent the values (`try_cast`).
            WrongType: the rows are a masked array.
        """
        rows = as_numbers(self.name, rows)
        if rows.shape != shape:
            raise ShapeMismatch(
                f"{self.name}: a row has shape {rows.shape}, the rows before it have {shape}; give that shape"
            )
        if rows.dtype == self.dtype:
            return rows
        if _kind_of(rows.dtype) != _kind_of(self.dtype):  # numpy would convert numbers to strings and back
            raise ShapeMismatch(
                f"{self.name}: a row has dtype {rows.dtype}, its track {self.dtype}; give items of one kind"
            )
        if not self.fixed:
            return rows
        fitting = try_cast(rows, self.dtype)
        if fitting is None:
            raise ShapeMismatch(
                f"{self.name}: a row of dtype {rows.dtype} does not fit the space's {self.dtype} without loss; give "
                "values that it can hold, or declare the space of these values"
            )
        return fitting

    def fill(self, stop: int, item: ArrayLike) -> None:
        """Write the same item [...] to all environments of the vector steps before index `stop`."""
        self.data[:stop] = np.asarray(item)

    def resize(self, capacity: int) -> None:
        """Replace the array by an array for `capacity` vector steps with the same contents, followed by zeros."""
        self.data = longer(self.data, capacity)

    def gather(self, index: np.ndarray) -> np.ndarray:
        """Return copies of the items at the flat indices (row * N + env) `index`, [k, ...]."""
        data = self.data
        return data.reshape(len(data) * self.shape[0], *self.shape[1:]).take(index, axis=0)


def longer(array: np.ndarray, capacity: int) -> np.ndarray:
    """Return a copy of an array with `capacity` rows. The new rows are zeros."""
    copy = np.zeros((capacity, *array.shape[1:]), array.dtype)
    copy[: len(array)] = array
    return copy


def _kind_of(dtype: np.dtype) -> str:
    """Return "number" for bools and numbers, else numpy's kind. Values of one kind can be widened to a common dtype."""
    return "number" if dtype.kind in "biufc" else dtype.kind


def as_numbers(name: str, row: Any) -> np.ndarray:
    """Convert N items to an array of numbers, bools or strings. Raise `ShapeMismatch` if their shapes differ.

    Raises:
        ShapeMismatch: the row is ragged, or has objects.
        WrongType: the row is a masked array.
    """
    refuse_masked(row, name)
    try:
        array = np.asarray(row)
    except ValueError:
        raise ShapeMismatch(f"{name}: a row is ragged; its items need one shape") from None
    if array.dtype.kind == "O":
        raise ShapeMismatch(f"{name}: a row holds {type(row).__name__} objects; give an array of numbers [N, ...]")
    if array.dtype.kind in "US" and array is not row:
        check_strings(row, name)
    return array


def make_blocks(name: str, row: object, num_envs: int, capacity: int, dtypes: NestedDtypes | None = None) -> Any:
    """Allocate a `RowBlock` for each array of the nested items `row` [N, ...] of a vector step.

    Args:
        dtypes: dtypes of the arrays, which then stay. Ignored if `row` has another structure.

    Raises:
        ShapeMismatch: there is no array, or an array has not `num_envs` rows, or the row is nested too deeply.
    """
    check_levels(row, what=name)
    if not nested.leaves(row):
        raise ShapeMismatch(f"{name}: a row is {nested.describe(row)}: it has no array; give at least one [N, ...]")
    paths = nested.skeleton(row, name)
    if dtypes is None or not nested.same_structure(row, dtypes):
        return nested.map_leaves(lambda leaf, path: RowBlock(path, leaf, num_envs, capacity), row, paths)
    return nested.map_leaves(
        lambda leaf, path, dtype: RowBlock(path, leaf, num_envs, capacity, dtype), row, paths, dtypes
    )


def fitted_row(blocks: NestedBlocks, row: object) -> Any:
    """Convert nested items [N, ...] to arrays that the `RowBlock`s can store. Lists count as tuples."""
    if not nested.same_structure(blocks, row):
        row = nested.with_tuples_like(blocks, row)
    return nested.map_leaves(lambda block, leaf: block.fitted(leaf, block.shape), blocks, row)


def put_fitted(blocks: NestedBlocks, at: int, row: object) -> None:
    """Copy nested items [N, ...] that `fitted_row` has converted to index `at` of the `RowBlock`s."""
    nested.map_leaves(lambda block, leaf: block.put(at, leaf), blocks, row)


def gather(blocks: NestedBlocks, index: np.ndarray) -> Any:
    """Return the items at the flat indices (row * N + env) `index` from the `RowBlock`s, nested arrays [k, ...]."""
    return nested.map_leaves(lambda block: block.gather(index), blocks)
