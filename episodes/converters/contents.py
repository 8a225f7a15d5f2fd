"""`Contents`: what a path holds, found by looking at its bytes, and the error for a path that nothing can read."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from episodes.converters.parquet_files import schema_of
from episodes.errors import UnreadableData, needing
from episodes.storage.files import local_path

if TYPE_CHECKING:
    import h5py

_HEAD = 1 << 16  # bytes at the beginning of a file that are looked at
_MOST_NAMES = 500  # names of arrays or files that are collected
_MOST_CHILDREN = 8  # of each group below the first level: episodes are alike
_LINES = 100  # lines of JSON whose keys are collected
DELIMITERS = ",;\t|"

_PRINTED = bytes({9, 10, 13, *range(32, 127), *range(160, 256)})  # bytes of text in Latin-1
_STREAM = b"\xff\xff\xff\xff"  # beginning of Arrow's format of streams
_GZIP = b"\x1f\x8b"
_SIGNATURES = (  # beginnings of files, and the kinds of these files
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (_STREAM, "arrow"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"\x93NUMPY", "npy"),
)
_FOREIGN = (  # beginnings of files that hold no episodes: offset, bytes, what it is, remedy
    *((0, head, "a picture", "give the file with the steps; pictures are observations inside of it") for head in (
        b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*",
    )),
    (8, b"WEBP", "a picture", "give the file with the steps; pictures are observations inside of it"),
    (4, b"ftyp", "a video", "give the folder of the data set, or the file with the steps"),
    (0, b"\x1aE\xdf\xa3", "a video", "give the folder of the data set, or the file with the steps"),
    (0, b"%PDF", "a PDF document", "give the file with the steps"),
    *((0, head, "a pickle", "it may run code, so it is never opened here; load it, and pass its arrays") for head in (
        b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05",
    )),
    (0, _GZIP, "compressed by gzip", "decompress it first (gunzip)"),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd", "decompress it first (unzstd)"),
    (0, b"BZh", "compressed by bzip2", "decompress it first (bunzip2)"),
    (0, b"\xfd7zXZ", "compressed by xz", "decompress it first (unxz)"),
    (0, b"7z\xbc\xaf", "an archive", "unpack it first"),
    (257, b"ustar", "an archive", "unpack it first"),
    (0, b"SQLite format 3", "a database of SQLite", "export its table to Parquet or CSV"),
)  # fmt: skip

TABLES = ("parquet", "arrow", "csv", "jsonl")
"""Kinds of files that hold one table."""
_WORDS = {
    "hdf5": "HDF5 with the arrays",
    "parquet": "a Parquet table with the columns",
    "arrow": "an Arrow table with the columns",
    "csv": "a table of text with the columns",
    "jsonl": "lines of JSON with the keys",
    "json": "a JSON document with the keys",
    "npz": "NPZ with the arrays",
    "zip": "a zip archive with the files",
    "npy": "a single array of numpy",
    "text": "text",
    "bytes": "bytes of an unknown kind",
    "directory": "a folder with the files",
}


def open_text(path: Path) -> IO[bytes]:
    """Open a file of text, decompressed if gzip compressed it, and without a byte order mark."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == _GZIP
    text: Any = (gzip.open if is_gzip else open)(path, "rb")
    if text.read(3) != b"\xef\xbb\xbf":
        text.seek(0)
    return text


class Contents:
    """What a path holds. The path is looked at once, for all formats that ask.

    Args:
        source: a path or a `file://` URL.

    Attributes:
        path: the path.
        kind: "hdf5", "parquet", "arrow", "csv", "jsonl", "json", "npz", "zip", "npy", "text", "bytes" or "directory".
        is_stream: whether it is in Arrow's format of streams.

    Raises:
        UnreadableData: the path does not exist, cannot be read, is empty or truncated, or holds something else than
            data, such as a picture. The message names the cause and the remedy.
    """

    def __init__(self, source: str | Path) -> None:
        self.path = local_path(source)
        self.is_stream = False
        self.kind = self._find_kind()

    def _fail(self, what: str, remedy: str) -> UnreadableData:
        return UnreadableData(f"{self.path}: {what}; {remedy}")

    def _find_kind(self) -> str:
        try:
            mode = self.path.stat().st_mode
            if stat.S_ISDIR(mode):
                os.listdir(self.path)
                return "directory"
            if not stat.S_ISREG(mode):
                raise self._fail("neither a file nor a folder", "give the path of a file or a folder")
            with self.path.open("rb") as file:
                head = file.read(_HEAD)
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - 4))
                tail = file.read(4)
        except OSError as error:
            raise self._unreadable(error) from error
        if not end:
            raise self._fail("the file is empty, 0 bytes", "write or download it again")
        if head.startswith(_GZIP) and (kind := self._kind_of_gzip()) in ("csv", "jsonl"):
            return kind
        for start, signature, what, remedy in _FOREIGN:
            if head[start:].startswith(signature):
                raise self._fail(f"it is {what}, not data of steps", remedy)
        kind = next((kind for signature, kind in _SIGNATURES if head.startswith(signature)), "")
        self.is_stream = head.startswith(_STREAM)
        if kind == "parquet" and (tail != b"PAR1" or end < 12):
            raise self._truncated(f"after {end} bytes the end of the Parquet file, with its columns, is missing")
        if kind == "zip":
            return self._kind_of_zip(end)
        return kind or self._kind_of_text(head, end)

    def _unreadable(self, error: OSError) -> UnreadableData:
        """Return the error for a path that the operating system cannot read."""
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            if self.path.is_symlink():
                return self._fail(f"a link to {os.readlink(self.path)}, which does not exist", "mend the link")
            folder = self.path.parent
            while not folder.exists() and folder != folder.parent:
                folder = folder.parent
            where = f"the last folder that exists is {folder}"
            return self._fail("the path does not exist", f"{where}; check the spelling")
        if isinstance(error, PermissionError):
            return self._fail("this user may not read it", "change its permissions, or copy it")
        return self._fail(f"it cannot be read: {error.strerror}", "check the disk, or copy it")

    def _truncated(self, where: str) -> UnreadableData:
        return self._fail(f"the file is truncated: {where}", "write or download it again")

    def _kind_of_zip(self, size: int) -> str:
        import zipfile

        if not zipfile.is_zipfile(self.path):
            raise self._truncated(f"after {size} bytes the end of the archive, with its list of files, is missing")
        names = self.names_of_zip()
        if any(name.endswith("data.pkl") for name in names):
            raise self._fail(
                "it is a pickle of torch.save, not data of steps",
                "it may run code, so it is never opened here; load it, and pass its arrays",
            )
        return "npz" if names and all(name.endswith(".npy") for name in names) else "zip"

    def names_of_zip(self) -> list[str]:
        """Return the names of the files in a zip archive."""
        import zipfile

        try:
            with zipfile.ZipFile(self.path) as archive:
                return archive.namelist()
        except (OSError, zipfile.BadZipFile, NotImplementedError) as error:  # the last one: of an unknown version
            raise self._fail(f"a damaged archive: {error}", "write or download it again") from error

    def _kind_of_gzip(self) -> str:
        """Return the kind of what gzip compressed."""
        try:
            with gzip.open(self.path) as file:
                head = file.read(_HEAD)
                return self._kind_of_text(head, len(head) + bool(file.read(1)))
        except EOFError as error:
            raise self._truncated("what gzip compressed ends too early") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self._fail(f"what gzip compressed is damaged: {error}", "write or download it again") from error

    def _kind_of_text(self, head: bytes, size: int) -> str:
        if head.startswith(b"\xef\xbb\xbf"):
            head = head[3:]
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise self._fail("it is text in UTF-16", "save it as UTF-8")
        try:
            text = head.decode("utf-8", "strict" if size <= _HEAD else "ignore")
        except UnicodeDecodeError as error:
            if not head.translate(None, _PRINTED):
                raise self._fail(f"it is text, and not in UTF-8: {error}", "save it as UTF-8") from None
            return "bytes"
        if "\0" in text:
            return "bytes"
        first = text.lstrip().partition("\n")[0].strip()
        has_more = size > len(first) + 2
        if first[:1] == "{" and "\n" not in text.lstrip() and size > len(head):
            with open_text(self.path) as file:  # lines with many steps are long
                lines = filter(None, map(bytes.strip, file))
                first, has_more = next(lines, b"").decode("utf-8", "replace"), bool(next(lines, b""))
        if first[:1] in ("{", "["):
            try:
                return "jsonl" if isinstance(json.loads(first), dict) and has_more else "json"
            except (ValueError, RecursionError):
                return "json"
        return "csv" if any(delimiter in first for delimiter in DELIMITERS) else "text"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of arrays, columns, keys or files: as many as are needed to recognize a format, in order.

        Raises:
            MissingExtra: the library that reads this kind of file is not installed.
            UnreadableData: the file is damaged or truncated.
        """
        readers: dict[str, Callable[[], Iterator[str]]] = {
            "hdf5": self._names_of_hdf5,
            "arrow": self._names_of_arrow,
            "csv": lambda: map(str.strip, next(csv.reader([self._first_lines()[0]], delimiter=self.delimiter), [])),
            "jsonl": self._keys_of_lines,
            "json": self._keys_of_document,
            "npz": lambda: (name.removesuffix(".npy") for name in self.names_of_zip()),
            "zip": lambda: iter(self.names_of_zip()),
            "directory": self._files,
        }
        if self.kind == "parquet":
            return tuple(self.schema.names)
        if self.kind not in readers:
            return ()
        return tuple(itertools.islice(readers[self.kind](), None if self.kind in TABLES else _MOST_NAMES))

    @cached_property
    def schema(self) -> Any:
        """The Arrow schema of a Parquet file, or of the first Parquet file in a directory; None if there is none."""
        if self.kind == "parquet":
            return schema_of(self.path)
        if self.kind != "directory":
            return None
        first = min(self.path.rglob("*.parquet"), default=None)
        return None if first is None else Contents(first).schema

    def lacking(self, names: Iterable[str]) -> list[str]:
        """Return those of `names` that the contents do not have. For HDF5 they are paths such as "data/demo_0"."""
        if self.kind != "hdf5":
            return [name for name in names if name not in self.names]
        return [name for name in names if name not in self.names and not self._has_hdf5(name)]

    def _has_hdf5(self, name: str) -> bool:
        import h5py

        with h5py.File(self.path, "r") as file:
            return name in file

    @property
    def delimiter(self) -> str:
        """The character between the columns of a table of text: the most frequent one in the first line."""
        first = self._first_lines()[0]
        return max(DELIMITERS, key=first.count)

    def has(self, name: str) -> bool:
        """Return True if the directory has this file or folder."""
        return self.kind == "directory" and (self.path / name).exists()

    def _first_lines(self, count: int = 1) -> list[str]:
        try:
            with io.TextIOWrapper(open_text(self.path), encoding="utf-8", newline="") as file:
                return [line.rstrip("\r\n") for line in itertools.islice(file, count)] or [""]
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise self._fail(f"it is not text in UTF-8: {error}", "save it as UTF-8") from error

    def _keys_of_lines(self) -> Iterator[str]:
        keys: dict[str, None] = {}
        lines = self._first_lines(_LINES)
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line) if line.strip() else {}
            except (ValueError, RecursionError) as error:
                if number == len(lines) < _LINES:
                    raise self._truncated(f"line {number} stops in the midst of a JSON document") from error
                raise self._fail(f"line {number} is not JSON: {error}", "give one JSON object per line") from error
            if isinstance(row, dict):
                keys |= dict.fromkeys(row)
        return iter(keys)

    def _keys_of_document(self) -> Iterator[str]:
        try:
            document = json.loads(self.path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            at = getattr(error, "pos", None)
            if at is not None and at >= self.path.stat().st_size - 1:
                raise self._truncated(f"after {at} bytes the JSON document is not complete") from error
            raise self._fail(
                f"it is not JSON: {error}", "write it again as JSON, or as one JSON object per line"
            ) from error
        first = document[0] if isinstance(document, list) and document else document
        return iter(map(str, first)) if isinstance(first, dict) else iter(())

    def _names_of_arrow(self) -> Iterator[str]:
        from episodes.storage.arrow import as_unreadable_data, pyarrow

        with as_unreadable_data(str(self.path)), pyarrow().OSFile(str(self.path)) as file:
            opened = pyarrow().ipc.open_stream(file) if self.is_stream else pyarrow().ipc.open_file(file)
            return iter(opened.schema.names)

    def _names_of_hdf5(self) -> Iterator[str]:
        with needing("minari", "HDF5 files need h5py"):
            import h5py
        try:
            with h5py.File(self.path, "r") as file:
                return iter(_hdf5_names(file, h5py.Group))
        except (OSError, RuntimeError, TypeError, ValueError, KeyError) as error:
            size = self.path.stat().st_size
            if found := re.search(r"truncated.*stored_eof = (\d+)", str(error)):
                raise self._truncated(f"it ends after {size} of {found[1]} bytes") from error
            raise self._fail(f"a damaged HDF5 file of {size} bytes: {error}", "write or download it again") from error

    def _files(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.path):
            folders.sort()
            for file in sorted(files):
                yield (Path(folder) / file).relative_to(self.path).as_posix()

    def __str__(self) -> str:
        """Return the kind and the first names, such as "HDF5 with the arrays 'obs', 'act'"."""
        words = _WORDS[self.kind]
        if self.kind == "directory" and not self.names:
            return "an empty folder"
        if not self.names:
            return words.partition(" with ")[0]
        shown = ", ".join(map(repr, self.names[:12]))
        return f"{words} {shown}" + (", ..." if len(self.names) > 12 else "")


def _hdf5_names(file: h5py.Group, group_class: type) -> list[str]:
    """Return the paths of groups and arrays in an open HDF5 file, level by level. Groups list their first children."""
    names, level = [], [("", file)]
    for depth in range(4):
        following = []
        for prefix, group in level:
            for key in itertools.islice(group, None if not depth else _MOST_CHILDREN * 4):
                names.append(prefix + key)
                if len(names) == _MOST_NAMES:
                    return names
                item = group.get(key)
                if isinstance(item, group_class) and len(following) < _MOST_CHILDREN:
                    following.append((f"{prefix}{key}/", item))
        level = following
    return names
