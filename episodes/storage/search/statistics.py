"""Statistics of each track of a data set: of whole shards they are computed once, kept with it, and merged.

They are not computed while episodes are written, which would take twice as long, but when somebody asks first; of a
data set that was appended to, only of the shards that are new.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import UnreadableData
from episodes.returns.checks import check_fraction
from episodes.storage.checksums import checked, with_sum
from episodes.storage.files import put, read_file
from episodes.storage.layout import StoredBatch
from episodes.storage.search.sketch import Sketch
from episodes.storage.track_schema import is_observed
from episodes.tracks.indexing import ranges

NAME = "statistics.json"
MOST_PARTS = 256  # an item of more numbers, such as an image, has statistics of all its numbers together
_DECODED = 1 << 26  # bytes of a compressed track that are in memory at a time


@dataclass(frozen=True)
class TrackStatistics:
    """What is known of the numbers of a track: arrays [*item], or [] for all numbers of a large item together.

    NaN is counted, and is in nothing else. Quantiles are good to 1/256 of themselves; all else is exact, but for
    rounding. Observations are those of all T + 1 of an episode; items of a lookback are left out.
    """

    count: np.ndarray  # without NaN
    num_nan: np.ndarray
    mean: np.ndarray
    squares: np.ndarray  # the sum of squared differences from the mean
    min: np.ndarray  # inf of none
    max: np.ndarray
    sketches: tuple[Sketch, ...]  # of each number of an item, in C order
    is_whole: bool = False  # there are whole numbers alone, and so are quantiles

    @staticmethod
    def of(array: np.ndarray) -> TrackStatistics:
        """The statistics of items [n, ...] of numbers."""
        if int(np.prod(array.shape[1:])) > MOST_PARTS:
            array = array.reshape(-1)
        values = array.astype(np.float64)
        there = ~np.isnan(values)
        count = there.sum(0)
        with np.errstate(all="ignore"):  # of infinities, and of what is nearly as large
            mean = np.sum(values, 0, where=there) / count
            mean = np.where(count > 0, mean, 0.0)
            squares = np.sum((values - mean) ** 2, 0, where=there)
        parts = values.reshape(len(values), int(np.prod(values.shape[1:])))
        known = there.reshape(parts.shape)
        sketches = tuple(Sketch.of(part[own]) for part, own in zip(parts.T, known.T, strict=True))
        lowest = np.min(values, 0, where=there, initial=np.inf)
        highest = np.max(values, 0, where=there, initial=-np.inf)
        whole = array.dtype.kind in "biu" or bool((np.trunc(values) == values).all(where=there))
        counts = np.asarray(count), np.asarray(len(values) - count)
        return TrackStatistics(*counts, mean, np.asarray(squares), lowest, highest, sketches, whole)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation, as `np.std` has it: of all, not of a sample."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.sqrt(self.squares / self.count)

    def quantile(self, share: float) -> np.ndarray:
        """The number below which this share lies. `InvalidArgument` unless the share lies in [0, 1]."""
        check_fraction("share", share)
        found = np.array([sketch.quantile(share) for sketch in self.sketches]).reshape(self.mean.shape)
        found = np.trunc(found) if self.is_whole else found
        return np.clip(found, self.min, self.max)

    def merged(self, other: TrackStatistics) -> TrackStatistics:
        """The statistics of both together (Chan, Golub and LeVeque, 1979)."""
        count = self.count + other.count
        with np.errstate(all="ignore"):
            share, apart = other.count / np.maximum(count, 1), other.mean - self.mean
            mean = np.where(self.count == 0, other.mean, self.mean + apart * share)
            mean = np.where(np.isfinite(apart), mean, self.mean + other.mean)  # infinities stay, opposite ones are NaN
            squares = self.squares + other.squares + np.where(share > 0, apart**2 * self.count * share, 0.0)
        return TrackStatistics(
            count,
            self.num_nan + other.num_nan,
            mean,
            squares,
            np.minimum(self.min, other.min),
            np.maximum(self.max, other.max),
            tuple(a.merged(b) for a, b in zip(self.sketches, other.sketches, strict=True)),
            self.is_whole and other.is_whole,
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON: the shape, the arrays in one text, and the sketches."""
        arrays = np.stack([np.asarray(getattr(self, name), np.float64).reshape(-1) for name in _ARRAYS])
        told = {"shape": list(self.mean.shape), "numbers": base64.b64encode(arrays.astype("<f8").tobytes()).decode()}
        return told | {"whole": self.is_whole, "sketches": [sketch.to_text() for sketch in self.sketches]}

    @staticmethod
    def from_json(told: Mapping[str, Any]) -> TrackStatistics:
        """The statistics of `to_json`."""
        arrays = np.frombuffer(base64.b64decode(told["numbers"]), "<f8").reshape(len(_ARRAYS), *told["shape"])
        found = dict(zip(_ARRAYS, arrays, strict=True))
        counts = {name: found[name].astype(np.int64) for name in ("count", "num_nan")}
        sketches = tuple(map(Sketch.of_text, told["sketches"]))
        return TrackStatistics(**found | counts, sketches=sketches, is_whole=told["whole"])


_ARRAYS = ("count", "num_nan", "mean", "squares", "min", "max")

OfTracks = dict[str, TrackStatistics]


def of_batch(stored: StoredBatch, rows: np.ndarray | None = None) -> OfTracks:
    """The statistics of each track of numbers of a record batch; of the episodes of some rows [n]."""
    pack, found = stored.whole, dict[str, TrackStatistics]()
    for path in pack.tracks:
        parts = [TrackStatistics.of(part) for part in _items(stored, path, rows) if part.dtype.kind in "biuf"]
        if parts:
            found[path] = reduce(TrackStatistics.merged, parts)
    return found


def _items(stored: StoredBatch, path: str, rows: np.ndarray | None) -> Iterator[np.ndarray]:
    """The items of a track, without lookbacks; of a compressed one, so many at a time."""
    pack, more = stored.whole, is_observed(path)
    array = pack.tracks[path]
    if rows is not None or pack.lookbacks.any():
        starts = (pack.observation_offsets if more else pack.offsets)[:-1] + pack.lookbacks
        which = slice(None) if rows is None else rows
        array = array[ranges(starts[which], (pack.lengths + more)[which])]
    if path not in stored.compressed:
        yield array
        return
    size = max(1, _DECODED // max(1, stored.decoded(path, array[:1]).nbytes))
    for start in range(0, len(array), size):
        yield stored.decoded(path, array[start : start + size])


def merged(parts: list[OfTracks]) -> OfTracks:
    """The statistics of all."""
    found: OfTracks = {}
    for part in parts:
        found |= {path: found[path].merged(own) if path in found else own for path, own in part.items()}
    return found


def read_statistics(directory: Path) -> dict[str, OfTracks]:
    """What is kept of a data set's shards, by name; nothing where the file is damaged: it can be computed again."""
    try:
        told = checked(read_file(directory / NAME), NAME)
        return {
            shard: {path: TrackStatistics.from_json(own) for path, own in tracks.items()}
            for shard, tracks in told["shards"].items()
        }
    except (FileNotFoundError, UnreadableData):
        return {}


def put_statistics(directory: Path, shards: Mapping[str, OfTracks]) -> None:
    """Keep the statistics of shards; on a disk that takes nothing, they are computed again next time."""
    told = {name: {path: own.to_json() for path, own in tracks.items()} for name, tracks in shards.items()}
    with suppress(OSError):
        put(directory / NAME, json.dumps(with_sum({"shards": told})) + "\n")
