"""How the facts of a pack travel: each column as what msgpack holds, and back."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from episodes.errors import UnreadableData
from episodes.facts.facts import FACTS, OPTIONAL, Kind, objects
from episodes.facts.policy_versions import UNKNOWN, VersionColumn
from episodes.pack import EpisodePack
from episodes.tracks.infos import msgpack_codec
from episodes.tracks.nested import frozen

MOST_ROWS = 1 << 40
INTEGERS = np.dtype("<i8")
_BYTE, _CODE_POINT, _NATURALS = np.dtype(np.uint8), np.dtype("<u4"), np.dtype("<u8")
_largest, _sum = np.maximum.reduce, np.add.reduce  # methods of arrays go through Python to these
_VERSIONS = list(FACTS.values()).index(Kind.VERSIONS)
_NOT_MANY = 1024  # episodes, whose versions are remembered
_ZEROS = np.ndarray(_NOT_MANY, INTEGERS, bytes(INTEGERS.itemsize * _NOT_MANY))
_FEW = 32  # ids, whose letters are told in four bytes: making one byte of each costs more than sending them
_ENDINGS = bytes(range(4))  # their codes


def counts_of(data: bytes, num: int) -> tuple[np.ndarray, int]:
    """The numbers of steps of so many episodes, and their sum; `UnreadableData` for what cannot be some."""
    counts = np.ndarray(num, INTEGERS, data)
    if num > _FEW:
        largest = _largest(np.ndarray(num, _NATURALS, data))  # which a negative one would be
        if len(data) != INTEGERS.itemsize * num or not largest < MOST_ROWS // num:
            raise UnreadableData(f"{len(data)} bytes of lengths for {num} episodes, or lengths that cannot be")
        return counts, int(_sum(counts))
    values = counts.tolist()  # of few episodes in a third of the time
    if len(data) != INTEGERS.itemsize * num or (num and not 0 <= min(values) <= max(values) < MOST_ROWS // num):
        raise UnreadableData(f"{len(data)} bytes of lengths for {num} episodes, or lengths that cannot be")
    return counts, sum(values)


def no_counts(num: int) -> np.ndarray:
    """As many zeros, which nobody can write to."""
    return _ZEROS[:num] if num <= _NOT_MANY else np.zeros(num, np.int64)


def integers_of(values: np.ndarray) -> bytes:
    """Integers as they travel."""
    return values.tobytes() if values.dtype == INTEGERS else values.astype(INTEGERS).tobytes()


def _ids(ids: np.ndarray) -> Any:
    """ASCII as such, which most ids are; few texts, and others, as numpy has them; what is no text as a document."""
    if ids.dtype.kind != "U" or not ids.nbytes:
        return msgpack_codec.encode(ids.tolist(), "ids")
    if not ids.dtype.isnative or sys.byteorder != "little":
        ids = ids.astype(ids.dtype.newbyteorder("<"))
    if len(ids) > _FEW:
        letters = np.frombuffer(ids.tobytes(), _CODE_POINT)
        if _largest(letters) < 128:
            return [letters.size // len(ids), letters.astype(np.uint8).tobytes()]
    return [-(ids.dtype.itemsize // 4), ids.tobytes()]


def _read_ids(value: Any, num: int) -> np.ndarray:
    if isinstance(value, bytes):
        return _as_many(objects(msgpack_codec.decode(value) or ()) if num else np.zeros(0, "U1"), num)
    width, data = value
    if len(data) != num * (width if width > 0 else -4 * width):
        raise UnreadableData(f"{len(data)} bytes for {num} ids of {abs(width)} letters")
    if width > 0:
        data.decode("ascii")
        return frozen(np.frombuffer(data, _BYTE).astype(_CODE_POINT).view(_letters(width)))
    codecs.utf_32_le_decode(data, "surrogatepass")  # a ValueError for what are no letters
    return np.ndarray(num, _letters(-width), data)


@lru_cache(maxsize=64)
def _letters(width: int) -> np.dtype:
    return np.dtype(f"<U{width}")


def _read_endings(data: bytes, num: int) -> np.ndarray:
    if len(data) != num or data.strip(_ENDINGS):
        raise UnreadableData(f"{num} endings of codes {set(data)}")
    return np.ndarray(num, _BYTE, data)


def _read_integers(data: bytes, num: int) -> np.ndarray:
    if len(data) != INTEGERS.itemsize * num:
        raise UnreadableData(f"{len(data)} bytes for {num} integers")
    return np.ndarray(num, INTEGERS, data)


def _as_many(values: Any, num: int) -> Any:
    if values is not None and len(values) != num:
        raise UnreadableData(f"{len(values)} values for {num} episodes")
    return values


def _document(values: np.ndarray) -> bytes:
    return msgpack_codec.encode(values.tolist(), "ids")


def _read_document(data: bytes | None, num: int) -> np.ndarray | None:
    return None if data is None else _as_many(objects(msgpack_codec.decode(data)), num)


def _versions(column: VersionColumn) -> bytes | list[bytes]:
    """Versions, begins and counts of runs; where each chunk has one, its version; where all have the same, that one."""
    data = integers_of(column.versions)
    if column.bounds is not None:
        return [data, integers_of(column.all_begins()), integers_of(column.counts())]
    first = data[: INTEGERS.itemsize]
    return first if data == first * (len(data) // INTEGERS.itemsize) else data


def _read_versions(told: bytes | list[bytes], num: int) -> VersionColumn | None:
    if isinstance(told, list):
        runs = [np.ndarray(len(part) // INTEGERS.itemsize, INTEGERS, part) for part in told]
        return _as_many(VersionColumn.of_runs(*runs), num)
    if len(told) == INTEGERS.itemsize:
        return _of_one_version(told, num) if num <= _NOT_MANY else _of_versions(told * num, num)
    return _of_versions(told, num)


def _of_versions(data: bytes, num: int) -> VersionColumn | None:
    versions = _read_integers(data, num)
    if (low := versions.min(initial=0)) < UNKNOWN:
        raise UnreadableData(f"policy version {low}")
    return VersionColumn(versions) if versions.max(initial=UNKNOWN) != UNKNOWN else None


@lru_cache(maxsize=64)
def _of_one_version(version: bytes, num: int) -> VersionColumn | None:
    """The column of chunks of one version: pack after pack has the same, until a learner has published the next."""
    return _of_versions(version * num, num)


def bounds_of(packs: Sequence[EpisodePack], own: Sequence[Any] = ()) -> tuple[int, int] | None:
    """The lowest and the highest version, where any is known; the lowest is `UNKNOWN` where that of a step is not.

    Args:
        own: how the columns of the only pack travel, which says as much where all versions are the same.
    """
    if len(own) > _VERSIONS and type(own[_VERSIONS]) is bytes and len(own[_VERSIONS]) == INTEGERS.itemsize:
        version = int.from_bytes(own[_VERSIONS], "little", signed=True)
        return None if version == UNKNOWN else (version, version)
    columns = [pack.facts.policy_versions for pack in packs]
    if columns.count(None) == len(columns):
        return None
    told: set[int] = set()
    for column in columns:
        told.update((UNKNOWN,) if column is None else column.versions.tolist())
    if told and max(told) != UNKNOWN and UNKNOWN in told:  # perhaps that of chunks without a step
        told = set(np.concatenate([pack.get_policy_versions() for pack in packs]).tolist())
    return (min(told), max(told)) if max(told, default=UNKNOWN) != UNKNOWN else None


_TO_WIRE: dict[Kind, Any] = {
    Kind.ID: _ids,
    Kind.INTEGER: integers_of,
    Kind.ENDING: lambda codes: codes.tobytes(),
    Kind.OPTIONAL_ID: _document,
    Kind.VERSIONS: _versions,
}
_FROM_WIRE: dict[Kind, Any] = {
    Kind.ID: _read_ids,
    Kind.INTEGER: _read_integers,
    Kind.ENDING: _read_endings,
    Kind.OPTIONAL_ID: _read_document,
    Kind.VERSIONS: _read_versions,
}
WRITERS = [_TO_WIRE[kind] for kind in FACTS.values()]
READERS = [_FROM_WIRE[kind] for kind in FACTS.values()]
"""How each column of the facts travels, in their order: as what msgpack holds."""
_ALWAYS = sum(kind not in OPTIONAL for kind in FACTS.values())  # how many of them, the first ones, are told
_NOT_TOLD = [None] * len(FACTS)


def read_facts(columns: Sequence[Any], num: int) -> list[Any]:
    """The columns of so many episodes, of those that were told."""
    if len(columns) < _ALWAYS or None in columns[:_ALWAYS]:
        raise UnreadableData(f"facts without {[*FACTS][:_ALWAYS]}")
    own = [None if column is None else read(column, num) for column, read in zip(columns, READERS)]  # noqa: B905
    return own + _NOT_TOLD[len(own) :]  # which are missing, or came after the sender's version
