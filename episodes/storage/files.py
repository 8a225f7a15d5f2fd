"""Files: mapped privately or read whole, and replaced so that they are there whole or not at all."""

from __future__ import annotations

import ctypes
import glob
import mmap
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import InvalidArgument, UnreadableData

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def local_path(path: str | Path) -> Path:
    """The path; `InvalidArgument` names the scheme of one that is not in this file system."""
    scheme, found, _ = str(path).partition("://")
    if found and scheme.isalnum():
        raise InvalidArgument(
            f"{path}: only directories here are written to, {scheme}:// is not one; write here, and upload it"
        )
    return Path(path)


def contents(path: Path, *, mapped: bool) -> Any:
    """The bytes of a file, as what `pyarrow.py_buffer` takes: mapped, or read into memory.

    A mapping is private: who writes into it (torch, in place) changes pages of this process, and never the file. No
    memory is set aside for that, so the file may be larger than what there is.

    Raises:
        UnreadableData: the file was cut while it was read.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if mapped and size:
            return _mapped(file.fileno())
        data = np.empty(size, np.uint8)
        there, at = memoryview(data), 0  # type: ignore[arg-type]
        while at < size:
            got = file.readinto(there[at:])
            if not got:
                raise UnreadableData(f"{path}: {at} of {size} bytes are there; somebody cut it")
            at += got
        return data


def _mapped(descriptor: int) -> mmap.mmap:
    """The file, mapped so that writes stay in this process."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    try:
        flags = mmap.MAP_PRIVATE | _NO_RESERVE
        return mmap.mmap(descriptor, 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError:  # where no memory may be promised that is not there
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def put(path: Path, text: str, *, new: bool = False, fsync: bool = False) -> None:
    """Write a file that appears at once and whole, in place of the one that is there.

    Raises:
        FileExistsError: there is one and it is to be `new`.
    """
    final = os.fspath(path)
    folder, name = os.path.split(final)
    draft = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        _write(draft, os.O_CREAT | os.O_EXCL, text, fsync)
        if new:
            _link(draft, final)
            os.unlink(draft)
        else:
            os.replace(draft, final)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    if fsync:
        sync(path)


def append(path: Path, text: str) -> None:
    """Write at the end of a file, all of it or an `OSError`."""
    _write(os.fspath(path), os.O_APPEND, text)


def _write(path: str, flags: int, text: str, fsync: bool = False) -> None:
    """Write to a file that `flags` open: without Python's own files, which ask the system three times as much."""
    descriptor = os.open(path, os.O_WRONLY | flags | getattr(os, "O_BINARY", 0), 0o666)
    try:
        data = memoryview(text.encode())
        while data:  # of a disk that is filling up, a part is taken before the error comes
            data = data[os.write(descriptor, data) :]
        if fsync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link(draft: str, final: str) -> None:
    """Give the draft its final name; `FileExistsError` where there is such a file."""
    try:
        os.link(draft, final)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: whole in the end, but not at once
        _write(final, os.O_CREAT | os.O_EXCL, Path(draft).read_text())


_KEEP_SIZE = 1  # of fallocate(2): the file does not seem longer than what was written
_WORTH_RESERVING = 1 << 21  # bytes; one call of the system is 50 us


def reserve(descriptor: int, start: int, size: int) -> None:
    """Let the file system find room for so many bytes at once, not page by page while they are written.

    On ext4 it takes a quarter of the time off a large write. Nothing that can be read changes. Where there is no such
    call, or no room, nothing happens: whoever writes gets the error.
    """
    if size >= _WORTH_RESERVING and (call := _fallocate()) is not None:
        call(descriptor, _KEEP_SIZE, start, size)


@cache
def _fallocate() -> Any:
    """The system's own: Python's writes into each block where a file system has no such call."""
    if sys.platform != "linux":
        return None
    try:
        call = ctypes.CDLL(None).fallocate64
    except (OSError, AttributeError):
        return None
    call.argtypes, call.restype = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64), ctypes.c_int
    return call


@contextmanager
def whole_directory(target: Path) -> Iterator[Path]:
    """A directory to write into, which becomes the target when all went well and is gone when not.

    Raises:
        InvalidArgument: the target is there.
    """
    if target.exists():
        raise InvalidArgument(f"{target} is there already; give a path where there is nothing")
    with draft_beside(target) as draft:
        yield draft
        if target.exists():
            raise InvalidArgument(f"{target} was made by somebody else meanwhile; give a path where there is nothing")
        os.rename(draft, target)


@contextmanager
def draft_beside(target: Path) -> Iterator[Path]:
    """A directory on the disk of the target, gone in the end. What a killed process left of one, the next removes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{glob.escape(target.name)}.draft-*"):
        if _is_left(left):
            shutil.rmtree(left, ignore_errors=True)
    name = f"{os.getpid()}-{os.urandom(4).hex()}"
    new, draft = (target.with_name(f".{target.name}.{word}-{name}") for word in ("new", "draft"))
    new.mkdir()
    try:
        with _locked(new):  # before it has a name by which another process would take it for left behind
            os.rename(new, draft)
            yield draft
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a lock on the directory, which ends with this process, however that ends; `OSError` where another has it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _is_left(draft: Path) -> bool:
    """Whether who made the draft is gone: nobody holds a lock on it."""
    if fcntl is None:
        return False
    try:
        with _locked(draft):
            return True
    except OSError:
        return False


def sync(file: Path) -> None:
    """Wait until the file, and its name in its directory, are on the disk."""
    _sync(file)
    _sync(file.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
