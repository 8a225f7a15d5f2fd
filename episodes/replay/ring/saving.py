"""Conversion of a replay ring to a dict of plain values for a checkpoint, and back."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from episodes.errors import InvalidArgument
from episodes.facts.policy_versions import UNKNOWN
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.ring_infos import RingInfos
from episodes.replay.ring.track_ring import TrackRing
from episodes.tracks import nested

NUMBERS = ("capacity", "num_rows", "tail", "head", "skipped", "rows_head", "lost_rows", "window", "rewards_are_finite")


def ring_state(ring: LinkedRing) -> dict[str, Any]:
    """Return the contents of the ring as a dict of numbers, lists and arrays, for a checkpoint."""
    num_steps, num_rows = min(ring.head, ring.capacity), min(ring.rows_head, ring.num_rows)
    segments = list(ring.infos.segments(ring.first_row, ring.rows_head))
    return {
        **{name: getattr(ring, name) for name in NUMBERS},
        "observations": _front(ring.observations, num_rows) if ring.has_observations else None,
        "tracks": {name: _front(track, num_steps) for name, track in ring.tracks.items()},
        "links": ring.links.get_state(num_steps),
        "versions": ring.versions.get_state(num_steps),
        "newest_version": ring.versions.newest,
        "table": ring.table.get_state(),
        "infos": ([start for start, _ in segments], deepcopy([infos for _, infos in segments])),
    }


def ring_of_state(ring: LinkedRing, state: dict[str, Any]) -> LinkedRing:
    """Create a ring with the contents of a dict that `ring_state` returned, in arrays from the allocator of `ring`.
    `ring` itself is not changed.

    Raises:
        InvalidArgument: the state has another capacity.
        ValueError: the state's infos or its newest policy version are damaged.
    """
    if state["capacity"] != ring.capacity:
        raise InvalidArgument(
            f"a state of a buffer with capacity={state['capacity']}, this one has capacity={ring.capacity}; "
            "make a buffer of that capacity"
        )
    ring = LinkedRing(ring.capacity, ring.allocator)
    numbers = checked_numbers({name: state[name] for name in NUMBERS})
    ring.num_rows = numbers["num_rows"]
    stored, versions = state["observations"], state["versions"]
    if stored is not None:
        ring.create_missing(stored, state["tracks"], versions is not None)
        ring.observations.write(0, stored)
    for name, items in state["tracks"].items():
        ring.tracks[name].write(0, items)
    for name, number in numbers.items():
        setattr(ring, name, number)
    ring.links.set_state(state["links"])
    if versions is not None:
        ring.versions.write(0, len(versions), versions)
        ring.versions.keep_newest(state.get("newest_version", UNKNOWN))  # states of earlier versions have none
    ring.copy_observations_into_records()
    ring.table.set_state(state["table"])
    starts, parts = state["infos"]
    if not (isinstance(starts, list) and isinstance(parts, list) and len(starts) == len(parts)):
        raise ValueError("infos are no lists of row numbers and infos")
    ring.infos = RingInfos(ring.num_rows, zip(starts, parts, strict=True))
    return ring


def checked_numbers(numbers: dict[str, Any]) -> dict[str, int]:
    """Return the sizes and counters of a saved ring. Raise `ValueError` if they are inconsistent."""
    capacity, num_rows, tail, head, skipped, rows_head, lost_rows, window, _ = (numbers[name] for name in NUMBERS)
    is_sound = (
        all(type(number) is int for name, number in numbers.items() if name != "rewards_are_finite")
        and type(numbers["rewards_are_finite"]) is bool
        and 0 <= tail <= head <= tail + capacity
        and num_rows > capacity
        and 0 <= skipped <= head
        and 0 <= lost_rows <= rows_head
        and window >= 1
    )
    if not is_sound:
        raise ValueError(f"the numbers {numbers} of a ring contradict each other")
    return numbers


def _front(track: TrackRing, size: int) -> Any:
    """Return copies of the first `size` items of a ring."""
    return nested.map_leaves(lambda leaf: leaf[:size].copy(), track.data)
