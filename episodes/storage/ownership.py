"""`Owner`: the right of one object, in one process, to write some files."""

from __future__ import annotations

import os
import threading
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.storage.locks import Lock

_ATTEMPTS, _PAUSE_S = 5, 0.004  # a process that only looks whether the lock is held has it for microseconds


class Owner:
    """Right to write some files, which only one object in one process has at a time, from `claim` to `release`.

    Meanwhile it holds a lock file. The system releases the lock of a killed process, so a lock file that is left has no
    effect. A process that is forked does not become an owner.

    Args:
        what: the object, for messages, such as "this writer".
        file: the lock file, which `claim` creates and nothing removes. None if several objects may write to a place,
            each to files of its own.
        refusal: text of the error if another object has the lock.
        remedy: what to do in a forked process.
        mode: permissions of a new lock file, before the umask.
    """

    def __init__(
        self, what: str, file: Path | None = None, *, refusal: str = "", remedy: str = "", mode: int = 0o666
    ) -> None:
        self._what, self._file, self._refusal, self._remedy, self._mode = what, file, refusal, remedy, mode
        self._lock: Lock | None = None
        self._process: int | None = None  # that claimed the files

    @property
    def is_active(self) -> bool:
        """Whether the files belong to this object now, and this is the process that claimed them."""
        return self._process == os.getpid()

    def check(self) -> None:
        """Raise `EpisodeStateError` in a process that was forked from the one that claimed the files."""
        if self._process is not None and self._process != os.getpid():
            raise EpisodeStateError(
                f"{self._what} was created in process {self._process} and cannot be used in process {os.getpid()}; "
                f"{self._remedy}"
            )

    def claim(self) -> None:
        """Become the owner. Another call has no effect, or completes one that was interrupted.

        Raises:
            InvalidArgument: another object, of this or another process, is the owner.
            EpisodeStateError: this is a process that was forked from the owner's.
            OSError: the lock file cannot be opened, for example because it is a symbolic link.

        Warns:
            RuntimeWarning: the file system has no locks, so a second owner is not noticed.
        """
        self.check()
        if self._process is not None:
            return
        if self._file is not None:
            if self._lock is None:
                self._lock = Lock(self._file, self._mode)
            could = self._lock.acquire()
            for _ in range(_ATTEMPTS):
                if could is not False:
                    break
                time.sleep(_PAUSE_S)
                could = self._lock.acquire()
            if not could:
                self._lock = None
            if could is False:
                raise InvalidArgument(self._refusal)
            if could is None:
                text = f"{self._file}: this file system has no locks; let no other process write to {self._file.parent}"
                warnings.warn(text, RuntimeWarning, stacklevel=3)
        self._process = os.getpid()

    def release(self) -> None:
        """Let other objects write the files. It has no effect in a forked process, or if they were not claimed."""
        if self._process in (None, os.getpid()):
            self._process = None  # first: an interrupt leaves at most a lock that nobody uses, until the next call
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release()


class OwnedLock:
    """Reentrant lock between threads that no process can acquire except that of the owner.

    Args:
        owner: the owner.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner, self._lock = owner, threading.RLock()

    def __enter__(self) -> Any:
        self._owner.check()  # before the lock, which a thread of the parent may have held at the fork
        return self._lock.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)
