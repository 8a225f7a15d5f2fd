"""`Series`: one array of an episode or of a batch, with what there is to say of its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import Any

import numpy as np

from episodes.errors import EpisodeError
from episodes.tracks import InfoTrack, ListTrack, Track, Tracks
from episodes.tracks.field import EXTRA
from episodes.tracks.infos.columns import ColumnInfos, TypedColumn
from episodes.tracks.infos.dicts import infos_of

MOST_NUMBERS = 1 << 17  # that are looked at for the lowest, the mean and the highest
MOST_ITEMS = 500  # of a growing track that are looked at: each is an object of Python
SMALLEST_IMAGE = 8  # pixels
MOST_VALUES = 24  # of whole numbers that are drawn as a band of colours


@dataclass(frozen=True)
class Series:
    """Items over time: `array` holds them all, or those at `places`.

    Args:
        label: as a reader knows it.
        hue: the name of its colour: a kind of track.
        array: [k, ...].
        total: n, the number of all items.
        places: int [k], which of the n items these are; None for all.
        more: 1 where there is an item for each observation, 0 for each step.
        nbytes: of all items, as far as it is known.
    """

    label: str
    hue: str
    array: np.ndarray
    total: int
    places: np.ndarray | None = None
    more: int = 0
    nbytes: int | None = None
    note: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return (self.total, *self.array.shape[1:])

    @property
    def dtype(self) -> str:
        """The name of the items' dtype."""
        return "text" if self.array.dtype.kind in "US" else str(self.array.dtype)

    @cached_property
    def is_numeric(self) -> bool:
        """Whether there are numbers to draw."""
        return self.array.dtype.kind in "biuf" and self.array.size > 0

    @cached_property
    def is_image(self) -> bool:
        """Whether an item is a picture: [H, W], [H, W, C] or [C, H, W] in whole bytes, or three colours of floats."""
        item = self.array.shape[1:]
        if self.array.dtype == np.uint8 and len(item) == 2:
            return min(item) >= SMALLEST_IMAGE
        if len(item) != 3 or (self.array.dtype != np.uint8 and 3 not in (item[0], item[2])):
            return False
        return self.is_numeric and sorted(item)[1] >= SMALLEST_IMAGE and min(item) <= SMALLEST_IMAGE

    @cached_property
    def sample(self) -> np.ndarray:
        """The numbers [m, d] that are looked at, all of them where there are not too many."""
        array = self.array
        step = max(1, -(-array.size // (MOST_NUMBERS << 2 if self.is_image else MOST_NUMBERS)))
        return array[::step].reshape(-(-len(array) // step), -1)

    @cached_property
    def is_exact(self) -> bool:
        """Whether all items are looked at."""
        return len(self.sample) == self.total

    @cached_property
    def finite(self) -> np.ndarray:
        """The sample with NaN for what is not finite."""
        numbers = self.sample
        if numbers.dtype.kind != "f":
            return numbers
        if numbers.dtype == np.float16:
            numbers = numbers.astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            total = numbers.sum(dtype=np.float64)  # in one pass; that of finite numbers is finite but for rare ones
        if np.isfinite(total):
            return numbers
        return np.where(np.isfinite(numbers), numbers, np.nan)

    @cached_property
    def oddities(self) -> tuple[int, int]:
        """How many NaN and how many infinite numbers the sample has."""
        if self.finite is self.sample or self.sample.dtype.kind != "f":
            return 0, 0
        missing, odd = int(np.isnan(self.sample).sum()), int(np.isnan(self.finite).sum())
        return missing, odd - missing

    @cached_property
    def ranges(self) -> np.ndarray:
        """The lowest, the mean and the highest finite number of each of the d numbers of an item, [3, d]."""
        numbers = np.ascontiguousarray(self.finite.T)
        if not any(self.oddities):
            return np.stack([numbers.min(1), _mean(numbers, 1), numbers.max(1)])
        there = ~np.isnan(numbers)
        count = there.sum(1)
        mean = np.where(there, numbers / np.maximum(count, 1)[:, None], 0).sum(1, dtype=np.float64)
        low, high = np.fmin.reduce(numbers, 1), np.fmax.reduce(numbers, 1)
        return np.stack([low, np.where(count, mean, np.nan), high])

    @cached_property
    def range(self) -> tuple[float, float, float]:
        """The lowest, the mean and the highest finite number; NaN where there is none."""
        if self.is_image:  # not pixel by pixel
            numbers = self.finite[~np.isnan(self.finite)] if any(self.oddities) else self.finite
            return (
                (float(numbers.min()), float(_mean(numbers)), float(numbers.max())) if numbers.size else (nan, nan, nan)
            )
        low, mean, high = self.ranges
        if any(self.oddities):
            there = ~np.isnan(mean)
            low, mean, high = low[there], mean[there], high[there]
        if not len(mean):
            return nan, nan, nan
        return float(low.min()), float(_mean(mean)), float(high.max())

    @cached_property
    def is_band(self) -> bool:
        """Whether the items are few whole numbers, one at a time: actions, flags, modes."""
        if not self.is_numeric or self.array.dtype.kind == "f" or self.sample.shape[1] != 1:
            return False
        low, _, high = self.range
        return high - low < MOST_VALUES

    def at(self, places: np.ndarray) -> np.ndarray:
        """The items nearest to those places of the n."""
        if self.places is None:
            return self.array[places]
        return self.array[np.searchsorted(self.places, places).clip(0, len(self.places) - 1)]


def _mean(numbers: np.ndarray, axis: int | None = None) -> Any:
    """The mean, also of numbers whose sum is beyond float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = numbers.mean(axis, dtype=np.float64)
    if np.isfinite(mean).all():
        return mean
    return (numbers / (numbers.size if axis is None else numbers.shape[axis])).sum(axis, dtype=np.float64)


def of_track(track: Track) -> Iterator[Series]:
    """A series for each array of a track; of one that grows, of some of its items."""
    if track.field.holds == "infos":
        yield from _of_infos(track)
        return
    field, total, places = track.field, track.total, None
    finished: Any = track
    if type(track) is ListTrack:
        places = _places(total)
        try:
            finished = track.take(places).finalize()
        except (EpisodeError, ValueError, TypeError) as error:
            yield Series(field.label, hue_of(field), np.zeros((0,)), total, None, field.more, None, str(error))
            return
    for path, array in finished.arrays().items():
        label = path.removeprefix(f"{EXTRA}/")
        nbytes = array.nbytes if places is None else array.nbytes * total // max(len(places), 1)
        yield Series(label, hue_of(field), array, total, places, field.more, nbytes)


def of_tracks(tracks: Tracks) -> Iterator[Series]:
    """The series of all tracks of an episode or a pack, infos last."""
    for track in (tracks.observations, tracks.actions, tracks.rewards, *tracks.extra.values(), tracks.infos):
        yield from of_track(track)


def hue_of(field: Any) -> str:
    """The name of the colour of a track."""
    return "extra" if field.is_extra else field.name


def _places(total: int) -> np.ndarray:
    return np.arange(total) if total <= MOST_ITEMS else np.linspace(0, total - 1, MOST_ITEMS).astype(np.intp)


def _of_infos(track: Track) -> Iterator[Series]:
    """A series for each key of the infos."""
    infos, places, total = track.whole(), None, track.total
    if type(track) is not InfoTrack:
        places = _places(total)
        infos = infos_of([infos[place] for place in places])
    if not isinstance(infos, ColumnInfos):
        return
    columns: Mapping[str, Any] = infos.whole().columns
    for path, column in columns.items():
        yield _of_info(path, column, places, total)


def _of_info(path: str, column: Any, places: np.ndarray | None, total: int) -> Series:
    present = column.present
    missing = "" if present.all() else f"in {present.sum():,} of {len(present):,} infos"
    values = column.values if isinstance(column, TypedColumn) else None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biufUS":
        first = column.list(np.flatnonzero(present)[:1])
        array = np.array([type(value).__name__ for value in first])
        words = "; ".join(filter(None, ("values of several kinds, such as a", missing)))
        return Series(f"infos/{path}", "infos", array, total, places, 1, None, words)
    if missing and values.dtype.kind in "biuf":
        values = np.where(present.reshape(-1, *[1] * (values.ndim - 1)), values, np.nan)
    return Series(
        f"infos/{path}", "infos", values, total, places, 1, values.nbytes if places is None else None, missing
    )
