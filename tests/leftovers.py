"""Resources that must be released after a test: threads, processes, listening sockets, shared memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import psutil

ROOMS = ("episodes/transport/", "runners/test_ray_group.py", "connectors/test_prefetch.py")
"""The tests that are watched: whose code starts such things."""

_SHARED = ("GarbageCollectorThread", "TMonitor")  # threads that pyzmq and tqdm start once for the whole process
_TRACKERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # likewise processes, of multiprocessing
_commands: dict[tuple[int, float], str] = {}
_SEMAPHORES = "/dev/shm/sem."  # locks of multiprocessing, of which tqdm makes one for the whole process


def is_watched(test: Path) -> bool:
    """Return True if the tests of this file must release all resources."""
    return any(room in test.as_posix() for room in ROOMS)


def there_is() -> Counter[str]:
    """Return descriptions of the resources of this process, with counts."""
    process = psutil.Process()
    threads = [thread for thread in threading.enumerate() if type(thread).__name__ not in _SHARED]
    resources = Counter(f"thread {thread.name}" for thread in threads)
    resources += Counter(f"process {child}" for child in map(_described, process.children(recursive=True)) if child)
    connections = process.net_connections(kind="inet")
    resources += Counter(
        f"listening at {connection.laddr}" for connection in connections if connection.status == psutil.CONN_LISTEN
    )
    maps = Path("/proc/self/maps").read_text().splitlines() if Path("/proc/self/maps").exists() else []
    shared = {line.split()[5] for line in maps if "/dev/shm/" in line}
    resources += Counter(f"shared memory {path}" for path in shared if not path.startswith(_SEMAPHORES))
    return resources


def _described(child: psutil.Process) -> str:
    """Return the newest known command of a process, or "" for a process that ended or belongs to all tests.

    The command is empty after the end of a process that nobody waited for, and while a process starts.
    """
    try:
        started = (child.pid, child.create_time())
        command = _commands[started] = " ".join(child.cmdline()) or _commands.get(started, "")
        return "" if any(tracker in command for tracker in _TRACKERS) else f"{child.pid} {command}"
    except psutil.NoSuchProcess:
        return ""


def left_since(before: Counter[str], seconds: float = 60.0) -> list[str]:
    """Return descriptions of new resources that are not released within `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := there_is() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return sorted(left)
