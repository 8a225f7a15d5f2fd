"""Where a data set's files are read: a directory of this machine. `remote.mirror` reads one that is elsewhere."""

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
    """The files of a data set."""

    @property
    def path(self) -> Path | str:
        """Of the data set, as a user says it."""
        ...

    @property
    def directory(self) -> Path:
        """Where its small files are, as of the last `refresh`."""
        ...

    @property
    def is_elsewhere(self) -> bool:
        """Whether nothing can be written to it."""
        ...

    def refresh(self) -> Catalog:
        """Return the catalog of the files that are there now."""
        ...

    def has_new_commit(self, catalog: Catalog) -> bool:
        """Return True if shards may have been replaced while the catalog was made, or since."""
        ...

    def read(self, files: Sequence[ShardFile], verify: bool) -> list[ShardRead | None]:
        """Read each shard; None for a shard that was sealed or replaced since the catalog was made."""
        ...

    def stored(self, read: ShardRead, header: Header) -> list[StoredBatch]:
        """The record batches of a shard."""
        ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A directory of this machine."""

    directory: Path
    mapped: bool

    def __reduce__(self) -> Any:
        return LocalFiles, (self.directory.absolute(), self.mapped)  # another process may be in another directory

    @property
    def path(self) -> Path:
        return self.directory

    @property
    def is_elsewhere(self) -> bool:
        return False

    def refresh(self) -> Catalog:
        return Catalog.of(self.directory)

    def has_new_commit(self, catalog: Catalog) -> bool:
        return newest_commit(self.directory) != catalog.newest_commit

    def read(self, files: Sequence[ShardFile], verify: bool) -> list[ShardRead | None]:
        return [self._read(file) for file in files]

    def _read(self, file: ShardFile) -> ShardRead | None:
        try:
            return read_shard(file, mapped=self.mapped)
        except FileNotFoundError:
            return None

    def stored(self, read: ShardRead, header: Header) -> list[StoredBatch]:
        if read.layout is None:
            return []
        common = (read.layout, header, str(read.file.path))
        return [StoredBatch(found.batch, *common, found.place) for found in read.batches]
