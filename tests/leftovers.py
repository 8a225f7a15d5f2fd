"""What a process has that must be gone when its work is done: threads, processes, listening sockets, shared memory."""

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
    """Whether nothing may be left of the tests of a file."""
    return any(room in test.as_posix() for room in ROOMS)


def there_is() -> Counter[str]:
    """What this process has now, in words."""
    process = psutil.Process()
    threads = [thread for thread in threading.enumerate() if type(thread).__name__ not in _SHARED]
    found = Counter(f"thread {thread.name}" for thread in threads)
    found += Counter(f"process {child}" for child in map(_described, process.children(recursive=True)) if child)
    connections = process.net_connections(kind="inet")
    found += Counter(f"listening at {there.laddr}" for there in connections if there.status == psutil.CONN_LISTEN)
    maps = Path("/proc/self/maps").read_text().splitlines() if Path("/proc/self/maps").exists() else []
    shared = {line.split()[5] for line in maps if "/dev/shm/" in line}
    found += Counter(f"shared memory {path}" for path in shared if not path.startswith(_SEMAPHORES))
    return found


def _described(child: psutil.Process) -> str:
    """The command that a process had when it was first seen; nothing for one that is gone, or belongs to all tests."""
    try:
        command = _commands.setdefault((child.pid, child.create_time()), " ".join(child.cmdline()))
        return "" if any(tracker in command for tracker in _TRACKERS) else f"{child.pid} {command}"
    except psutil.NoSuchProcess:
        return ""


def left_since(before: Counter[str], seconds: float = 60.0) -> list[str]:
    """What there is more than before, once it had so much time to go."""
    deadline = time.monotonic() + seconds
    while (left := there_is() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return sorted(left)
