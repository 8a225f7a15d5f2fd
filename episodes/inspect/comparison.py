"""Step-by-step comparison of two episodes or data sets, which finds where each time series first differs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import WrongType, rejected_type
from episodes.inspect.formatting import MOST_OF_ID, clipped, counted, ended, number
from episodes.inspect.series import LENGTHS, Series, of_track
from episodes.single_agent import SingleAgentEpisode

if TYPE_CHECKING:
    from episodes.storage.dataset import EpisodeDataset
    from episodes.tracks.tracks import Tracks

__all__ = ["EpisodeDifference", "TrackDifference", "compare_data_sets", "compare_episodes"]


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

    Lookbacks are not compared.

    Args:
        tolerance: largest absolute difference of numbers that counts as equal. NaN equals NaN.

    Raises:
        WrongType: an episode is no `SingleAgentEpisode`.

    >>> a, b = (SingleAgentEpisode.from_arrays([0, 1, x], [1, 1], [0.0, 1.0], id_="e") for x in (2, 3))
    >>> print(compare_episodes(a, b))
    episode e
      observations: differs first at step 2 (2 and 3), at 1 step; 1 value differs, by at most 1 (step 2)
    """
    for episode in (a, b):
        if not isinstance(episode, SingleAgentEpisode):
            raise WrongType(f"{rejected_type(episode, SingleAgentEpisode)}: give two SingleAgentEpisodes")
    series = [{each.label: each for each in _series_of(episode.tracks)} for episode in (a, b)]
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


def _of_track(label: str, pair: Sequence[Series], episodes: Sequence[Any], tolerance: float) -> TrackDifference | None:
    """Compare one time series of two episodes. Return the difference, or None if they are equal."""
    longest = max(0 if each.ragged is None else int(each.ragged.lengths.max(initial=0)) for each in pair)
    arrays = [
        _items(series, longest)[episode.tracks.lookback :] for series, episode in zip(pair, episodes, strict=True)
    ]
    starts = [episode.t_started for episode in episodes]
    stops = [start + len(array) for start, array in zip(starts, arrays, strict=True)]
    begin, first = min(starts), max(starts)  # of all steps, of the steps that both have
    common = max(min(stops) - first, 0)
    differs = np.ones(max(stops) - begin, bool)
    left, right = (array[first - start :][:common] for start, array in zip(starts, arrays, strict=True))
    values = _differ(left, right, tolerance)
    differs[first - begin : first - begin + common] = True if values is None else values.any(1)
    if not differs.any():
        return None
    step = int(differs.argmax()) + begin
    items = [(array, step - start) for array, start in zip(arrays, starts, strict=True)]
    found = TrackDifference(label, step, int(differs.sum()), *_texts(items))
    if values is None or not values.any():
        return found
    found = replace(found, num_values=int(values.sum()))
    largest = _largest(left.reshape(values.shape), right.reshape(values.shape), values)
    return found if largest is None else replace(found, largest=largest[0], largest_step=first + largest[1])


def _series_of(tracks: Tracks) -> Iterator[Series]:
    """Yield the complete series of an episode, rewards first."""
    for track in (tracks.rewards, tracks.actions, tracks.observations, *tracks.extra.values(), tracks.infos):
        yield from of_track(track.finalize())


def _items(series: Series, longest: int) -> np.ndarray:
    """Return all items of a series. Items of different lengths are padded with NaN to the length `longest`, unless the
    series is that of their lengths.
    """
    if series.ragged is None or series.label.endswith(LENGTHS):
        return series.array
    dtype = np.result_type(series.ragged.dtype, np.float64)
    return series.ragged.astype(dtype).padded(np.nan if dtype.kind == "f" else 0, max(longest, 1))


def _differ(a: np.ndarray, b: np.ndarray, tolerance: float) -> np.ndarray | None:
    """Return which values differ between the arrays `a` and `b` [n, ...], bool [n, d]. NaN equals NaN.

    Returns None if items of both have different shapes, or if one is text.
    """
    if a.shape[1:] != b.shape[1:] or (a.dtype.kind in "US") != (b.dtype.kind in "US"):
        return None
    if a.dtype.kind in "biuf" and tolerance:
        differ = ~np.isclose(a, b, rtol=0.0, atol=tolerance, equal_nan=True)
    else:
        differ = a != b
        if a.dtype.kind == b.dtype.kind == "f":
            differ &= ~(np.isnan(a) & np.isnan(b))
    return np.reshape(differ, (len(a), math.prod(a.shape[1:])))


def _largest(a: np.ndarray, b: np.ndarray, differ: np.ndarray) -> tuple[float, int] | None:
    """Return the largest |a - b| of finite numbers that differ, and its row. Return None if there are none."""
    if not (a.dtype.kind in "biuf" and b.dtype.kind in "biuf"):
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        if "f" in (a.dtype.kind, b.dtype.kind):
            sizes = np.abs(np.subtract(a, b, dtype=np.float64))
            sizes[~(differ & np.isfinite(a) & np.isfinite(b))] = -1.0
        else:  # float64 does not have all int64
            low, high = np.where(a < b, a, b), np.where(a < b, b, a)
            sizes = high.astype(np.uint64) - low.astype(np.uint64)
            sizes[~differ] = 0
    k = int(sizes.argmax())
    return None if sizes.flat[k] <= 0 else (float(sizes.flat[k]), k // sizes.shape[1])


def _texts(items: Sequence[tuple[np.ndarray, int]]) -> tuple[str, str]:
    """Return the items at an index of an array each as short texts, with as many digits as it takes to tell them
    apart.
    """
    a = b = ""
    for digits in (4, 8, 17):
        a, b = (_text(array, index, digits) for array, index in items)
        if a != b:
            break
    return a, b


def _text(array: np.ndarray, index: int, digits: int) -> str:
    """Return the item at `index` of an array as text with `digits` digits, or "none" if `index` is out of range."""
    if not 0 <= index < len(array):
        return "none"
    item = array[index]
    if item.ndim == 0:
        return number(item, digits) if array.dtype.kind in "biuf" else repr(str(item))[:40]
    values = ", ".join(number(value, digits) for value in item.ravel()[:4])
    return f"[{values}{', …' if item.size > 4 else ''}]"


def compare_data_sets(a: Any, b: Any, *, tolerance: float = 0.0) -> tuple[int, list[EpisodeDifference]]:
    """Compare the corresponding episodes of two data sets. Return the number of pairs, and the pairs that differ.

    Episodes with the same id, agent and start are a pair. If there is no such pair, episodes with the same index are.
    An episode without a partner differs.

    Args:
        tolerance: largest difference of numbers that count as equal.
    """
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
