"""Orders: functions from positions 0, 1, 2, ... to what is drawn there. Nothing is kept but a seed.

So a draw can be made again, gone on with from a number, and dealt to workers: whoever asks for a position gets the same
answer. Position p lies in epoch p // num.
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
    """What is drawn at positions."""

    num: int  # positions in an epoch

    def at(self, start: int, stop: int) -> np.ndarray:
        """The numbers [stop - start], int64, at positions of one epoch."""
        ...


class InOrder:
    """All once an epoch, in the order in which they are stored."""

    def __init__(self, num: int) -> None:
        self.num = num

    def at(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start % self.num, start % self.num + stop - start)


class ShuffledOrder:
    """All once an epoch, in an order of its own each time. It is computed, so its memory does not grow with `num`."""

    def __init__(self, num: int, seed: int, small: int = SMALL) -> None:
        self.num, self.seed, self._small = num, seed, small

    def at(self, start: int, stop: int) -> np.ndarray:
        epoch, first = divmod(start, self.num)
        last = first + stop - start
        if self.num <= self._small:
            return _permutation(self.num, self.seed, epoch)[first:last]
        return permuted(np.arange(first, last, dtype=np.uint64), self.num, self.seed, epoch)


class UniformOrder:
    """Each draw by itself, all equally likely."""

    def __init__(self, num: int, seed: int) -> None:
        self.num, self.seed = num, seed

    def at(self, start: int, stop: int) -> np.ndarray:
        return (uniforms(self.seed, start, stop) * self.num).astype(np.int64)


class WeightedOrder:
    """Each draw by itself, as likely as `find` makes it of uniform numbers [n]."""

    def __init__(self, num: int, seed: int, find: Callable[[np.ndarray], np.ndarray]) -> None:
        self.num, self.seed, self._find = num, seed, find

    def at(self, start: int, stop: int) -> np.ndarray:
        return self._find(uniforms(self.seed, start, stop))


def generator(*numbers: int) -> np.random.Generator:
    """A generator of random numbers that is told from others by these."""
    return np.random.default_rng(np.random.SeedSequence(numbers))


@lru_cache(maxsize=8)
def _permutation(num: int, seed: int, epoch: int) -> np.ndarray:
    found = generator(seed, epoch).permutation(num)
    found.flags.writeable = False
    return found


def uniforms(seed: int, start: int, stop: int, stream: int = 0) -> np.ndarray:
    """Uniform numbers [stop - start] from [0, 1), one for each position. Of each stream there are others."""
    (key,) = _keys(seed, stream, 1)
    hashed = _hashed(np.arange(start, stop, dtype=np.uint64) * _ODD, key)
    hashed >>= _11
    return hashed * 2.0**-53


def permuted(places: np.ndarray, num: int, seed: int, epoch: int) -> np.ndarray:
    """The numbers [n] at the places [n] of a permutation of 0 ... num - 1; `places` are overwritten.

    A Feistel network over a rectangle that is hardly larger than `num`; what falls outside goes through it again.
    """
    wide = int(np.ceil(np.sqrt(num)))
    high = -(-num // wide)
    keys = _keys(seed, epoch, _ROUNDS)
    found = _network(places, wide, high, keys)
    outside = np.flatnonzero(found >= num)
    while len(outside):
        found[outside] = _network(found[outside], wide, high, keys)
        outside = outside[found[outside] >= num]
    return found.astype(np.int64)


def _network(numbers: np.ndarray, wide: int, high: int, keys: np.ndarray) -> np.ndarray:
    left, right = np.divmod(numbers, np.uint64(wide))  # left < high, right < wide
    sides = [left, right]
    sizes = (np.uint64(high), np.uint64(wide))
    for number, key in enumerate(keys):
        own, other = number % 2, 1 - number % 2
        shifted = sides[own] + (((_hashed(sides[other], key) >> _32) * sizes[own]) >> _32)
        sides[own] = np.where(shifted >= sizes[own], shifted - sizes[own], shifted)
    return sides[0] * sizes[1] + sides[1]


def _hashed(values: np.ndarray, key: np.uint64) -> np.ndarray:
    """Sixty-four bits of each value that look like chance: the finalizer of SplitMix64."""
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
    return np.random.SeedSequence([seed, stream]).generate_state(num, np.uint64)


class Blocks:
    """All once an epoch: runs of steps in a random order, those of so many runs at a time mixed with each other.

    What lies near each other is read within a short time, so a block of compressed items is decoded once an epoch.

    Args:
        starts, stops: the numbers of each run [k].
        at_once: so many runs are mixed.
    """

    def __init__(self, starts: np.ndarray, stops: np.ndarray, at_once: int, seed: int) -> None:
        self.num, self.seed = int((stops - starts).sum()), seed
        self._starts, self._sizes, self._at_once = starts, stops - starts, at_once
        self._epoch = self._chunk = -1
        self._mixed = np.zeros(0, np.int64)

    def at(self, start: int, stop: int) -> np.ndarray:
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
        self._runs = generator(self.seed, epoch).permutation(len(self._starts))
        ends = np.cumsum(self._sizes[self._runs])
        self._chunk_ends = np.append(ends[self._at_once - 1 : -1 : self._at_once], ends[-1:])
        self._epoch, self._chunk = epoch, -1

    def _mix(self, chunk: int) -> None:
        runs = self._runs[chunk * self._at_once : (chunk + 1) * self._at_once]
        numbers = ranges(self._starts[runs], self._sizes[runs])
        self._mixed = numbers[generator(self.seed, self._epoch, 1, chunk).permutation(len(numbers))]
        self._chunk = chunk


def runs_of(starts: np.ndarray, lengths: np.ndarray, lookbacks: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers at which runs of at most `size` steps begin and stop, [k] each.

    A run stays in its episode [n], and its rows in a block of `size` rows, counted from the episode's lookback on.
    """
    counts = np.where(lengths > 0, (lookbacks + lengths - 1) // size - lookbacks // size + 1, 0)
    which = np.repeat(np.arange(len(starts)), counts)
    blocks = ranges(lookbacks // size, counts)
    begins = np.maximum(blocks * size - lookbacks[which], 0)
    stops = np.minimum((blocks + 1) * size - lookbacks[which], lengths[which])
    return starts[which] + begins, starts[which] + stops
