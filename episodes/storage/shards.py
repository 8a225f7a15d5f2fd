"""Shards: the Arrow files of a data set. Each is written by one writer, and read by anybody, finished or not.

    ARROW1.. | schema | batch | batch | ... | end of stream | footer | ARROW1

They are read as the stream that they are, so one that is finished and one that is not are read alike. The footer is for
other readers of Arrow files.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from episodes.errors import MissingExtra, UnreadableData
from episodes.storage.arrow import pyarrow, reading
from episodes.storage.arrow_message import check_message
from episodes.storage.catalog import SEALED, UNFINISHED, ShardFile
from episodes.storage.checksums import NAMES, algorithm, damaged_columns, digest_of, sums_of
from episodes.storage.episode_rows import num_columns
from episodes.storage.files import contents, reserve, sync
from episodes.storage.layout import Layout

_MAGIC_BYTES = 8  # at the beginning of an Arrow file
_END = b"ARROW1"
_TOGETHER = 1 << 15  # bytes: Arrow writes some 60 buffers a batch, most of them small, each by a call of the system
_END_OF_STREAM = 8  # bytes
_NAME, _SUM, _DATA_SET = b"rl-episodes.shard", b"rl-episodes.sum", b"rl-episodes.data_set"  # of the schema's metadata


def writer_name() -> str:
    """A name that no other writer has; names sort in the order in which writers began."""
    return f"{time.time_ns():016x}-{os.getpid():x}-{os.urandom(4).hex()}"


class ShardWriter:
    """A shard being written, called `*.arrow.partial` until it is sealed.

    When writing fails (a full disk), it takes no more: its whole batches stay readable, and so does what others have
    mapped, since nothing is ever cut off.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        schema: Any,
        end: str = UNFINISHED,
        sealed: str = SEALED,
        *,
        data_set: str | None = None,
    ) -> None:
        arrow = pyarrow()
        self.name = name
        self.path = directory / (name + end)
        self.num_episodes = self.num_batches = 0
        self._file: Any = None
        self._sealed = f"{directory}/{name}{sealed}"
        self._algorithm = algorithm()
        self._digest = digest_of(self._algorithm)
        self._num_rows_columns = num_columns(schema.names)
        self._file = arrow.OSFile(_encoded(self.path), "wb")
        self._sink = arrow.BufferedOutputStream(self._file, _TOGETHER)
        try:
            signed = _signed(schema, name, data_set, self._algorithm)
            self._writer = arrow.ipc.new_file(self._sink, signed, options=_options())
            self._sink.flush()
        except OSError:
            self.abandon()
            self.path.unlink(missing_ok=True)
            raise

    @property
    def nbytes(self) -> int:
        """The size of the file so far."""
        return self._sink.tell()

    def write(self, batch: Any) -> None:
        """Append a record batch; it is the operating system's when this returns."""
        try:
            self.append(batch)
        except BaseException:
            self.abandon()
            raise
        self.num_batches += 1
        self.num_episodes += batch.num_rows

    def abandon(self) -> None:
        """Close the file as it is, without a footer. Nothing more is written to it, also not by Arrow's destructors."""
        if self._file is None or self._file.closed:
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)  # not `open`, which is gone when the interpreter exits
        os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)
        self._sink.close()
        self._file.close()

    def __del__(self) -> None:
        self.abandon()

    def append(self, batch: Any) -> None:
        """Append a record batch, or a part of it, and raise."""
        sums = sums_of(batch, self._num_rows_columns, _place(self.name, self.num_batches), self._digest)
        reserve(self._file.fileno(), self.nbytes, pyarrow().ipc.get_record_batch_size(batch))
        self._writer.write_batch(batch, custom_metadata={self._algorithm: sums.tobytes()})
        self._sink.flush()

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        sync(self.path)

    def seal(self) -> None:
        """Write the footer and give the file its final name.

        Raises:
            UnreadableData: the file is not there any more.
        """
        self._writer.close()
        self._sink.close()
        self._file.close()
        try:
            os.rename(self.path, self._sealed)
        except FileNotFoundError:
            raise UnreadableData(
                f"{self.path} is not there any more: the directory was moved, or seal(force=True) took the shard while "
                "its writer was at work"
            ) from None


def _encoded(path: Path) -> str | bytes:
    """Return the path as Arrow takes it: it encodes text as UTF-8, which a directory's name need not be."""
    return os.fsencode(path) if os.name == "posix" else str(path)


@cache
def _options() -> Any:
    """Arrow's own, which otherwise asks the environment for them each time."""
    return pyarrow().ipc.IpcWriteOptions()


def _place(name: str, batch: int) -> bytes:
    """What tells a batch from all others; it goes into its sums."""
    return f"{name}:{batch}".encode()


def _signed(schema: Any, name: str, data_set: str | None, how: str) -> Any:
    """Return the schema with the shard's name, the id of its data set, and a checksum of its metadata."""
    metadata = {**schema.metadata, _NAME: name.encode()}
    metadata.pop(_DATA_SET, None)
    if data_set is not None:
        metadata[_DATA_SET] = data_set.encode()
    return schema.with_metadata({**metadata, _SUM: f"{how}:{_sum(metadata, how)}".encode()})


def _sum(metadata: dict[bytes, bytes], how: str) -> str:
    told = sorted((key, value) for key, value in metadata.items() if key != _SUM)
    return f"{digest_of(how)(b''.join(part for item in told for part in item)):016x}"


@dataclass(slots=True)
class ShardBatch:
    """A record batch of a shard, and the sums it was written with."""

    batch: Any
    place: bytes  # see `_place`
    algorithm: str
    sums: bytes

    def damaged(self) -> list[str]:
        """The columns that are not as they were written. `MissingExtra` where the sums' package is not installed."""
        try:
            return damaged_columns(
                self.batch, num_columns(self.batch.schema.names), self.place, self.algorithm, self.sums
            )
        except UnreadableData:
            return ["the rows"]


@dataclass(slots=True)
class ShardRead:
    """What was read of a shard."""

    file: ShardFile
    layout: Layout | None = None
    batches: list[ShardBatch] = field(default_factory=list)
    schema: Any = None
    data_set: str | None = None  # id of the data set that it was written for, if it has one
    unread: int = 0  # bytes at its end, or of batches, that could not be read
    problem: str = ""  # why

    @property
    def num_episodes(self) -> int:
        """How many episodes were read."""
        return sum(found.batch.num_rows for found in self.batches)

    def damaged(self) -> dict[int, list[str]]:
        """By batch, the columns that are not as they were written."""
        found = {number: batch.damaged() for number, batch in enumerate(self.batches)}
        return {number: columns for number, columns in found.items() if columns}

    @property
    def damage(self) -> str:
        """What is wrong with it; "" for one that is whole, or unfinished and read up to its last whole batch."""
        if self.file.sealed and self.problem:
            return self.problem
        if self.num_episodes < self.file.num_episodes:
            return f"it has {self.num_episodes} episodes, its writer wrote {self.file.num_episodes}"
        return ""


def read_shard(
    file: ShardFile, *, mapped: bool = True, layout_of: Callable[[Any], Any] = Layout.from_schema
) -> ShardRead:
    """The record batches of a shard, as views of the mapped file; those that are whole, of one that is not.

    Args:
        layout_of: what a schema tells of; raises UnreadableData for one of something else.

    Raises:
        FileNotFoundError: it was sealed, or replaced by another, a moment ago.
    """
    found = ShardRead(file)
    try:
        data = pyarrow().py_buffer(contents(file.path, mapped=mapped))
    except UnreadableData as error:
        found.problem = str(error)
        return found
    if not data.size:
        found.problem = "it is empty"
        return found
    _read_stream(data, found, layout_of)
    return found


def _read_stream(data: Any, found: ShardRead, layout_of: Callable[[Any], Any]) -> None:
    """The batches from the beginning on, as many as are whole, and where the stream of a finished shard ends."""
    source = pyarrow().BufferReader(data.slice(min(_MAGIC_BYTES, data.size)))
    whole = 0
    try:
        with reading(found.file.path.name):
            reader = pyarrow().ipc.open_stream(source)
            found.schema = reader.schema
            found.layout = layout_of(reader.schema)
            name = checked_name(reader.schema)
            if name != found.file.name:
                raise UnreadableData(f"it is shard {name} under another name")
            found.data_set = data_set_of(reader.schema)
            whole = source.tell()
            for batch in _batches(reader, source, data, name):
                found.batches.append(batch)
                whole = source.tell()
            if _ends_at(data, whole + _MAGIC_BYTES):
                return
            if found.file.sealed:
                raise UnreadableData("its end is not that of a shard")
    except UnreadableData as error:
        found.problem = str(error).removeprefix(f"{found.file.path.name}: ")
    found.unread = source.size() - whole


def _ends_at(data: Any, whole: int) -> bool:
    """Whether all that follows this byte is the end of the stream and a footer."""
    tail = data.slice(max(data.size - len(_END) - 4, 0)).to_pybytes()
    if len(tail) < len(_END) + 4 or not tail.endswith(_END):
        return False
    return whole + _END_OF_STREAM + struct.unpack("<i", tail[:4])[0] + len(tail) == data.size


def checked_name(schema: Any) -> str:
    """The name that the shard was written under; `UnreadableData` where the schema is not as it was written."""
    metadata = schema.metadata or {}
    how, _, told = metadata.get(_SUM, b"").decode(errors="replace").partition(":")
    try:
        if _sum(metadata, how) != told:
            raise UnreadableData("its schema is not as it was written")
    except MissingExtra:
        pass
    return metadata[_NAME].decode()


def data_set_of(schema: Any) -> str | None:
    """Return the id of the data set that a shard with this schema was written for, or None."""
    data_set = (schema.metadata or {}).get(_DATA_SET)
    return None if data_set is None else data_set.decode(errors="replace")


def _batches(reader: Any, source: Any, data: Any, name: str) -> Iterator[ShardBatch]:
    number = 0
    while check_message(data, source.tell() + _MAGIC_BYTES):
        batch, metadata = reader.read_next_batch_with_custom_metadata()
        batch.validate()
        told = {} if metadata is None else dict(metadata.items())
        how = next((how for how in NAMES if how.encode() in told), NAMES[0])
        yield ShardBatch(batch, _place(name, number), how, told.get(how.encode(), b""))
        number += 1
