"""Remote directories, which are accessed through fsspec, such as `s3://bucket/data` or `http://host/data`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from episodes.errors import EpisodeError, InvalidArgument, MissingExtra, install_advice
from episodes.storage.arrow import pyarrow
from episodes.storage.files import local_path

UPLOADED = "uploaded.json"
"""File of an uploaded data set that names its files, see `Uploaded`."""
_FLAT = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "hf"))
"""Protocols of stores without directories, where making one would make a bucket. Files of Hugging Face are commits."""


def is_remote(path: str | Path) -> bool:
    """Return True if a path is a URL of a remote directory, as fsspec takes them.

    A `file://` URL is a directory of this machine, unless `upload` wrote it: then readers see whole uploads only.

    >>> is_remote("s3://bucket/data"), is_remote("simplecache::s3://bucket/data"), is_remote("C:/data")
    (True, True, False)
    """
    scheme, separator, _ = str(path).partition("://")
    if scheme == "file" and separator:
        return (local_path(path) / UPLOADED).exists()
    return bool(separator) and scheme.replace("::", "").replace("+", "").isalnum()


@dataclass(frozen=True)
class RemoteDirectory:
    """Remote directory, accessed through fsspec, whose files can be listed, read, written and removed.

    Args:
        url: of the directory.
        options: of the file system, such as `endpoint_url`.

    Attributes:
        system: `fsspec.AbstractFileSystem`.
        root: path of the directory in it.

    Raises:
        MissingExtra: fsspec, or the package of the scheme, is not installed.
        InvalidArgument: the scheme is unknown.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict)  # of the file system, such as `endpoint_url`
    system: Any = field(init=False, repr=False)  # `fsspec.AbstractFileSystem`
    root: str = field(init=False)  # its path there

    def __post_init__(self) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise MissingExtra(f"{self.url} needs fsspec; {install_advice('remote')}, or s3") from error
        try:
            is_url = "://" in self.url and not self.url.startswith("file:")
            system, root = fsspec.core.url_to_fs(self.url if is_url else str(local_path(self.url)), **self.options)
        except ImportError as error:
            raise MissingExtra(f"{self.url}: {error}; for s3:// {install_advice('s3')}") from error
        except ValueError as error:
            raise InvalidArgument(f"{self.url}: {error}") from None
        object.__setattr__(self, "system", system)
        object.__setattr__(self, "root", root.rstrip("/"))

    def path(self, name: str) -> str:
        """Return the full path of the file `name` in the form that the remote file system expects."""
        return f"{self.root}/{name}"

    def sizes(self) -> dict[str, int | None]:
        """List all files of the directory, and return their sizes in bytes by name. None means an unknown size."""
        self.system.invalidate_cache()
        try:
            with self.reached():
                entries = self.system.ls(self.root, detail=True)
        except FileNotFoundError:
            return {}
        return {
            entry["name"].rstrip("/").rpartition("/")[2]: entry.get("size")
            for entry in entries
            if entry["type"] == "file"
        }

    def read(self, name: str) -> bytes:
        """Download a small file, and return its bytes. Raise `FileNotFoundError` if it does not exist."""
        with self.reached():
            return self.system.cat_file(self.path(name))

    def fetch(self, name: str, file: Path, size: int | None) -> None:
        """Download a file to the local path `file`.

        Args:
            size: expected number of bytes. None if unknown.

        Raises:
            FileNotFoundError: there is no such file.
            ConnectionError: the download failed, or has another size.
        """
        with self.reached():
            self.system.get_file(self.path(name), str(file))
        num_bytes = file.stat().st_size
        if size is not None and num_bytes != size:
            raise ConnectionError(f"{self.url}/{name}: {num_bytes} of {size} bytes came")

    @property
    def is_flat(self) -> bool:
        """Whether this is an object store, which has no directories, and in which a file appears when it is whole."""
        protocol = self.system.protocol
        return not _FLAT.isdisjoint([protocol] if isinstance(protocol, str) else protocol)

    def make(self) -> None:
        """Create the remote directory. Object stores have no directories, so nothing is done for them."""
        if not self.is_flat:
            with self.reached():
                self.system.makedirs(self.root, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Write the bytes `data` to the small file `name` in the remote directory, whole or not at all."""
        with self.reached():
            if self.is_flat:
                self.system.pipe_file(self.path(name), data)
            else:
                self.system.pipe_file(self.path(f".{name}.draft"), data)
                self.system.mv(self.path(f".{name}.draft"), self.path(name))

    def send(self, file: Path, name: str) -> None:
        """Upload a local file to the remote directory, where it is called `name`."""
        with self.reached():
            self.system.put_file(str(file), self.path(name))

    def remove(self, name: str) -> None:
        """Remove the file `name` from the remote directory."""
        with self.reached():
            self.system.rm_file(self.path(name))

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Context manager that converts the remote file system's own errors to `OSError`.

        Raises:
            FileNotFoundError: the server answered with status 404.
            ConnectionError: any other error of the file system.
        """
        try:
            yield
        except (OSError, EpisodeError, ValueError, LookupError, TypeError, pyarrow().ArrowException):
            raise
        except Exception as error:
            if getattr(error, "status", None) == 404:
                raise FileNotFoundError(f"{self.url}: {error}") from error
            raise ConnectionError(f"{self.url}: {type(error).__name__}: {error}") from error
