"""Locks on files and directories, which the operating system releases when a process ends.

They are flock(2) locks: they work between processes in different PID namespaces and containers, and on NFS between
machines. A file system may lack them, and so does Windows. A forked process shares its parent's locks until it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Try to lock an open file without waiting. Several processes may hold a `shared` lock at a time. Return False if
    another process holds the lock, or the system has no locks.

    The lock is held until all descriptors of the file are closed.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Context manager that tries to lock a file or directory without waiting. Several processes may hold a `shared`
    lock at a time.

    It yields True if the lock was acquired, else False.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield try_lock(descriptor, shared=shared)
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
