"""Comparison of two chunks of one episode where both have items of the same time: their steps, and their lookbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from episodes.tracks import nested

if TYPE_CHECKING:
    pass


def first_difference(first: Any, second: Any) -> str | None:
    """Return the name and the time of items that differ, such as "observations at t=5", or None if both chunks agree.

    Both are `SingleAgentEpisode`s. Compared are observations, actions and rewards, those in the lookbacks too:

        first      o0 a0 o1 a1 o2 a2 o3              t_started=0
        second           o1 a1 o2 a2 o3 a3 o4        t_started=3, a lookback of 2 steps
                         compared: o1 .. o3, a1, a2
    """
    starts = first.t_started - first.lookback, second.t_started - second.lookback
    begin, num = max(starts), min(first.t, second.t) - max(starts)
    own, other = first.tracks, second.tracks
    are_arrays = own.is_finished and other.is_finished
    for name, count in (("observations", num + 1), ("actions", num), ("rewards", num)):
        pair = [(getattr(tracks, name), begin - start) for tracks, start in zip((own, other), starts, strict=True)]
        if count <= 0 or (are_arrays and nested.equal(*(nested.take(t.data, slice(p, p + count)) for t, p in pair))):
            continue
        items = zip(*(track.item_list(p, p + count) for track, p in pair), strict=True)
        at = next((i for i, both in enumerate(items) if not nested.equal(*both)), None)
        if at is not None:
            return f"{name} at t={begin + at}"
    return None


def first_unequal_row(tracks: Mapping[str, tuple[Any, Any]]) -> tuple[str, int] | None:
    """Return the name and the row of the first items that differ, or None if all are equal. NaN equals NaN.

    Args:
        tracks: by name two nested arrays [n, ...] with items of the same times.
    """
    for name, (first, second) in tracks.items():
        if nested.equal(first, second):
            continue
        for row in range(len(nested.first_leaf(first))):
            if not nested.equal(*(nested.take(items, slice(row, row + 1)) for items in (first, second))):
                return name, row
        return name, 0  # of another structure
    return None
