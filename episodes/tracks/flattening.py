"""Vectorized version of `gymnasium.spaces.flatten` for many items at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from episodes.tracks.nested import as_any_array, is_foreign_array
from episodes.tracks.space_kinds import (
    SpaceKind,
    choices_of,
    is_nested,
    joined_parts,
    kind_of,
    parts_of,
    rejected_space,
)
from episodes.tracks.spaces import elementary_spaces

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from episodes.data_types import Items

Path = tuple[Any, ...]  # keys and indices from the outermost Dict or Tuple down


class Flattener:
    """Callable that flattens a batch of items of a Gymnasium space to vectors, like
    `gymnasium.spaces.flatten` for single items.

    Args:
        space: a space whose items Gymnasium flattens to arrays (`space.is_np_flattenable`), or any other.
        dtype: dtype of the vectors, by default Gymnasium's own.

    Raises:
        InvalidArgument: the space, or a part of it, is a `Dict` or `Tuple` without parts, and no dtype is given.
    """

    def __init__(self, space: gym.Space, dtype: DTypeLike | None = None) -> None:
        self.space = space
        self._parts: list[_Part] | None = None
        if space.is_np_flattenable:
            self.size = spaces.flatdim(space)
            self.dtype = flat_space_of(space).dtype if dtype is None else np.dtype(dtype)
            self._parts, start = [], 0
            for path, part in elementary_spaces(space):
                self._parts.append(_part_of(part, path, start))
                start += spaces.flatdim(part)

    def __call__(self, rows: Items) -> Any:
        """Flatten N items of the space, given as nested arrays [N, ...], and return the vectors [N, D].

        For a space without a flat form, return what Gymnasium makes of its items, in its structure and dtypes.
        """
        if self._parts is None:
            return _flatten_irregular(self.space, rows)
        columns = [_subarray(rows, part.path) for part in self._parts]
        if any(map(is_foreign_array, columns)):  # which cannot be written into an array of ours
            vectors = [part.vectors(as_any_array(column)) for part, column in zip(self._parts, columns, strict=True)]
            return np.concatenate([vector.astype(self.dtype) for vector in vectors], 1)
        out = np.zeros((len(columns[0]) if columns else 0, self.size), self.dtype)
        for part, column in zip(self._parts, columns, strict=True):
            part.write(out, column)
        return out


def flat_space_of(space: gym.Space) -> Any:
    """Return the space of flattened items, as `gymnasium.spaces.flatten_space` does.

    Raises:
        InvalidArgument: the space, or a part of it, is a `Dict` or `Tuple` without parts.
    """
    if _has_empty_part(space):
        allowed = "a space with something in each Dict and Tuple"
        raise rejected_space("flattening", space, allowed, "leave the empty parts out")
    return spaces.flatten_space(space)


def has_flat_form(space: gym.Space) -> bool:
    """Return True if items of the space can be flattened to vectors of one length."""
    return kind_of(space) is not SpaceKind.OTHER and not _has_empty_part(space) and space.is_np_flattenable


def _has_empty_part(space: gym.Space) -> bool:
    """Return True if a space or a part of it is a `Dict` or `Tuple` without parts. Gymnasium cannot flatten it."""
    return is_nested(space) and (not parts_of(space) or any(map(_has_empty_part, parts_of(space).values())))


def _subarray(rows: Any, path: Path) -> Any:
    """Return the subarray [N, ...] of nested arrays `rows` that is found by following the keys in `path`."""
    for key in path:
        rows = rows[:, key] if isinstance(rows, np.ndarray) else rows[key]  # lists given for tuples are stacked
    return rows


@dataclass(frozen=True, slots=True)
class _Part:
    """Elementary subspace of a nested space, such as one Box in a Dict, with the columns that it
    fills in the flat vectors."""

    space: gym.Space
    path: Path
    start: int
    size: int

    def write(self, out: np.ndarray, rows: Any) -> None:
        """Flatten N items of this subspace one by one, and write the vectors to the
        subspace's columns of `out` [N, D]."""
        for vector, item in zip(out, rows, strict=True):
            vector[self.start : self.start + self.size] = spaces.flatten(self.space, item)

    def vectors(self, rows: Any) -> Any:
        """Return N items of this subspace, which are arrays of another library such as JAX, as vectors [N, size].

        Raises:
            TypeError: in this base class, whose items are flattened one by one.
        """
        raise TypeError(f"items of {self.space} are flattened one by one")


class _Raveled(_Part):
    """Numeric subspace, such as a Box, whose numbers are copied to the flat vectors unchanged."""

    def vectors(self, rows: Any) -> Any:
        return rows.reshape(-1, self.size)

    def write(self, out: np.ndarray, rows: Any) -> None:
        out[:, self.start : self.start + self.size] = np.asarray(rows).reshape(len(out), self.size)


@dataclass(frozen=True, slots=True)
class _OneHot(_Part):
    """Subspace of discrete choices, such as MultiDiscrete, whose items are flattened to one-hot vectors."""

    firsts: np.ndarray  # [K] the column of choice 0

    def vectors(self, rows: Any) -> Any:
        columns = rows.reshape(-1, len(self.firsts)) + (self.firsts - self.start)
        return (columns[:, :, None] == np.arange(self.size)).any(axis=1)

    def write(self, out: np.ndarray, rows: Any) -> None:
        num_rows, width = out.shape
        columns = np.asarray(rows).reshape(num_rows, len(self.firsts)) + self.firsts
        out.reshape(-1)[(columns + np.arange(0, num_rows * width, width)[:, None]).ravel()] = 1


def _part_of(space: gym.Space, path: Path, start: int) -> _Part:
    """Return the object that flattens items of a subspace to the columns from `start` on. Subspaces of other kinds than
    Box, MultiBinary, Discrete and MultiDiscrete are flattened item by item.
    """
    size = spaces.flatdim(space)
    kind = kind_of(space)
    if kind.has_choices:
        firsts, counts = (numbers.ravel() for numbers in choices_of(space))
        return _OneHot(space, path, start, size, start + np.cumsum(counts) - counts - firsts)
    return (_Raveled if kind.is_array else _Part)(space, path, start, size)


def _flatten_irregular(space: gym.Space, rows: Any) -> Any:
    """Flatten each subspace of a space that has no fixed vector length, such as one with a Graph.
    The result is nested like the space."""
    if is_nested(space):
        parts = (_flatten_irregular(part, _subarray(rows, (key,))) for key, part in parts_of(space).items())
        return joined_parts(space, parts)
    if space.is_np_flattenable:
        return Flattener(space)(rows)
    return tuple(spaces.flatten(space, item) for item in rows)
