"""Step-by-step comparison of two episodes or data sets, which finds where each time series first differs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from episodes.errors import InvalidArgument, WrongType, rejected_type
from episodes.inspect.formatting import MOST_OF_ID, clipped, counted, ended, number, shape
from episodes.inspect.series import LENGTHS, Series, of_track
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.infos.info_column import TypedColumn
from episodes.tracks.infos.infos import same_info

if TYPE_CHECKING:
    from episodes.storage.dataset import EpisodeDataset
    from episodes.tracks.infos.info_column import Column
    from episodes.tracks.tracks import Tracks

__all__ = ["EpisodeDifference", "TrackDifference", "compare_data_sets", "compare_episodes"]

MOST_OF_VALUES = 4  # of an item that are shown
MOST_OF_TEXT = 40  # characters of a value that is no number
AROUND = 10  # characters of long texts before the first one that differs


@dataclass(frozen=True)
class TrackDifference:
    """Difference between one time series of two episodes: first differing step and both items, number and size of
    differences.

    Values are compared at the steps that both episodes have, if their items have the same shape.
    """

    track: str
    step: int  # the first one, an env step
    num_steps: int  # that differ
    a: str  # the item of each episode at the first step, as text
    b: str
    num_values: int = 0  # that differ
    largest: float | None = None  # |A - B| of the finite numbers that differ; None without any
    largest_step: int | None = None  # where it is

    @property
    def size_text(self) -> str:
        """Number of the values that differ, and the largest difference of numbers, "" if no values were compared."""
        if not self.num_values:
            return ""
        largest = "" if self.largest is None else f", by at most {number(self.largest)} (step {self.largest_step})"
        return f"{self.num_values:,} value{' differs' if self.num_values == 1 else 's differ'}{largest}"


@dataclass(frozen=True)
class EpisodeDifference:
    """All differences between two episodes, ordered by the step at which they begin.

    Attributes:
        a, b: the episodes; None if a data set has no such episode.
        tracks: one entry for each track that differs.
        facts: texts on other differences, such as endings.
    """

    a: Any
    b: Any
    tracks: tuple[TrackDifference, ...] = ()
    facts: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tracks or self.facts)

    @property
    def ids(self) -> list[str]:
        """Ids of the episodes as texts: one id if both have the same, or if only one episode exists."""
        return list(dict.fromkeys(clipped(each.id_, MOST_OF_ID) for each in (self.a, self.b) if each is not None))

    def __str__(self) -> str:
        if not self:
            return f"episode {self.a.id_}: equal in all tracks"
        lines = [f"episode{'s' * (len(self.ids) > 1)} {' and '.join(self.ids)}", *self.facts]
        lines += [
            f"{difference.track}: differs first at step {difference.step} ({difference.a} and {difference.b}), "
            f"at {counted(difference.num_steps, 'step')}{'; ' if difference.num_values else ''}{difference.size_text}"
            for difference in self.tracks
        ]
        return "\n  ".join(lines)


def compare_episodes(a: SingleAgentEpisode, b: SingleAgentEpisode, *, tolerance: float = 0.0) -> EpisodeDifference:
    """Return the differences between two single-agent episodes in time series and endings, by env step.

    Lookbacks are not compared. NaN equals NaN. Integers are compared exactly, also with floats. A key that only one of
    two infos has differs. Lists in infos, and arrays of several shapes, are compared without the tolerance.

    Args:
        tolerance: largest absolute difference of numbers that counts as equal, finite and at least 0.

    Raises:
        InvalidArgument: the tolerance is no such number.
        WrongType: an episode is no `SingleAgentEpisode`.

    >>> a, b = (SingleAgentEpisode.from_arrays([0, 1, x], [1, 1], [0.0, 1.0], id_="e") for x in (2, 3))
    >>> print(compare_episodes(a, b))
    episode e
      observations: differs first at step 2 (2 and 3), at 1 step; 1 value differs, by at most 1 (step 2)
    """
    tolerance = checked_tolerance(tolerance)
    for episode in (a, b):
        if not isinstance(episode, SingleAgentEpisode):
            raise WrongType(f"{rejected_type(episode, SingleAgentEpisode)}: give two SingleAgentEpisodes")
    series = [_tracks_of(episode.tracks) for episode in (a, b)]
    common = [label for label in series[0] if label in series[1]]
    found = (_of_track(label, [each[label] for each in series], (a, b), tolerance) for label in common)
    tracks, facts = [track for track in found if track is not None], []
    for name, own, others in (("A", *series), ("B", *series[::-1])):
        if only := [label for label in own if label not in others]:
            facts.append(f"only {name} has the track{'s' * (len(only) > 1)} {', '.join(only)}")
    if a.ending != b.ending:
        endings = [ended(each.ending, each.tracks.is_finished) for each in (a, b)]
        facts.append(f"endings: {endings[0]} in A, {endings[1]} in B")
    tracks.sort(key=lambda track: track.step)
    return EpisodeDifference(a, b, tuple(tracks), tuple(facts))


def checked_tolerance(tolerance: float) -> float:
    """Return `tolerance` as a number of Python. Raise `InvalidArgument` unless it is finite and at least 0."""
    number = tolerance.item() if isinstance(tolerance, np.generic) else tolerance
    if type(number) not in (int, float) or not 0 <= number <= sys.float_info.max:
        raise InvalidArgument(f"tolerance={tolerance!r}: give a finite number, at least 0")
    return number


class _Items(NamedTuple):
    """Items of a track: numbers or texts [n, ...], or Python objects [n].

    `exist` tells which values exist, bool [n] or the shape of `values`: infos without a key have none, and ragged items
    end where they are shorter than the longest. None: all exist.
    """

    values: np.ndarray
    exist: np.ndarray | None = None

    def rows(self, begin: int, end: int) -> _Items:
        """Return the items from `begin` to `end`."""
        return _Items(self.values[begin:end], None if self.exist is None else self.exist[begin:end])

    def existing(self) -> np.ndarray:
        """Return which values exist, bool, in the shape of `values`."""
        exist = np.ones(len(self.values), bool) if self.exist is None else self.exist
        return np.broadcast_to(exist.reshape(exist.shape + (1,) * (self.values.ndim - exist.ndim)), self.values.shape)

    def as_objects(self) -> _Items:
        """Return the items as Python objects [n], unless they are objects."""
        if self.values.dtype.kind == "O":
            return self
        return _Items(_objects(self.values if self.values.ndim > 1 else self.values.tolist()), self.exist)

    def item(self, index: int) -> np.ndarray | None:
        """Return the existing values of an item, or None without any item at this index."""
        if not 0 <= index < len(self.values):
            return None
        exist = self.existing()[index]
        if exist.all():
            return self.values[index : index + 1].reshape(self.values.shape[1:])
        if exist.ndim == 0 or self.exist is None or self.exist.ndim == 1:
            return None
        return self.values[index][: int(exist.reshape(len(exist), -1)[:, 0].sum())]  # of a ragged item


def _of_track(
    label: str, pair: Sequence[Series | Column], episodes: Sequence[Any], tolerance: float
) -> TrackDifference | None:
    """Compare one time series of two episodes. Return the difference, or None if they are equal."""
    ragged = [each.ragged for each in pair if isinstance(each, Series) and each.ragged is not None]
    longest = max((int(each.lengths.max(initial=0)) for each in ragged), default=0)
    items = [_items(each, longest) for each in pair]
    items = [
        each.rows(episode.tracks.lookback, len(each.values)) for each, episode in zip(items, episodes, strict=True)
    ]
    forms = {(each.values.dtype.kind in "US", each.values.shape[1:]) for each in items}
    is_any = not any(isinstance(each, Series) for each in pair) and len(forms) > 1  # infos of several types
    if is_any or "O" in [each.values.dtype.kind for each in items]:
        items = [each.as_objects() for each in items]
    starts = [episode.t_started for episode in episodes]
    stops = [start + len(each.values) for start, each in zip(starts, items, strict=True)]
    begin, first = min(starts), max(starts)  # of all steps, of the steps that both have
    common = max(min(stops) - first, 0)
    differs = np.ones(max(stops) - begin, bool)
    left, right = (each.rows(first - start, first - start + common) for start, each in zip(starts, items, strict=True))
    compared = _compared(left, right, tolerance)
    values = None if compared is None else compared[0]
    differs[first - begin : first - begin + common] = True if values is None else values.any(1)
    if not differs.any():
        return None
    step = int(differs.argmax()) + begin
    is_common = values is not None and 0 <= step - first < common
    at = int(values[step - first].argmax()) if is_common and values is not None else 0
    texts = _texts([each.item(step - start) for each, start in zip(items, starts, strict=True)], at)
    found = TrackDifference(label, step, int(differs.sum()), *texts)
    if compared is None or values is None:
        return found
    found = replace(found, num_values=int(values.sum()))
    largest = compared[1]
    return found if largest is None else replace(found, largest=largest[0], largest_step=first + largest[1])


def _tracks_of(tracks: Tracks) -> dict[str, Series | Column]:
    """Return the complete series of an episode by label, rewards first. Infos are columns, with objects of any kind."""
    finished = [track.finalize() for track in (tracks.rewards, tracks.actions, tracks.observations)]
    finished += [track.finalize() for track in tracks.extra.values()]
    found: dict[str, Series | Column] = {series.label: series for track in finished for series in of_track(track)}
    infos: Any = tracks.infos.finalize().data
    return found | {f"infos/{path}": column for path, column in infos.whole().columns.items()}


def _items(of: Series | Column, longest: int) -> _Items:
    """Return all items of a series or of a column of infos. Items of different lengths are padded to the length
    `longest`, unless the series is that of their lengths.
    """
    if isinstance(of, Series):
        if of.ragged is None or of.label.endswith(LENGTHS):
            return _Items(of.array)
        values = of.ragged.padded(0, longest)
        exist = np.arange(longest) < of.ragged.lengths[:, None]
        return _Items(values, _Items(values, exist).existing())
    present = of.present
    values = of.values if isinstance(of, TypedColumn) else None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biufcUS":
        values = np.empty(len(present), object)
        values[present] = _objects(of.list(np.flatnonzero(present)))
    return _Items(values, None if present.all() else present)


def _objects(items: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return an array of Python objects [n], which may be lists or arrays themselves."""
    array = np.empty(len(items), object)
    for i, item in enumerate(items):
        array[i] = item
    return array


def _compared(a: _Items, b: _Items, tolerance: float) -> tuple[np.ndarray, tuple[float, int] | None] | None:
    """Return which values of items [n, ...] differ, bool [n, d], and the largest |a - b| of finite numbers that differ
    with its row, or None without any. NaN equals NaN. A value that only one of them has differs.

    Returns None if items of both have different shapes, or if one is text.
    """
    x, y = a.values, b.values
    are_numbers = all(each.dtype.kind in "biufc" for each in (x, y))
    if x.shape[1:] != y.shape[1:] or (x.dtype.kind != y.dtype.kind and not are_numbers):
        return None
    if are_numbers:
        x, y = _in_one_dtype(x, y)
    differ, shape = ~_equal(x, y), (len(x), math.prod(x.shape[1:]))
    alone: np.ndarray | bool = False
    if a.exist is not None or b.exist is not None:
        exist = a.existing(), b.existing()
        differ, alone = differ & exist[0] & exist[1], exist[0] != exist[1]
    if not differ.any():
        return (differ | alone).reshape(shape), None
    sizes = _distances(x[differ], y[differ])
    if tolerance:  # of integers in integers, since float64 does not have all of them
        limit = np.uint64(min(int(tolerance), 2**64 - 1)) if sizes.dtype == np.uint64 else tolerance
        with np.errstate(invalid="ignore"):
            is_far = ~(sizes <= limit)
        differ[differ], sizes = is_far, sizes[is_far]
    is_known = sizes == sizes
    sizes, rows = sizes[is_known], np.nonzero(differ)[0][is_known]
    k = int(sizes.argmax()) if len(sizes) else 0
    largest = (_as_float(sizes[k]), int(rows[k])) if len(sizes) else None
    return (differ | alone).reshape(shape), largest


def _in_one_dtype(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays of numbers in the same dtype, which has all of their values, or with Python's numbers if there
    is no such dtype.
    """
    dtype = np.result_type(a, b)
    for each in (a, b) if dtype.kind in "fc" else ():
        if each.dtype.kind in "iu" and max(int(each.max(initial=0)), -int(each.min(initial=0))) > 2**53:
            dtype = np.dtype(object)
    return a.astype(dtype, copy=False), b.astype(dtype, copy=False)


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return which values of two arrays of the same dtype are equal. NaN equals NaN."""
    if a.dtype.kind == "O":
        return np.array([same_info(*pair) for pair in zip(a.flat, b.flat, strict=True)], bool).reshape(a.shape)
    if a.dtype.kind == "c":
        return _equal(np.real(a), np.real(b)) & _equal(np.imag(a), np.imag(b))
    return a == b if a.dtype.kind in "biuUS" else (a == b) | ((a != a) & (b != b))


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return |a - b| of values [m] of the same dtype, and NaN of others than two finite numbers: of integers exactly,
    as uint64, and of Python's numbers exactly, as objects.
    """
    if a.dtype.kind in "biu":
        return np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)  # also of int64, modulo 2**64
    if a.dtype.kind == "O":
        return _objects([_distance(*pair) for pair in zip(a, b, strict=True)])
    if a.dtype.kind not in "fc":
        return np.full(len(a), np.nan)
    dtype = np.result_type(a, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(np.isfinite(a) & np.isfinite(b), np.abs(np.subtract(a, b, dtype=dtype)), np.nan)


def _distance(a: Any, b: Any) -> Any:
    """Return |a - b| of two finite numbers, exactly if they are real, and NaN of other objects."""
    a, b = (each.item() if isinstance(each, np.generic) else each for each in (a, b))
    if not all(isinstance(each, (int, float, complex)) for each in (a, b)):
        return math.nan
    if not all(isinstance(each, int) or np.isfinite(each) for each in (a, b)):
        return math.nan
    real, imaginary = (Fraction(x) - Fraction(y) for x, y in ((a.real, b.real), (a.imag, b.imag)))
    return abs(real) if not imaginary else math.hypot(_as_float(real), _as_float(imaginary))


def _as_float(size: Any) -> float:
    """Return a number as float, infinity if it is too large for one."""
    try:
        return float(size)
    except OverflowError:
        return math.inf


def _texts(items: Sequence[np.ndarray | None], at: int) -> tuple[str, str]:
    """Return two items as short texts that differ, None as "none".

    Numbers have as many digits as it takes to tell the items apart. Of long items and texts the part is shown that
    begins where they differ.

    Args:
        items: the values of both.
        at: index of the first value that differs.
    """
    known = [item for item in items if item is not None]
    at = min([at, *(max(item.size - 1, 0) for item in known)])
    words = [_text(item.flat[at], None) if item.size else "" for item in known]
    num_equal = len([*takewhile(lambda pair: pair[0] == pair[-1], zip(*words, strict=False))])
    skipped = num_equal - AROUND if num_equal >= MOST_OF_TEXT else 0
    texts: list[str] = []
    for digits in (4, 8, None):
        texts = ["none" if item is None else _item_text(item, at, digits, skipped) for item in items]
        if texts[0] != texts[1]:
            return texts[0], texts[1]
    shapes = ["" if item is None else f" of shape {shape(item.shape)}" for item in items]
    return texts[0] + shapes[0], texts[1] + shapes[1]


def _item_text(item: np.ndarray, at: int, digits: int | None, skipped: int) -> str:
    """Return an item as text: 4 of its values, from the one at the index `at` on if that is not among the first 4.

    Args:
        digits: digits of each number, None for all.
        skipped: characters that are left out at the beginning of the value at the index `at`.
    """
    begin = at if at >= MOST_OF_VALUES else 0
    texts = []
    for i, value in enumerate(item.reshape(-1)[begin : begin + MOST_OF_VALUES], begin):
        text = _text(value, digits)
        is_cut = i == at and skipped > 0 and item.dtype.kind not in "biufc"
        text = f"…{text[skipped:]}" if is_cut else text
        texts.append(text if item.dtype.kind in "biufc" else text[:MOST_OF_TEXT])
    if item.ndim == 0:
        return texts[0]
    more = item.size > begin + MOST_OF_VALUES
    return f"[{'…, ' if begin else ''}{', '.join(texts)}{', …' if more else ''}]"


def _text(value: Any, digits: int | None) -> str:
    """Return a value as text, numbers with a number of digits, or with all if `digits` is None."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, complex):
        return f"{value:.{digits or 17}g}"
    if not isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return str(value)
    is_short = digits is not None or not math.isfinite(value) or (value == int(value) and abs(value) < 1e6)
    return number(value, digits or 17) if is_short else repr(value)


def compare_data_sets(a: Any, b: Any, *, tolerance: float = 0.0) -> tuple[int, list[EpisodeDifference]]:
    """Compare the corresponding episodes of two data sets. Return the number of pairs, and the pairs that differ.

    Episodes with the same id, agent and start are a pair. If there is no such pair, episodes with the same index are.
    An episode without a partner differs.

    Args:
        tolerance: largest difference of numbers that count as equal, finite and at least 0.

    Raises:
        InvalidArgument: the tolerance is no such number.
    """
    tolerance = checked_tolerance(tolerance)
    pairs, _ = paired(a, b)
    differences = []
    for i, j in pairs:
        if i is None or j is None:
            episode, name = (b[j], "B") if i is None else (a[i], "A")
            text = f"only {name} has the episode ({counted(len(episode), 'step')})"
            differences.append(
                EpisodeDifference(None if i is None else episode, None if j is None else episode, (), (text,))
            )
        elif difference := compare_episodes(a[i], b[j], tolerance=tolerance):
            differences.append(difference)
    return len(pairs), differences


def paired(a: EpisodeDataset, b: EpisodeDataset) -> tuple[list[tuple[int | None, int | None]], bool]:
    """Return the indices of the corresponding episodes of two data sets, and whether they were found by their ids.

    The index is None where a data set does not have the episode.
    """
    keys = [_keys(data) for data in (a, b)]
    is_by_id = bool(set(keys[0]) & set(keys[1]))
    if not is_by_id:
        keys = [dict(enumerate(indices.values())) for indices in keys]
    return [(keys[0].get(key), keys[1].get(key)) for key in dict.fromkeys([*keys[0], *keys[1]])], is_by_id


def _keys(data: EpisodeDataset) -> dict[Any, int]:
    """Return a dict from (id, agent, start time) of each episode in a data set to the episode's index."""
    table = data.metadata
    return {
        key: i
        for i, key in enumerate(zip(*(table[name].tolist() for name in ("id", "agent_id", "t_started")), strict=True))
    }
