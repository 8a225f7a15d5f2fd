"""Checksums: of record batches, kept in the metadata of each batch's own message, and of JSON objects.

    sums of a batch [1 + k] uint64     facts and row columns | 64 KiB of a track | 64 KiB | ... | of the next track

The first one is of what the header of the message says (lengths and null counts of all arrays, which no sum of the
values would notice), of the shard and the place in it, and of the row columns. The others follow the buffers of tracks
and infos, so they tell which column is damaged.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from episodes.errors import MissingExtra, UnreadableData
from episodes.storage.arrow import pyarrow

BLOCK = 1 << 16  # bytes with a sum of their own
NAMES = ("xxh3", "crc32")

Digest = Callable[[Any], int]


@cache
def algorithm() -> str:
    """What new sums are made by: xxh3 (13 GB/s), or crc32 (2 GB/s) where `xxhash` is not installed."""
    try:
        import xxhash  # noqa: F401
    except ImportError:
        return "crc32"
    return "xxh3"


def digest_of(name: str) -> Digest:
    """The sum of this name, of bytes; `MissingExtra` where its package is not installed."""
    if name == "crc32":
        return zlib.crc32
    if name != "xxh3":
        raise UnreadableData(f"sums by {name!r} are not known here; known: {', '.join(NAMES)}")
    try:
        from xxhash import xxh3_64_intdigest
    except ImportError as error:
        raise MissingExtra("sums by xxh3 need xxhash; install the extra: pip install 'rl-episodes[arrow]'") from error
    return xxh3_64_intdigest


def sums_of(batch: Any, num_rows_columns: int, place: bytes, digest: Digest) -> np.ndarray:
    """The sums [1 + k] of a record batch, whose first so many columns are rows and the others lists of values.

    Raises:
        UnreadableData: offsets lead out of the values.
    """
    facts: list[int] = [batch.num_rows]
    rows: list[Any] = [place]
    blocks: list[int] = []
    for at, column in enumerate(batch.columns):
        for part in _parts(column, facts):
            if at < num_rows_columns:
                rows.append(part)
            elif len(part) <= BLOCK:
                blocks.append(digest(part))
            else:
                blocks += [digest(part[i : i + BLOCK]) for i in range(0, len(part), BLOCK)]
    rows.append(np.array(facts, np.int64).tobytes())
    return np.array([digest(b"".join(rows)), *blocks], np.uint64)


def damaged_columns(batch: Any, num_rows_columns: int, place: bytes, name: str, told: bytes) -> list[str]:
    """The columns of a batch whose sums are not those told; "the rows" for the first one."""
    digest = digest_of(name)
    found = sums_of(batch, num_rows_columns, place, digest)
    there = np.frombuffer(told, np.uint64) if len(told) % 8 == 0 else found[:0]
    if np.array_equal(found, there):
        return []
    if len(found) != len(there):
        return ["the rows"]
    wrong = found != there
    names, at = ["the rows"] if wrong[0] else [], 1
    for column_name, column in list(zip(batch.schema.names, batch.columns, strict=True))[num_rows_columns:]:
        num = sum(-(-len(part) // BLOCK) or 1 for part in _parts(column, []))
        names += [column_name] * bool(wrong[at : at + num].any())
        at += num
    return names


def _parts(array: Any, facts: list[int]) -> Iterator[memoryview]:
    """The bytes of an array that say what it holds, buffer by buffer; its length and null count go to the facts."""
    pa = pyarrow()
    size, nulls, type_ = len(array), array.null_count, array.type
    facts += (size, nulls)
    buffers = array.buffers()
    if nulls:
        yield _bytes(buffers[0], -(-size // 8))
    if nulls == size:  # of no array, or of nulls alone, Arrow writes the other buffers as it likes
        return
    if pa.types.is_large_list(type_):
        yield _bytes(buffers[1], 8 * (size + 1))
        yield from _parts(array.values, facts)
    elif pa.types.is_large_binary(type_) or pa.types.is_string(type_):
        width = np.dtype(np.int64 if pa.types.is_large_binary(type_) else np.int32)
        bounds = _bytes(buffers[1], width.itemsize * (size + 1))
        yield bounds
        last = int(np.frombuffer(bounds[-width.itemsize :], width)[0])
        if last:
            yield _bytes(buffers[2], last)
    else:
        yield _bytes(buffers[1], -(-size * type_.bit_width // 8))


def _bytes(buffer: Any, size: int) -> memoryview:
    there = 0 if buffer is None else buffer.size
    if not 0 <= size <= there:
        raise UnreadableData(f"{there} bytes where there should be {size}")
    return memoryview(buffer)[:size] if buffer is not None else memoryview(b"")


def sum_of_json(value: dict[str, Any], name: str | None = None) -> str:
    """The sum of a JSON object, as `algorithm:hexadecimal`."""
    name = name or algorithm()
    return f"{name}:{digest_of(name)(json.dumps(value, sort_keys=True).encode()):016x}"


def with_sum(value: dict[str, Any]) -> dict[str, Any]:
    """The JSON object and, under `sum`, its sum."""
    return value | {"sum": sum_of_json(value)}


def checked(text: str | bytes, source: str) -> dict[str, Any]:
    """The JSON object of `with_sum`. `UnreadableData` names the source where it is none, or not as it was written.

    A sum by an algorithm that is not installed is not looked at.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableData(f"{source} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnreadableData(f"{source} is no JSON object")
    told = found.pop("sum", None)
    try:
        matches = isinstance(told, str) and told == sum_of_json(found, told.partition(":")[0])
    except MissingExtra:
        return found
    except UnreadableData:  # an algorithm that nobody knows
        matches = False
    if not matches:
        raise UnreadableData(f"{source} is not as it was written: its sum is not {told!r}")
    return found
