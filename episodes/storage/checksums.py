"""Checksums of Arrow record batches, which are stored in each batch's metadata, and of JSON objects.

    sums of a batch [1 + k] uint64     facts and row columns | 64 KiB of a track | 64 KiB | ... | of the next track

The first checksum covers the message's header (lengths and null counts of all arrays), the shard's name, the batch's
number, and the row columns. The others cover the buffers of tracks and infos, so they show which column is damaged.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import MissingExtra, UnreadableData, needing
from episodes.storage.arrow import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 1 << 16  # bytes with a sum of their own
NAMES = ("xxh3", "crc32")

Digest = Callable[[Any], int]


@cache
def algorithm() -> str:
    """Return the name of the checksum algorithm for new files: "xxh3", or "crc32" if the package
    `xxhash` is not installed.

    "xxh3" runs at 13 GB/s, "crc32" at 2 GB/s.
    """
    try:
        import xxhash  # noqa: F401
    except ImportError:
        return "crc32"
    return "xxh3"


def digest_of(name: str) -> Digest:
    """Return the checksum function with the name "crc32" or "xxh3".

    Raises:
        MissingExtra: the package that "xxh3" needs is not installed.
        UnreadableData: there is no such function.
    """
    if name == "crc32":
        return zlib.crc32
    if name != "xxh3":
        raise UnreadableData(f"sums by {name!r} are not known here; known: {', '.join(NAMES)}")
    with needing("arrow", "sums by xxh3 need xxhash"):
        from xxhash import xxh3_64_intdigest
    return xxh3_64_intdigest


def sums_of(batch: pa.RecordBatch, num_rows_columns: int, place: bytes, digest: Digest) -> np.ndarray:
    """Compute the checksums of an Arrow record batch, uint64 [1 + k]: one for all metadata columns, and one for each 64
    KiB of the array columns.

    Args:
        batch: the record batch.
        num_rows_columns: number of row columns, which come first. The others are lists of values.
        place: the shard's name and the batch's number.
        digest: the checksum function.

    Raises:
        UnreadableData: offsets exceed the values.
    """
    facts: list[int] = [batch.num_rows]
    rows: list[Any] = [place]
    blocks: list[int] = []
    for at, column in enumerate(batch.columns):
        for part in _buffers(column, facts):
            if at < num_rows_columns:
                rows.append(part)
            elif len(part) <= BLOCK:
                blocks.append(digest(part))
            else:
                blocks += [digest(part[i : i + BLOCK]) for i in range(0, len(part), BLOCK)]
    rows.append(np.array(facts, np.int64).tobytes())
    return np.array([digest(b"".join(rows)), *blocks], np.uint64)


def damaged_columns(
    batch: pa.RecordBatch, num_rows_columns: int, place: bytes, name: str, stored_sums: bytes
) -> list[str]:
    """Return the names of the columns of a record batch that do not match the stored checksums,
    or [] if the batch is intact.

    The row columns (ids and other metadata of episodes) together are called "the rows".

    Raises:
        MissingExtra: the checksums need a package that is not installed.
        UnreadableData: their algorithm is unknown.
    """
    digest = digest_of(name)
    sums = sums_of(batch, num_rows_columns, place, digest)
    stored = np.frombuffer(stored_sums, np.uint64) if len(stored_sums) % 8 == 0 else sums[:0]
    if np.array_equal(sums, stored):
        return []
    if len(sums) != len(stored):
        return ["the rows"]
    wrong = sums != stored
    names, at = ["the rows"] if wrong[0] else [], 1
    for column_name, column in list(zip(batch.schema.names, batch.columns, strict=True))[num_rows_columns:]:
        num = sum(-(-len(part) // BLOCK) or 1 for part in _buffers(column, []))
        names += [column_name] * bool(wrong[at : at + num].any())
        at += num
    return names


def _buffers(array: pa.Array, facts: list[int]) -> list[memoryview]:
    """Return the memory buffers of an Arrow array (values, offsets, nulls), of which checksums are computed.

    The length and the null count of the array are appended to `facts`.
    """
    size, nulls = len(array), array.null_count
    facts += (size, nulls)
    if nulls == size:  # of no array, or of nulls alone, Arrow writes the other buffers as it likes
        return [_bytes(array.buffers()[0], -(-size // 8))] if nulls else []
    buffers, type_ = array.buffers(), array.type
    parts = [_bytes(buffers[0], -(-size // 8))] if nulls else []
    bounds_of = _bounds_by_type().get(type_.id)
    if bounds_of is None:
        return [*parts, _bytes(buffers[1], -(-size * type_.bit_width // 8))]
    bounds = _bytes(buffers[1], bounds_of.size * (size + 1))
    parts.append(bounds)
    if type_.num_fields:
        return parts + _buffers(array.values, facts)
    (last,) = bounds_of.unpack(bounds[-bounds_of.size :])
    return [*parts, _bytes(buffers[2], last)] if last else parts


@cache
def _bounds_by_type() -> dict[int, Struct]:
    """Return a dict from Arrow type id to the `struct` format of its offsets, for all types that store offsets."""
    arrow = pyarrow()
    lists, documents, texts = arrow.large_list(arrow.null()), arrow.large_binary(), arrow.string()
    return {lists.id: Struct("<q"), documents.id: Struct("<q"), texts.id: Struct("<i")}


def _bytes(buffer: pa.Buffer | None, size: int) -> memoryview:
    """Return the first `size` bytes of an Arrow buffer. Raise `UnreadableData` if it is shorter."""
    num_bytes = 0 if buffer is None else buffer.size
    if not 0 <= size <= num_bytes:
        raise UnreadableData(f"{num_bytes} bytes where there should be {size}")
    return memoryview(buffer)[:size] if buffer is not None else memoryview(b"")


sorted_json = json.JSONEncoder(sort_keys=True).encode
"""Function that encodes a JSON value as the text from which its checksum is computed: with sorted keys."""


def checksum_of_json(value: dict[str, Any], name: str | None = None) -> str:
    """Return the checksum of a JSON object, as a text such as "xxh3:<hexadecimal>". `name` is the algorithm, by default
    the fastest that is installed.
    """
    return checksum_of_text(sorted_json(value), name or algorithm())


def checksum_of_text(text: str, name: str) -> str:
    """Return the checksum of a text, as a text such as "xxh3:<hexadecimal>".

    Raises:
        MissingExtra: the package of the algorithm `name` is not installed.
        UnreadableData: the algorithm is unknown.
    """
    return f"{name}:{digest_of(name)(text.encode()):016x}"


def with_checksum(value: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a JSON object with an additional key "sum", which contains the checksum of the others."""
    return value | {"sum": checksum_of_json(value)}


def signed_line(value: dict[str, Any]) -> str:
    """Return a JSON object as one line of text (sorted keys), to which its checksum is added."""
    text = sorted_json(value)
    return f'{text[:-1]}, "sum": "{checksum_of_text(text, algorithm())}"}}\n'


def verify_json(text: str | bytes, source: str) -> dict[str, Any]:
    """Parse a JSON object that contains its checksum, and return it without the checksum.
    Raise `UnreadableData` if the checksum is wrong.

    A checksum whose algorithm is not installed is not compared.

    Raises:
        UnreadableData: the text is no JSON object, or was changed; the message names the source.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableData(f"{source} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnreadableData(f"{source} is no JSON object")
    return verify_value(value, source)


def verify_value(value: dict[str, Any], source: str) -> dict[str, Any]:
    """Verify the checksum under the key "sum" of a JSON object, and return the object, from which the checksum is
    removed. A checksum whose package is not installed is not verified.

    Raises:
        UnreadableData: the checksum is missing or another.
    """
    stored_sum = value.pop("sum", None)
    try:
        matches = isinstance(stored_sum, str) and stored_sum == checksum_of_json(value, stored_sum.partition(":")[0])
    except MissingExtra:
        return value
    except UnreadableData:  # an algorithm that nobody knows
        matches = False
    if not matches:
        raise UnreadableData(f"{source} is not as it was written: its sum is not {stored_sum!r}")
    return value
