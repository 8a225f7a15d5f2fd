"""Saving of a memory-mapped replay buffer, and reopening of it after its process ended or was killed.

A step is restored if the last `save` included it (its number is below the state's head) and nothing can have been
written in its place since (it is not below the tail). Observations are not overwritten before the steps that refer to
them. Links to neighbours may have changed since the state was saved, so they are computed again from the entries and
times of the steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import InvalidArgument, UnreadableData
from episodes.facts import Ending
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.mapped_files import file_name_of
from episodes.replay.ring.resume_point import ResumePoint
from episodes.replay.ring.ring_infos import RingInfos, Segments
from episodes.replay.ring.saving import NUMBERS, checked_numbers
from episodes.replay.ring.track_ring import TrackRing, positions
from episodes.storage import space_json
from episodes.tracks import nested
from episodes.tracks.infos import Infos
from episodes.tracks.infos.info_column import PackedColumn, TypedColumn
from episodes.tracks.infos.joining import joined_infos

if TYPE_CHECKING:
    from episodes.tracks.infos.info_column import Column


def save(ring: LinkedRing, point: ResumePoint, buffer_state: dict[str, Any]) -> None:
    """Save the state of a memory-mapped ring to disk, with `buffer_state` (random generator, spaces, counts).

    Raises:
        WrongType: infos or custom data have values that msgpack cannot hold.
    """
    state = {
        "numbers": {name: getattr(ring, name) for name in NUMBERS},
        "files": _files(ring),
        "observations": _empty(ring.observations) if ring.has_observations else None,
        "tracks": {name: _empty(track) for name, track in ring.tracks.items()},
        "table": _encode_table(ring.table.get_state()),
        "infos": encode_infos(ring.infos.segments(ring.first_row, ring.rows_head)),
        "rows": None,
        "newest_version": None if ring.versions.versions is None else ring.versions.newest,
        "rest": _encode_rest(buffer_state),
    }
    point.save(state, ring.tail)


def restore(ring: LinkedRing, point: ResumePoint, set_rest: Callable[[dict[str, Any]], None]) -> None:
    """Reopen a saved ring from its files. Steps that may have been overwritten since the last save are dropped.

    If there is a state, `set_rest` is called with the rest of it.

    Raises:
        InvalidArgument: the state is of another capacity.
        UnreadableData: a file is damaged. No file is changed then.
    """

    def restore_all(state: dict[str, Any], tail: int) -> None:
        """Restore the ring from a saved state. Raise `InvalidArgument` if it is of another capacity."""
        if state["numbers"]["capacity"] != ring.capacity:
            raise InvalidArgument(
                f"{point.files.folder} belongs to a buffer with capacity={state['numbers']['capacity']}, this one has "
                f"capacity={ring.capacity}; give that capacity, or another path"
            )
        _open(ring, point, state, tail)
        set_rest(_decode_rest(state["rest"]))

    point.load(restore_all)
    point.files.remove_unused()


def _open(ring: LinkedRing, point: ResumePoint, state: dict[str, Any], tail: int) -> None:
    """Reopen the ring's files, and restore its episode table, infos and links from a saved state.

    Args:
        tail: index of the first step that was not overwritten after the state was saved.

    Raises:
        UnreadableData: a file is damaged, or links of steps contradict each other.
    """
    numbers = checked_numbers(state["numbers"])
    ring.num_rows = numbers["num_rows"]
    point.files.expect(state["files"])
    if state["observations"] is not None:
        ring.create_missing(state["observations"], state["tracks"])
        if state["newest_version"] is not None:
            ring.versions.reopen(state["newest_version"])
    point.files.finish_expected()
    for name, number in numbers.items():
        setattr(ring, name, number)
    if state["rows"] is not None:
        ring.links.put_rows(*state["rows"])
    ring.tail = min(max(ring.tail, tail), ring.head)
    ring.table.set_state(_decode_table(state["table"]))
    ring.infos = RingInfos(ring.num_rows, decode_infos(state["infos"]))
    slots = positions(ring.tail, len(ring), ring.capacity)
    slots = slots[ring.links.entry[slots].argsort(kind="stable")]  # episode after episode
    _check_links(ring, slots)
    entries, begins = np.unique(ring.links.entry[slots], return_index=True)
    ends = ring.links.chain(slots, begins)
    ring.table.first[entries], ring.table.last[entries] = slots[begins], slots[ends]
    lost = [
        entry for entry, before in ring.table.lookbacks.items() if before.t != ring.links.t[ring.table.first[entry]]
    ]
    ring.table.drop_lookbacks(np.array(lost, np.int64))
    ring.table.apply(ring.table.change(np.setdiff1d(ring.table.order, entries), 0))


def _check_links(ring: LinkedRing, slots: np.ndarray) -> None:
    """Raise `UnreadableData` if episodes, times or observation links of the steps at `slots` [n] are inconsistent. The
    slots are ordered by episode and time.
    """
    links = ring.links
    entries, t = links.entry[slots], links.t[slots]
    joined = entries[1:] == entries[:-1]
    is_sound = (
        np.isin(entries, ring.table.order).all()
        and (t >= 0).all()
        and (t[1:] == t[:-1] + 1)[joined].all()
        and all(((rows[slots] >= 0) & (rows[slots] < ring.num_rows)).all() for rows in (links.row, links.next_row))
    )
    if not is_sound:
        raise UnreadableData(
            "the mapped files of a replay buffer are damaged: links of stored steps contradict each other"
        )


def _files(ring: LinkedRing) -> list[str]:
    """Return the names of the ring's memory-mapped files, in the order in which their arrays are created again."""
    observations = nested.leaves(ring.observations.data) if ring.has_observations else []
    step_arrays = [*ring.links.arrays, *(leaf for track in ring.tracks.values() for leaf in nested.leaves(track.data))]
    step_arrays += [] if ring.versions.versions is None else [ring.versions.versions]
    return [
        *_names(observations),
        *sorted(_names(step_arrays), key=lambda name: int(name[len("ring_") : -len(".npy")])),
    ]


def _names(arrays: list[np.ndarray]) -> list[str]:
    """Return the names, without duplicates, of the files from which the arrays are memory-mapped."""
    return list(dict.fromkeys(name for array in arrays if (name := file_name_of(array))))


def _empty(track: TrackRing) -> Any:
    """Return empty arrays [0, ...] with the nesting, dtypes and item shapes of a ring array."""
    return nested.map_leaves(lambda leaf: np.zeros((0, *leaf.shape[1:]), leaf.dtype), track.data)


def _encode_table(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the episode table as plain values."""
    facts = [None if fact is None else {**fact, "ending": fact["ending"].code} for fact in state["facts"]]
    pairs = {name: list(state[name].items()) for name in ("entries", "lookbacks")}
    return {**state, "facts": facts, **pairs}


def _decode_table(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the episode table from what `_encode_table` returned."""
    facts = [None if fact is None else {**fact, "ending": Ending(fact["ending"])} for fact in state["facts"]]
    return {**state, "facts": facts, "entries": dict(state["entries"]), "lookbacks": dict(state.get("lookbacks", ()))}


def encode_infos(infos: Segments) -> list[Any]:
    """Convert the infos of observations to lists, dicts and arrays, which msgpack can write.

    Raises:
        WrongType: a value is neither plain nor an array. The message names its key.
    """
    segments: list[tuple[int, list[Any]]] = []
    for start, part in infos:
        if segments and segments[-1][0] + sum(map(len, segments[-1][1])) == start:
            segments[-1][1].append(part)
        elif len(part):
            segments.append((start, [part]))
    written = []
    for start, parts in segments:
        joined = joined_infos(parts)
        columns = joined.without_objects().columns
        written.append([start, len(joined), {path: _encode_column(column) for path, column in columns.items()}])
    return written


def _encode_column(column: Column) -> list[Any]:
    """Return the fields of an info column as a list: values, mask and flag `plain` of a typed column, or bytes and
    bounds of msgpack documents."""
    if isinstance(column, TypedColumn):
        return [column.values, column.mask, column.plain]
    return [column.buffer, column.starts, column.ends]


def decode_infos(written: list[Any]) -> list[tuple[int, Infos]]:
    """Convert the result of `encode_infos` back to infos of observations."""
    segments: list[tuple[int, Infos]] = []
    for start, count, columns in written:
        columns_by_path = {
            p: TypedColumn(*c) if isinstance(c[2], bool) else PackedColumn(*c) for p, c in columns.items()
        }
        segments.append((start, Infos(columns_by_path, count)))
    return segments


def _encode_rest(buffer_state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the buffer besides its ring as plain values. Spaces become JSON."""
    spaces = [space_json.to_json(space, name) for space, name in zip(buffer_state["spaces"], _SPACES, strict=True)]
    return {**buffer_state, "generator": json.dumps(buffer_state["generator"]), "spaces": spaces}


def _decode_rest(buffer_state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the buffer besides its ring from what `_encode_rest` returned."""
    spaces = tuple(map(space_json.from_json, buffer_state["spaces"]))
    return {**buffer_state, "generator": json.loads(buffer_state["generator"]), "spaces": spaces}


_SPACES = ("observation_space", "action_space")
