"""Directories of other file systems, by fsspec: `s3://bucket/data`, `http://host/data`, `memory://data`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from episodes.errors import InvalidArgument, MissingExtra


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
            found = self.system.ls(self.root, detail=True)
        except FileNotFoundError:
            return {}
        return {one["name"].rstrip("/").rpartition("/")[2]: one.get("size") for one in found if one["type"] == "file"}

    def read(self, name: str) -> bytes:
        """A small file. `FileNotFoundError` where there is none."""
        return self.system.cat_file(self.path(name))

    def write(self, name: str, data: bytes) -> None:
        """Put a small file there, whole."""
        self.system.pipe_file(self.path(name), data)
