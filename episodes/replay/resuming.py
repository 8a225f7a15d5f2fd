"""`ResumePoint`: a memory-mapped ring that can be opened again, also when its process was killed.

    state.msgpack   what the last `save` saw: numbers, the table of episodes, infos, and which files there are
    tail.npy        one number: it goes ahead of every write that takes the place of older steps
    ring_1.npy ...  the mapped arrays

A step is there, and whole, when the last `save` had seen it (its number is below the state's head) and nothing may have
been written in its place since (it is not below the tail). Observations are not written over before the steps that
refer to them. Links to neighbours may have changed since then, and are made again from the steps' episodes and times.
When the ring of observations moves to a larger file, the state has the steps' new rows, until the next `save`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import InvalidArgument, UnreadableData
from episodes.facts import Ending
from episodes.replay.ring.info_segments import InfoSegments
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.saving import NUMBERS
from episodes.replay.ring.track_ring import TrackRing, file_of, positions
from episodes.storage import space_json
from episodes.tracks import nested
from episodes.tracks.infos import msgpack_codec
from episodes.tracks.infos.info_columns import ColumnInfos, PackedColumn, TypedColumn
from episodes.tracks.infos.joining import joined_infos

_STATE, _TAIL, _ARRAYS = "state.msgpack", "tail.npy", "ring_*.npy"
_VERSION = 1


class ResumePoint:
    """Where a ring with files in a folder can be taken up again; told by the ring before it writes.

    Args:
        rest: everything else that is saved, as a dict of plain values and arrays.
    """

    def __init__(self, folder: Path, ring: LinkedRing, rest: Callable[[], dict[str, Any]]) -> None:
        self.folder, self._ring, self._rest = folder, ring, rest
        self._tail: np.ndarray | None = None  # None: nothing was saved yet
        ring.resume_point = self

    def before_write(self, tail: int) -> None:
        """Steps before this number may be written over now."""
        if self._tail is not None:
            self._tail[0] = tail

    def before_move(self, observations: TrackRing | None, num_rows: int, first: int, rows: list[np.ndarray]) -> None:
        """The ring of observations will be this one, and the steps' rows will change to these."""
        if self._tail is None or observations is None:
            return
        state = msgpack_codec.decode((self.folder / _STATE).read_bytes())
        names = _names(nested.leaves(observations.data))
        state["numbers"] |= {"num_rows": num_rows, "lost_rows": first}
        self._write(state | {"files": [*names, *state["files"][len(names) :]], "rows": rows})

    def save(self) -> None:
        """Write down where the ring is. `WrongType` names what msgpack cannot hold; the last state stays then."""
        ring = self._ring
        state = {
            "version": _VERSION,
            "numbers": {name: getattr(ring, name) for name in NUMBERS},
            "files": _files(ring),
            "observations": _empty(ring.observations) if ring.has_observations else None,
            "tracks": {name: _empty(track) for name, track in ring.tracks.items()},
            "table": _encode_table(ring.table.get_state()),
            "infos": encode_infos(ring.infos),
            "rows": None,
            "newest_version": None if ring.versions.told is None else ring.versions.newest,
            "rest": _rest_out(self._rest()),
        }
        self._write(state)
        if self._tail is None:
            self._tail = np.load(self.folder / _TAIL, mmap_mode="r+")

    def _write(self, state: dict[str, Any]) -> None:
        document = msgpack_codec.encode(state, "buffer")
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._tail is None:
            np.save(self.folder / _TAIL, np.array([self._ring.tail]))
        new = self.folder / (_STATE + ".new")
        new.write_bytes(document)
        os.replace(new, self.folder / _STATE)

    def forget(self) -> None:
        """There is nothing to take up."""
        (self.folder / _STATE).unlink(missing_ok=True)
        self._tail = None

    def restore(self) -> dict[str, Any] | None:
        """Make the ring what it was, as far as it is whole; the rest of the state. None when there is none.

        Raises:
            InvalidArgument: another capacity.
            UnreadableData: the files are not what a buffer wrote.
        """
        file = self.folder / _STATE
        if not file.exists():
            self._clean([])
            return None
        state = msgpack_codec.decode(file.read_bytes())
        if not isinstance(state, dict) or state.get("version") != _VERSION:
            raise UnreadableData(f"{file} is not the state of a buffer, or one of another version")
        if state["numbers"]["capacity"] != self._ring.capacity:
            raise InvalidArgument(
                f"{self.folder} is of a buffer with capacity={state['numbers']['capacity']}, this one has "
                f"capacity={self._ring.capacity}; give that capacity, or another path"
            )
        tail = self._tail = np.load(self.folder / _TAIL, mmap_mode="r+")
        self._clean(state["files"])
        _open(self._ring, state, int(tail[0]))
        return _rest_in(state["rest"])

    def _clean(self, kept: list[str]) -> None:
        """Remove arrays that nothing refers to: what a killed process began."""
        for file in self.folder.glob(_ARRAYS):
            if file.name not in kept:
                file.unlink()


def _open(ring: LinkedRing, state: dict[str, Any], tail: int) -> None:
    ring.allocator.reopen(state["files"])
    for name in NUMBERS:
        setattr(ring, name, state["numbers"][name])
    if state["observations"] is not None:
        ring.prepare_observations(state["observations"])
    if state["tracks"]:
        ring.make_tracks(state["tracks"])
    if state.get("newest_version") is not None:  # states that are older do not know of it
        ring.versions.reopen(state["newest_version"])
    if state["rows"] is not None:
        ring.links.put_rows(*state["rows"])
    ring.tail = min(max(ring.tail, tail), ring.head)
    ring.table.set_state(_decode_table(state["table"]))
    ring.infos = decode_infos(state["infos"])
    slots = positions(ring.tail, len(ring), ring.capacity)
    slots = slots[ring.links.entry[slots].argsort(kind="stable")]  # episode after episode
    entries, begins = np.unique(ring.links.entry[slots], return_index=True)
    ends = ring.links.chain(slots, begins)
    ring.table.first[entries], ring.table.last[entries] = slots[begins], slots[ends]
    ring.table.apply(ring.table.change(np.setdiff1d(ring.table.order, entries), 0))


def _files(ring: LinkedRing) -> list[str]:
    """The names of the files, in the order in which a ring asks for them: observations first, the others by age."""
    own = nested.leaves(ring.observations.data) if ring.has_observations else []
    others = [*ring.links.arrays, *(leaf for track in ring.tracks.values() for leaf in nested.leaves(track.data))]
    others += [] if ring.versions.told is None else [ring.versions.told]
    return [*_names(own), *sorted(_names(others), key=lambda name: int(name[len("ring_") : -len(".npy")]))]


def _names(arrays: list[np.ndarray]) -> list[str]:
    """The distinct files of arrays."""
    return list(dict.fromkeys(file.name for array in arrays if (file := file_of(array))))


def _empty(track: TrackRing) -> Any:
    """No items of the track's kind."""
    return nested.map_leaves(lambda leaf: np.zeros((0, *leaf.shape[1:]), leaf.dtype), track.data)


def _encode_table(state: dict[str, Any]) -> dict[str, Any]:
    facts = [None if fact is None else {**fact, "ending": fact["ending"].code} for fact in state["facts"]]
    return {**state, "facts": facts, "entries": list(state["entries"].items())}


def _decode_table(state: dict[str, Any]) -> dict[str, Any]:
    facts = [None if fact is None else {**fact, "ending": Ending(fact["ending"])} for fact in state["facts"]]
    return {**state, "facts": facts, "entries": dict(state["entries"])}


def encode_infos(infos: InfoSegments) -> list[Any]:
    """Segments as plain lists, dicts and arrays: [row number, how many, columns by path]; neighbours are one.

    Raises:
        WrongType: names the key of a value that is neither plain nor an array.
    """
    segments: list[tuple[int, list[Any]]] = []
    for start, part in zip(infos.starts, infos.parts, strict=True):
        if segments and segments[-1][0] + sum(map(len, segments[-1][1])) == start:
            segments[-1][1].append(part)
        elif len(part):
            segments.append((start, [part]))
    written = []
    for start, parts in segments:
        joined = joined_infos(parts)
        columns = joined.without_objects().columns if isinstance(joined, ColumnInfos) else {}
        written.append([start, len(joined), {path: _column_out(column) for path, column in columns.items()}])
    return written


def _column_out(column: Any) -> list[Any]:
    if isinstance(column, TypedColumn):
        return [column.values, column.mask, column.plain]
    return [column.buffer, column.starts, column.ends]


def decode_infos(written: list[Any]) -> InfoSegments:
    """The segments of which `encode_infos` made that."""
    parts = []
    for _, count, columns in written:
        found = {p: TypedColumn(*c) if isinstance(c[2], bool) else PackedColumn(*c) for p, c in columns.items()}
        parts.append(ColumnInfos(found, count))
    return InfoSegments([start for start, *_ in written], parts)


def _rest_out(rest: dict[str, Any]) -> dict[str, Any]:
    spaces = [space_json.to_json(space, name) for space, name in zip(rest["spaces"], _SPACES, strict=True)]
    return {**rest, "generator": json.dumps(rest["generator"]), "spaces": spaces}


def _rest_in(rest: dict[str, Any]) -> dict[str, Any]:
    spaces = tuple(map(space_json.from_json, rest["spaces"]))
    return {**rest, "generator": json.loads(rest["generator"]), "spaces": spaces}


_SPACES = ("observation_space", "action_space")
