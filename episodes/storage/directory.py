"""Interface to the files of a data set, and its implementation for local directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from episodes.storage.catalog import Catalog, ShardFile, newest_commit
from episodes.storage.header import Header
from episodes.storage.layout import StoredBatch
from episodes.storage.shards import ShardRead, read_shard


class Files(Protocol):
    """Interface through which a data set reads its files, from a local directory or from remote storage."""

    @property
    def path(self) -> Path | str:
        """Path or URL of the data set, as given by the user."""
        ...

    @property
    def directory(self) -> Path:
        """Local directory that contains the JSON files of the data set, which for a remote data set is a cache."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether the data set is in remote storage, where it can only be read."""
        ...

    def refresh(self) -> Catalog:
        """List the files of the data set again, and return the catalog of its current Arrow files."""
        ...

    def has_new_commit(self, catalog: Catalog) -> bool:
        """Return True if another process has replaced Arrow files after `catalog` was created."""
        ...

    def read(self, files: Sequence[ShardFile], verify: bool) -> list[ShardRead | None]:
        """Read Arrow files, and return the contents of each, or None for a file that another process has renamed or
        replaced.

        With `verify`, a remote file is downloaded whole, instead of its metadata only.
        """
        ...

    def stored_batches(self, read: ShardRead, header: Header) -> list[StoredBatch]:
        """Return the record batches of one Arrow file, whose contents are `read`, as `StoredBatch` objects."""
        ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files of a data set in a local directory."""

    directory: Path
    mapped: bool

    def __reduce__(self) -> Any:
        return LocalFiles, (
            self.directory.absolute(),
            self.mapped,
        )  # another process may have another working directory

    @property
    def path(self) -> Path:
        return self.directory

    @property
    def is_remote(self) -> bool:
        return False

    def refresh(self) -> Catalog:
        return Catalog.of(self.directory)

    def has_new_commit(self, catalog: Catalog) -> bool:
        return newest_commit(self.directory) != catalog.newest_commit

    def read(self, files: Sequence[ShardFile], verify: bool) -> list[ShardRead | None]:
        return [self._read(file) for file in files]

    def _read(self, file: ShardFile) -> ShardRead | None:
        """Read an Arrow file, or return None if it does not exist (any more)."""
        try:
            return read_shard(file, mapped=self.mapped)
        except FileNotFoundError:
            return None

    def stored_batches(self, read: ShardRead, header: Header) -> list[StoredBatch]:
        """Return the record batches of a file that was read. The list is empty if not even the file's schema could be
        read.
        """
        if read.layout is None:
            return []
        common = (read.layout, header, str(read.file.path))
        return [StoredBatch(batch.batch, *common, batch.place) for batch in read.batches]
