"""Packs as bytes, and back: a schema that is told once, and for each message a body and its large arrays.

    schema    msgpack: for each pack its tracks (path, dtype, item shape), how they are nested, and its spaces
    body      size of the facts (uint32) | the facts of each pack (msgpack) | small arrays, at multiples of 8
    parts     an array of at least SMALL bytes each: the pack's own memory, which is not copied

A part costs a socket what a message costs, so all that is small is one, together with the message's head. What is small
is what a socket would copy anyway. Nothing is ever pickled, and each number that
is read is compared with the bytes that are there before anything is made of it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgpack
import numpy as np

from episodes.errors import EpisodeError, UnreadableData
from episodes.facts.facts import FACTS, PackFacts
from episodes.pack import EpisodePack
from episodes.storage import space_json
from episodes.storage.track_schema import TrackField, assembled, columns_of, is_flat, is_observed, structure_of
from episodes.tracks import ArrayTrack, InfoTrack, Tracks, nested
from episodes.tracks.field import ACTIONS, EXTRA, OBSERVATIONS, REWARDS, extra_field
from episodes.tracks.infos import documents
from episodes.tracks.infos.columns import Column, ColumnInfos, PackedColumn, TypedColumn
from episodes.tracks.infos.kinds import EmptyInfos, Infos
from episodes.transport.facts_on_the_way import INTEGERS, MOST_ROWS, READERS, WRITERS, bounds_of, counts_of, integers_of

SMALL = 64 * 1024
_COPIED_AT_ONCE = 4096  # bytes of an array, of which a copy is no dearer than to ask whether it can be put off
_MOST_SCHEMAS = 64  # kept by a sender, by what packs look like
_SIZE = struct.Struct("<I")
_PADDING = [bytes(-size % 8) for size in range(8)]  # by what is beyond a multiple of 8
_BOOL, _BYTE = np.dtype(bool), np.dtype(np.uint8)
_NAMES = ("observations", "actions", "rewards")
DAMAGES = (EpisodeError, ValueError, KeyError, TypeError, IndexError, OverflowError, struct.error, RecursionError)

Buffer = Any  # bytes or a memoryview
Item = tuple[np.dtype, tuple[int, ...], int, bool]  # of a track: dtype, shape, bytes, whether it is observed

_new: Any = tuple.__new__  # half the price of the class call
_NOT_TOLD = [None] * len(FACTS)


class Message(NamedTuple):
    """Packs as they travel."""

    schema: bytes
    schema_id: int
    body: list[Buffer]  # pieces of the first part
    large: list[Buffer]  # the other parts
    versions: tuple[int, int] | None  # the lowest and the highest policy version

    def parts(self, head: bytes = b"") -> list[Buffer]:
        """The parts, of which the first begins with the head."""
        return [b"".join((head, *self.body)), *self.large]


def id_of(schema: bytes) -> int:
    """The id of a schema: a hash, so that whoever has the schema knows it."""
    return int.from_bytes(hashlib.blake2b(schema, digest_size=8).digest(), "little")


# --- arrays into parts, and back --------------------------------------------------------------------------------------


class Laid:
    """Arrays as parts: what is small goes into the first one, each large one is one by itself."""

    def __init__(self) -> None:
        self.small: list[Buffer] = []
        self.large: list[Buffer] = []

    def put(self, array: np.ndarray) -> None:
        nbytes = array.nbytes
        if nbytes >= SMALL:
            flat = np.ascontiguousarray(array)
            self.large.append(flat.reshape(-1).view(np.uint8).data)
        elif nbytes:
            is_copied_later = nbytes > _COPIED_AT_ONCE and array.dtype.kind in "biuf" and array.flags.c_contiguous
            self.small.append(array if is_copied_later else array.tobytes())
            if nbytes & 7:
                self.small.append(_PADDING[nbytes & 7])

    def body(self, facts: Any) -> list[Buffer]:
        """The pieces of the first part; `facts` is what msgpack takes."""
        head: Any = msgpack.packb(facts)
        return [_SIZE.pack(len(head)), head, _PADDING[(_SIZE.size + len(head)) & 7], *self.small]


class Read:
    """Arrays out of parts, in the order in which they were laid: read-only views wherever they are aligned.

    Args:
        start: where the body begins in the first part.
    """

    __slots__ = ("at", "body", "facts", "part", "parts")

    def __init__(self, parts: Sequence[Buffer], start: int = 0) -> None:
        body = parts[0]
        if type(body) is not bytes and not np.frombuffer(body, np.int64, 1).flags.aligned:
            body = bytes(body)
        (size,) = _SIZE.unpack_from(body, start)
        facts = start + _SIZE.size
        self.facts: Any = msgpack.unpackb(body[facts : facts + size])
        self.at = facts + size + (-_SIZE.size - size & 7)
        self.body = body
        self.parts = parts
        self.part = 1

    def arrays(self, items: Sequence[Item], num_steps: int, num_observed: int) -> list[np.ndarray]:
        """The next arrays, of so many of each of these items."""
        body, found = self.body, []
        for dtype, shape, size, more in items:
            rows = num_observed if more else num_steps
            nbytes = rows * size
            if 0 < nbytes < SMALL:
                found.append(np.ndarray((rows, *shape), dtype, body, self.at))
                self.at += nbytes + 7 & ~7
            else:
                found.append(self.array(dtype, (rows, *shape), nbytes))
        return found

    def array(self, dtype: np.dtype, shape: tuple[int, ...], nbytes: int) -> np.ndarray:
        """The next array of this shape, which takes so many bytes."""
        if nbytes < SMALL:
            at = self.at
            self.at = at + (nbytes + 7 & ~7)
            return np.ndarray(shape, dtype, self.body if nbytes else b"", at if nbytes else 0)
        part = memoryview(self.parts[self.part]).toreadonly()
        self.part += 1
        if len(part) != nbytes:
            raise UnreadableData(f"{len(part)} bytes for an array of {nbytes}")
        found = np.ndarray(shape, dtype, part)
        return found if found.flags.aligned else nested.frozen(found.copy())

    def end(self) -> None:
        """Raise unless all was read."""
        if self.part != len(self.parts) or self.at != len(self.body):
            raise UnreadableData(f"{len(self.parts) - self.part} parts and {len(self.body) - self.at} bytes too many")


# --- schemas ----------------------------------------------------------------------------------------------------------


class Schemas:
    """The schemas of packs, made once for packs that look alike."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[bytes, int, Any]] = {}

    def of(self, packs: Sequence[EpisodePack]) -> tuple[bytes, int]:
        """The schema and its id. `WrongType` names a track or a space that cannot travel."""
        key = tuple(map(_look, packs))
        known = self._known.get(key)
        if known is None:
            schema = schema_of(packs)
            if len(self._known) >= _MOST_SCHEMAS:
                self._known.clear()
            spaces = [pack.facts.spaces for pack in packs]  # kept, so that no other space gets its id
            known = self._known[key] = schema, id_of(schema), spaces
        return known[0], known[1]


def _look(pack: EpisodePack) -> Any:
    """Equal for packs of one schema."""
    tracks = tuple([(path, array.dtype, array.shape[1:]) for path, array in pack.tracks.items()])
    structure = None if is_flat(pack) else repr(structure_of(columns_of(pack)))
    observed, acted = pack.facts.spaces
    return tracks, structure, id(observed), id(acted)


def schema_of(packs: Sequence[EpisodePack]) -> bytes:
    """What packs look like; `WrongType` names a track or a space that cannot travel."""
    own = [
        [
            [[path, field.dtype, list(field.shape)] for path, field in fields_of(pack).items()],
            structure_of(columns_of(pack)),
            space_json.to_json(pack.observation_space, "observation_space"),
            space_json.to_json(pack.action_space, "action_space"),
        ]
        for pack in packs
    ]
    return bytes(msgpack.packb(own) or b"")


def fields_of(pack: EpisodePack) -> dict[str, TrackField]:
    """The fields of a pack's tracks by path."""
    return {path: TrackField.of(path, array, "none") for path, array in pack.tracks.items()}


def layouts_of(schema: bytes) -> tuple[PackLayout, ...]:
    """What packs of a schema look like; `UnreadableData` for bytes that are no schema."""
    try:
        layouts = tuple(PackLayout(*own) for own in msgpack.unpackb(schema, strict_map_key=False))
        for layout in layouts:
            layout.empty().check()
    except DAMAGES as error:
        raise UnreadableData(f"{len(schema)} bytes that are no schema of packs: {error!r}") from None
    if not layouts:
        raise UnreadableData("a schema of no packs")
    return layouts


class PackLayout:
    """How a pack of one schema is read: all that can be known before is worked out once."""

    def __init__(self, tracks: Any, structure: Any, observation_space: Any, action_space: Any) -> None:
        self.fields = {path: checked_field(dtype, shape) for path, dtype, shape in tracks}
        self._spaces = space_json.from_json(observation_space), space_json.from_json(action_space)
        self._arrays = [
            (np.dtype(own.dtype), own.shape, item_size(own), is_observed(path)) for path, own in self.fields.items()
        ]
        places = {path: place for place, path in enumerate(self.fields)}
        nested_places = assembled(structure, places)
        if sorted(nested.leaves(nested_places)) != list(range(len(places))):
            raise UnreadableData("a structure of other tracks")
        self._observations, self._actions, self._rewards = map(nested_places.__getitem__, _NAMES)
        self._extra = [(key, own, extra_field(key)) for key, own in nested_places[EXTRA].items()]

    def empty(self) -> EpisodePack:
        """A pack of no episodes."""
        none = np.zeros(0, np.int64)
        facts = PackFacts(np.zeros(0, "U1"), none, none.astype(np.uint8))
        return EpisodePack.of(self._tracks([own.empty() for own in self.fields.values()], None, 0), facts, none, none)

    def read(self, facts: Any, source: Read) -> EpisodePack:
        """The pack that comes next."""
        num, lengths, lookbacks, columns, infos, custom_data = facts
        if type(num) is not int or num < 0:
            raise UnreadableData(f"{num} episodes")
        lengths, steps = counts_of(lengths, num)
        lookbacks, before = (np.zeros(num, np.int64), 0) if lookbacks is None else counts_of(lookbacks, num)
        steps += before
        rows = steps + num
        arrays = source.arrays(self._arrays, steps, rows)
        tracks = self._tracks(arrays, None if infos is None else _read_infos(infos, rows, source), rows)
        own = [None if column is None else read(column, num) for column, read in zip(columns, READERS)]  # noqa: B905
        own += _NOT_TOLD[len(own) :]  # or what came after the sender's version
        custom = None if custom_data is None else documents.decode(custom_data)
        if custom is not None and len(custom) != num:
            raise UnreadableData(f"custom data of {len(custom)} episodes, not {num}")
        return EpisodePack.of(tracks, _new(PackFacts, (*own, *self._spaces, custom)), lengths, lookbacks)

    def _tracks(self, arrays: list[np.ndarray], infos: Infos | None, num_rows: int) -> Tracks:
        """The tracks of arrays, which nobody can write to."""
        tracks = (
            ArrayTrack(_placed(arrays, self._observations), 0, OBSERVATIONS),
            InfoTrack(EmptyInfos(num_rows) if infos is None else infos),
            ArrayTrack(_placed(arrays, self._actions), 0, ACTIONS),
            ArrayTrack(_placed(arrays, self._rewards), 0, REWARDS),
            {key: ArrayTrack(_placed(arrays, own), 0, field) for key, own, field in self._extra} if self._extra else {},
        )
        return _new(Tracks, tracks)


def _placed(arrays: list[np.ndarray], place: Any) -> Any:
    """The array of a place; of nested places, so nested arrays."""
    return arrays[place] if type(place) is int else nested.map_leaves(arrays.__getitem__, place)


def _dtype(text: Any) -> np.dtype:
    dtype = np.dtype(text) if isinstance(text, str) and len(text) < 32 else np.dtype(object)
    if dtype.kind not in "biufcMmSU" or dtype.hasobject or not dtype.itemsize:
        raise UnreadableData(f"items of dtype {text!r}")
    return dtype


def _shape(shape: Any) -> tuple[int, ...]:
    if len(shape) > 32 or not all(isinstance(size, int) and 0 <= size < 1 << 32 for size in shape):
        raise UnreadableData(f"items of shape {shape!r}")
    return tuple(shape)


def checked_field(dtype: Any, shape: Any) -> TrackField:
    """The field of a dtype and an item shape that came from elsewhere."""
    return TrackField(_dtype(dtype).str, _shape(shape))


def item_size(field: TrackField) -> int:
    """The bytes of an item."""
    size = np.dtype(field.dtype).itemsize
    for length in field.shape:
        size *= length
    return size


# --- packs ------------------------------------------------------------------------------------------------------------


def encoded(packs: Sequence[EpisodePack], schemas: Schemas) -> Message:
    """Packs as they travel. `WrongType` names a value that msgpack, or a space that JSON, cannot hold."""
    schema, schema_id = schemas.of(packs)
    laid = Laid()
    facts = [_put(pack, laid) for pack in packs]
    return Message(schema, schema_id, laid.body(facts), laid.large, bounds_of(packs))


def decoded(layouts: Sequence[PackLayout], parts: Sequence[Buffer], start: int = 0) -> list[EpisodePack]:
    """The packs of the parts of a message, whose body begins at `start` of the first one.

    Raises:
        UnreadableData: they are damaged, or of another schema.
    """
    try:
        source = Read(parts, start)
        packs = [layout.read(facts, source) for layout, facts in zip(layouts, source.facts, strict=True)]
        source.end()
    except DAMAGES as error:
        raise UnreadableData(f"a message that is no pack of its schema: {error!r}") from None
    return packs


def _put(pack: EpisodePack, laid: Laid) -> list[Any]:
    """Lay down the columns of a pack; its facts."""
    for array in pack.tracks.values():
        laid.put(array)
    infos: Any = pack.infos
    described = None
    if type(infos) is not EmptyInfos:
        described = _put_infos(infos.travelling(), laid) if isinstance(infos, ColumnInfos) else None
    facts, lookbacks = pack.facts, integers_of(pack.lookbacks)
    own = [None if column is None else write(column) for column, write in zip(facts, WRITERS, strict=False)]
    while own[-1] is None:
        own.pop()
    custom = documents.encode(facts.custom_data, "custom_data") if facts.custom_data is not None else None
    return [
        len(pack),
        integers_of(pack.lengths),
        lookbacks if lookbacks.strip(b"\0") else None,
        own,
        described,
        custom,
    ]


# --- infos ------------------------------------------------------------------------------------------------------------


def _put_infos(infos: ColumnInfos, laid: Laid) -> bytes:
    """Lay down the columns of infos; what they are."""
    described = []
    for path, column in infos.columns.items():
        if isinstance(column, PackedColumn):
            data, bounds = column.joined()
            laid.put(np.diff(bounds).astype(INTEGERS, copy=False))
            laid.put(data)
            described.append([path, None, [], False, False])
            continue
        laid.put(column.values)
        if column.mask is not None:
            laid.put(column.mask)
        shape = list(column.values.shape[1:])
        described.append([path, column.values.dtype.str, shape, column.plain, column.mask is not None])
    return bytes(msgpack.packb(described) or b"")


@lru_cache(maxsize=256)
def _described(data: bytes) -> tuple[tuple[str, np.dtype | None, tuple[int, ...], int, bool, bool], ...]:
    """What columns of infos are: path, dtype (None of documents), item shape, item size, plain, masked."""
    found = []
    for path, dtype, shape, plain, masked in msgpack.unpackb(data):
        if not isinstance(path, str):
            raise UnreadableData(f"infos at {path!r}")
        field = None if dtype is None else checked_field(dtype, shape)
        size = 0 if field is None else item_size(field)
        own = None if field is None else np.dtype(field.dtype)
        found.append((path, own, () if field is None else field.shape, size, bool(plain), bool(masked)))
    return tuple(found)


def _read_infos(data: bytes, num_rows: int, source: Read) -> Infos:
    columns: dict[str, Column] = {}
    for path, dtype, shape, size, plain, masked in _described(data):
        if dtype is None:
            columns[path] = _read_documents(num_rows, source)
            continue
        values = source.array(dtype, (num_rows, *shape), num_rows * size)
        columns[path] = TypedColumn(values, source.array(_BOOL, (num_rows,), num_rows) if masked else None, plain)
    return ColumnInfos(columns, num_rows) if columns else EmptyInfos(num_rows)


def _read_documents(num_rows: int, source: Read) -> PackedColumn:
    sizes = source.array(INTEGERS, (num_rows,), num_rows * INTEGERS.itemsize)
    if num_rows and not 0 <= sizes.min() <= sizes.max() < MOST_ROWS // num_rows:
        raise UnreadableData("infos of sizes that cannot be")
    ends = np.cumsum(sizes)
    nbytes = int(ends[-1]) if num_rows else 0
    return PackedColumn(source.array(_BYTE, (nbytes,), nbytes), ends - sizes, ends)
