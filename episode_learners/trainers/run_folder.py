"""`RunFolder`: folder of a training run, with its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from episode_learners.trainers.checkpoint import save_checkpoint
from episodes.storage.files import local_path, remove_drafts
from episodes.storage.ownership import Owner
from episodes.storage.runs import LOCK, STATUS

__all__ = ["RunFolder"]

_NUM_CHECKPOINTS = 2  # the newest, and the one before it


class RunFolder:
    """Folder of a training run, with its checkpoints. It belongs to one trainer at a time.

    Args:
        path: the folder, or None: there are no checkpoints.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = None if path is None else local_path(path)
        self._owner = Owner(  # during calls that write to the folder
            f"the trainer of {path}",
            None if self.path is None else self.path / LOCK,
            refusal=f"{path}: another trainer writes checkpoints there; end its run, or give another folder",
            remedy="make a trainer with another folder there",
        )

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Context manager in which no other trainer writes to the folder. Drafts of killed trainers are removed.

        Raises:
            InvalidArgument: another trainer, of this or another process, writes to the folder.
            EpisodeStateError: this is a process that was forked from the one that trains.
        """
        if self.path is None or self._owner.is_active:
            yield
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._owner.claim()
            remove_drafts(self.path / STATUS)
            for draft in self.path.glob(".checkpoint-*.pt.*.*"):
                remove_drafts(draft.with_name(draft.name[1:].rpartition(".pt.")[0] + ".pt"))
            yield
        finally:
            self._owner.release()

    def checkpoints(self) -> list[Path]:
        """Return the paths of all checkpoints, oldest first. The list is empty without a folder."""
        return [] if self.path is None else sorted(self.path.glob("checkpoint-*.pt"))

    def checkpoint_of(self, epoch: int) -> Path:
        """Return the path of the checkpoint after `epoch` epochs, which may not exist yet."""
        return Path(self.path or "") / f"checkpoint-{epoch:06d}.pt"

    def write_checkpoint(self, epoch: int, state: dict[str, Any]) -> Path:
        """Write the checkpoint after `epoch` epochs, remove old ones, and return its path."""
        path = self.checkpoint_of(epoch)
        save_checkpoint(path, state)
        written = [checkpoint for checkpoint in self.checkpoints() if checkpoint.name <= path.name]
        for old in written[:-_NUM_CHECKPOINTS]:
            old.unlink()
        return path
