"""Policy version of each step, run-length encoded: `VersionRuns` for one episode, `VersionColumn` for many.

A chunk that was sampled between two updates has one version, which is stored alone. If an update falls into a chunk,
a run begins at the first step of the new version:

    step        0 1 2 3 4 5 6 7
    version     4 4 4 5 5 5 5 6      versions (4, 5, 6), begins (3, 7)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from episodes.errors import InvalidArgument, TrackMismatch
from episodes.tracks.indexing import offsets_of, ranges
from episodes.tracks.read_only import read_only

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

UNKNOWN = -1
"""The version of a step whose version is unknown."""
_MOST = 1 << 63


def checked_version(version: object) -> int:
    """Return a policy version as an int, or `UNKNOWN` (-1) for None. Raise `InvalidArgument` for invalid values."""
    if version is None:
        return UNKNOWN
    if isinstance(version, bool) or not isinstance(version, (int, np.integer)) or not 0 <= version < _MOST:
        raise InvalidArgument(f"policy_version={version!r}; give an int, 0 to 2**63 - 1")
    return int(version)


class VersionRuns(NamedTuple):
    """Policy versions of an episode's steps, run-length encoded: `versions[k + 1]` applies from step `begins[k]` on."""

    versions: tuple[int, ...]
    begins: tuple[int, ...] = ()

    @staticmethod
    def of(versions: ArrayLike | VersionRuns | None, num_steps: int) -> VersionRuns | None:
        """Encode one version for all steps, or one version per step, as runs. Returns None if all are unknown.


        Raises:
            InvalidArgument: a version is not an int from 0 to 2**63 - 1, or -1 for unknown.
            TrackMismatch: there are versions for another number of steps.
        """
        if versions is None or isinstance(versions, VersionRuns):
            return versions
        array = np.asarray(versions)
        is_valid = array.ndim <= 1 and (array.dtype.kind in "iu" or not array.size)
        if not is_valid or (array < UNKNOWN).any() or (array >= _MOST).any():
            raise InvalidArgument(
                f"policy_versions={versions!r}; give one number or one for each step: 0 to 2**63 - 1, or -1 for unknown"
            )
        if array.ndim and len(array) != num_steps:
            raise TrackMismatch(f"{len(array)} policy_versions for {num_steps} steps; give one for each step")
        if not array.ndim:
            return None if array == UNKNOWN else VersionRuns((int(array),))
        if (array == UNKNOWN).all():  # also where there is no step
            return None
        begins = np.flatnonzero(np.diff(array)) + 1
        return VersionRuns((int(array[0]), *array[begins].tolist()), tuple(begins.tolist()))

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Lowest and highest known policy version of the episode, or None if all are unknown."""
        known = [version for version in self.versions if version != UNKNOWN]
        return (min(known), max(known)) if known else None

    def window(self, first: int, num_steps: int) -> VersionRuns | None:
        """Return the policy versions of `num_steps` steps from step `first` on, or None if all are unknown."""
        part = self._part(first, num_steps)
        return None if part == UNKNOWN_RUNS else part

    def _part(self, first: int, num_steps: int) -> VersionRuns | None:
        """Return the versions of `num_steps` steps from step `first` on, or None if there are no steps."""
        if not num_steps:
            return None
        if not self.begins:
            return self
        low, high = bisect_right(self.begins, first), bisect_left(self.begins, first + num_steps)
        return VersionRuns(self.versions[low : high + 1], tuple(begin - first for begin in self.begins[low:high]))

    def extended_by(self, versions: VersionRuns, step: int) -> VersionRuns:
        """Return these versions up to step `step`, followed by `versions`, the versions from step `step` on."""
        earlier = self._part(0, step)
        if earlier is None:
            return versions
        same = earlier.versions[-1] == versions.versions[0]
        begins = (*earlier.begins, *(() if same else (step,)), *(step + begin for begin in versions.begins))
        return VersionRuns(earlier.versions[: len(earlier.versions) - same] + versions.versions, begins)

    def steps(self, num_steps: int) -> np.ndarray:
        """Return the policy version of each of `num_steps` steps, int64 [T]."""
        counts = np.diff((0, *self.begins, num_steps)) if self.begins else num_steps
        return np.repeat(np.array(self.versions), counts)


UNKNOWN_RUNS = VersionRuns((UNKNOWN,))


def join_runs(runs: VersionRuns | None, later: VersionRuns | None, step: int) -> VersionRuns | None:
    """Join the policy versions `runs` of the first `step` steps of an episode with `later` ones (None: all unknown)."""
    if runs is None and later is None:
        return None
    return (runs or UNKNOWN_RUNS).extended_by(later or UNKNOWN_RUNS, step)


class VersionColumn(Sequence[VersionRuns | None]):
    """Policy versions of the steps of n episodes, run-length encoded in three arrays.

    Attributes:
        versions: versions of all runs, chunk by chunk, int64 [m].
        begins: step of the chunk at which each run begins, int64 [m]; None if each chunk has one run.
        bounds: bounds of the runs of each chunk, int64 [n + 1]; None if each chunk has one run.
    """

    __slots__ = ("begins", "bounds", "versions")

    def __init__(self, versions: np.ndarray, begins: np.ndarray | None = None, bounds: np.ndarray | None = None):
        self.versions = read_only(versions)
        self.begins = None if begins is None else read_only(begins)
        self.bounds = None if bounds is None else read_only(bounds)

    @staticmethod
    def of(values: Sequence[Any] | np.ndarray | VersionColumn | None) -> VersionColumn | None:
        """Encode the policy versions of n episodes, each given as a number, as `VersionRuns` or as None.

        Raises:
            InvalidArgument: a version is not an int from 0 to 2**63 - 1, or -1 for unknown.
        """
        if values is None or isinstance(values, VersionColumn):
            return values
        if type(values) is list and values.count(None) == len(values):
            return None
        if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.ndim == 1:
            if (values < UNKNOWN).any() or (values >= _MOST).any():
                raise InvalidArgument("policy_versions: give 0 to 2**63 - 1, or -1 for unknown, for each episode")
            return None if (values == UNKNOWN).all() else VersionColumn(values.astype(np.int64))
        runs = [value if isinstance(value, VersionRuns) else VersionRuns.of(value, 0) for value in values]
        if not any(runs):
            return None
        whole = [run or UNKNOWN_RUNS for run in runs]
        versions = np.array([version for run in whole for version in run.versions], np.int64)
        if len(versions) == len(whole):
            return VersionColumn(versions)
        begins = np.array([begin for run in whole for begin in (0, *run.begins)], np.int64)
        return VersionColumn(versions, begins, offsets_of([len(run.versions) for run in whole]))

    @staticmethod
    def of_rows(
        changes: np.ndarray, versions: np.ndarray, firsts: np.ndarray, lengths: np.ndarray
    ) -> VersionColumn | None:
        """Encode the policy versions of episode parts that are consecutive rows of a table.

        The table is given by the rows at which the version changes.

        Args:
            changes: rows [k], ascending from 0, at which each of `versions` [k] begins.
            firsts: row of each chunk's first step, [n].
            lengths: number of steps of each chunk, [n].

        Returns:
            The encoding, or None if all versions are unknown.
        """
        low = np.searchsorted(changes, firsts, "right") - 1
        high = np.searchsorted(changes, firsts + np.maximum(lengths, 1), "left") - 1
        counts = high - low + 1
        if len(changes) == 1 or (counts == 1).all():
            return VersionColumn.of(versions[low])
        runs = ranges(low, counts)
        begins = np.maximum(changes[runs] - firsts.repeat(counts), 0)
        return VersionColumn(versions[runs], begins, offsets_of(counts))

    @staticmethod
    def of_steps(versions: np.ndarray, lengths: np.ndarray) -> VersionColumn | None:
        """Encode the versions of all steps of n episodes [sum(T)], whose lengths are `lengths` [n].

        None if all versions are unknown.
        """
        ends = np.cumsum(lengths)
        starts = np.zeros(len(versions) + 1, bool)
        starts[1:-1] = versions[1:] != versions[:-1]
        starts[(ends - lengths)[lengths > 0]] = True
        at = np.flatnonzero(starts[: len(versions)])
        counts = np.bincount(np.searchsorted(ends, at, "right"), minlength=len(lengths))
        return VersionColumn.of_runs(versions[at], at - (ends - lengths).repeat(counts), counts)

    @staticmethod
    def of_runs(versions: np.ndarray, begins: np.ndarray, counts: np.ndarray) -> VersionColumn | None:
        """Create the encoding from the runs of all n episodes, one after another. Episode i has `counts[i]` runs.

        A chunk without runs has an unknown version. The result is None if all versions are unknown.


        Raises:
            TrackMismatch: the numbers of runs differ, or the begins of a chunk do not ascend from 0.
        """
        if not (len(versions) == len(begins) == counts.sum()) or (versions < UNKNOWN).any():
            raise TrackMismatch(
                f"{len(versions)} policy versions and {len(begins)} begins do not fit {len(counts)} chunks"
            )
        firsts = np.zeros(len(begins), bool)
        firsts[(counts.cumsum() - counts)[counts > 0]] = True
        if begins[firsts].any() or (np.diff(begins, prepend=0)[~firsts] <= 0).any():
            raise TrackMismatch("policy versions: the begins of a chunk's runs do not ascend from 0")
        if (counts == 1).all() or (versions == UNKNOWN).all():
            return VersionColumn.of(versions)
        bounds = offsets_of(np.maximum(counts, 1))
        all_versions, all_begins = np.full(bounds[-1], UNKNOWN), np.zeros(bounds[-1], np.int64)
        rows = ranges(bounds[:-1], counts)  # a chunk without runs keeps one unknown run
        all_versions[rows], all_begins[rows] = versions, begins
        return VersionColumn(all_versions, all_begins, bounds)

    @staticmethod
    def concat(parts: Sequence[VersionColumn | None], sizes: Sequence[int]) -> VersionColumn | None:
        """Concatenate the policy versions of several packs with `sizes` episodes each. None means all unknown."""
        if all(part is None for part in parts):
            return None
        whole = [
            VersionColumn(np.full(n, UNKNOWN)) if part is None else part for part, n in zip(parts, sizes, strict=True)
        ]
        versions = np.concatenate([part.versions for part in whole])
        if all(part.bounds is None for part in whole):
            return VersionColumn(versions)
        begins = np.concatenate([part.all_begins() for part in whole])
        return VersionColumn(versions, begins, offsets_of(np.concatenate([part.counts() for part in whole])))

    def window(self, starts: np.ndarray, lengths: np.ndarray) -> VersionColumn | None:
        """Return the versions of `lengths` [n] steps of each episode, from its step `starts` [n] on.

        A chunk without steps has no version, as in `VersionRuns.window`. None is returned if all are unknown.
        """
        if self.bounds is None:
            return VersionColumn.of(np.where(lengths > 0, self.versions, UNKNOWN))
        owners = np.arange(len(self)).repeat(self.counts())
        begins, starts_of_runs = self.all_begins(), starts[owners]
        ends = np.append(begins[1:], 0)
        ends[self.bounds[1:] - 1] = np.iinfo(np.int64).max  # the last run of a chunk has no end
        overlaps = (ends > starts_of_runs) & (begins < starts_of_runs + lengths[owners]) & (lengths[owners] > 0)
        begins = np.maximum(begins - starts_of_runs, 0)[overlaps]
        return VersionColumn.of_runs(
            self.versions[overlaps], begins, np.bincount(owners[overlaps], minlength=len(self))
        )

    def __len__(self) -> int:
        return len(self.versions) if self.bounds is None else len(self.bounds) - 1

    def __getitem__(self, index: int | np.integer | slice | np.ndarray) -> Any:
        """Return the versions of one episode for an int, or of several episodes for a slice or an array.

        None if all versions are unknown.
        """
        if isinstance(index, (int, np.integer)):
            return self.item(range(len(self))[index])
        if self.bounds is None:
            return VersionColumn.of(self.versions[index])
        picked = np.arange(len(self))[index]
        counts = self.counts()[picked]
        runs = ranges(self.bounds[picked], counts)
        return VersionColumn.of_runs(self.versions[runs], self.all_begins()[runs], counts)

    def __iter__(self) -> Iterator[VersionRuns | None]:
        return map(self.item, range(len(self)))

    def item(self, i: int) -> VersionRuns | None:
        """Return the policy versions of episode i as `VersionRuns`, or None if all are unknown."""
        if self.bounds is None:
            version = self.versions.item(i)
            return None if version == UNKNOWN else VersionRuns((version,))
        rows = slice(self.bounds.item(i), self.bounds.item(i + 1))
        runs = VersionRuns(tuple(self.versions[rows].tolist()), tuple(self.all_begins()[rows].tolist()[1:]))
        return None if runs == UNKNOWN_RUNS else runs

    def counts(self) -> np.ndarray:
        """Return how many runs (consecutive steps with one version) each episode has, int64 [n]."""
        return np.ones(len(self.versions), np.int64) if self.bounds is None else np.diff(self.bounds)

    def all_begins(self) -> np.ndarray:
        """Return the step of its episode at which each of the m runs begins, int64 [m]."""
        return np.zeros(len(self.versions), np.int64) if self.begins is None else self.begins

    def steps(self, lengths: np.ndarray) -> np.ndarray:
        """Return the policy version of each step of all episodes, int64 [sum(T)], with -1 for unknown versions."""
        if self.bounds is None or self.begins is None:
            return self.versions.repeat(lengths)
        ends = np.empty_like(self.begins)
        ends[:-1] = self.begins[1:]
        ends[self.bounds[1:] - 1] = lengths
        return self.versions.repeat(ends - self.begins)

    def lowest_and_highest(self) -> np.ndarray:
        """Return the lowest and the highest known version of each episode, int64 [n, 2] (-1 if unknown)."""
        if self.bounds is None:
            return np.stack([self.versions, self.versions], 1)
        known = np.where(self.versions == UNKNOWN, np.iinfo(np.int64).max, self.versions)
        lowest = np.minimum.reduceat(known, self.bounds[:-1])
        highest = np.maximum.reduceat(self.versions, self.bounds[:-1])
        return np.stack([np.where(highest == UNKNOWN, UNKNOWN, lowest), highest], 1)

    def __eq__(self, column: object) -> bool:
        return isinstance(column, VersionColumn) and list(self) == list(column)

    __hash__ = None  # type: ignore[assignment]

    def in_band(self) -> tuple[bytes | None, ...]:
        """Convert the three arrays to bytes (or None), because pickled arrays would take more space."""
        arrays = (self.versions, self.begins, self.bounds)
        return tuple(None if array is None else array.tobytes() for array in arrays)

    @classmethod
    def from_band(cls, *band: bytes | None) -> VersionColumn:
        """Create a column from the bytes that `in_band` returned."""
        versions, *arrays = (None if column is None else np.frombuffer(column, np.int64) for column in band)
        return cls(np.zeros(0, np.int64) if versions is None else versions, *arrays)

    def __reduce__(self) -> Any:
        return VersionColumn.from_band, self.in_band()
