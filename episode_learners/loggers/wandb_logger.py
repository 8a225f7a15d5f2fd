"""`WandbLogger`: sends metrics to Weights & Biases, or stores them in the run's folder for `wandb sync`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from episode_learners.loggers.curves import curves_of
from episode_learners.loggers.logger import Logger
from episodes.errors import MissingExtra, install_advice
from episodes.storage.files import local_path

__all__ = ["WandbLogger"]

STEP = "env_step"  # what all curves are drawn over
_ID = "wandb-id.txt"  # in the folder: a run that is resumed goes on under its id


class WandbLogger(Logger):
    """Logger that sends metrics to Weights & Biases, under the same names of curves as `TensorBoardLogger`. It needs
    the extra `wandb`.

    The id of the W&B run is stored in the folder, so that a resumed run continues the same curves. W&B keeps what
    an interrupted run has sent after its last checkpoint.

    Args:
        folder: folder of the run. Offline files are in its subfolder `wandb`.
        project: the W&B project.
        mode: "online", "offline" or "disabled"; None uses the setting of W&B (`WANDB_MODE`).
        name: name of the run; by default W&B chooses one.
        intervals: see `Logger`.

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        intervals: Mapping[str, int] | None = None,
        *,
        project: str = "rl-episodes",
        mode: Literal["online", "offline", "disabled"] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(intervals)
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra(f"WandbLogger needs wandb; {install_advice('wandb')}") from error
        self.folder = local_path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        known = self.folder / _ID
        known_id = known.read_text(encoding="utf-8").strip() if known.exists() else None
        location: dict[str, Any] = {"project": project, "dir": str(self.folder), "mode": mode, "name": name}
        self.run = wandb.init(**location, id=known_id, resume="allow", reinit="create_new")
        known.write_text(f"{self.run.id}\n", encoding="utf-8")
        self.run.define_metric(STEP)
        self.run.define_metric("*", step_metric=STEP)

    def write(self, scope: str, metrics: Mapping[str, float], step: int) -> None:
        self.run.log({STEP: step, **curves_of(scope, metrics, step)})

    def describe(self, description: Mapping[str, Any]) -> None:
        self.run.config.update(dict(description), allow_val_change=True)

    def close(self) -> None:
        self.run.finish()
