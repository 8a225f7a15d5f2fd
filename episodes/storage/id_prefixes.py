"""Prefixes of episode ids in stored record batches, so that episodes of several data sets cannot have equal ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from episodes.errors import InvalidArgument
from episodes.multi_agent.packing import KEY as MULTI_AGENT
from episodes.storage.arrow import pyarrow
from episodes.storage.episode_rows import OTHER_IDS
from episodes.tracks.infos import msgpack_codec

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES = ("id", "multi_agent_episode_id")


def prefixed_name(shard: str, prefix: str) -> str:
    """Return the name of the copy of a shard whose ids have a prefix. It is the same for each repeated copy.

    >>> prefixed_name("18f0-1-a-00000", "")
    '18f0-1-a-00000'
    >>> prefixed_name("18f0-1-a-00000", "first/") == prefixed_name("18f0-1-a-00000", "first/")
    True
    """
    if not prefix:
        return shard
    writer, _, number = shard.rpartition("-")
    return f"{writer}x{hashlib.sha256(prefix.encode()).hexdigest()[:8]}-{number}"


def with_prefix(batch: pa.RecordBatch, prefix: str) -> Any:
    """Return a record batch with `prefix` in front of the ids of its episodes and multi-agent episodes.

    Raises:
        InvalidArgument: an id is not a text.
    """
    if not prefix:
        return batch
    if batch.column(OTHER_IDS).null_count < batch.num_rows:
        raise InvalidArgument(f"prefix={prefix!r}: some ids are not texts; give the episodes ids that are")
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name in columns.keys() & set(_NAMES):
        columns[name] = _converted(columns[name], lambda id_: prefix + id_)
    columns["custom_data"] = _converted(columns["custom_data"], lambda document: _custom_data(document, prefix))
    return pyarrow().RecordBatch.from_arrays([*columns.values()], schema=batch.schema)


def _converted(column: pa.Array, convert: Callable[[Any], object]) -> Any:
    """Apply a function to each value of an Arrow column that is not null."""
    if column.null_count == len(column):
        return column
    return pyarrow().array([None if value is None else convert(value) for value in column.to_pylist()], column.type)


def _custom_data(document: bytes, prefix: str) -> bytes:
    """Return encoded custom data in which the id of a multi-agent episode, if there is one, has the prefix."""
    data = msgpack_codec.decode(document)
    record = data.get(MULTI_AGENT)
    if not isinstance(record, dict) or "episode" not in record:
        return document
    record["episode"]["id_"] = prefix + record["episode"]["id_"]
    return msgpack_codec.encode(data, "custom_data")
