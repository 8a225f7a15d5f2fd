"""Shared use of Ray by groups of runners. If groups have started Ray, it is shut down with the last group."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from episode_runners.remote.start import is_ray_running, loaded_ray, start_ray
from episodes.errors import EpisodeStateError
from episodes.storage.locks import try_lock
from episodes.storage.ownership import Owner

__all__ = ["RaySession"]

_PREFIX, _LOCK = "runners-", "driver.lock"


@dataclass(slots=True)
class _Started:
    """Ray instance that runner groups of this process have started or joined, and the number of these groups."""

    identity: tuple[str, str]
    is_cluster: bool  # joined, so that others may use it too
    temp_dir: str
    lock: Owner  # of `temp_dir`
    num_holds: int = 0


class RaySession:
    """Use of Ray by one runner group in this process. Creating a session starts Ray, unless Ray runs already.

    After Ray was shut down, no call of Ray is made: such a call would start Ray again, with ports that other machines
    reach.

    Args:
        num_cpus: number of one-CPU actors, if Ray is started.
        address: address of a cluster to join.

    Raises:
        EpisodeStateError: Ray runs in this process, and at another address.
    """

    _started: ClassVar[_Started | None] = None

    def __init__(self, num_cpus: int, address: str | None) -> None:
        is_running = is_ray_running()
        if not is_running:  # before `import ray`, whose settings `start_ray` makes
            RaySession._started = self._start(num_cpus, address)
        self.ray = loaded_ray()
        if is_running and address is not None:
            self._check_at(address)
        self.identity = _identity()
        started = RaySession._started
        self.started = started if started is not None and started.identity == self.identity else None
        if self.started is not None:
            self.started.num_holds += 1
        self.is_ended = False

    def _start(self, num_cpus: int, address: str | None) -> _Started:
        """Start Ray with a temporary directory, which is removed if this fails. Directories of killed processes are
        removed before.
        """
        _remove_abandoned()
        temp_dir = tempfile.mkdtemp(prefix=_PREFIX)
        try:
            lock = _lock_of(temp_dir)
            start_ray(num_cpus, address=address, temp_dir=temp_dir)
        except BaseException:
            shutil.rmtree(temp_dir, ignore_errors=True)
            raise
        return _Started(_identity(), address is not None, temp_dir, lock)

    def _check_at(self, address: str) -> None:
        """Raise `EpisodeStateError` if this process is connected to a Ray cluster at another address than `address`."""
        current = self.ray.get_runtime_context().gcs_address
        if address not in ("auto", current):
            raise EpisodeStateError(
                f"address={address!r}: Ray runs in this process already, at {current}; ray.shutdown() first, or leave "
                "address out to use it"
            )

    @property
    def is_for_groups_alone(self) -> bool:
        """Whether no other code than the runner groups of this process uses Ray, so that CPUs need not be reserved."""
        return self.started is not None and not self.started.is_cluster

    @property
    def is_there(self) -> bool:
        """Whether the Ray instance of this session still runs in this process."""
        return self.ray.is_initialized() and _identity() == self.identity

    def end(self) -> None:
        """End this group's use of Ray. Shut Ray down if groups have started Ray and no other group uses Ray."""
        if self.is_ended:
            return
        self.is_ended = True
        if self.started is None:
            return
        self.started.num_holds -= 1
        if self.started.num_holds:
            return
        if self.is_there:
            self.ray.shutdown()
        shutil.rmtree(self.started.temp_dir, ignore_errors=True)
        self.started.lock.release()


def _identity() -> tuple[str, str]:
    """Return the ids of the node and the job, which identify this process's connection to Ray."""
    context: Any = loaded_ray().get_runtime_context()
    return context.get_node_id(), context.get_job_id()


def _lock_of(folder: str) -> Owner:
    """Lock a temporary folder for this process, and return the owner of the lock."""
    owner = Owner("Ray's folder", Path(folder, _LOCK), refusal=f"{folder} is the folder of another process")
    owner.claim()
    return owner


def _remove_abandoned() -> None:
    """Remove temporary Ray folders of processes that ended without removing them,
    for example because they were killed.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            with (folder / _LOCK).open("r+b") as file:
                if try_lock(file.fileno()):
                    shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # a folder in use, of another user, or without a lock file
            continue
