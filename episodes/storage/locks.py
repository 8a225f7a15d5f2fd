"""Locks on files and directories, which the operating system releases when a process ends.

On POSIX systems they are flock(2) locks: they work between processes in different PID namespaces and containers, and on
NFS between machines. On Windows a byte far behind the end of the file is locked, so that the file can still be read;
there are no shared locks there, and none on directories. A file system may lack locks.

A process that is forked holds none of its parent's locks.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
try:
    import msvcrt
except ImportError:  # POSIX
    msvcrt = None

HAS_POSIX_FILES = fcntl is not None
"""Whether directories can be opened, files that are open can be renamed and removed, and signal 0 only looks."""

_FAR = 0x7FFF_FFFE  # the byte that is locked on Windows, where offsets of locks have 31 bits
_HELD_BY_OTHERS = (errno.EACCES, errno.EAGAIN, errno.EDEADLK, getattr(errno, "EDEADLOCK", errno.EDEADLK))
_msvcrt: Any = msvcrt


class Lock(io.FileIO):
    """Open file with an exclusive lock, from `acquire` until `release`, `close`, or the end of the process.

    As a file object, it is closed whenever it is dropped, also by an interrupt.

    Args:
        file: the file, which is created if it does not exist; or the descriptor of an open one.
        mode: permissions of a new file, before the umask.
    """

    def __init__(self, file: Path | int, mode: int = 0o666) -> None:
        options: Any = {} if isinstance(file, int) else {"opener": partial(_open_or_create, mode=mode)}
        super().__init__(file if isinstance(file, int) else os.fspath(file), "r+b", **options)
        _all_locks.add(self)

    def acquire(self) -> bool | None:
        """Try to lock the file without waiting, and return the result of `try_lock`."""
        return try_lock(self.fileno())

    def release(self) -> None:
        """Unlock and close the file. Later calls have no effect.

        The lock is gone even if a process that was forked has the same open file.
        """
        if not self.closed:
            with suppress(OSError):
                _unlock(self.fileno())
            self.close()

    def __del__(self) -> None:
        self.close()  # without the `ResourceWarning` of other files


def _open_or_create(path: str, flags: int, mode: int) -> int:
    """Open a file that is neither a symbolic link nor a pipe that waits, and return its descriptor."""
    more = (getattr(os, name, 0) for name in ("O_CREAT", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))
    return os.open(path, flags | sum(more), mode)


_all_locks: WeakSet[Lock] = WeakSet()


def _drop_all() -> None:
    """Close the files of all locks of the parent process. Without this, they stayed locked while a child lives."""
    for lock in list(_all_locks):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_all)


def try_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Try to lock an open file without waiting. Several processes may hold a `shared` lock at a time.

    The lock is held until all descriptors of the file are closed.

    Returns:
        True if the lock was acquired, False if another process or object holds it, None if the system or the file
        system has no such locks.
    """
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        elif shared or _msvcrt is None:
            return None
        else:
            _lock_far_byte(descriptor, _msvcrt.LK_NBLCK)
    except OSError as error:
        return False if error.errno in _HELD_BY_OTHERS else None
    return True


def _unlock(descriptor: int) -> None:
    """Release the lock on an open file, for all descriptors of it."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    elif _msvcrt is not None:
        _lock_far_byte(descriptor, _msvcrt.LK_UNLCK)


def _lock_far_byte(descriptor: int, mode: int) -> None:
    """Lock or unlock, on Windows, a byte behind the end of an open file. The position in the file stays the same."""
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _FAR, os.SEEK_SET)
    try:
        _msvcrt.locking(descriptor, mode, 1)
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Context manager that tries to lock a file or directory without waiting. Several processes may hold a `shared`
    lock at a time.

    It yields True if the lock was acquired, else False.
    """
    if not HAS_POSIX_FILES and (shared or path.is_dir()):
        yield False
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield bool(try_lock(descriptor, shared=shared))
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return True if another process holds a lock on `path`, or if this cannot be known
    because the system has no locks."""
    try:
        with locked(path, shared=path.is_file()) as could:  # NFS refuses an exclusive lock on a file opened for reading
            return not could
    except FileNotFoundError:
        return False
