"""Directories of Parquet files: row groups are read one at a time, and a new directory appears when it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from episodes.errors import UnreadableData
from episodes.storage.arrow import as_unreadable_data, pyarrow
from episodes.storage.files import local_path, whole_directory

GROUP_BYTES = 1 << 22  # as soon as so many bytes wait, they are written as one row group
PART_BYTES = 1 << 28  # a new file is begun when one has so many, before they are compressed


def parquet() -> Any:
    """Import and return the module `pyarrow.parquet`.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    pyarrow()
    from pyarrow import parquet as found

    return found


class Parts:
    """Writer that distributes Arrow tables over numbered Parquet files of limited size.

    A table goes into one row group, alone or after others, and is never split.

    Args:
        name: function from a file's number to its path.
    """

    def __init__(self, name: Callable[[int], Path], part_bytes: int = PART_BYTES) -> None:
        self._name, self._most = name, part_bytes
        self._waiting: list[Any] = []
        self._waiting_bytes = self._part_bytes = 0
        self._schema: Any = None
        self._file: Any = None
        self.number = -1  # of the file that the newest table went to

    def write(self, table: Any) -> int:
        """Append an Arrow table, and return the number of the file to which the table belongs.

        A new file is started if the current file is full or has another schema.
        """
        if self._schema is None or self._part_bytes >= self._most or not table.schema.equals(self._schema, True):
            self.close()
            self._schema, self.number = table.schema, self.number + 1
        self._waiting.append(table)
        self._waiting_bytes += table.nbytes
        self._part_bytes += table.nbytes
        if self._waiting_bytes >= GROUP_BYTES:
            self._flush()
        return self.number

    def _flush(self) -> None:
        """Write the queued tables as one row group. The first call for a file creates it."""
        if not self._waiting:
            return
        if self._file is None:
            path = self._name(self.number)
            path.parent.mkdir(parents=True, exist_ok=True)
            options = {"compression": "zstd", "write_page_checksum": True}
            self._file = parquet().ParquetWriter(path, self._schema, **options)
        whole = pyarrow().concat_tables(self._waiting)
        self._file.write_table(whole, row_group_size=max(len(whole), 1))
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> None:
        """Write the tables that are still held in memory, and close the current file."""
        self._flush()
        if self._file is not None:
            self._file.close()
        self._file, self._schema, self._part_bytes = None, None, 0


@contextmanager
def new_parts(path: str | Path) -> Iterator[Parts]:
    """Return a context manager for writing a new directory of Parquet files, which appears once it is complete.

    Raises:
        InvalidArgument: the path exists.
    """
    with whole_directory(local_path(path)) as draft:
        parts = Parts(lambda number: draft / f"part-{number:05d}.parquet")
        yield parts
        parts.close()


def files_of(path: str | Path) -> list[Path]:
    """Return the Parquet files in a directory and its subdirectories, sorted. A path to a file returns that file.

    Raises:
        UnreadableData: there are none.
        InvalidArgument: the path is a URL.
    """
    place = local_path(path)
    files = sorted(place.rglob("*.parquet")) if place.is_dir() else [place]
    if not files or not files[0].exists():
        raise UnreadableData(f"{place}: there is no Parquet file")
    return files


def schema_of(file: Path) -> Any:
    """Return the Arrow schema of a Parquet file.

    Raises:
        UnreadableData: the file is not Parquet.
    """
    with as_unreadable_data(str(file)):
        return parquet().read_schema(file)


def groups_of(file: Path, columns: list[str] | None = None) -> Iterator[Any]:
    """Yield the row groups of a Parquet file as Arrow tables, with one in memory at a time. `columns` are the names of
    the columns to read, or None for all.
    """
    with as_unreadable_data(str(file)):
        parts = parquet().ParquetFile(file, page_checksum_verification=True)
    with parts as opened:
        for number in range(opened.num_row_groups):
            with as_unreadable_data(str(file)):
                table = opened.read_row_group(number, columns=columns, use_threads=False)
            yield table
