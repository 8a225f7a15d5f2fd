"""Mean, standard deviation and quantiles of the arrays of a data set, which are stored with the data set.

They are computed when first read, since writing would take twice as long with them.
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
from episodes.format_versions import checked_shape
from episodes.returns.checks import check_fraction
from episodes.storage.checksums import verify_json, with_checksum
from episodes.storage.files import put, read_file
from episodes.storage.layout import StoredBatch
from episodes.storage.search.sketch import Sketch
from episodes.storage.track_schema import is_observed
from episodes.tracks.indexing import ranges
from episodes.tracks.ragged import Ragged

NAME = "statistics.json"
MOST_PARTS = 256  # an item of more numbers, such as an image, has statistics of all its numbers together
_DECODED = 1 << 26  # bytes of a compressed track that are in memory at a time
_RAGGED_ITEMS = 1 << 14  # the same for a ragged track, in items


def without_rounding(std: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return standard deviations with 0 for those of equal numbers, which rounding errors of the mean make larger.

    Args:
        std: the standard deviations [...].
        low: the lowest numbers [...].
        high: the highest numbers [...].
    """
    return np.where(low == high, 0.0, std)


@dataclass(frozen=True)
class TrackStatistics:
    """Mean, standard deviation, extremes and histogram of one array. Each number of an item has separate statistics,
    but all pixels of an image share them.

    NaN is only counted. Quantiles have a relative error of at most 1/256. Observations are all T + 1 of a chunk,
    without lookbacks.

    Attributes:
        count: number of values that are not NaN.
        num_nan: number of NaN.
        mean: of the values.
        squares: sum of the squared differences from the mean.
        min, max: lowest and highest value; inf and -inf without values.
        sketches: histogram of each number of an item, in C order.
        is_whole: whether all values are whole numbers; quantiles are whole then.
    """

    count: np.ndarray
    num_nan: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    min: np.ndarray
    max: np.ndarray
    sketches: tuple[Sketch, ...]
    is_whole: bool = False

    @staticmethod
    def of(array: np.ndarray) -> TrackStatistics:
        """Compute the statistics of an array [n, ...] of n items."""
        if int(np.prod(array.shape[1:])) > MOST_PARTS:
            array = array.reshape(-1)
        values = array.astype(np.float64)
        is_number = ~np.isnan(values)
        count = is_number.sum(0)
        with np.errstate(all="ignore"):  # of infinities, and of what is nearly as large
            mean = np.sum(values, 0, where=is_number) / count
            mean = np.where(count > 0, mean, 0.0)
            squares = np.sum((values - mean) ** 2, 0, where=is_number)
        parts = values.reshape(len(values), int(np.prod(values.shape[1:])))
        known = is_number.reshape(parts.shape)
        sketches = tuple(Sketch.of(part[is_value]) for part, is_value in zip(parts.T, known.T, strict=True))
        lowest = np.min(values, 0, where=is_number, initial=np.inf)
        highest = np.max(values, 0, where=is_number, initial=-np.inf)
        whole = array.dtype.kind in "biu" or bool((np.trunc(values) == values).all(where=is_number))
        counts = np.asarray(count), np.asarray(len(values) - count)
        return TrackStatistics(*counts, mean, np.asarray(squares), lowest, highest, sketches, whole)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation, as `np.std` computes it (divided by n, not n - 1). Rounding errors are 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return without_rounding(np.sqrt(self.squares / self.count), self.min, self.max)

    def quantile(self, share: float) -> np.ndarray:
        """Return the estimated quantile `share`, such as 0.5 for the median.
        Raise `InvalidArgument` unless it is in [0, 1]."""
        check_fraction("share", share)
        values = np.array([sketch.quantile(share) for sketch in self.sketches]).reshape(self.mean.shape)
        values = np.trunc(values) if self.is_whole else values
        return np.clip(values, self.min, self.max)

    def merged(self, statistics: TrackStatistics) -> TrackStatistics:
        """Return the statistics of all values that are summarized in this object or in `statistics` (algorithm of Chan,
        Golub and LeVeque, 1979)."""
        count = self.count + statistics.count
        with np.errstate(all="ignore"):
            share, apart = statistics.count / np.maximum(count, 1), statistics.mean - self.mean
            mean = np.where(self.count == 0, statistics.mean, self.mean + apart * share)
            mean = np.where(
                np.isfinite(apart), mean, self.mean + statistics.mean
            )  # infinities stay, opposite ones are NaN
            squares = self.squares + statistics.squares + np.where(share > 0, apart**2 * self.count * share, 0.0)
        return TrackStatistics(
            count,
            self.num_nan + statistics.num_nan,
            mean,
            squares,
            np.minimum(self.min, statistics.min),
            np.maximum(self.max, statistics.max),
            tuple(a.merged(b) for a, b in zip(self.sketches, statistics.sketches, strict=True)),
            self.is_whole and statistics.is_whole,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as a value that can be stored in JSON."""
        arrays = np.stack([np.asarray(getattr(self, name), np.float64).reshape(-1) for name in _ARRAYS])
        value = {"shape": list(self.mean.shape), "numbers": base64.b64encode(arrays.astype("<f8").tobytes()).decode()}
        return value | {"whole": self.is_whole, "sketches": [sketch.to_text() for sketch in self.sketches]}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> TrackStatistics:
        """Create the statistics from a JSON value that `to_json` returned."""
        arrays = np.frombuffer(base64.b64decode(value["numbers"]), "<f8").reshape(
            len(_ARRAYS), *checked_shape(value["shape"], "the shape of an item")
        )
        fields = dict(zip(_ARRAYS, arrays, strict=True))
        counts = {name: fields[name].astype(np.int64) for name in ("count", "num_nan")}
        sketches = tuple(map(Sketch.of_text, value["sketches"]))
        return TrackStatistics(**fields | counts, sketches=sketches, is_whole=value["whole"])


_ARRAYS = ("count", "num_nan", "mean", "squares", "min", "max")

OfTracks = dict[str, TrackStatistics]


def of_batch(stored: StoredBatch, rows: np.ndarray | None = None) -> OfTracks:
    """Compute the statistics of each numeric array of a record batch, as a dict by path.
    `rows` selects some of its episodes."""
    pack, result = stored.whole, dict[str, TrackStatistics]()
    for path in pack.tracks:
        parts = [TrackStatistics.of(part) for part in _parts_of_array(stored, path, rows) if part.dtype.kind in "biuf"]
        if parts:
            result[path] = reduce(TrackStatistics.merged, parts)
    return result


def _parts_of_array(stored: StoredBatch, path: str, rows: np.ndarray | None) -> Iterator[np.ndarray]:
    """Yield the items of the array at `path`, without lookbacks. A compressed array is yielded in
    several parts to save memory."""
    pack, is_observation = stored.whole, is_observed(path)
    array: Any = pack.tracks[path]
    if rows is not None or pack.lookbacks.any():
        starts = (pack.observation_offsets if is_observation else pack.offsets)[:-1] + pack.lookbacks
        index = slice(None) if rows is None else rows
        array = array[ranges(starts[index], (pack.lengths + is_observation)[index])]
    if path not in stored.compressed:
        yield array.flat if type(array) is Ragged else array
        return
    is_ragged = stored.fields[path].is_ragged
    size = _RAGGED_ITEMS if is_ragged else max(1, _DECODED // max(1, stored.decoded(path, array[:1]).nbytes))
    for start in range(0, len(array), size):
        part = stored.decoded(path, array[start : start + size])
        yield part.flat if is_ragged else part


def merge_statistics(parts: list[OfTracks]) -> OfTracks:
    """Merge the statistics of several record batches, each a dict by array path, to one dict."""
    result: OfTracks = {}
    for part in parts:
        result |= {
            path: result[path].merged(statistics) if path in result else statistics for path, statistics in part.items()
        }
    return result


def read_statistics(directory: Path) -> dict[str, OfTracks]:
    """Read the stored statistics, as a dict by shard name. It is empty if `statistics.json` is missing or damaged."""
    try:
        stored = verify_json(read_file(directory / NAME), NAME)
        return {
            shard: {path: TrackStatistics.from_json(value) for path, value in tracks.items()}
            for shard, tracks in stored["shards"].items()
        }
    except (FileNotFoundError, UnreadableData):
        return {}


def put_statistics(directory: Path, shards: Mapping[str, OfTracks]) -> None:
    """Write the statistics of each shard to `statistics.json`. Disk errors are ignored,
    since the file is only a cache."""
    values = {
        name: {path: statistics.to_json() for path, statistics in tracks.items()} for name, tracks in shards.items()
    }
    with suppress(OSError):
        put(directory / NAME, json.dumps(with_checksum({"shards": values})) + "\n")
