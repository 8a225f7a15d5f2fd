"""`Progress`: a line for each epoch of a run, and a bar with steps, time left, test score, loss, return and speed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import isfinite
from shutil import get_terminal_size
from types import TracebackType
from typing import Self

from tqdm import tqdm

__all__ = ["Progress"]

# The bar is last, because a narrow terminal cuts the end of the line.
FORMAT = "{desc} {n_fmt}/{total_fmt} {elapsed}<{remaining}{postfix} {rate_noinv_fmt} |{bar}|"
ORDER = ("test", "loss", "return")


class Progress:
    """Progress of a run on stderr: a bar on a terminal, and a line for each epoch, which stays and suits log files.

    Args:
        total: most steps of the whole run. The time left refers to them; a run may end earlier.
        done: steps of an earlier part of the run.
    """

    def __init__(self, total: int, done: int, is_shown: bool) -> None:
        has_bar = is_shown and sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            initial=done,
            unit=" steps",
            unit_scale=True,
            disable=not has_bar,
            bar_format=FORMAT,
            leave=False,
        )
        self._is_shown = is_shown
        self._texts: dict[str, str] = {}
        self._epoch = ""
        self._num_steps = done

    def begin(self, epoch: int, num_epochs: int) -> None:
        """Start the display of a new epoch."""
        self._end_epoch()
        self._epoch = f"epoch {epoch}/{num_epochs}"
        self._bar.ncols = get_terminal_size().columns
        self._bar.set_description_str(self._epoch, refresh=False)

    def add(self, num_steps: int) -> None:
        """Advance the bar by the environment steps of one collection."""
        self._num_steps += num_steps
        if not self._bar.disable:
            self._bar.set_postfix_str(self._text(), refresh=False)
            # the last sample of an epoch may exceed the total, after which tqdm would not show it
            self._bar.total = max(self._bar.total, self._bar.n + num_steps)
            self._bar.update(num_steps)

    def note(self, metrics: Mapping[str, float], kind: str = "return") -> None:
        """Show the mean return, labelled `kind`, and the first loss among the metrics."""
        if not self._is_shown:
            return
        mean = metrics.get("mean_return", float("nan"))
        if isfinite(mean):
            self._texts[kind] = f"{mean:.1f}"
        loss = next((value for name, value in metrics.items() if name.split("/")[0].endswith("loss")), None)
        if loss is not None:
            self._texts["loss"] = f"{loss:.3g}"

    def _text(self) -> str:
        return ", ".join(f"{name} {self._texts[name]}" for name in ORDER if name in self._texts)

    def _end_epoch(self) -> None:
        """Print the line of the epoch that ended."""
        if self._is_shown and self._epoch:
            texts = [f"{self._epoch}: {self._num_steps:,} steps", self._text()]
            tqdm.write(", ".join(filter(None, texts)), file=sys.stderr)
        self._epoch = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_epoch()
        self._bar.close()
