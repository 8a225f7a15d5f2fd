"""Hide, in this process, what Windows or macOS lack, and refuse what they refuse. Call it before the first import of
the library: `python -c "from tests.other_system import pretend; pretend('windows'); ..."`.

Other packages are imported before, since they have versions for these systems.
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import mmap
import os
import stat
import sys
import types
import warnings
from pathlib import Path
from typing import Any

LIBRARY = ("episodes", "connectors", "episode_runners", "episode_learners")
SYSTEMS = ("windows", "macos")
_PACKAGES = ("numpy", "torch", "gymnasium", "pyarrow", "pyarrow.parquet", "xxhash", "msgpack", "tree", "tqdm", "zmq")
_PACKAGES += (
    "matplotlib.pyplot",
    "jinja2",
    "typer",
    "rich.console",
    "duckdb",
    "multiprocessing.context",
    "asyncio",
    "logging",
)
_HIDDEN = {
    "windows": {
        "modules": ("fcntl", "resource", "pwd", "grp", "termios"),
        "functions": (
            *("fork", "register_at_fork", "getuid", "geteuid", "getpgid", "killpg", "mkfifo", "pread", "pwrite"),
            *(
                "posix_fallocate",
                "sched_getaffinity",
                "statvfs",
                "O_NOFOLLOW",
                "O_NONBLOCK",
                "O_CLOEXEC",
                "O_DIRECTORY",
            ),
        ),
    },
    "macos": {"modules": (), "functions": ("posix_fallocate", "sched_getaffinity")},
}
_real_open, _real_flock = os.open, fcntl.flock


def pretend(system: str) -> None:
    """Make this process look like one on `system`, "windows" or "macos", as far as the library can see."""
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError:
            continue
    hidden = _HIDDEN[system]
    for module in hidden["modules"]:
        sys.modules[module] = None  # type: ignore[assignment]
    for name in hidden["functions"]:
        if hasattr(os, name):
            delattr(os, name)
    sys.platform = {"windows": "win32", "macos": "darwin"}[system]
    _hide_proc()
    if system == "windows":
        _be_windows()


def _hide_proc() -> None:
    """Make reading of /proc fail, which only Linux has."""
    original = Path.read_text

    def read_text(self: Path, *arguments: Any, **options: Any) -> str:
        if str(self).startswith("/proc/"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not arguments and "encoding" not in options and caller.startswith(LIBRARY):
            raise EncodingWarning(f"{caller}: read_text without an encoding")
        return original(self, *arguments, **options)

    Path.read_text = read_text  # type: ignore[method-assign]


def _be_windows() -> None:
    """Refuse what Windows refuses: opening directories, signals as a question, renaming or removing open files, fsync
    of files opened for reading, and text without a named encoding in the library's modules."""
    msvcrt: Any = types.ModuleType("msvcrt")
    msvcrt.LK_NBLCK, msvcrt.LK_UNLCK = 2, 0

    def locking(descriptor: int, mode: int, num_bytes: int) -> None:
        if os.lseek(descriptor, 0, os.SEEK_CUR) + num_bytes > 1 << 31:
            raise OverflowError("signed integer is greater than maximum")
        try:
            _real_flock(descriptor, fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    msvcrt.locking = locking
    sys.modules["msvcrt"] = msvcrt

    def kill(pid: int, number: int) -> None:
        raise AssertionError(f"os.kill({pid}, {number}) sends Ctrl-C or ends the process")

    def open_(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return _real_open(path, flags, *arguments, **options)

    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_fsync(descriptor)

    for name in ("MAP_PRIVATE", "MAP_SHARED", "PROT_READ", "PROT_WRITE", "MAP_NORESERVE"):
        if hasattr(mmap, name):
            delattr(mmap, name)
    os.kill, os.open, os.fsync = kill, open_, fsync  # type: ignore[assignment]
    for name in ("rename", "replace", "unlink", "remove"):
        setattr(os, name, _refusing_open_files(getattr(os, name)))
    for package in LIBRARY:
        warnings.filterwarnings("error", category=EncodingWarning, module=rf"{package}\b.*")


def _refusing_open_files(call: Any) -> Any:
    """Return `os.rename` or a function like it, which fails if a file that it moves, replaces or removes is open."""

    def checked(*paths: Any, **options: Any) -> None:
        used = _files_in_use()
        for path in paths:
            try:
                status = os.stat(path, follow_symlinks=False)
            except OSError:
                continue
            inside = os.path.realpath(path) + os.sep
            if (status.st_dev, status.st_ino) in used or (
                stat.S_ISDIR(status.st_mode) and any(name.startswith(inside) for name in used.values())
            ):
                raise PermissionError(
                    errno.EACCES, "The process cannot access the file because it is being used", os.fspath(path)
                )
        call(*paths, **options)

    return checked


def _files_in_use() -> dict[tuple[int, int], str]:
    """Return the names of the files that this process has open or mapped, by device and number."""
    used = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            name, status = os.readlink(f"/proc/self/fd/{entry}"), os.stat(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            used[status.st_dev, status.st_ino] = name
    with open("/proc/self/maps", encoding="utf-8") as maps:
        names = {line.split(maxsplit=5)[5].strip() for line in maps if len(line.split(maxsplit=5)) == 6}
    for name in names:
        if name.startswith("/"):
            try:
                status = os.stat(name)
            except OSError:
                continue
            used[status.st_dev, status.st_ino] = name
    return used
