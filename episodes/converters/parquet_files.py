"""Directories of Parquet files: row groups are read one at a time, and a new directory appears when it is complete.

Parquet has checksums of pages, but none of the names and types of columns and of other metadata. Files that are written
here have a checksum of these too, which is verified when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from episodes.errors import UnreadableData
from episodes.storage.arrow import as_unreadable_data, pyarrow
from episodes.storage.checksums import verify_json, with_checksum
from episodes.storage.files import local_path, whole_directory

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = (
    b"rl-episodes-schema"  # key in the schema's metadata: its columns and other metadata as written, with a checksum
)
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

    def write(self, table: pa.Table) -> int:
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
            self._file = parquet().ParquetWriter(path, _signed(self._schema), **options)
        whole = pyarrow().concat_tables(self._waiting).replace_schema_metadata(self._file.schema.metadata)
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
        UnreadableData: the file is not Parquet, or its schema is not as it was written.
    """
    with as_unreadable_data(str(file)):
        schema = parquet().read_schema(file)
    return _verified(schema, file)


def groups_of(file: Path, columns: list[str] | None = None) -> Iterator[Any]:
    """Yield the row groups of a Parquet file as Arrow tables, with one in memory at a time. `columns` are the names of
    the columns to read, or None for all.

    Raises:
        UnreadableData: the file is damaged.
    """
    with as_unreadable_data(str(file)):
        parts = parquet().ParquetFile(file, page_checksum_verification=True)
    with parts as opened:
        metadata = _verified(opened.schema_arrow, file).metadata
        announced = [opened.metadata.row_group(number).num_rows for number in range(opened.num_row_groups)]
        if sum(announced) != opened.metadata.num_rows:
            raise UnreadableData(
                f"{file}: {sum(announced)} rows in its row groups, {opened.metadata.num_rows} announced"
            )
        for number in range(len(announced)):
            with as_unreadable_data(str(file)):
                table = opened.read_row_group(number, columns=columns, use_threads=False)
            if len(table) != announced[number]:
                raise UnreadableData(f"{file}: {len(table)} of {announced[number]} rows in row group {number}")
            yield table.replace_schema_metadata(metadata)  # a table's own is read from another place of the file


def _signed(schema: pa.Schema) -> Any:
    """Return an Arrow schema with its columns, its other metadata, and a checksum of both under the key `SCHEMA`."""
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key != SCHEMA}
    return schema.with_metadata({**metadata, SCHEMA: json.dumps(with_checksum(_parts_of(schema, metadata)))})


def _parts_of(schema: pa.Schema, metadata: dict[bytes, bytes]) -> dict[str, dict[str, str]]:
    """Return the types of the columns of an Arrow schema and the other metadata as texts, by name.

    Parquet calls the values of lists "element", and Arrow calls them "item".
    """
    texts = {key.decode("latin-1"): value.decode("latin-1") for key, value in metadata.items()}
    return {
        "columns": {field.name: str(field.type).replace("element: ", "item: ") for field in schema},
        "metadata": texts,
    }


def _verified(schema: pa.Schema, file: Path) -> Any:
    """Return the Arrow schema of a file. Columns and metadata that others added are not looked at, and neither are
    files without the key `SCHEMA`.

    Raises:
        UnreadableData: a column or metadata of the file is not as it was written.
    """
    metadata = schema.metadata or {}
    if SCHEMA not in metadata:
        return schema
    written, found = verify_json(metadata[SCHEMA], f"{file}: the schema"), _parts_of(schema, metadata)
    for kind, parts in written.items():
        for name, value in parts.items():
            if found[kind].get(name) != value:
                raise UnreadableData(
                    f"{file}: {name!r} of its {kind} is not as it was written; if you changed it on purpose, remove "
                    f"{SCHEMA.decode()!r} from the metadata of its schema"
                )
    return schema
