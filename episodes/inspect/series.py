"""`Series`: one array of an episode or batch with its name, colour and statistics, for plots and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from episodes.errors import EpisodeError
from episodes.inspect.downsampling import Cells, downsample
from episodes.inspect.formatting import clipped, number
from episodes.tracks import InfoTrack, ListTrack, Track, Tracks
from episodes.tracks.field import EXTRA
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.infos.info_column import TypedColumn
from episodes.tracks.nested import leaves
from episodes.tracks.ragged import LENGTH, Ragged
from episodes.tracks.space_kinds import SpaceKind, bounds_of, exact_kind_of, kind_of

if TYPE_CHECKING:
    from episodes.tracks.field import Field
    from episodes.tracks.infos.info_column import Column

MOST_NUMBERS = 1 << 26  # numbers of an array that statistics read; of a larger one they read evenly spaced items
MOST_PIXELS = 1 << 19  # the same for images
MOST_GROWING_BYTES = 1 << 26  # of a growing track, whose items are Python objects
FEW_ITEMS = 500  # that are read of a larger growing track
SMALLEST_IMAGE = 8  # pixels
MOST_OF_SPACE = 60  # characters
MOST_OF_DEFECTS = 300  # characters
MOST_BOUNDS = 8  # numbers of an item of a `Box` whose bounds are all listed
OUTSIDE = "outside of its space"
LENGTHS = " · length"  # ends the label of lengths beside the values of a ragged track
LOGP_DIFFERENCE = "logp_difference"  # name of a track of differences of log-probabilities
MOST_CHOICES = 2  # whose numbers have a mean, which is the share of the second one
MOST_VALUES = 24  # range of whole numbers that are drawn as a band of colours


class Counts(NamedTuple):
    """Numbers of missing, NaN and infinite values in an array."""

    missing: int  # items without this key
    nan: int
    above: int  # plus infinity
    below: int  # minus infinity

    @property
    def infinite(self) -> int:
        """Number of infinite values, positive and negative."""
        return self.above + self.below


@dataclass(frozen=True)
class Series:
    """Array over time with its name and colour, for plots. Large arrays may be represented by a sample of items.

    Args:
        label: the name in pictures and tables.
        hue: the name of its colour: a kind of track.
        array: [k, ...].
        total: n, the number of all items.
        places: int [k], the indices of the items of `array`; None for all.
        more: 1 if there is an item for each observation, 0 for each step.
        nbytes: size of all items, or None if it is unknown.
        present: bool [k], False for infos without this key; None if all have it.
        num_steps: T, if each item is a sequence [T, ...] of a batch; 0 otherwise.
        ragged: the items, if they have different lengths. `array` then has numbers that describe each of them.
        parts: names of the numbers of an item in `array`, such as "length". Empty for components of the items.
        space: the space of the items, or None if it is unknown.
    """

    label: str
    hue: str
    array: np.ndarray
    total: int
    places: np.ndarray | None = None
    more: int = 0
    nbytes: int | None = None
    note: str = ""
    present: np.ndarray | None = None
    num_steps: int = 0
    ragged: Ragged | None = None
    parts: tuple[str, ...] = ()
    space: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the complete array, even if only a sample of its items is held. The length of ragged items is -1."""
        return (self.total, *(self.array if self.ragged is None else self.ragged).shape[1:])

    @property
    def shape_text(self) -> str:
        """Shape of the complete array as text, such as "[201, 4]" or "[2, ragged]"."""
        return f"[{', '.join('ragged' if length == LENGTH else str(length) for length in self.shape)}]"

    @property
    def dtype(self) -> str:
        """Name of the items' dtype, or "text"."""
        dtype = (self.array if self.ragged is None else self.ragged).dtype
        return "text" if dtype.kind in "US" else str(dtype)

    @cached_property
    def part_names(self) -> list[str]:
        """Name of each of the d numbers of an item within the series: "" for a single number, "[1]", or " · length"."""
        if self.parts:
            return [f" · {part}" for part in self.parts]
        count = self.sampled_values.shape[1]
        return [""] if count == 1 else [f"[{k}]" for k in range(count)]

    @property
    def has_common_mean(self) -> bool:
        """Whether all numbers of the array mean the same: an item is one number or an image."""
        return self.is_image or self.sampled_values.shape[1] == 1

    @cached_property
    def is_numeric(self) -> bool:
        """Whether the array is not empty and its items are numbers or bools."""
        return self.array.dtype.kind in "biuf" and self.array.size > 0

    @cached_property
    def is_image(self) -> bool:
        """Whether items are images: [H, W], [H, W, C] or [C, H, W], uint8 or float with three colours."""
        item = self.array.shape[1:]
        if self.array.dtype == np.uint8 and len(item) == 2:
            return min(item) >= SMALLEST_IMAGE
        if len(item) != 3 or (self.array.dtype != np.uint8 and 3 not in (item[0], item[2])):
            return False
        return self.is_numeric and sorted(item)[1] >= SMALLEST_IMAGE and min(item) <= SMALLEST_IMAGE

    @cached_property
    def _stride(self) -> int:
        return max(1, -(-self.array.size // (MOST_PIXELS if self.is_image else MOST_NUMBERS)))

    @cached_property
    def sampled_values(self) -> np.ndarray:
        """Values from which statistics are computed, [m, d]: d numbers of every item, or of a sample of items."""
        rows = self.array[:: self._stride]
        return rows.reshape(len(rows), prod(rows.shape[1:]))

    @cached_property
    def items(self) -> np.ndarray:
        """Index of each item in `sampled_values`, int64 [m]."""
        places = np.arange(self.total) if self.places is None else self.places
        return places[:: self._stride]

    @cached_property
    def is_exact(self) -> bool:
        """Whether statistics are computed from all items rather than a sample."""
        return len(self.sampled_values) == self.total

    @cached_property
    def _present(self) -> np.ndarray | None:
        return None if self.present is None or self.present.all() else self.present[:: self._stride]

    @cached_property
    def finite(self) -> np.ndarray:
        """`sampled_values` [m, d] with NaN in place of infinities and missing values."""
        numbers = self.sampled_values
        if self._present is not None:
            return np.where(self._present[:, None] & np.isfinite(numbers), numbers, np.nan)
        if numbers.dtype.kind != "f":
            return numbers
        if numbers.dtype == np.float16:
            numbers = numbers.astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            total = numbers.sum(dtype=np.float64)  # one pass; rarely infinite if all numbers are finite
        if np.isfinite(total):
            return numbers
        return np.where(np.isfinite(numbers), numbers, np.nan)

    @cached_property
    def counts(self) -> Counts:
        """Numbers of missing, NaN and infinite values in the sampled items."""
        missing = 0 if self.present is None else int(len(self.present) - self.present.sum())
        if self.finite is self.sampled_values or self.sampled_values.dtype.kind != "f":
            return Counts(missing, 0, 0, 0)
        numbers = self.sampled_values if self._present is None else self.sampled_values[self._present]
        return Counts(
            missing,
            *(int(is_unusual.sum()) for is_unusual in (np.isnan(numbers), numbers == np.inf, numbers == -np.inf)),
        )

    @cached_property
    def ranges(self) -> np.ndarray:
        """Lowest, mean and highest finite value of each of the d numbers of an item, [3, d]."""
        numbers = np.ascontiguousarray(self.finite.T)
        if not any(self.counts):
            return np.stack([numbers.min(1), mean_of(numbers, 1), numbers.max(1)])
        is_finite = ~np.isnan(numbers)
        count = is_finite.sum(1)
        mean = np.where(is_finite, numbers / np.maximum(count, 1)[:, None], 0).sum(1, dtype=np.float64)
        low, high = np.fmin.reduce(numbers, 1), np.fmax.reduce(numbers, 1)
        return np.stack([low, np.where(count, mean, np.nan), high])

    @cached_property
    def range(self) -> tuple[float, float, float]:
        """Lowest, mean and highest finite value of the whole array, or NaN if no value is finite."""
        if self.is_image:  # not pixel by pixel
            numbers = self.finite[~np.isnan(self.finite)] if any(self.counts) else self.finite
            return (
                (float(numbers.min()), float(mean_of(numbers)), float(numbers.max()))
                if numbers.size
                else (nan, nan, nan)
            )
        low, mean, high = self.ranges
        if self.ragged is not None and "mean" in self.parts:  # not that of the numbers that describe each item
            numbers = self.ragged.flat
            numbers = numbers[np.isfinite(numbers)]
            whole = float(mean_of(numbers)) if numbers.size else nan
            return float(np.fmin.reduce(low)), whole, float(np.fmax.reduce(high))
        if not any(self.counts):
            return (float(low.min()), float(mean_of(mean)), float(high.max())) if len(mean) else (nan, nan, nan)
        count = (~np.isnan(self.finite)).sum(0)  # of each of the d numbers
        has_any = count > 0
        if not has_any.any():
            return nan, nan, nan
        whole = (mean[has_any] * (count[has_any] / count.sum())).sum()
        return float(low[has_any].min()), float(whole), float(high[has_any].max())

    @cached_property
    def is_band(self) -> bool:
        """Whether items are single small whole numbers, such as a discrete action or a flag, shown as a colour band."""
        if not self.is_numeric or self.array.dtype.kind == "f" or self.sampled_values.shape[1] != 1:
            return False
        if self.ragged is not None:  # lengths are amounts
            return False
        low, _, high = self.range
        return high - low < MOST_VALUES

    @cached_property
    def is_choice(self) -> bool:
        """Whether items are choices without an order: discrete actions, or items of a space of choices."""
        if self.array.dtype.kind not in "biu" or self.ragged is not None:
            return False
        kind = kind_of(self.space)
        is_action = self.hue == "actions" and self.sampled_values.shape[1] == 1
        return kind.has_choices or (is_action and kind is not SpaceKind.BOX)  # whose whole numbers are amounts

    @cached_property
    def is_id(self) -> bool:
        """Whether items are choices of more than two values, such as token ids or cards, whose mean means nothing."""
        if not self.is_numeric or not self.is_choice:
            return False
        low, _, high = self.range
        bounds = bounds_of(self.space)
        sizes = [high - low] if bounds is None else [high - low, np.max(np.asarray(bounds.high) - bounds.low)]
        return bool(max(sizes) >= MOST_CHOICES)

    @property
    def has_deviation(self) -> bool:
        """Whether the standard deviation of the items says more than their mean, which it does not of choices and
        flags.
        """
        are_flags = self.array.dtype == bool or kind_of(self.space) is SpaceKind.MULTI_BINARY
        return not are_flags and not self.is_choice

    @property
    def is_centred(self) -> bool:
        """Whether items are differences of log-probabilities, of which 0 means that two policies agree. They are drawn
        as colours on both sides of 0.
        """
        return self.is_numeric and self.label.rpartition("/")[2] == LOGP_DIFFERENCE and self.part_names == [""]

    @cached_property
    def remarks(self) -> list[str]:
        """Notes on missing items and sampling, and what the numbers are, as texts."""
        remarks = []
        if self.present is not None and not self.present.all():
            noun = "infos" if self.ragged is None else "items, the others are empty"
            remarks.append(f"in {int(self.present.sum()):,} of {len(self.present):,} {noun}")
        if self.is_numeric and not self.is_exact:
            remarks.append(f"≈ of {len(self.sampled_values):,} items")
        return [*remarks, *self.standing_remarks]

    @property
    def component_names(self) -> list[str]:
        """The name of each number of an item, such as "[1]", or "min" of numbers that describe ragged items."""
        names = [name.removeprefix(" · ") for name in self.part_names]
        return [{"lowest": "min", "highest": "max"}.get(name, name) for name in names]

    @property
    def standing_remarks(self) -> list[str]:
        """Notes that hold for every array of this track: what its numbers are."""
        notes = [self.note] if self.note else []
        notes += ["sampler's minus trainer's log-probability"] if self.is_centred else []
        return [*notes, *filter(None, [self.ragged_remark])]

    @property
    def ragged_remark(self) -> str:
        """What the numbers of ragged items are, "" for other items."""
        if self.ragged is None:
            return ""
        return "lengths of ragged items" if self.sampled_values.shape[1] == 1 else "of each ragged item"

    @property
    def space_text(self) -> str:
        """The space of the items as short text, "" if it is unknown."""
        return "" if self.space is None else space_text(self.space)

    def defects(self) -> Iterator[tuple[str, int, tuple[int, int]]]:
        """Yield name, count and the first place of each kind of numbers that are wrong. A place is row and column in
        `sampled_values`.
        """
        for kind, is_wrong in self.wrong_numbers():
            row, column = divmod(int(is_wrong.argmax()), is_wrong.shape[1])
            yield kind, int(is_wrong.sum()), (row, column)

    def wrong_numbers(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each kind of numbers that are wrong, and where they are in `sampled_values`, bool [m, d]: "NaN",
        "infinite", and those outside of the bounds of their space. A kind without numbers is left out.
        """
        if self.counts.nan or self.counts.infinite:
            is_there = True if self._present is None else self._present[:, None]
            for kind, is_odd in (("NaN", np.isnan), ("infinite", np.isinf)):
                is_wrong = is_odd(self.sampled_values) & is_there
                if is_wrong.any():
                    yield kind, is_wrong
        bounds = bounds_of(self.space)
        if bounds is None or self.ragged is not None or not self.is_numeric or self.num_steps:
            return
        if bounds.low.shape != self.array.shape[1:]:
            return
        low, high = (np.asarray(each, np.float64).reshape(-1) for each in bounds)
        lows, highs = (np.array([self.range[0]]), np.array([self.range[2]])) if self.is_image else self.ranges[[0, 2]]
        if not (exceeds(lows, low, high).any() or exceeds(highs, low, high).any()):
            return  # in little memory, as for images
        is_wrong = exceeds(self.finite, low, high)
        if is_wrong.any():  # an image is compared with the bounds of all of its pixels above
            yield OUTSIDE, is_wrong

    @property
    def defect_counts(self) -> list[str]:
        """How many of the sampled numbers are wrong, of each kind, such as "3 of 470 numbers are NaN"."""
        size = self.sampled_values.size
        if self._present is not None:
            size = int(self._present.sum()) * self.sampled_values.shape[1]
        what = f"{size:,} {'number' if self.is_exact else 'sampled number'}{'s' * (size != 1)}"
        return [f"{count:,} of {what} {'is' if count == 1 else 'are'} {kind}" for kind, count, _ in self.defects()]

    def defects_text(self, place: Callable[[int], str]) -> str:
        """Return how many numbers are not finite or lie outside of their space, and where the first of each kind is.

        Args:
            place: function that names the place of the item with an index.
        """
        names, is_single = self.component_names, len(self.part_names) == 1
        words = []
        for kind, count, (row, column) in self.defects():
            name = "" if is_single or column >= len(names) else f"{names[column]} at "
            value = "" if kind in ("NaN", "infinite") else f" ({number(self.sampled_values[row, column])})"
            words.append(f"{count:,} {kind}: {'first ' if count > 1 else ''}{name}{place(int(self.items[row]))}{value}")
        return clipped("; ".join(words), MOST_OF_DEFECTS)

    def cells(self, max_cells: int, columns: Sequence[int] | slice = slice(None)) -> Cells:
        """Return the sampled items reduced to at most `max_cells` cells, each of which summarizes a run of items.
        `columns` are the components to reduce, by default all.
        """
        return downsample(self.sampled_values[:, columns], max_cells, present=self._present)

    def part(self, begin: int, end: int) -> Series:
        """Return the sampled items from `begin` to `end` as a series of their own."""
        if (begin, end) == (0, len(self.sampled_values)):
            return self
        rows = slice(begin, end)
        present = None if self._present is None else self._present[rows]
        ragged = None if self.ragged is None else self.ragged[:: self._stride][rows]
        array = self.sampled_values[rows]
        return replace(self, array=array, total=end - begin, places=None, present=present, ragged=ragged)

    def means(self, every: int) -> np.ndarray:
        """Return the mean of the finite numbers in each cell of `every` items, float64 [k, d]. It is NaN without finite
        numbers.
        """
        starts = np.arange(0, len(self.finite), every)
        counts: Any = np.diff(starts, append=len(self.finite))[:, None]
        numbers = self.finite
        if any(self.counts):
            is_finite = ~np.isnan(numbers)
            counts = np.add.reduceat(is_finite, starts, dtype=np.int64)
            numbers = np.where(is_finite, numbers, 0)
        with np.errstate(invalid="ignore", over="ignore"):
            sums = np.add.reduceat(numbers, starts, dtype=np.float64)
            return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the items at the indices `places`. For items that were not sampled, return the next sampled ones."""
        if self.places is None:
            return self.array[places]
        return self.array[np.searchsorted(self.places, places).clip(0, len(self.places) - 1)]


def exceeds(numbers: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return which numbers [..., d] lie outside of bounds [d] by more than a rounding error. NaN does not."""
    slack = 1e-6 * np.maximum(1.0, np.abs(np.nan_to_num(numbers.astype(np.float64), posinf=0, neginf=0)))
    return (numbers < low - slack) | (numbers > high + slack)


def space_text(space: Any) -> str:
    """Return a space as short text. A `Box` is its bounds, since its shape and dtype are in other columns: those of
    each number of an item if there are at most 8, or else the lowest and the highest.

    >>> from gymnasium import spaces
    >>> space_text(spaces.Box(np.array([-1, -np.inf]), np.array([1, 2.5]), dtype=np.float64))
    'Box [-1 … 1, -∞ … 2.5]'
    """
    if exact_kind_of(space) is SpaceKind.BOX:
        low, high = (bound.astype(np.float64).reshape(-1) for bound in (space.low, space.high))
        ends = f"{number(low.min())} … {number(high.max())}" if len(low) else "of no numbers"
        if len(low) == 0 or ((low == low[0]).all() and (high == high[0]).all()):
            return f"Box {ends}"
        if len(low) <= MOST_BOUNDS:
            return f"Box [{', '.join(f'{number(a)} … {number(b)}' for a, b in zip(low, high, strict=True))}]"
        return f"Box, other bounds for each number, within {ends}"
    text = repr(space)
    return text if len(text) <= MOST_OF_SPACE else f"{text[: MOST_OF_SPACE - 1]}…"


def mean_of(numbers: np.ndarray, axis: int | None = None) -> Any:
    """Return the mean along an axis, even if the sum would overflow float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = numbers.mean(axis, dtype=np.float64)
    if np.isfinite(mean).all():
        return mean
    return (numbers / (numbers.size if axis is None else numbers.shape[axis])).sum(axis, dtype=np.float64)


def of_track(track: Track) -> Iterator[Series]:
    """Yield a `Series` for each array of a time series, for example for each camera of the observations."""
    if track.field.holds == "infos":
        yield from _of_infos(track)
        return
    field, total, places = track.field, track.total, None
    finished: Any = track
    if type(track) is ListTrack:
        places = _places(total, sum(np.asarray(leaf).nbytes for leaf in leaves(track.data[0])) if total else 0)
        try:
            finished = track.take(np.arange(total) if places is None else places).finalize()
        except (EpisodeError, ValueError, TypeError) as error:
            yield Series(field.label, hue_of(field), np.zeros((0,)), total, None, field.more, None, str(error))
            return
    for path, array in finished.arrays().items():
        label = path.removeprefix(f"{EXTRA}/")
        if type(array) is Ragged:
            nbytes = array.nbytes if places is None else array.nbytes * total // max(len(places), 1)
            yield from _of_ragged(Series(label, hue_of(field), array.lengths, total, places, field.more, nbytes), array)
            continue
        nbytes = array.nbytes if places is None else array.nbytes * total // max(len(places), 1)
        yield Series(label, hue_of(field), array, total, places, field.more, nbytes)


def _of_ragged(lengths: Series, items: Ragged) -> Iterator[Series]:
    """Yield the series that describe items of different lengths: their values if these are floats, and `lengths`."""
    lengths = replace(lengths, ragged=items, parts=("length",))
    if items.dtype.kind != "f":
        yield lengths
        return
    is_full = items.lengths > 0
    numbers = np.zeros((len(items), 3))
    if is_full.any():
        values = items.values[items.offsets[0] : items.offsets[-1]]
        values = values.reshape(len(values), -1)
        starts = (items.offsets[:-1] - items.offsets[0])[is_full]
        with np.errstate(over="ignore", invalid="ignore"):
            means = values.mean(1, dtype=np.float64)  # not finite if a value is not
            numbers[is_full, 1] = np.add.reduceat(means, starts) / items.lengths[is_full]
        for column, pick, rest in ((0, np.fmin, np.inf), (2, np.fmax, -np.inf)):  # of finite values
            extremes = pick.reduce(np.where(np.isfinite(values), values, rest), 1)
            extremes = pick.reduceat(extremes, starts)
            numbers[is_full, column] = np.where(np.isfinite(extremes), extremes, np.nan)
        is_finite = np.isfinite(numbers[:, 1])
        numbers[is_finite, 1] = numbers[is_finite, 1].clip(numbers[is_finite, 0], numbers[is_finite, 2])  # rounding
    yield replace(
        lengths, array=numbers, present=None if is_full.all() else is_full, parts=("lowest", "mean", "highest")
    )
    yield replace(lengths, label=f"{lengths.label}{LENGTHS}", parts=())


def of_tracks(tracks: Tracks) -> Iterator[Series]:
    """Yield a `Series` for each array of an episode or pack: rewards and actions first, infos last.

    Lengths of ragged values that are those of the actions are not repeated.
    """
    actions = list(of_track(tracks.actions))
    yield from of_track(tracks.rewards)
    yield from actions
    lengths = [each.ragged.lengths for each in actions if each.ragged is not None]
    for track in (tracks.observations, *tracks.extra.values(), tracks.infos):
        for each in of_track(track):
            is_repeated = each.label.endswith(LENGTHS) and any(np.array_equal(each.array, known) for known in lengths)
            if not is_repeated:
                yield each


def hue_of(field: Field) -> str:
    """Return the name of the colour of a time series, such as "rewards"."""
    return "extra" if field.is_extra else field.name


def _places(total: int, nbytes: int) -> np.ndarray | None:
    """Return the indices of the items to sample from a growing list with large items, or None for all."""
    if total * max(nbytes, 256) <= MOST_GROWING_BYTES:
        return None
    return np.linspace(0, total - 1, FEW_ITEMS).astype(np.intp)


def _of_infos(track: Track) -> Iterator[Series]:
    """Yield a `Series` for each key of an episode's info dicts."""
    infos, places, total = track.data, None, track.total
    if type(track) is not InfoTrack:
        places = _places(total, 0)
        infos = infos_of(list(infos) if places is None else [infos[place] for place in places])
    for path, column in infos.whole().columns.items():
        yield _of_info(path, column, places, total)


def _of_info(path: str, column: Column, places: np.ndarray | None, total: int) -> Series:
    """Return the series of one key of infos. Values that are neither numbers nor text are described by the type of the
    first.

    Args:
        path: path of the key.
        places: indices of the items that `column` has, or None for all.
        total: number of items of the whole series.
    """
    label, present = f"infos/{path}", column.present
    values = column.values if isinstance(column, TypedColumn) else None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biufUS":
        items = column.list(np.flatnonzero(present))
        if items and all(isinstance(item, str) for item in items):
            texts = np.full(len(present), "", f"U{max(map(len, items)) or 1}")
            texts[present] = items
            return Series(label, "infos", texts, total, places, 1, None, "", present)
        first = items[:1]
        types = ", ".join(type(value).__name__ for value in first) or "nothing"
        return Series(
            label, "infos", np.empty((0,), "U1"), total, places, 1, None, f"Python objects ({types})", present
        )
    nbytes = values.nbytes if places is None else None
    return Series(label, "infos", values, total, places, 1, nbytes, "", present)
