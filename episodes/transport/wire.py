"""Packs as bytes, and back: a schema that is told once, and for each message a body and its large arrays.

    schema    msgpack: for each pack its tracks (path, dtype, item shape), how they are nested, and its spaces
    body      size of the facts (uint32) | the facts of each pack (msgpack) | small arrays, at multiples of 8
    parts     an array of at least SMALL bytes each: the pack's own memory, which is not copied

A part costs a socket what a message costs, so all that is small is one. Nothing is ever pickled, and each number that
is read is compared with the bytes that are there before anything is made of it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np

from episodes.errors import EpisodeError, UnreadableData
from episodes.facts.facts import FACTS, PackFacts
from episodes.facts.policy_versions import UNKNOWN
from episodes.pack import EpisodePack
from episodes.storage import space_json
from episodes.storage.track_schema import TrackField, assembled, columns_of, is_observed, structure_of
from episodes.tracks import Tracks
from episodes.tracks.infos import documents
from episodes.tracks.infos.columns import Column, ColumnInfos, PackedColumn, TypedColumn
from episodes.tracks.infos.kinds import EmptyInfos, Infos
from episodes.transport.facts_on_the_way import INTEGERS, MOST_ROWS, READERS, WRITERS, counts_of, integers_of

SMALL = 16 * 1024
_MOST_SCHEMAS = 64  # kept by a sender, by what packs look like
_SIZE = struct.Struct("<I")
DAMAGES = (EpisodeError, ValueError, KeyError, TypeError, IndexError, OverflowError, struct.error, RecursionError)

Buffer = Any  # bytes or a memoryview


@dataclass(frozen=True, slots=True)
class Message:
    """Packs as they travel."""

    schema: bytes
    schema_id: int
    parts: list[Buffer]
    versions: tuple[int, int] | None  # the lowest and the highest policy version


def id_of(schema: bytes) -> int:
    """The id of a schema: a hash, so that whoever has the schema knows it."""
    return int.from_bytes(hashlib.blake2b(schema, digest_size=8).digest(), "little")


# --- arrays into parts, and back --------------------------------------------------------------------------------------


class Laid:
    """Arrays as parts: what is small joined into the first one, each large one by itself."""

    def __init__(self) -> None:
        self.small: list[bytes] = []
        self.large: list[Buffer] = []

    def put(self, array: np.ndarray) -> None:
        nbytes = array.nbytes
        if nbytes >= SMALL:
            flat = np.ascontiguousarray(array)
            self.large.append(flat.reshape(-1).view(np.uint8).data)
        elif nbytes:
            self.small.append(array.tobytes())
            if nbytes % 8:
                self.small.append(bytes(-nbytes % 8))

    def parts(self, facts: Any) -> list[Buffer]:
        """All parts; `facts` is what msgpack takes."""
        head: Any = msgpack.packb(facts)
        return [b"".join((_SIZE.pack(len(head)), head, bytes((-_SIZE.size - len(head)) % 8), *self.small)), *self.large]


class Read:
    """Arrays out of parts, in the order in which they were laid: views wherever they are aligned."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self.body, self.parts, self.part = parts[0], parts, 1
        (size,) = _SIZE.unpack_from(self.body)
        self.facts: Any = msgpack.unpackb(memoryview(self.body)[_SIZE.size : _SIZE.size + size])
        self.at = _SIZE.size + size + (-_SIZE.size - size) % 8

    def array(self, dtype: np.dtype, num_rows: int, shape: tuple[int, ...] = (), item_size: int | None = None) -> Any:
        """The next array [num_rows, *shape]."""
        nbytes = num_rows * (item_size if item_size is not None else dtype.itemsize)
        if nbytes >= SMALL:
            part = self.parts[self.part]
            self.part += 1
            if len(part) != nbytes:
                raise UnreadableData(f"{len(part)} bytes for an array of {nbytes}")
            found = np.frombuffer(part, dtype)
            found = found if found.flags.aligned else found.copy()
        elif nbytes:
            found = np.frombuffer(self.body, dtype, nbytes // dtype.itemsize, self.at)
            self.at += (nbytes + 7) & ~7
        else:
            found = np.empty((num_rows, *shape), dtype)
        return found.reshape(num_rows, *shape) if shape else found

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
    is_flat = "".join([path for path, *_ in tracks]).count("/") == len(pack.columns.extra)
    structure = None if is_flat else repr(structure_of(columns_of(pack)))
    return tracks, structure, tuple(map(id, pack.facts.spaces))


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
    """How a pack of one schema is read."""

    def __init__(self, tracks: Any, structure: Any, observation_space: Any, action_space: Any) -> None:
        self.fields = {path: checked_field(dtype, shape) for path, dtype, shape in tracks}
        self.structure = structure
        self.spaces = space_json.from_json(observation_space), space_json.from_json(action_space)
        self.columns = [
            (path, np.dtype(own.dtype), own.shape, item_size(own), is_observed(path))
            for path, own in self.fields.items()
        ]
        places = {path: path for path in self.fields}
        if sorted(_strings(assembled(structure, places))) != sorted(places):
            raise UnreadableData("a structure of other tracks")

    def empty(self) -> EpisodePack:
        """A pack of no episodes."""
        none = np.zeros(0, np.int64)
        nested = assembled(self.structure, {path: field.empty() for path, field in self.fields.items()})
        facts = PackFacts(np.zeros(0, "U1"), none, none.astype(np.uint8))
        return EpisodePack.of(self._tracks(nested, EmptyInfos(0)), facts, none, none)

    def read(self, facts: Any, source: Read) -> EpisodePack:
        """The pack that comes next."""
        num, lengths, lookbacks, columns, infos, custom_data = facts
        if not isinstance(num, int) or num < 0:
            raise UnreadableData(f"{num} episodes")
        lengths = counts_of(lengths, num)
        lookbacks = counts_of(lookbacks, num) if lookbacks is not None else np.zeros(num, np.int64)
        steps = int(lengths.sum()) + int(lookbacks.sum())
        rows = (steps, steps + num)
        arrays = {
            path: source.array(dtype, rows[observed], shape, size)
            for path, dtype, shape, size, observed in self.columns
        }
        nested = assembled(self.structure, arrays)
        own_infos = EmptyInfos(rows[1]) if infos is None else _read_infos(infos, rows[1], source)
        own = [read(value, num) for value, read in zip(columns, READERS, strict=False)]
        own += [None] * (len(FACTS) - len(own))  # facts that came after the sender's version
        custom = None if custom_data is None else documents.decode(custom_data)
        pack_facts = PackFacts._make((*own, *self.spaces, custom))
        pack_facts.check(num)
        return EpisodePack.of(self._tracks(nested, own_infos), pack_facts, lengths, lookbacks)

    @staticmethod
    def _tracks(nested: Any, infos: Infos) -> Tracks:
        return Tracks.finished(
            nested["observations"], infos, nested["actions"], nested["rewards"], nested["extra_model_outputs"]
        )


def _strings(nested: Any) -> list[str]:
    if isinstance(nested, str):
        return [nested]
    parts = nested.values() if isinstance(nested, dict) else nested
    return [path for part in parts for path in _strings(part)]


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
    told = [pack.facts.policy_versions for pack in packs if pack.facts.policy_versions is not None]
    known = [own.versions[own.versions != UNKNOWN] for own in told]  # of none nothing is known
    bounds = (min(int(own.min()) for own in known), max(int(own.max()) for own in known)) if known else None
    return Message(schema, schema_id, laid.parts(facts), bounds)


def decoded(layouts: Sequence[PackLayout], parts: Sequence[Buffer]) -> list[EpisodePack]:
    """The packs of the parts of a message; `UnreadableData` where they are damaged, or of another schema."""
    try:
        source = Read(parts)
        packs = [layout.read(facts, source) for layout, facts in zip(layouts, source.facts, strict=True)]
        source.end()
    except DAMAGES as error:
        raise UnreadableData(f"a message that is no pack of its schema: {error!r}") from None
    return packs


def _put(pack: EpisodePack, laid: Laid) -> list[Any]:
    """Lay down the columns of a pack; its facts."""
    for array in pack.tracks.values():
        laid.put(array)
    infos = pack.columns.infos.whole()
    described = _put_infos(infos.travelling(), laid) if isinstance(infos, ColumnInfos) else None
    facts = pack.facts
    own = [None if column is None else write(column) for column, write in zip(facts.columns, WRITERS, strict=True)]
    lookbacks = pack.lookbacks
    custom = documents.encode(facts.custom_data, "custom_data") if facts.custom_data is not None else None
    return [
        len(pack),
        integers_of(pack.lengths),
        integers_of(lookbacks) if lookbacks.any() else None,
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
        values = source.array(dtype, num_rows, shape, size)
        columns[path] = TypedColumn(values, source.array(np.dtype(bool), num_rows) if masked else None, plain)
    return ColumnInfos(columns, num_rows) if columns else EmptyInfos(num_rows)


def _read_documents(num_rows: int, source: Read) -> PackedColumn:
    sizes = source.array(INTEGERS, num_rows)
    if num_rows and not 0 <= sizes.min() <= sizes.max() < MOST_ROWS // num_rows:
        raise UnreadableData("infos of sizes that cannot be")
    ends = np.cumsum(sizes)
    return PackedColumn(source.array(np.dtype(np.uint8), int(ends[-1]) if num_rows else 0), ends - sizes, ends)
