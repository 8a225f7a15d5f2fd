"""Shards: the Arrow files of a data set. Each is written by one writer, and read by anybody, finished or not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from episodes.errors import UnreadableData
from episodes.storage.arrow import pyarrow
from episodes.storage.layout import Layout

SEALED, UNFINISHED = ".arrow", ".arrow.partial"
_MAGIC_BYTES = 8  # at the beginning of an Arrow file
_END = b"ARROW1"


def writer_name() -> str:
    """A name that no other writer has; names sort in the order in which writers began."""
    return f"{time.time_ns():016x}-{os.getpid():x}-{os.urandom(4).hex()}"


class ShardWriter:
    """A shard being written. It is called `*.arrow.partial` until it is sealed.

    When writing fails (a full disk), the shard is cut back to its last whole batch, and takes no more.
    """

    def __init__(self, directory: Path, name: str, schema: Any) -> None:
        arrow = pyarrow()
        self._path = directory / (name + UNFINISHED)
        self._sealed = directory / (name + SEALED)
        self._sink = arrow.OSFile(str(self._path), "wb")
        try:
            self._writer = arrow.ipc.new_file(self._sink, schema)
        except OSError:
            self._sink.close()
            self._path.unlink(missing_ok=True)
            raise

    @property
    def nbytes(self) -> int:
        """The size of the file so far."""
        return self._sink.tell()

    def write(self, batch: Any) -> None:
        """Append a record batch; it is the operating system's when this returns."""
        whole = self.nbytes
        try:
            self.append(batch)
        except BaseException:
            self._sink.close()
            os.truncate(self._path, whole)
            raise

    def append(self, batch: Any) -> None:
        """Append a record batch, or a part of it, and raise."""
        self._writer.write_batch(batch)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        sync(self._path)

    def seal(self) -> None:
        """Write the footer and give the file its final name."""
        self._writer.close()
        self._sink.close()
        os.rename(self._path, self._sealed)


def sync(file: Path) -> None:
    """Wait until the file, and its name in its directory, are on the disk."""
    for path in (file, file.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@dataclass(slots=True)
class ShardRead:
    """What was read of a shard."""

    name: str  # without its ending
    layout: Layout | None = None
    batches: list[Any] = field(default_factory=list)
    sealed: bool = True
    unread: int = 0  # bytes at its end, or of batches, that could not be read
    problem: str = ""  # why


def shard_names(directory: Path) -> list[str]:
    """The names of the shards, without endings, in the order of their writers."""
    names = {entry.name for entry in os.scandir(directory)}
    return sorted({name.removesuffix(end) for name in names for end in (SEALED, UNFINISHED) if name.endswith(end)})


def read_shard(directory: Path, name: str) -> ShardRead:
    """The record batches of a shard, as views of the mapped file; those that are whole, of one that is not."""
    for _ in range(2):  # a shard that is sealed between the two looks has its final name at the second
        for end in (SEALED, UNFINISHED):
            path = directory / (name + end)
            if path.exists():
                try:
                    return _read(path, name, sealed=end == SEALED)
                except FileNotFoundError:
                    continue
    raise UnreadableData(f"shard {name} of {directory} is gone; open the data set again")


def _read(path: Path, name: str, *, sealed: bool) -> ShardRead:
    found = ShardRead(name, sealed=sealed)
    if not path.stat().st_size:
        found.unread, found.problem = 0, "empty"
        return found
    arrow = pyarrow()
    data = arrow.memory_map(str(path), "r").read_buffer()
    if sealed or data.slice(max(data.size - len(_END), 0)).to_pybytes() == _END:
        try:
            _read_file(arrow, data, found)
            return found
        except (arrow.ArrowException, OSError, UnreadableData) as error:
            found.batches, found.layout, found.problem = [], None, str(error)
    _read_stream(arrow, data, found)
    return found


def _read_file(arrow: Any, data: Any, found: ShardRead) -> None:
    """All batches, by the footer."""
    reader = arrow.ipc.open_file(data)
    found.layout = Layout.from_schema(reader.schema)
    found.batches = [_checked(reader.get_batch(i)) for i in range(reader.num_record_batches)]


def _read_stream(arrow: Any, data: Any, found: ShardRead) -> None:
    """The batches from the beginning on, as many as are whole."""
    source = arrow.BufferReader(data.slice(min(_MAGIC_BYTES, data.size)))
    whole = 0
    try:
        reader = arrow.ipc.open_stream(source)
        found.layout = Layout.from_schema(reader.schema)
        whole = source.tell()
        for batch in _batches(reader):
            found.batches.append(batch)
            whole = source.tell()
    except (arrow.ArrowException, OSError, UnreadableData) as error:
        found.problem = found.problem or str(error)
    found.unread = source.size() - whole


def _batches(reader: Any) -> Iterator[Any]:
    while True:
        try:
            yield _checked(reader.read_next_batch())
        except StopIteration:
            return


def _checked(batch: Any) -> Any:
    """The batch, when its columns hang together; an `ArrowInvalid` where they do not."""
    batch.validate()
    return batch
