"""Compact binary encoding of episode metadata (ids, lengths, endings, policy versions) for messages."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes.errors import UnreadableData
from episodes.facts.facts import FACTS, OPTIONAL, FactKind, objects
from episodes.facts.policy_versions import UNKNOWN, VersionColumn
from episodes.pack import EpisodePack
from episodes.tracks.infos import msgpack_codec
from episodes.tracks.nested import frozen

MOST_ROWS = 1 << 40
INTEGERS = np.dtype("<i8")
_BYTE, _CODE_POINT = np.dtype(np.uint8), np.dtype("<u4")
_FEW = 32  # ids: fewer are sent with four bytes per character, since conversion takes longer than sending
_ENDINGS = bytes(range(4))  # valid codes


def decode_lengths(data: bytes, num: int) -> tuple[np.ndarray, int]:
    """Decode the lengths of `num` episodes, and return them, int64 [num], and their sum.
    Raise `UnreadableData` if they are invalid."""
    counts = np.ndarray(num, INTEGERS, data)
    values = counts.tolist()  # most packs have few episodes, for which numpy's functions take three times as long
    if len(data) != INTEGERS.itemsize * num or (num and not 0 <= min(values) <= max(values) < MOST_ROWS // num):
        raise UnreadableData(f"{len(data)} bytes of lengths for {num} episodes, or lengths that cannot be")
    return counts, sum(values)


def integers_of(values: np.ndarray) -> bytes:
    """Return an integer array as bytes, in little-endian int64."""
    return values.tobytes() if values.dtype == INTEGERS else values.astype(INTEGERS).tobytes()


def _encode_ids(ids: np.ndarray) -> Any:
    """Encode episode ids compactly: ASCII strings as bytes, other strings as UTF-32, other types as msgpack."""
    if ids.dtype.kind != "U" or not ids.nbytes:
        return msgpack_codec.encode(ids.tolist(), "ids")
    if not ids.dtype.isnative or sys.byteorder != "little":
        ids = ids.astype(ids.dtype.newbyteorder("<"))
    if len(ids) > _FEW:
        letters = np.frombuffer(ids.tobytes(), _CODE_POINT)
        if letters.max() < 128:
            return [letters.size // len(ids), letters.astype(np.uint8).tobytes()]
    return [-(ids.dtype.itemsize // 4), ids.tobytes()]


def _read_ids(value: Any, num: int) -> np.ndarray:
    """Decode the ids of `num` episodes: text as an array of str, others as an array of objects.

    Raises:
        UnreadableData: there are not `num` ids.
        ValueError: a text is not valid.
    """
    if isinstance(value, bytes):
        return _checked_length(objects(msgpack_codec.decode(value) or ()) if num else np.zeros(0, "U1"), num)
    width, data = value
    if len(data) != num * (width if width > 0 else -4 * width):
        raise UnreadableData(f"{len(data)} bytes for {num} ids of {abs(width)} letters")
    if width > 0:
        data.decode("ascii")
        return frozen(np.frombuffer(data, _BYTE).astype(_CODE_POINT).view(f"<U{width}"))
    codecs.utf_32_le_decode(data, "surrogatepass")  # raises ValueError for invalid characters
    return np.ndarray(num, f"<U{-width}", data)


def _read_endings(data: bytes, num: int) -> np.ndarray:
    """Decode the ending codes of `num` episodes. Raise `UnreadableData` for another number or an unknown code."""
    if len(data) != num or data.strip(_ENDINGS):
        raise UnreadableData(f"invalid ending codes {set(data)} for {num} episodes; expected 0 to 3")
    return np.ndarray(num, _BYTE, data)


def _read_integers(data: bytes, num: int) -> np.ndarray:
    """Decode `num` integers, as a read-only view of `data`. Raise `UnreadableData` if there are not as many."""
    if len(data) != INTEGERS.itemsize * num:
        raise UnreadableData(f"{len(data)} bytes for {num} integers")
    return np.ndarray(num, INTEGERS, data)


def _checked_length(values: Any, num: int) -> Any:
    """Raise `UnreadableData` unless `values` is None or has `num` items. Return `values`."""
    if values is not None and len(values) != num:
        raise UnreadableData(f"{len(values)} values for {num} episodes")
    return values


def _document(values: np.ndarray) -> bytes:
    return msgpack_codec.encode(values.tolist(), "ids")


def _read_document(data: bytes | None, num: int) -> np.ndarray | None:
    return None if data is None else _checked_length(objects(msgpack_codec.decode(data)), num)


def _encode_versions(column: VersionColumn) -> bytes | list[bytes]:
    """Encode the policy versions of all steps in the shortest of three forms:
    one number, one number per chunk, or runs of equal versions.

    The result is one number if all chunks have the same version, one number for each chunk, or the versions, begins and
    counts of runs.
    """
    data = integers_of(column.versions)
    if column.bounds is not None:
        return [data, integers_of(column.all_begins()), integers_of(column.counts())]
    first = data[: INTEGERS.itemsize]
    return first if data == first * (len(data) // INTEGERS.itemsize) else data


def _read_versions(data: bytes | list[bytes], num: int) -> VersionColumn | None:
    """Decode the policy versions of `num` episodes: one for all, one each, or a list of runs of versions.

    Returns:
        None if all versions are unknown.

    Raises:
        UnreadableData: there is not one version per episode, or one is less than -1.
    """
    if isinstance(data, list):
        runs = [np.ndarray(len(part) // INTEGERS.itemsize, INTEGERS, part) for part in data]
        return _checked_length(VersionColumn.of_runs(*runs), num)
    versions = _read_integers(data * num if len(data) == INTEGERS.itemsize else data, num)
    values = versions.tolist()
    if min(values, default=0) < UNKNOWN:
        raise UnreadableData(f"policy version {min(values)}")
    return VersionColumn(versions) if max(values, default=UNKNOWN) != UNKNOWN else None


def version_bounds(packs: Sequence[EpisodePack]) -> tuple[int, int] | None:
    """Return the lowest and the highest policy version of all steps in `packs`, with -1 for steps of unknown version.

    Returns:
        None if no step has a version.
    """
    columns = [pack.facts.policy_versions for pack in packs]
    if columns.count(None) == len(columns):
        return None
    versions: set[int] = set()
    for column in columns:
        versions.update((UNKNOWN,) if column is None else column.versions.tolist())
    if (
        versions and max(versions) != UNKNOWN and UNKNOWN in versions
    ):  # perhaps only chunks without steps have no version
        versions = set(np.concatenate([pack.get_policy_versions() for pack in packs]).tolist())
    return (min(versions), max(versions)) if max(versions, default=UNKNOWN) != UNKNOWN else None


def _encode_texts(values: np.ndarray) -> str | bytes:
    """Encode one text per episode. If all texts are equal, only one is encoded."""
    texts = values.tolist()
    first = texts[0] if texts else None
    return first if type(first) is str and texts.count(first) == len(texts) else _document(values)


def _read_texts(data: str | bytes, num: int) -> np.ndarray | None:
    """Decode one text per episode, or one for all. Raise `UnreadableData` if a value is neither text nor None."""
    values = [data] * num if isinstance(data, str) else _checked_length(msgpack_codec.decode(data), num)
    if not set(map(type, values)) <= {str, type(None)}:
        raise UnreadableData(f"texts of {num} episodes: {values!r:.80}")
    return objects(values)


_TO_WIRE: dict[FactKind, Any] = {
    FactKind.ID: _encode_ids,
    FactKind.INTEGER: integers_of,
    FactKind.ENDING: lambda codes: codes.tobytes(),
    FactKind.OPTIONAL_ID: _document,
    FactKind.VERSIONS: _encode_versions,
    FactKind.TEXT: _encode_texts,
}
_FROM_WIRE: dict[FactKind, Any] = {
    FactKind.ID: _read_ids,
    FactKind.INTEGER: _read_integers,
    FactKind.ENDING: _read_endings,
    FactKind.OPTIONAL_ID: _read_document,
    FactKind.VERSIONS: _read_versions,
    FactKind.TEXT: _read_texts,
}
WRITERS = [_TO_WIRE[kind] for kind in FACTS.values()]
READERS = [_FROM_WIRE[kind] for kind in FACTS.values()]
"""Functions that decode each metadata column of a message, in the order of the columns. `WRITERS` encode."""
_ALWAYS = sum(kind not in OPTIONAL for kind in FACTS.values())  # number of required columns, which come first
_NOT_SENT = [None] * len(FACTS)


def read_facts(columns: Sequence[Any], num: int) -> list[Any]:
    """Decode the metadata of `num` episodes, given as encoded columns (ids, endings, ...).

    Columns that were not sent become None. Unknown columns of a newer sender are ignored.

    Raises:
        UnreadableData: a column that is always sent is missing.
    """
    if len(columns) < _ALWAYS or None in columns[:_ALWAYS]:
        raise UnreadableData(f"facts without {[*FACTS][:_ALWAYS]}")
    metadata = [None if column is None else read(column, num) for column, read in zip(columns, READERS)]  # noqa: B905
    return metadata + _NOT_SENT[len(metadata) :]  # columns that are not set, or newer than the sender
