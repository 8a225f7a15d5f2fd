"""Weighted sampling: functions that map uniform random numbers to steps or episodes with given probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from episodes.errors import InvalidArgument, UnknownKey, WrongType
from episodes.storage.sampling.located_items import LocatedItems
from episodes.storage.sampling.stored_tracks import StoredTracks

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Find = Callable[[np.ndarray], np.ndarray]  # uniform numbers [n] in [0, 1) to numbers [n]

_BLOCK = 64  # steps whose weights are kept as one sum
_AT_ONCE = 1 << 16  # steps that are read at a time


def find_steps(weights: str | ArrayLike, tracks: StoredTracks) -> Find:
    """Return a function from uniform random numbers [n] to steps. `weights` are per episode, per step,
    or the name of a stored column.

    Raises:
        InvalidArgument: weights of another length, or negative, not finite or all zero.
        UnknownKey: there is no such column.
        WrongType: weights that are no numbers.
    """
    table = tracks.table
    if isinstance(weights, str):
        return _StepWeights(_column_weights(weights, tracks), table.num_steps)
    array = _checked(_numbers(weights), "weights")
    if array.shape == (len(table),):
        return _EpisodeWeights(array, table.lengths, table.starts)
    if array.shape == (table.num_steps,):
        return _StepWeights(lambda numbers: array[numbers], table.num_steps)
    raise InvalidArgument(
        f"weights of shape {list(array.shape)}: give one for each of {len(table)} episodes or of {table.num_steps} "
        "steps, or the name of a column"
    )


def find_episodes(weights: str | ArrayLike, num: int) -> Find:
    """Return a function from uniform random numbers [n] to episodes, whose probabilities are
    proportional to `weights` [num].

    Raises:
        WrongType: the weights are not numbers.
        InvalidArgument: there are not `num` weights, or one is negative or not finite, or all are 0.
    """
    array = _checked(np.zeros(0) if isinstance(weights, str) else _numbers(weights), "weights")
    if array.shape != (num,):
        raise InvalidArgument(f"weights={weights!r}: give one number for each of {num} episodes")
    return _EpisodeWeights(array, np.ones(num, np.int64), np.arange(num))


def _numbers(weights: ArrayLike) -> np.ndarray:
    """Return weights as float64. Raise `WrongType` if they are not numbers."""
    try:
        return np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise WrongType(f"weights that are no numbers: {error}") from None


def _checked(weights: np.ndarray, label: str) -> np.ndarray:
    """Return `weights` unchanged. Raise `InvalidArgument` if one is negative, infinite or NaN."""
    if weights.size and not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise InvalidArgument(f"{label}: some are negative, infinite or NaN; give numbers that are at least 0")
    return weights


def _cumulative_sums(sums: np.ndarray) -> np.ndarray:
    """Return cumulative sums [n] of weights, for sampling by bisection. Raise `InvalidArgument` if
    the total is 0 or infinite."""
    with np.errstate(over="ignore"):
        ends = np.cumsum(sums)
    if len(ends) and not np.isfinite(ends[-1]):
        raise InvalidArgument("weights: their sum is more than a number can be; make all of them smaller")
    if not len(ends) or not ends[-1] > 0:
        raise InvalidArgument("weights: all are 0; give at least one that is more")
    return ends


class _EpisodeWeights:
    """Callable that maps uniform random numbers [n] to steps. Each step is sampled with a probability
    proportional to its episode's weight.

    Raises:
        InvalidArgument: all weights are 0, or their sum is infinite.
    """

    def __init__(self, weights: np.ndarray, lengths: np.ndarray, starts: np.ndarray) -> None:
        self._weights, self._lengths, self._starts = weights, lengths, starts
        with np.errstate(over="ignore"):
            sums = weights * lengths
        self._ends = _cumulative_sums(sums)
        self._last = int(np.flatnonzero(sums)[-1])

    def __call__(self, uniform: np.ndarray) -> np.ndarray:
        at = uniform * self._ends[-1]
        episodes = np.minimum(self._ends.searchsorted(at, side="right"), self._last)
        weights, lengths = self._weights[episodes], self._lengths[episodes]
        steps = ((at - (self._ends[episodes] - weights * lengths)) / weights).astype(np.int64)
        return self._starts[episodes] + np.clip(steps, 0, lengths - 1)


class _StepWeights:
    """Callable that maps uniform random numbers [n] to steps. Each step is sampled with a probability
    proportional to its own weight.

    It stores one sum per block of steps, and reads the weights of sampled blocks.

    Raises:
        InvalidArgument: a weight is negative or not finite, all are 0, or their sum is infinite.
    """

    def __init__(self, weights: Callable[[np.ndarray], np.ndarray], num_steps: int) -> None:
        self._weights, self._num_steps = weights, num_steps
        sums = [self._sums(start) for start in range(0, num_steps, _AT_ONCE)]
        joined = np.concatenate([np.zeros(0), *sums])
        self._ends = _cumulative_sums(joined)
        self._last = int(np.flatnonzero(joined)[-1])

    def _sums(self, start: int) -> np.ndarray:
        """Return the sum of the weights of each block of `_BLOCK` steps, for up to `_AT_ONCE` steps from `start` on."""
        stop = min(start + _AT_ONCE, self._num_steps)
        weights = _checked(self._weights(np.arange(start, stop)).astype(np.float64), "weights")
        padded = np.zeros(-(-len(weights) // _BLOCK) * _BLOCK)
        padded[: len(weights)] = weights
        with np.errstate(over="ignore"):
            return padded.reshape(-1, _BLOCK).sum(1)

    def __call__(self, uniform: np.ndarray) -> np.ndarray:
        at = uniform * self._ends[-1]
        blocks = np.minimum(self._ends.searchsorted(at, side="right"), self._last)
        before = np.where(blocks, self._ends[blocks - 1], 0.0)
        numbers = blocks[:, None] * _BLOCK + np.arange(_BLOCK)
        weights = self._weights(np.minimum(numbers, self._num_steps - 1).ravel()).reshape(numbers.shape)
        weights = np.where(numbers < self._num_steps, weights, 0).astype(np.float64)
        ends = weights.cumsum(1)
        places = (ends <= (at - before)[:, None]).sum(1)
        last = _BLOCK - 1 - (weights[:, ::-1] > 0).argmax(1)  # by rounding, one may fall behind it
        return blocks * _BLOCK + np.minimum(places, last)


def _column_weights(name: str, tracks: StoredTracks) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that reads the column `name` at given step indices, so that its numbers can be weights.

    Raises:
        UnknownKey: there is no such column of one number per step.
    """
    names = [key for key, place in tracks.structure.items() if _is_number(place, tracks)]
    if name not in names:
        raise UnknownKey(f"weights={name!r}: no column of one number a step has this name; there are {names}")
    place = tracks.structure[name]

    def read(numbers: np.ndarray) -> np.ndarray:
        return LocatedItems(tracks, tracks.table.located(numbers)).items(place)

    return read


def _is_number(place: object, tracks: StoredTracks) -> bool:
    """Return True if a column has one number per step, so that it can be weights. Observations do not count."""
    if not isinstance(place, int):
        return False
    column = tracks.columns[place]
    return tracks.paths[place].split("/")[0] != "observations" and column.shape == () and column.dtype.kind in "biuf"
