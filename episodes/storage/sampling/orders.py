"""Sampling orders, such as shuffled: they determine which step or episode is sampled at position 0, 1, 2, ...

So sampling can be repeated, resumed at a position and divided among workers. Position p is in epoch p // num.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np

from episodes.tracks.indexing import ranges

SMALL = 1 << 16  # permutations of so few are made at once
_ROUNDS = 6
_MIX, _ODD = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x9E3779B97F4A7C15)
_32, _31, _30, _27, _11 = (np.uint64(bits) for bits in (32, 31, 30, 27, 11))


class Order(Protocol):
    """Interface of a sampling order: it determines which step (or episode) is sampled at each position."""

    num: int  # positions in an epoch

    def at(self, start: int, stop: int) -> np.ndarray:
        """Return the numbers of the steps (or episodes) that are sampled at the positions `start` to
        `stop`, int64 [stop - start]."""
        ...


class InOrder:
    """Sampling order of the stored data: each step (or episode) once per epoch, without shuffling."""

    def __init__(self, num: int) -> None:
        self.num = num

    def at(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start % self.num, start % self.num + stop - start)


class ShuffledOrder:
    """Sampling order in which each step (or episode) comes once per epoch, with a new random order in each epoch.

    It needs constant memory: an order of more than `small` positions is computed piecewise.
    """

    def __init__(self, num: int, seed: int, small: int = SMALL) -> None:
        self.num, self.seed, self._small = num, seed, small

    def at(self, start: int, stop: int) -> np.ndarray:
        """Return the numbers at the positions `start` to `stop`, which must be in one epoch. A large order is computed
        piecewise.
        """
        epoch, first = divmod(start, self.num)
        last = first + stop - start
        if self.num <= self._small:
            return _permutation(self.num, self.seed, epoch)[first:last]
        return permute(np.arange(first, last, dtype=np.uint64), self.num, self.seed, epoch)


class UniformOrder:
    """Sampling order with replacement, in which all steps (or episodes) have the same probability."""

    def __init__(self, num: int, seed: int) -> None:
        self.num, self.seed = num, seed

    def at(self, start: int, stop: int) -> np.ndarray:
        return (uniforms(self.seed, start, stop) * self.num).astype(np.int64)


class WeightedOrder:
    """Sampling order with replacement and unequal probabilities. The function `find` maps uniform random
    numbers to steps (or episodes)."""

    def __init__(self, num: int, seed: int, find: Callable[[np.ndarray], np.ndarray]) -> None:
        self.num, self.seed, self._find = num, seed, find

    def at(self, start: int, stop: int) -> np.ndarray:
        return self._find(uniforms(self.seed, start, stop))


def generator(*numbers: int) -> np.random.Generator:
    """Return a numpy random generator that is seeded with all the given integers."""
    return np.random.default_rng(np.random.SeedSequence(numbers))


@lru_cache(maxsize=8)
def _permutation(num: int, seed: int, epoch: int) -> np.ndarray:
    """Return the (cached, read-only) permutation of 0..num - 1 for an epoch."""
    result = generator(seed, epoch).permutation(num)
    result.flags.writeable = False
    return result


def uniforms(seed: int, start: int, stop: int, stream: int = 0) -> np.ndarray:
    """Return a reproducible random number in [0, 1) for each position from `start` to `stop`, float64 [stop - start].
    Each `stream` has other numbers.
    """
    (key,) = _keys(seed, stream, 1)
    hashed = _hash(np.arange(start, stop, dtype=np.uint64) * _ODD, key)
    hashed >>= _11
    return hashed * 2.0**-53


def permute(places: np.ndarray, num: int, seed: int, epoch: int) -> np.ndarray:
    """Evaluate a pseudo-random permutation of 0 ... num - 1 at the indices `places` [n], without computing all of it.
    Each `seed` and `epoch` has another permutation.

    The permutation is a Feistel network on a rectangle slightly larger than `num`. Values outside pass it again.
    """
    wide = int(np.ceil(np.sqrt(num)))
    high = -(-num // wide)
    keys = _keys(seed, epoch, _ROUNDS)
    values = _network(places, wide, high, keys)
    outside = np.flatnonzero(values >= num)
    while len(outside):
        values[outside] = _network(values[outside], wide, high, keys)
        outside = outside[values[outside] >= num]
    return values.astype(np.int64)


def _network(numbers: np.ndarray, wide: int, high: int, keys: np.ndarray) -> np.ndarray:
    """Return a permutation of `numbers` in 0..high * wide - 1, by one round of a Feistel network per key."""
    left, right = np.divmod(numbers, np.uint64(wide))  # left < high, right < wide
    sides = [left, right]
    sizes = (np.uint64(high), np.uint64(wide))
    for number, key in enumerate(keys):
        target, source = number % 2, 1 - number % 2
        shifted = sides[target] + (((_hash(sides[source], key) >> _32) * sizes[target]) >> _32)
        sides[target] = np.where(shifted >= sizes[target], shifted - sizes[target], shifted)
    return sides[0] * sizes[1] + sides[1]


def _hash(values: np.ndarray, key: np.uint64) -> np.ndarray:
    """Return a 64-bit hash of each value that depends on `key` (the finalizer of SplitMix64)."""
    mixed = values + key
    mixed *= _ODD
    mixed ^= mixed >> _30
    mixed *= _MIX
    mixed ^= mixed >> _27
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> _31
    return mixed


@lru_cache(maxsize=64)
def _keys(seed: int, stream: int, num: int) -> np.ndarray:
    """Return `num` reproducible 64-bit keys for a seed. Each `stream` has other keys."""
    return np.random.SeedSequence([seed, stream]).generate_state(num, np.uint64)


class Blocks:
    """Sampling order in which each step comes once per epoch, shuffled such that few compressed
    blocks are in use at a time.

    Runs of steps are put into a random order, and the steps of `at_once` runs at a time are shuffled. So a block of
    compressed items is decompressed once per epoch.

    Args:
        starts: first step of each run, int64 [k].
        stops: step after the last one of each run, int64 [k].
        at_once: number of runs whose steps are shuffled together.
        seed: of the random order.
    """

    def __init__(self, starts: np.ndarray, stops: np.ndarray, at_once: int, seed: int) -> None:
        self.num, self.seed = int((stops - starts).sum()), seed
        self._starts, self._sizes, self._at_once = starts, stops - starts, at_once
        self._epoch = self._chunk = -1
        self._mixed = np.zeros(0, np.int64)

    def at(self, start: int, stop: int) -> np.ndarray:
        """Return the numbers at the positions `start` to `stop`, which must be in one epoch."""
        epoch, first = divmod(start, self.num)
        if epoch != self._epoch:
            self._begin(epoch)
        last, parts = first + stop - start, []
        while first < last:
            chunk = int(self._chunk_ends.searchsorted(first, side="right"))
            if chunk != self._chunk:
                self._mix(chunk)
            begin = int(self._chunk_ends[chunk]) - len(self._mixed)
            parts.append(self._mixed[first - begin : last - begin])
            first += len(parts[-1])
        return np.concatenate(parts)

    def _begin(self, epoch: int) -> None:
        """Shuffle the runs for an epoch, and determine where each group of runs that are mixed together ends."""
        self._runs = generator(self.seed, epoch).permutation(len(self._starts))
        ends = np.cumsum(self._sizes[self._runs])
        self._chunk_ends = np.append(ends[self._at_once - 1 : -1 : self._at_once], ends[-1:])
        self._epoch, self._chunk = epoch, -1

    def _mix(self, chunk: int) -> None:
        """Shuffle the steps of the group of runs with index `chunk`."""
        runs = self._runs[chunk * self._at_once : (chunk + 1) * self._at_once]
        numbers = ranges(self._starts[runs], self._sizes[runs])
        self._mixed = numbers[generator(self.seed, self._epoch, 1, chunk).permutation(len(numbers))]
        self._chunk = chunk


def runs_of(starts: np.ndarray, lengths: np.ndarray, lookbacks: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Split stored chunks into runs of at most `size` successive steps. Return the first and the stop step of
    each run, int64 [k] each.

    A run stays within its chunk, and within a block of `size` rows, counted from the chunk's lookback on.
    """
    counts = np.where(lengths > 0, (lookbacks + lengths - 1) // size - lookbacks // size + 1, 0)
    owners = np.repeat(np.arange(len(starts)), counts)
    blocks = ranges(lookbacks // size, counts)
    begins = np.maximum(blocks * size - lookbacks[owners], 0)
    stops = np.minimum((blocks + 1) * size - lookbacks[owners], lengths[owners])
    return starts[owners] + begins, starts[owners] + stops
