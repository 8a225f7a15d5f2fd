"""Writing and reading of a data set's Arrow files (shards), which stay readable if the writer is killed.

    ARROW1.. | schema | batch | batch | ... | end of stream | footer | ARROW1

They are read as streams, so finished and unfinished shards are read the same way. The footer is for other readers of
Arrow files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from episodes.errors import MissingExtra, UnreadableData
from episodes.storage.arrow import as_unreadable_data, pyarrow
from episodes.storage.arrow_message import check_message
from episodes.storage.catalog import SEALED, UNFINISHED, ShardFile, next_order
from episodes.storage.checksums import NAMES, algorithm, damaged_columns, digest_of, sums_of
from episodes.storage.episode_rows import num_columns
from episodes.storage.files import left_if_open, read_or_map, reserve, sync
from episodes.storage.layout import Layout

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC_BYTES = 8  # before the stream in an Arrow file
_END = b"ARROW1"
_TOGETHER = 1 << 15  # bytes: Arrow writes about 60 buffers per batch, most of them small, each by one system call
_END_OF_STREAM = 8  # bytes
_NAME, _SUM, _DATA_SET = b"rl-episodes.shard", b"rl-episodes.sum", b"rl-episodes.data_set"  # of the schema's metadata


def writer_name(directory: Path) -> str:
    """Return a unique name for a new writer of files in `directory`. It is sorted after all files there."""
    return f"{next_order(directory)}-{os.getpid():x}-{os.urandom(8).hex()}"


class ShardWriter:
    """Writer of one Arrow file (shard). Until the file is finished, its name ends with `.arrow.partial`.

    After a failed write (a full disk) it takes no more batches. Its complete batches stay readable, also for processes
    that have mapped the file, since nothing is ever cut off.

    Attributes:
        name: of the shard.
        path: of the unfinished file.
        num_episodes: number of episodes written.
        num_batches: number of record batches written.

    Args:
        end, sealed: suffixes of the file's name while it is unfinished, and once it is finished.
        data_set: id of the data set, which is stored in the file.
    """

    _file: Any = None  # until it is open

    def __init__(
        self,
        directory: Path,
        name: str,
        schema: pa.Schema,
        end: str = UNFINISHED,
        sealed: str = SEALED,
        *,
        data_set: str | None = None,
    ) -> None:
        arrow = pyarrow()
        self.name = name
        self.path = directory / (name + end)
        self.num_episodes = self.num_batches = 0
        self._sealed = f"{directory}/{name}{sealed}"
        self._algorithm = algorithm()
        self._digest = digest_of(self._algorithm)
        self._num_rows_columns = num_columns(schema.names)
        # Python opens the file: before version 25, files that Arrow opens for writing have no `fileno`
        self._file = self.path.open("wb", buffering=_TOGETHER)
        self._sink = arrow.PythonFile(self._file, "w")
        try:
            signed = _with_checksum(schema, name, data_set, self._algorithm)
            self._writer = arrow.ipc.new_file(self._sink, signed, options=_options())
            self._file.flush()
        except BaseException:
            self.abandon()
            self.path.unlink(missing_ok=True)
            raise

    @property
    def nbytes(self) -> int:
        """Current size of the file in bytes."""
        return self._file.tell()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a record batch of episodes to the file. It then survives a killed process."""
        try:
            self.append(batch)
        except BaseException:
            self.abandon()
            raise
        self.num_batches, self.num_episodes = self.num_batches + 1, self.num_episodes + batch.num_rows

    def recount(self) -> None:
        """Close the file after an interrupted `write`, and count the batches and episodes that readers of it find."""
        self.abandon()
        try:
            read = read_shard(ShardFile(self.name, self.name, self.path), mapped=False, layout_of=lambda _: None)
        except FileNotFoundError:
            return
        self.num_batches, self.num_episodes = len(read.batches), read.num_episodes

    def abandon(self) -> None:
        """Close the file without the footer that Arrow writes at the end. Complete record batches stay readable.

        Arrow's destructors cannot write either.
        """
        if self._file is None or self._file.closed:
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)  # not `open`, which is gone when the interpreter exits
        os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)
        self._file.close()

    def __del__(self) -> None:
        self.abandon()

    def append(self, batch: pa.RecordBatch) -> None:
        """Append a record batch and its checksums to the file. After an error, a part of the
        batch may be in the file."""
        sums = sums_of(batch, self._num_rows_columns, _batch_label(self.name, self.num_batches), self._digest)
        reserve(self._file.fileno(), self.nbytes, pyarrow().ipc.get_record_batch_size(batch))
        self._writer.write_batch(batch, custom_metadata={self._algorithm: sums.tobytes()})
        self._file.flush()

    def sync(self) -> None:
        """Flush the file to disk (fsync), so that it survives a crash of the machine."""
        sync(self.path)

    def seal(self) -> None:
        """Finish the file: write Arrow's footer, and rename the file to its final name.

        Raises:
            UnreadableData: the file is not there any more.
        """
        self._writer.close()
        self._file.close()
        try:
            with left_if_open():  # then it stays an unfinished file, which `seal` finishes later
                os.rename(self.path, self._sealed)
        except FileNotFoundError:
            raise UnreadableData(
                f"{self.path} is not there any more: the directory was moved, or seal(force=True) took the shard while "
                "its writer was at work"
            ) from None


@cache
def _options() -> Any:
    """Return the (cached) default options for writing Arrow files.

    Without this cache, Arrow would read environment variables each time.
    """
    return pyarrow().ipc.IpcWriteOptions()


def _batch_label(name: str, batch: int) -> bytes:
    """Return "<shard name>:<batch number>" as bytes. A batch's checksum covers this text,
    so that misplaced batches are detected."""
    return f"{name}:{batch}".encode()


def _with_checksum(schema: pa.Schema, name: str, data_set: str | None, name_of_sum: str) -> Any:
    """Return an Arrow schema to whose metadata the file's name, the data set's id, and a checksum of all metadata are
    added. `name_of_sum` is the algorithm of the checksum.
    """
    metadata = {**schema.metadata, _NAME: name.encode()}
    metadata.pop(_DATA_SET, None)
    if data_set is not None:
        metadata[_DATA_SET] = data_set.encode()
    return schema.with_metadata({**metadata, _SUM: f"{name_of_sum}:{_sum(metadata, name_of_sum)}".encode()})


def _sum(metadata: dict[bytes, bytes], sum_name: str) -> str:
    """Return the checksum of a batch's metadata, without the entry of the checksum itself, in hexadecimal digits."""
    items = sorted((key, value) for key, value in metadata.items() if key != _SUM)
    return f"{digest_of(sum_name)(b''.join(part for item in items for part in item)):016x}"


@dataclass(slots=True)
class ShardBatch:
    """Record batch of episodes that was read from an Arrow file, with its stored checksums."""

    batch: Any
    place: bytes  # see `_batch_label`
    algorithm: str
    sums: bytes

    def damaged(self) -> list[str]:
        """Return the names of the columns that do not match their checksums.

        Raises:
            MissingExtra: the checksum's package is not installed.
        """
        try:
            return damaged_columns(
                self.batch, num_columns(self.batch.schema.names), self.place, self.algorithm, self.sums
            )
        except UnreadableData:
            return ["the rows"]


@dataclass(slots=True)
class ShardRead:
    """Contents of an Arrow file as far as it is readable, and the reason if a part is unreadable.

    Attributes:
        file: of the shard.
        layout: of its columns; None if the schema is unreadable.
        batches: the complete record batches.
        schema: of Arrow.
        data_set: id of the data set that it was written for, if it has one.
        unread: number of unreadable bytes at its end.
        problem: why they are unreadable, or "".
    """

    file: ShardFile
    layout: Layout | None = None
    batches: list[ShardBatch] = field(default_factory=list)
    schema: Any = None
    data_set: str | None = None
    unread: int = 0
    problem: str = ""

    @property
    def num_episodes(self) -> int:
        """Number of episodes that were read from the file."""
        return sum(stored.batch.num_rows for stored in self.batches)

    def damaged(self) -> dict[int, list[str]]:
        """Return the names of the columns that do not match their checksums, as a dict from
        record batch number to names."""
        damaged = {number: batch.damaged() for number, batch in enumerate(self.batches)}
        return {number: columns for number, columns in damaged.items() if columns}

    @property
    def damage(self) -> str:
        """Description of the file's damage, or "" if the file is intact.

        A shard that ends with its last complete batch is intact.
        """
        if self.file.sealed and self.problem:
            return self.problem
        if self.num_episodes < self.file.num_episodes:
            return f"it has {self.num_episodes} episodes, its writer wrote {self.file.num_episodes}"
        return ""


def read_shard(
    file: ShardFile, *, mapped: bool = True, layout_of: Callable[[Any], Any] = Layout.from_schema
) -> ShardRead:
    """Read an Arrow file up to its last complete record batch. Its data are memory-mapped, not copied,
    unless `mapped` is False.

    Args:
        file: of the shard.
        mapped: map the file, or read it into memory.
        layout_of: returns the layout of a schema, or raises `UnreadableData`.

    Raises:
        FileNotFoundError: the shard was renamed or replaced meanwhile.
    """
    result = ShardRead(file)
    try:
        data = pyarrow().py_buffer(read_or_map(file.path, mapped=mapped))
    except UnreadableData as error:
        result.problem = str(error)
        return result
    if not data.size:
        result.problem = "it is empty"
        return result
    _read_stream(data, result, layout_of)
    return result


def _read_stream(data: pa.Buffer, result: ShardRead, layout_of: Callable[[Any], Any]) -> None:
    """Read record batches into `result`, until one is incomplete. If the file is finished, also validate its end. An
    error is not raised, but noted in `result`.
    """
    source = pyarrow().BufferReader(data.slice(min(_MAGIC_BYTES, data.size)))
    whole = 0
    try:
        with as_unreadable_data(result.file.path.name):
            reader = pyarrow().ipc.open_stream(source)
            result.schema = reader.schema
            result.layout = layout_of(reader.schema)
            name = checked_name(reader.schema)
            if name != result.file.name:
                raise UnreadableData(f"the file contains shard {name}, but has another name; rename it to {name}")
            result.data_set = data_set_of(reader.schema)
            whole = source.tell()
            for batch in _batches(reader, source, data, name):
                result.batches.append(batch)
                whole = source.tell()
            if _ends_at(data, whole + _MAGIC_BYTES):
                return
            if result.file.sealed:
                raise UnreadableData("the file does not end like a complete shard")
    except UnreadableData as error:
        result.problem = str(error).removeprefix(f"{result.file.path.name}: ")
    result.unread = source.size() - whole


def _ends_at(data: pa.Buffer, whole: int) -> bool:
    """Return True if the file has a valid end (Arrow's footer) after its last record batch,
    which ends at byte `whole`."""
    tail = data.slice(max(data.size - len(_END) - 4, 0)).to_pybytes()
    if len(tail) < len(_END) + 4 or not tail.endswith(_END):
        return False
    return whole + _END_OF_STREAM + struct.unpack("<i", tail[:4])[0] + len(tail) == data.size


def checked_name(schema: pa.Schema) -> str:
    """Return the shard name stored in an Arrow schema. Raise `UnreadableData` if the schema
    does not match its checksum."""
    metadata = schema.metadata or {}
    sum_name, _, stored_sum = metadata.get(_SUM, b"").decode(errors="replace").partition(":")
    try:
        if _sum(metadata, sum_name) != stored_sum:
            raise UnreadableData("its schema is not as it was written")
    except MissingExtra:
        pass
    return metadata[_NAME].decode()


def data_set_of(schema: pa.Schema) -> str | None:
    """Return the data set id stored in an Arrow schema, or None if it is missing."""
    data_set = (schema.metadata or {}).get(_DATA_SET)
    return None if data_set is None else data_set.decode(errors="replace")


def _batches(
    reader: pa.RecordBatchStreamReader, source: pa.BufferReader, data: pa.Buffer, name: str
) -> Iterator[ShardBatch]:
    """Yield the record batches with their checksums, which are not verified yet, until the stream ends or is
    incomplete.
    """
    number = 0
    while check_message(data, source.tell() + _MAGIC_BYTES):
        batch, metadata = reader.read_next_batch_with_custom_metadata()
        batch.validate()
        sums = {} if metadata is None else dict(metadata.items())
        sum_name = next((sum_name for sum_name in NAMES if sum_name.encode() in sums), NAMES[0])
        yield ShardBatch(batch, _batch_label(name, number), sum_name, sums.get(sum_name.encode(), b""))
        number += 1
