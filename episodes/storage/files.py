"""Reading and writing of files such that a killed process never leaves a half-written file."""

from __future__ import annotations

import ctypes
import errno
import glob
import mmap
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

import numpy as np

from episodes.errors import InvalidArgument, UnreadableData
from episodes.storage.locks import HAS_POSIX_FILES, Lock, is_locked, locked

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_BINARY = getattr(os, "O_BINARY", 0)
_FILE_URL = re.compile(r"file:(?://(?:localhost(?=/))?|/(?=~(?:/|$))|(?=/))")
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.:-]+):(//?)")  # one letter is a drive of Windows
_DRAFT_ENDING = re.compile(r"\.[0-9]+\.[0-9a-f]{8}")  # process and random number, see `_temporary_name`
_NO_WAITING = getattr(os, "O_NONBLOCK", 0) | _BINARY  # opening a pipe would wait for its writer


def local_path(path: str | os.PathLike[str]) -> Path:
    """Convert a path or `file://` URL to a `Path`, with "~" as the home directory.

    `pathlib.Path` shortens "file:///data" to "file:/data", which is the same place.

    Raises:
        InvalidArgument: another URL, or one that `pathlib.Path` has shortened, such as "s3:/bucket".
    """
    text = os.fspath(path)
    if found := _FILE_URL.match(text):
        return Path(url2pathname(text[found.end() :])).expanduser()
    found = _URL.match(text)
    if found and found[2] == "//":
        raise InvalidArgument(
            f"{path}: a path of this machine is needed, {found[1]}:// is not one; write here, and upload it, or "
            "copy it here first (episodes copy)"
        )
    if found and not Path(found[0]).exists():
        raise InvalidArgument(
            f"{path}: there is no folder {found[1]}: here, and pathlib.Path shortens URLs; give the URL as text"
        )
    return Path(path).expanduser()


def open_file(path: Path) -> int:
    """Open a regular file for reading, and return its file descriptor. Directories, pipes and devices are rejected.

    Raises:
        FileNotFoundError: there is no such file.
        UnreadableData: the path is a directory, a pipe or another special file, or a link without a target.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_WAITING)
    except FileNotFoundError:
        if path.is_symlink():
            raise UnreadableData(f"{path} is a link to a file that does not exist") from None
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise UnreadableData(f"{path} is no regular file: {error.strerror}") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableData(f"{path} is no regular file, but a directory, a pipe or a device; remove it")
    return descriptor


def read_file(path: Path) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        UnreadableData: the path is not a regular file.
    """
    with open(open_file(path), "rb", buffering=0) as file:
        return file.readall()


def read_or_map(path: Path, *, mapped: bool) -> np.ndarray:
    """Return the bytes of a file as an array, uint8 [size], which is memory-mapped if `mapped` is True.

    The mapping is private: a write into it (by torch, in place) changes pages of this process, and never the file. No
    memory is reserved for that, so the file may be larger than the memory. A mapping needs no file descriptor.

    Raises:
        FileNotFoundError: there is no such file.
        UnreadableData: it is no regular file, or it was cut while it was read.
    """
    with open(open_file(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if mapped and size:
            return _map(file.fileno(), size)
        data = np.empty(size, np.uint8)
        target, at = memoryview(data), 0  # type: ignore[arg-type]
        while at < size:
            num_read = file.readinto(target[at:])
            if not num_read:
                raise UnreadableData(f"{path}: the file ends at byte {at} of {size}; it was cut while it was read")
            at += num_read
        return data


def _map(descriptor: int, size: int) -> np.ndarray:
    """Map an open file into memory, and return its bytes as an array, uint8 [size].
    Writing to the array does not change the file.

    Raises:
        OSError: the file cannot be mapped.
    """
    libc = _libc()
    if libc is None:
        return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY), np.uint8)
    readable = mmap.PROT_READ
    for protection, flags in (
        (readable | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _NO_RESERVE),
        (readable, mmap.MAP_PRIVATE),
    ):
        address = libc.mmap(None, size, protection, flags, descriptor, 0)
        if address != _FAILED:
            return np.asarray(_Mapping(libc, address, size, protection == readable))
    raise OSError(ctypes.get_errno(), f"the file cannot be mapped: {os.strerror(ctypes.get_errno())}")


class _Mapping:
    """Memory mapping of a file. It is removed when the last array that uses its memory is garbage-collected.

    Python's own `mmap` keeps a file descriptor for each mapping, so a process could not map more than 1,000 files.
    """

    def __init__(self, libc: ctypes.CDLL, address: int, size: int, read_only: bool) -> None:
        self._unmap, self._address, self._size = libc.munmap, address, size
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, read_only)}

    def __del__(self) -> None:
        self._unmap(self._address, self._size)


_FAILED = ctypes.c_void_p(-1).value


@cache
def _libc() -> Any:
    """Return the C library, to call its `mmap` and `munmap`, or None if the system lacks these functions."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes, libc.munmap.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return libc


def put(path: Path, text: str | memoryview, *, new: bool = False, fsync: bool = False) -> None:
    """Write a text or bytes to a file atomically. An existing file is replaced, or if `new` is True `FileExistsError`
    is raised. With `fsync`, the file is on the disk when the call returns.

    Raises:
        FileExistsError: the file exists, and `new` is True.
    """
    final, draft = os.fspath(path), _temporary_name(path)
    try:
        _write(draft, os.O_CREAT | os.O_EXCL, text, fsync)
        if new:
            _give_name(draft, final)
            os.unlink(draft)
        else:
            os.replace(draft, final)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    if fsync:
        sync(path)


def put_locked(path: Path, make_text: Callable[[bool], str]) -> Lock | None:
    """Write a text file atomically and lock this file. Return the lock.

    Args:
        path: of the file.
        make_text: returns the text, given whether the file is locked.

    Returns:
        The lock, or None if the file system has no locks, or the system cannot rename an open file (Windows).
    """
    if not HAS_POSIX_FILES:
        put(path, make_text(False))
        return None
    draft = _temporary_name(path)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
    try:
        lock = Lock(descriptor)
        could = bool(lock.acquire())
        _write_all(descriptor, make_text(could))
        if not could:
            lock.close()
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.close(descriptor)
        Path(draft).unlink(missing_ok=True)
        raise
    return lock if could else None


def append(path: Path, text: str) -> None:
    """Append a text to a file that one process writes to. After an error or interrupt, the file is as before or has the
    whole text.

    Raises:
        OSError: the text cannot be written, for example to a full disk.
    """
    size = path.stat().st_size
    try:
        _write(os.fspath(path), os.O_APPEND, text)
    except BaseException:
        if path.stat().st_size != size + len(text.encode()):
            os.truncate(path, size)
        raise


def _temporary_name(path: Path) -> str:
    """Return a unique name of a temporary file in the directory of `path`."""
    folder, name = os.path.split(os.fspath(path))
    return os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}")


def _write(path: str, flags: int, text: str | memoryview, fsync: bool = False) -> None:
    """Open a file with the `os.open` flags `flags`, and write the whole text to the file. With `fsync`, wait until it
    is on the disk.

    Python's file objects would make three times as many system calls.
    """
    descriptor = os.open(path, os.O_WRONLY | flags | _BINARY, 0o666)
    try:
        _write_all(descriptor, text)
        if fsync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, text: str | memoryview) -> None:
    """Write a text or bytes to an open file, if necessary in several calls."""
    data = memoryview(text.encode()) if isinstance(text, str) else text
    while data:  # a disk that is almost full takes a part before the error
        data = data[os.write(descriptor, data) :]


def _give_name(draft: str, final: str) -> None:
    """Give the finished temporary file `draft` the name `final`, by a link or a copy.
    Raise `FileExistsError` if `final` exists."""
    try:
        os.link(draft, final)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: the file is complete in the end, but does not appear at once
        _write(final, os.O_CREAT | os.O_EXCL, memoryview(Path(draft).read_bytes()))


_KEEP_SIZE = 1  # flag of fallocate(2): the file's size stays that of the written bytes
_WORTH_RESERVING = 1 << 21  # bytes; one system call takes 50 us


def reserve(descriptor: int, start: int, size: int) -> None:
    """Reserve disk space before a large write to an open file, which makes the write faster on ext4 file systems.

    Without such a system call, or without space, nothing happens: the write raises the `OSError`.
    """
    if size >= _WORTH_RESERVING and (call := _fallocate()) is not None:
        call(descriptor, _KEEP_SIZE, start, size)


@cache
def _fallocate() -> Any:
    """Return the C function `fallocate64`, which reserves disk space, or None on systems without this function.

    Python's `posix_fallocate` writes to each block if a file system lacks the call.
    """
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
    """Context manager that yields a temporary directory, and renames it to `target` if the block succeeds.

    After an error the temporary directory is removed.

    Raises:
        InvalidArgument: the target exists.
    """
    if target.exists():
        raise InvalidArgument(f"{target} exists already; give a path that does not exist")
    with draft_beside(target) as draft:
        yield draft
        if target.exists():
            raise InvalidArgument(
                f"{target} was created by another process in the meantime; give a path that does not exist"
            )
        os.rename(draft, target)


@contextmanager
def draft_beside(target: Path) -> Iterator[Path]:
    """Context manager that yields a temporary directory in the parent directory of `target`, and removes it afterwards.

    Temporary directories of killed processes are removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{glob.escape(target.name)}.draft-*"):
        if not is_locked(left):
            shutil.rmtree(left, ignore_errors=True)
    name = f"{os.getpid()}-{os.urandom(4).hex()}"
    new, draft = (target.with_name(f".{target.name}.{word}-{name}") for word in ("new", "draft"))
    new.mkdir()
    try:
        with locked(new):  # before it has the name by which other processes remove abandoned drafts
            os.rename(new, draft)
            yield draft
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(draft, ignore_errors=True)


def remove_drafts(path: Path) -> None:
    """Remove the temporary files of killed processes that were to become the file `path`. Only its owner may do so."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*.*"):
        if _DRAFT_ENDING.fullmatch(draft.name.removeprefix(f".{path.name}")):
            draft.unlink(missing_ok=True)


@contextmanager
def left_if_open() -> Iterator[None]:
    """Context manager around the renaming or removal of a file, which on Windows stays as it is if it is open."""
    try:
        yield
    except PermissionError:
        if HAS_POSIX_FILES:
            raise


def sync(file: Path) -> None:
    """Flush a file and its directory entry to disk (fsync), so that the file survives a crash of the machine."""
    _sync(file)
    _sync(file.parent)


def _sync(path: Path) -> None:
    """Wait until the system has written a file or directory to the disk."""
    if not HAS_POSIX_FILES and path.is_dir():  # Windows opens no directories
        return
    descriptor = os.open(path, os.O_RDONLY if HAS_POSIX_FILES else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
