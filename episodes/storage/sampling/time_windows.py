"""Batches of items at given times (in seconds) before and after sampled steps, as in robot learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from episodes.batch.sampling_checks import check_counts
from episodes.columns import Columns
from episodes.errors import InvalidArgument, UnknownKey
from episodes.storage.sampling.located_items import LocatedItems
from episodes.storage.sampling.stored_tracks import Column, StoredTracks
from episodes.tracks import nested

IS_PAD = "is_pad"
_NAMES = MappingProxyType({"observation": Columns.OBS, "observations": Columns.OBS, "action": Columns.ACTIONS})
_MOST_SECONDS = 1e9  # of a time from its step
_MOST_FPS = 1e6


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Options for batches of items at given times (in seconds) before and after the sampled steps.

    A batch has a column [n, k, ...] for each name, with items in the order of the times, and a mask `<column>_is_pad`,
    bool [n, k]. It is True if the episode has no item at the time; the nearest item replaces it.

    Attributes:
        size: number n of steps.
        delta_timestamps: for each name the times in seconds, relative to the sampled step, such as
            `{"observation": [-0.1, 0.0], "action": [0.0, 0.1]}`. Names are column names;
            "observation" and "action" stand for "obs" and "actions", and "observation.camera" for a nested part.
        fps: steps per second, if they are evenly spaced.
        timestamps: the column with each step's time in seconds, which increases within each episode.
        tolerance: largest difference in seconds between an item's time and the requested time.

    Raises:
        InvalidArgument: an option is invalid, or a time is no multiple of 1 / `fps`.
    """

    size: int
    delta_timestamps: Mapping[str, Sequence[float]]
    fps: float | None = None
    timestamps: str | None = None
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        check_counts(moments=self.size)
        if (self.fps is None) == (self.timestamps is None):
            raise InvalidArgument(
                "give fps=, the steps per second, or timestamps=, the column with the times of the steps"
            )
        if self.fps is not None and not 0 < self.fps <= _MOST_FPS:
            raise InvalidArgument(f"fps={self.fps}: give a number above 0")
        if not self.tolerance >= 0:
            raise InvalidArgument(f"tolerance={self.tolerance}: give seconds, at least 0")
        times_of = {name: np.atleast_1d(times) for name, times in self.delta_timestamps.items()}
        if not times_of or not all(times.size for times in times_of.values()):
            raise InvalidArgument(f"delta_timestamps={self.delta_timestamps}: give times for at least one name")
        for name, times in times_of.items():
            if times.dtype.kind not in "iuf" or times.ndim != 1 or not (np.abs(times) <= _MOST_SECONDS).all():
                raise InvalidArgument(
                    f"delta_timestamps[{name!r}]={self.delta_timestamps[name]}: give seconds in a list"
                )
            if self.fps is not None:
                self._to_steps(name, times)

    def columns(self, draw: LocatedItems) -> dict[str, Any]:
        """Return the batch columns for the sampled steps `draw`.

        Raises:
            InvalidArgument: no item is near a requested time.
            UnknownKey: there is no such column, or no column of time stamps.
        """
        result: dict[str, Any] = {}
        for name, times in self.delta_timestamps.items():
            places, column, observed = _resolve_name(name, draw.tracks)
            if column in result:
                raise InvalidArgument(
                    f"delta_timestamps: two names mean the column {column!r}; give all times with one"
                )
            if self.fps is not None:
                numbers = draw.numbers[:, None] + self._to_steps(name, np.atleast_1d(times))
            else:
                numbers = self._nearest(name, draw, np.atleast_1d(times).astype(np.float64))
            first = (draw.numbers - draw.before)[:, None]
            last = draw.ends[:, None] - (not observed)
            clipped = np.clip(numbers, first, last)
            result[column] = nested.map_leaves(lambda place, clipped=clipped: draw.at(place, clipped), places)
            result[f"{column}_{IS_PAD}"] = clipped != numbers
        return result

    def _to_steps(self, name: str, times: np.ndarray) -> np.ndarray:
        """Convert relative times in seconds to relative numbers of steps, int64 [k].
        Raise `InvalidArgument` if a time is between two steps."""
        exact = times * float(self.fps or 0)
        steps = np.round(exact)
        off = np.abs(exact - steps) / (self.fps or 1)
        if not (off <= self.tolerance).all():
            worst = float(times[off.argmax()])
            raise InvalidArgument(
                f"delta_timestamps[{name!r}]: at {self.fps} steps per second, no step is at {worst} s: the nearest is "
                f"{off.max():.3g} s away, the tolerance is {self.tolerance}; give multiples of "
                f"{1 / (self.fps or 1):.6g}"
            )
        return steps.astype(np.int64)

    def _nearest(self, name: str, draw: LocatedItems, times: np.ndarray) -> np.ndarray:
        """Return the positions of the steps with the nearest time stamps, [n, k], for k requested times
        relative to n sampled steps.

        A position is outside the episode if no step is near.

        Raises:
            UnknownKey: `timestamps` names no column of one number per step.
            InvalidArgument: no step within an episode is near enough.
        """
        stamps = draw.tracks.structure.get(str(self.timestamps))
        if not isinstance(stamps, int) or not _is_time(draw.tracks.columns[stamps]):
            raise UnknownKey(f"timestamps={self.timestamps!r}: there is no such column of one number a step")
        requested = draw.at(stamps, draw.numbers).astype(np.float64)[:, None] + times
        at = lambda numbers: draw.at(stamps, numbers).astype(np.float64)  # noqa: E731
        first = np.broadcast_to((draw.numbers - draw.before)[:, None], requested.shape)
        last = np.broadcast_to(draw.ends[:, None] - 1, requested.shape)
        later = _first_not_before(at, requested, first, last)
        after, before = np.clip(later, first, last), np.clip(later - 1, first, last)
        nearest = np.where(np.abs(at(after) - requested) < np.abs(requested - at(before)), after, before)
        off = np.abs(at(nearest) - requested)
        outside = ((requested < at(first)) | (requested > at(last))) & (off > self.tolerance)
        bad = (off > self.tolerance) & ~outside
        if bad.any():
            row, k = (int(i[0]) for i in bad.nonzero())
            raise InvalidArgument(
                f"delta_timestamps[{name!r}]: step {int(draw.numbers[row])} has none at {times[k]} s: the nearest is "
                f"{off[row, k]:.3g} s away, the tolerance is {self.tolerance}"
            )
        return np.where(outside, np.where(requested < at(first), first - 1, last + 2), nearest)


def _is_time(column: Column) -> bool:
    return column.shape == () and column.dtype.kind in "iuf"


def _first_not_before(
    at: Callable[[np.ndarray], np.ndarray], times: np.ndarray, first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """Find by bisection the first position between `first` and `last` whose time `at(position)` is at least `times`. If
    all times are earlier, the result is last + 1."""
    low, high = first.copy(), last.copy()
    while (low <= high).any():
        middle, searching = (low + high) // 2, low <= high
        earlier = at(np.clip(middle, first, last)) < times
        low = np.where(searching & earlier, middle + 1, low)
        high = np.where(searching & ~earlier, middle - 1, high)
    return low


def _resolve_name(name: str, tracks: StoredTracks) -> tuple[Any, str, bool]:
    """Resolve a user's column name: return the indices of its arrays, the batch column's name,
    and whether it is an observation.

    Raises:
        UnknownKey: there is no such column.
    """
    head, *parts = name.split(".")
    track = head if head in tracks.structure else _NAMES.get(head, head)
    places = tracks.structure.get(track)
    for part in parts:
        places = places.get(part) if isinstance(places, dict) else None
    if places is None:
        raise UnknownKey(f"delta_timestamps[{name!r}]: there is no such column; there are {[*tracks.structure]}")
    return places, ".".join([track, *parts]), track == Columns.OBS
