"""Encoding and decoding of packs of episodes as multipart ZeroMQ messages, without pickle.

    schema    msgpack, sent once per connection: for each pack its tracks (path, dtype, item shape), how they are
              nested, and its spaces
    message   first part:  head (64 bytes, see `messages`)
                           size of the metadata (uint32)
                           metadata of each pack (msgpack), padded to a multiple of 8
                           small arrays, each padded to a multiple of 8
              more parts:  one for each array of at least 64 KiB: the pack's own memory, without a copy

A part costs a socket as much as a message, so all small arrays are in one part, together with the head. A socket would
copy them anyway. A message of one part has all arrays in the first part: packs that are joined are sent this way,
because their arrays are copied next to each other in any case.

Nothing is ever pickled. Each number that is read is compared with the size of the message before it is used.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgpack
import numpy as np

from episodes.errors import EpisodeError, UnreadableData, WrongType
from episodes.facts.facts import PackFacts
from episodes.format_versions import checked_shape
from episodes.pack import EpisodePack
from episodes.storage import space_json, track_schema
from episodes.storage.layout import LENGTHS
from episodes.storage.track_schema import (
    Structure,
    TrackField,
    assemble,
    has_bounds,
    is_flat,
    is_observed,
    pack_columns,
    structure_of,
)
from episodes.tracks import ArrayTrack, InfoTrack, Tracks, nested
from episodes.tracks.casting import MOST_DIMENSIONS
from episodes.tracks.field import ACTIONS, EXTRA, OBSERVATIONS, REWARDS, extra_field
from episodes.tracks.indexing import offsets_of
from episodes.tracks.infos import msgpack_codec
from episodes.tracks.infos.info_column import Column, PackedColumn, TypedColumn
from episodes.tracks.infos.infos import Infos
from episodes.tracks.infos.joining import joined_infos
from episodes.tracks.ragged import LENGTH, Ragged
from episodes.tracks.validation import checked_items
from episodes.transport.facts_codec import (
    INTEGERS,
    MOST_ROWS,
    WRITERS,
    decode_lengths,
    integers_of,
    read_facts,
    version_bounds,
)
from episodes.transport.parts import ALL, Buffer, PartsReader, PartsWriter

_MOST_SCHEMAS = 64  # in a sender's cache
_BOOL, _BYTE = np.dtype(bool), np.dtype(np.uint8)
_NAMES = ("observations", "actions", "rewards")
MOST_SPACE_ITEMS = 1 << 25  # items of all arrays of the spaces, which a schema may describe by one number
_WRONG = (EpisodeError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
DAMAGES = (*_WRONG, RecursionError, SyntaxError, struct.error)
"""Errors that reading invalid bytes may raise: gymnasium has assertions, and numpy parses names of dtypes."""


class Message(NamedTuple):
    """Encoded packs of episodes, ready to be sent: schema, and buffers with metadata and arrays."""

    schema: bytes
    schema_id: int
    body: list[Buffer]  # buffers of the first part
    large: list[Buffer]  # the other parts
    nbytes: int  # of all parts, without the head
    versions: tuple[int, int] | None  # the lowest and the highest policy version

    def parts(self, head: bytes = b"") -> list[Buffer]:
        """Return the list of parts to send. The bytes `head`, the message's header, are put before the first part."""
        try:
            first = b"".join((head, *self.body))
        except TypeError:  # an array is not contiguous, or has times: checking each array takes longer than this error
            first = b"".join([head, *(data.tobytes() if isinstance(data, np.ndarray) else data for data in self.body)])
        return [first, *self.large]


def id_of(schema: bytes) -> int:
    """Return a schema's id: a 64-bit hash of its encoded bytes."""
    return int.from_bytes(hashlib.blake2b(schema, digest_size=8).digest(), "little")


# --- schemas ----------------------------------------------------------------------------------------------------------


class Schemas:
    """Cache of the encoded schemas (dtypes, shapes, nesting and spaces) of the packs that a sender has sent."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[bytes, int, Any]] = {}

    def of(self, packs: Sequence[EpisodePack], looks: Sequence[Any] | None = None) -> tuple[bytes, int]:
        """Return (encoded schema, schema id) for a list of packs, from the cache if possible.

        Args:
            looks: `schema_key` of each pack, if it was computed already.

        Raises:
            WrongType: a track or a space cannot be encoded.
        """
        key = tuple(looks or map(schema_key, packs))
        known = self._known.get(key)
        if known is None:
            schema = schema_of(packs)
            if len(self._known) >= _MOST_SCHEMAS:
                self._known.clear()
            spaces = [pack.facts.spaces for pack in packs]  # stored, so that their `id`s are not used again
            known = self._known[key] = schema, id_of(schema), spaces
        return known[0], known[1]


def schema_key(pack: EpisodePack, arrays: list[np.ndarray] | None = None) -> Any:
    """Return a hashable key that is equal for packs with equal dtypes, shapes, nesting and spaces.
    It is the key of the schema cache.

    Args:
        arrays: the arrays of the pack's tracks, if they were listed already.
    """
    items = [(array.dtype, array.shape[1:]) for array in arrays or arrays_of(pack)]
    columns, facts = pack.columns, pack.facts
    names: Any = tuple(columns.extra)
    if names or type(columns.observations.data) is not np.ndarray or type(columns.actions.data) is not np.ndarray:
        names = names if is_flat(pack) else repr(structure_of(pack_columns(pack)))
    return (*items, names, id(facts.observation_space), id(facts.action_space))


def arrays_of(pack: EpisodePack) -> list[np.ndarray]:
    """Return all arrays of a pack, except its infos, as a list in the order of the pack's schema."""
    observations, _, actions, rewards, extra = pack.columns
    flat: list[Any] = [observations.data, actions.data, rewards.data]
    flat += [track.data for track in extra.values()] if extra else ()
    return flat if {*map(type, flat)} == {np.ndarray} else [*pack.tracks.values()]


def arrays_to_send(pack: EpisodePack, arrays: list[Any]) -> list[np.ndarray]:
    """Return the arrays to put into a message. Each ragged array is replaced by two:
    lengths of its items, uint32 [n], and values.

    Ragged extra outputs beside ragged actions have the same lengths, which are sent once.
    """
    if Ragged not in {*map(type, arrays)}:
        return arrays
    fields = uncompressed_fields(pack)
    sent: list[np.ndarray] = []
    for array, (path, field) in zip(arrays, fields.items(), strict=True):
        if type(array) is not Ragged:
            sent.append(array)
            continue
        if field.bounds is None:
            sent.append(_lengths_to_send(array, path))
        sent.append(np.ascontiguousarray(array.flat))
    return sent


def _lengths_to_send(items: Ragged, path: str) -> np.ndarray:
    """Return the lengths of ragged items as uint32, the dtype used in messages.
    Raise `WrongType` if an item is too long."""
    lengths = items.lengths
    if lengths.max(initial=0) > np.iinfo(LENGTHS).max:
        raise WrongType(f"track {path!r} has an item of {lengths.max()} values; items have less than 2**32")
    return lengths.astype(LENGTHS)


def schema_of(packs: Sequence[EpisodePack]) -> bytes:
    """Encode the dtypes, shapes, nesting and spaces of packs as bytes. Raise `WrongType` if
    a part cannot be encoded."""
    described = [
        [
            [[path, field.dtype, list(field.shape)] for path, field in uncompressed_fields(pack).items()],
            structure_of(pack_columns(pack)),
            space_json.to_json(pack.observation_space, "observation_space"),
            space_json.to_json(pack.action_space, "action_space"),
        ]
        for pack in packs
    ]
    return _packed_metadata(described)


def _packed_metadata(value: object) -> bytes:
    """Encode metadata as msgpack. Raise `WrongType` if a key is not valid Unicode text."""
    try:
        return bytes(msgpack.packb(value) or b"")
    except UnicodeEncodeError as error:
        raise WrongType(f"the key {error.object!r} cannot travel: {error}") from None


def uncompressed_fields(pack: EpisodePack) -> dict[str, TrackField]:
    """Return the dtype and item shape of each array of a pack, as a dict by path."""
    return track_schema.fields_of(pack, "none")


def expected_fields(like: object) -> list[dict[str, TrackField]]:
    """Convert a receiver's argument `like` (an example pack, a list of them, or None) to the
    array schemas that it accepts.

    Raises:
        WrongType: `like` is something else.
    """
    packs = [like] if isinstance(like, EpisodePack) else checked_items("like", () if like is None else like, "packs")
    if not all(isinstance(pack, EpisodePack) for pack in packs):
        raise WrongType(f"like={like!r}: give a pack, or a list of packs")
    return [uncompressed_fields(pack) for pack in packs]


def layouts_of(schema: bytes) -> tuple[PackLayout, ...]:
    """Decode a schema that was received, and return one `PackLayout` for each pack of its messages.

    Raises:
        UnreadableData: the bytes are not a valid schema, or describe no pack.
    """
    try:
        layouts = tuple(PackLayout(*fields) for fields in msgpack.unpackb(schema, strict_map_key=False))
        for layout in layouts:
            layout.empty().check()
    except DAMAGES as error:
        raise UnreadableData(f"{len(schema)} bytes that are no schema of packs: {error!r}") from None
    if not layouts:
        raise UnreadableData("a schema of no packs")
    return layouts


class PackLayout:
    """Decoded schema (dtypes, shapes, nesting, spaces) of one pack, by which packs are decoded from messages.

    Raises:
        UnreadableData: a field, the structure or a space is invalid.
    """

    def __init__(
        self,
        tracks: Any,
        structure: Structure,
        observation_space: space_json.Json | None,
        action_space: space_json.Json | None,
    ) -> None:
        self.fields = {path: checked_field(dtype, shape) for path, dtype, shape in tracks}
        self.num_space_items = _num_items([observation_space, action_space])
        if self.num_space_items > MOST_SPACE_ITEMS:
            raise UnreadableData(f"spaces of more than {MOST_SPACE_ITEMS} items")
        self._spaces = space_json.from_json(observation_space), space_json.from_json(action_space)
        self._arrays = [
            (np.dtype(field.dtype), field.value_shape, item_size(field), is_observed(path))
            for path, field in self.fields.items()
        ]
        self._is_ragged = any(field.is_ragged for field in self.fields.values())
        places = {path: place for place, path in enumerate(self.fields)}
        nested_places = assemble(structure, places)
        if sorted(nested.leaves(nested_places)) != list(range(len(places))):
            raise UnreadableData("a structure of other tracks")
        self._observations, self._actions, self._rewards = map(nested_places.__getitem__, _NAMES)
        self._extra = [(key, index, extra_field(key)) for key, index in nested_places[EXTRA].items()]
        has_ragged_actions = ACTIONS.path in self.fields and self.fields[ACTIONS.path].is_ragged
        self._has_bounds = [has_ragged_actions and has_bounds(path, field) for path, field in self.fields.items()]

    def empty(self) -> EpisodePack:
        """Return a pack without episodes, whose arrays have the dtypes and shapes of this schema."""
        none = np.zeros(0, np.int64)
        facts = PackFacts(np.zeros(0, "U1"), none, none.astype(np.uint8))
        return EpisodePack.of(
            self._tracks([field.empty() for field in self.fields.values()], None, 0), facts, none, none
        )

    def read(self, facts: Sequence[Any], source: PartsReader) -> EpisodePack:
        """Decode one pack from a message, given its metadata `facts` and a reader of the message's arrays.

        Args:
            facts: metadata of the pack, as in the message.
            source: reader of the message's arrays.

        Raises:
            UnreadableData: the number of episodes, the custom data or the size of an array is invalid. Other malformed
                metadata raise the exception of the failed conversion.
        """
        num, lengths, lookbacks, columns, infos, custom_data = facts
        if type(num) is not int or num < 0:
            raise UnreadableData(f"{num} episodes")
        lengths, steps = decode_lengths(lengths, num)
        lookbacks, before = (np.zeros(num, np.int64), 0) if lookbacks is None else decode_lengths(lookbacks, num)
        steps += before
        rows = steps + num
        arrays = self._read_ragged(source, steps, rows) if self._is_ragged else source.arrays(self._arrays, steps, rows)
        tracks = self._tracks(arrays, None if infos is None else _read_infos(infos, rows, source), rows)
        custom = None if custom_data is None else msgpack_codec.decode(custom_data)
        if custom is not None and (len(custom) != num or not {*map(type, custom)} <= {dict, type(None)}):
            raise UnreadableData(f"custom data that are not dicts of {num} episodes")
        metadata = read_facts(columns, num)
        return EpisodePack.of(tracks, PackFacts._make((*metadata, *self._spaces, custom)), lengths, lookbacks)

    def _read_ragged(self, source: PartsReader, steps: int, rows: int) -> list[Any]:
        """Read the arrays of one pack from a message, if some of them are ragged, that is,
        have items of different lengths."""
        arrays: list[Any] = []
        actions: Any = None
        for field, has_actions_bounds, (dtype, shape, size, observed) in zip(
            self.fields.values(), self._has_bounds, self._arrays, strict=True
        ):
            num = rows if observed else steps
            if not field.is_ragged:
                arrays.append(source.array(dtype, (num, *shape), num * size))
                continue
            if has_actions_bounds:
                offsets = actions.offsets
            else:
                offsets = offsets_of(source.array(LENGTHS, (num,), num * LENGTHS.itemsize))
            total = offsets.item(-1)
            arrays.append(Ragged.of(source.array(dtype, (total, *shape), total * size), offsets))
            if field is self.fields.get(ACTIONS.path):
                actions = arrays[-1]
        return arrays

    def _tracks(self, arrays: list[np.ndarray], infos: Infos | None, num_rows: int) -> Tracks:
        """Arrange decoded arrays and infos as the columns of a pack: observations, infos, actions,
        rewards and extra outputs."""
        return Tracks(
            ArrayTrack(_arrays_at(arrays, self._observations), 0, OBSERVATIONS),
            InfoTrack(Infos({}, num_rows) if infos is None else infos),
            ArrayTrack(_arrays_at(arrays, self._actions), 0, ACTIONS),
            ArrayTrack(_arrays_at(arrays, self._rewards), 0, REWARDS),
            {key: ArrayTrack(_arrays_at(arrays, index), 0, field) for key, index, field in self._extra}
            if self._extra
            else {},
        )


def _arrays_at(arrays: list[np.ndarray], place: Any) -> Any:
    """Replace indices by the arrays at these indices of `arrays`. `place` is an index, or a nested value of indices."""
    return arrays[place] if type(place) is int else nested.map_leaves(arrays.__getitem__, place)


def _dtype(text: object) -> np.dtype:
    """Return a received dtype. Raise `UnreadableData` if it is not one of numbers, times or text."""
    dtype = np.dtype(text) if isinstance(text, str) and len(text) < 32 else np.dtype(object)
    if dtype.kind not in "biufcMmSU" or dtype.hasobject or not dtype.itemsize:
        raise UnreadableData(f"items of dtype {text!r}")
    return dtype


def _shape(shape: object) -> tuple[int, ...]:
    """Return a received item shape. Raise `UnreadableData` if it is invalid or too large."""
    sizes = checked_shape(shape, "the shape of an item")
    if len(sizes) > MOST_DIMENSIONS or max(sizes, default=0) >= 1 << 32:
        raise UnreadableData(f"items of shape {shape!r}")
    return sizes


def _num_items(space: object) -> int:
    """Return how many numbers the arrays of a space (such as its bounds) contain, given the space as
    JSON, to detect huge spaces."""
    if isinstance(space, dict):
        return math.prod(_shape(space.get("shape", (0,)))) + sum(map(_num_items, space.values()))
    return sum(map(_num_items, space)) if isinstance(space, list) else 0


def checked_field(dtype: object, shape: Any) -> TrackField:
    """Return the schema of one array. Raise `UnreadableData` if the received dtype or shape is invalid."""
    if shape[:1] != [LENGTH] or type(shape[0]) is not int:
        return TrackField(_dtype(dtype).str, _shape(shape))
    if _dtype(dtype).kind not in "biufc":
        raise UnreadableData(f"ragged items of dtype {dtype!r}")
    if 0 in shape:
        raise UnreadableData(f"ragged items of shape {shape!r}")
    return TrackField(_dtype(dtype).str, (LENGTH, *_shape(shape[1:])))


def item_size(field: TrackField) -> int:
    """Return the size in bytes of one item of an array, or of one value of a ragged item."""
    size = np.dtype(field.dtype).itemsize
    for length in field.value_shape:
        size *= length
    return size


# --- packs ------------------------------------------------------------------------------------------------------------


def encoded(packs: Sequence[EpisodePack], schemas: Schemas) -> Message:
    """Encode a list of packs as one message. Raise `WrongType` if msgpack or JSON cannot represent a value."""
    writer, facts, looks = PartsWriter(), [], []
    for pack in packs:
        arrays = arrays_of(pack)
        looks.append(schema_key(pack, arrays))
        writer.put(*arrays_to_send(pack, arrays))
        facts.append(_encode_pack_metadata(pack.lengths, pack.lookbacks, pack.facts, pack.infos, writer))
    return Message(*schemas.of(packs, looks), writer.body(facts), writer.large, writer.nbytes, version_bounds(packs))


def encoded_as_one(packs: Sequence[EpisodePack], schemas: Schemas) -> Message:
    """Encode packs of equal schemas as a single pack, by concatenating their arrays while writing.
    The message is decoded as one pack."""
    writer = PartsWriter(small=ALL)
    for arrays in zip(*[arrays_to_send(pack, arrays_of(pack)) for pack in packs], strict=True):
        writer.put_as_one(arrays)
    lengths, lookbacks = (np.concatenate([*map(attrgetter(name), packs)]) for name in ("lengths", "lookbacks"))
    infos = joined_infos([pack.infos for pack in packs])
    facts = _encode_pack_metadata(lengths, lookbacks, PackFacts.concat([pack.facts for pack in packs]), infos, writer)
    return Message(*schemas.of(packs[:1]), writer.body([facts]), writer.large, writer.nbytes, version_bounds(packs[:1]))


def decoded(layouts: Sequence[PackLayout], parts: Sequence[Buffer], start: int = 0) -> list[EpisodePack]:
    """Decode all packs of a received message. Raise `UnreadableData` if the message is damaged.

    Args:
        layouts: layouts of the message's schema.
        parts: the parts of the message.
        start: offset of the body in the first part.

    Raises:
        UnreadableData: the message is damaged, or of another schema.
    """
    try:
        source = PartsReader(parts, start)
        packs = [layout.read(facts, source) for layout, facts in zip(layouts, source.facts, strict=True)]
        source.end()
    except DAMAGES as error:
        raise UnreadableData(f"a message that is no pack of its schema: {error!r}") from None
    return packs


def _encode_pack_metadata(
    lengths: np.ndarray, lookbacks: np.ndarray, facts: PackFacts, infos: Infos, writer: PartsWriter
) -> list[Any]:
    """Encode the metadata of one pack, write its infos with `writer`, and return the encoded metadata as a list."""
    described = None
    if infos.columns:
        described = _write_infos(infos.without_objects(), writer)
    before = integers_of(lookbacks)
    metadata = [None if column is None else write(column) for column, write in zip(facts, WRITERS, strict=False)]
    while metadata[-1] is None:
        metadata.pop()
    custom = msgpack_codec.encode(facts.custom_data, "custom_data") if facts.custom_data is not None else None
    return [
        len(lengths),
        integers_of(lengths),
        before if before.strip(b"\0") else None,
        metadata,
        described,
        custom,
    ]


# --- infos ------------------------------------------------------------------------------------------------------------


def _write_infos(infos: Infos, writer: PartsWriter) -> bytes:
    """Write the columns of infos with `writer`, and return a description of these columns as bytes."""
    described = []
    for path, column in infos.columns.items():
        if isinstance(column, PackedColumn):
            data, bounds = column.joined()
            writer.put(np.diff(bounds).astype(INTEGERS, copy=False))
            writer.put(data)
            described.append([path, None, [], False, False])
            continue
        writer.put(column.values)
        if column.mask is not None:
            writer.put(column.mask)
        shape = list(column.values.shape[1:])
        described.append([path, column.values.dtype.str, shape, column.plain, column.mask is not None])
    return _packed_metadata(described)


@lru_cache(maxsize=256)
def _decode_description(data: bytes) -> tuple[tuple[str, np.dtype | None, tuple[int, ...], int, bool, bool], ...]:
    """Decode the description of info columns. For each column return path, dtype (None:
    msgpack), item shape and size, and two flags.

    Raises:
        UnreadableData: a path is not a str, or a dtype or shape is not allowed.
    """
    columns = []
    for path, dtype, shape, plain, masked in msgpack.unpackb(data):
        if not isinstance(path, str):
            raise UnreadableData(f"infos at {path!r}")
        field = None if dtype is None else checked_field(dtype, shape)
        size = 0 if field is None else item_size(field)
        item_dtype = None if field is None else np.dtype(field.dtype)
        columns.append((path, item_dtype, () if field is None else field.shape, size, bool(plain), bool(masked)))
    return tuple(columns)


def _read_infos(data: bytes, num_rows: int, source: PartsReader) -> Infos:
    """Decode the infos of `num_rows` observations.

    Args:
        data: description of the columns.
        source: the arrays of the message, of which the next ones are read.
    """
    columns: dict[str, Column] = {}
    for path, dtype, shape, size, plain, masked in _decode_description(data):
        if dtype is None:
            columns[path] = _read_documents(num_rows, source)
            continue
        values = source.array(dtype, (num_rows, *shape), num_rows * size)
        columns[path] = TypedColumn(values, source.array(_BOOL, (num_rows,), num_rows) if masked else None, plain)
    return Infos(columns, num_rows)


def _read_documents(num_rows: int, source: PartsReader) -> PackedColumn:
    """Decode a column of msgpack documents, which are not unpacked yet.

    Raises:
        UnreadableData: their sizes are impossible.
    """
    sizes = source.array(INTEGERS, (num_rows,), num_rows * INTEGERS.itemsize)
    if num_rows and not 0 <= sizes.min() <= sizes.max() < MOST_ROWS // num_rows:
        raise UnreadableData("infos of sizes that cannot be")
    ends = np.cumsum(sizes)
    nbytes = int(ends[-1]) if num_rows else 0
    return PackedColumn(source.array(_BYTE, (nbytes,), nbytes), ends - sizes, ends)
