"""`TensorBoardLogger`: writes metrics as curves for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from episode_learners.loggers.curves import curves_of
from episode_learners.loggers.logger import Logger
from episodes.errors import MissingExtra, install_advice
from episodes.storage.files import local_path

__all__ = ["TensorBoardLogger"]


class TensorBoardLogger(Logger):
    """Logger that writes metrics as TensorBoard curves over environment steps, such as "test/returns_stat/mean". It
    needs the extra `tensorboard`.

    Args:
        folder: folder of the event files.
        intervals: see `Logger`.

    Raises:
        MissingExtra: tensorboard is not installed.
    """

    def __init__(self, folder: str | Path, intervals: Mapping[str, int] | None = None) -> None:
        super().__init__(intervals)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra(f"TensorBoardLogger needs tensorboard; {install_advice('tensorboard')}") from error
        self.folder = local_path(folder)
        self._make = SummaryWriter
        self._writer: Any = SummaryWriter(str(self.folder))

    def write(self, scope: str, metrics: Mapping[str, float], step: int) -> None:
        for name, value in curves_of(scope, metrics, step).items():
            self._writer.add_scalar(name, value, global_step=step)

    def describe(self, description: Mapping[str, Any]) -> None:
        for name, value in description.items():
            self._writer.add_text(name, f"    {value}")

    def resume(self, step: int) -> None:
        """Continue the curves of an interrupted run after `step`. TensorBoard hides points that the interrupted run
        wrote later.

        TensorBoard reads files in the order of their names, which start with the time in seconds. If a file of
        the current second exists, the method waits for the next second.
        """
        self._writer.close()
        while any(self.folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
            time.sleep(0.02)
        self._writer = self._make(str(self.folder), purge_step=step + 1)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
