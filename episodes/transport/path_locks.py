"""Lock files that prevent a second receiver from listening at the same `ipc://` path."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from episodes.errors import InvalidArgument
from episodes.storage.locks import HAS_POSIX_FILES, Lock, try_lock

_IPC = "ipc://"


def lock_of_path(address: str) -> list[Callable[[], None]]:
    """Lock the path of an `ipc://` address by a lock file, so that no second receiver can use this path. Return a list
    of functions that release the lock.

    Returns:
        A function that removes the lock, and may be called twice; nothing for other addresses.

    Raises:
        InvalidArgument: another receiver listens at the path, the lock file cannot be created, or this is Windows.
    """
    path = address.removeprefix(_IPC)
    if path == address or path.startswith(("@", "*")) or not path:
        return []
    if not HAS_POSIX_FILES:
        raise InvalidArgument(f"address {address!r}: ipc:// needs Linux or macOS; give tcp://127.0.0.1:*")
    file = f"{path}.lock"
    while True:
        try:
            handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"address {address!r}: {error}; give a path in a folder that can be written"
            ) from None
        could = try_lock(handle)
        if not could:
            os.close(handle)
            reason = "this file system has no locks" if could is None else "another receiver uses it"
            raise InvalidArgument(f"address {address!r}: {reason}; give another path")
        if _is_same_file(handle, file):
            break
        os.close(handle)  # its holder removed the file between our two calls
    lock = ExitStack()  # calls each function once, the last one first
    lock.callback(Lock(handle).release)
    lock.callback(os.unlink, file)
    return [lock.close]


def _is_same_file(handle: int, path: str) -> bool:
    """Return True if the file descriptor `handle` refers to the file that `path` currently names."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
