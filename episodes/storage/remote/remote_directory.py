"""Directories of other file systems, by fsspec: `s3://bucket/data`, `http://host/data`, `memory://data`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from episodes.errors import EpisodeError, InvalidArgument, MissingExtra
from episodes.storage.arrow import pyarrow

_FLAT = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"))
"""Protocols of stores without directories, where making one would make a bucket."""


def is_elsewhere(path: str | Path) -> bool:
    """Whether a path has a scheme, and so is not of this machine's file system.

    >>> is_elsewhere("s3://bucket/data"), is_elsewhere("/data"), is_elsewhere("C:/data")
    (True, False, False)
    """
    scheme, found, _ = str(path).partition("://")
    return bool(found) and scheme.replace("+", "").isalnum()


@dataclass(frozen=True)
class Place:
    """A directory elsewhere."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)  # of the file system, such as `endpoint_url`
    system: Any = field(init=False, repr=False)  # `fsspec.AbstractFileSystem`
    root: str = field(init=False)  # its path there

    def __post_init__(self) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise MissingExtra(
                f"{self.url} needs fsspec; install the extra: pip install 'rl-episodes[remote]', or [s3]"
            ) from error
        try:
            system, root = fsspec.core.url_to_fs(self.url, **self.options)
        except ImportError as error:
            raise MissingExtra(
                f"{self.url}: {error}; for s3:// install the extra: pip install 'rl-episodes[s3]'"
            ) from error
        except ValueError as error:
            raise InvalidArgument(f"{self.url}: {error}") from None
        object.__setattr__(self, "system", system)
        object.__setattr__(self, "root", root.rstrip("/"))

    def path(self, name: str) -> str:
        """Where a file of this name is."""
        return f"{self.root}/{name}"

    def sizes(self) -> dict[str, int | None]:
        """The files that are there now, by name, with their sizes (None where they are not told)."""
        self.system.invalidate_cache()
        try:
            with self.reached():
                found = self.system.ls(self.root, detail=True)
        except FileNotFoundError:
            return {}
        return {one["name"].rstrip("/").rpartition("/")[2]: one.get("size") for one in found if one["type"] == "file"}

    def read(self, name: str) -> bytes:
        """A small file. `FileNotFoundError` where there is none."""
        with self.reached():
            return self.system.cat_file(self.path(name))

    def fetch(self, name: str, file: Path, size: int | None) -> None:
        """Copy a file of so many bytes here. `FileNotFoundError` where there is none."""
        with self.reached():
            self.system.get_file(self.path(name), str(file))
        there = file.stat().st_size
        if size is not None and there != size:
            raise ConnectionError(f"{self.url}/{name}: {there} of {size} bytes came")

    def make(self) -> None:
        """Make the directory, where there are directories."""
        protocol = self.system.protocol
        if _FLAT.isdisjoint([protocol] if isinstance(protocol, str) else protocol):
            with self.reached():
                self.system.makedirs(self.root, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Put a small file there, whole."""
        with self.reached():
            self.system.pipe_file(self.path(name), data)

    def send(self, file: Path, name: str) -> None:
        """Copy a file there."""
        with self.reached():
            self.system.put_file(str(file), self.path(name))

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self.reached():
            self.system.rm_file(self.path(name))

    @contextmanager
    def reached(self) -> Iterator[None]:
        """What goes wrong on the way is an `OSError`, whatever library of a file system says it."""
        try:
            yield
        except (OSError, EpisodeError, ValueError, LookupError, TypeError, pyarrow().ArrowException):
            raise
        except Exception as error:
            if getattr(error, "status", None) == 404:
                raise FileNotFoundError(f"{self.url}: {error}") from error
            raise ConnectionError(f"{self.url}: {type(error).__name__}: {error}") from error
