"""How the facts of a pack travel: each column as what msgpack holds, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.errors import UnreadableData
from episodes.facts.facts import FACTS, Kind, objects
from episodes.facts.policy_versions import VersionColumn
from episodes.tracks.infos import documents

MOST_ROWS = 1 << 40
INTEGERS = np.dtype("<i8")


def counts_of(data: bytes, num: int) -> np.ndarray:
    """The numbers of steps of so many episodes; `UnreadableData` for what cannot be some."""
    counts = np.frombuffer(data, INTEGERS) if num else np.zeros(0, np.int64)
    values = counts.tolist()  # most packs have few episodes
    if len(values) != num or (num and not 0 <= min(values) <= max(values) < MOST_ROWS // num):
        raise UnreadableData(f"{len(values)} lengths for {num} episodes, or lengths that cannot be")
    return counts


def integers_of(values: np.ndarray) -> bytes:
    """Integers as they travel."""
    return values.astype(INTEGERS, copy=False).tobytes()


def _ids(ids: np.ndarray) -> Any:
    """ASCII as such, which most ids are; all else as a document."""
    if ids.dtype.kind == "U" and len(ids):
        try:
            codes = ids.astype("S")
            return [codes.dtype.itemsize, codes.tobytes()]
        except UnicodeEncodeError:
            pass
    return documents.encode(ids.tolist(), "ids")


def _read_ids(value: Any, num: int) -> np.ndarray:
    if isinstance(value, bytes):
        return objects(documents.decode(value) or ()) if num else np.zeros(0, "U1")  # type: ignore[return-value]
    width, data = value
    if len(data) != num * width:
        raise UnreadableData(f"{len(data)} bytes for {num} ids of {width}")
    return np.frombuffer(data, f"S{width}").astype(f"U{width}")


def _read_endings(data: bytes, num: int) -> np.ndarray:
    endings = np.frombuffer(data, np.uint8) if num else np.zeros(0, np.uint8)
    if num and max(data) > 3:
        raise UnreadableData(f"an ending of code {max(data)}")
    return endings


def _read_integers(data: bytes, num: int) -> np.ndarray:
    return np.frombuffer(data, INTEGERS) if num else np.zeros(0, np.int64)


def _document(values: np.ndarray) -> bytes:
    return documents.encode(values.tolist(), "ids")


def _read_document(data: bytes | None, num: int) -> np.ndarray | None:
    return None if data is None else objects(documents.decode(data))


def _versions(column: VersionColumn) -> list[bytes | None]:
    runs = [column.all_begins(), column.counts()] if column.bounds is not None else []
    return [integers_of(part) for part in (column.versions, *runs)]


def _read_versions(parts: list[bytes] | None, num: int) -> VersionColumn | None:
    if parts is None:
        return None
    versions, *runs = (np.frombuffer(part, INTEGERS) if part else np.zeros(0, np.int64) for part in parts)
    begins, counts = runs or (np.zeros_like(versions), np.ones(num, np.int64))
    return VersionColumn.of_runs(versions, begins, counts)


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
