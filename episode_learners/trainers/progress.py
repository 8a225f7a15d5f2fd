"""`Progress`: progress display of a training run, with a line per epoch and a bar that shows steps, time left, test
score, loss, return and speed.
"""

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
FORMAT = "{desc} {percentage:.0f}% {elapsed}<{remaining}{postfix} {rate_noinv_fmt} |{bar}|"
ORDER = ("test", "loss", "return")


class Progress:
    """Progress display of a training run on stderr: a bar if stderr is a terminal, and a line of text after each epoch,
    also for log files.

    Args:
        total: largest number of steps of the whole run, from which the time left is computed. A run may end earlier.
        done: steps of an earlier part of the run.
        is_shown: whether anything is displayed.
    """

    def __init__(self, total: int, done: int, is_shown: bool) -> None:
        has_bar = is_shown and sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            initial=done,
            unit="",
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
        """Begin the display of the epoch number `epoch`, and print the line of the epoch before."""
        self._end_epoch()
        self._epoch = f"epoch {epoch}/{num_epochs}"
        self._bar.ncols = get_terminal_size().columns
        self._bar.set_description_str(self._epoch, refresh=False)

    def add(self, num_steps: int) -> None:
        """Advance the progress bar by `num_steps` environment steps."""
        self._num_steps += num_steps
        if not self._bar.disable:
            self._bar.set_postfix_str(self._text(), refresh=False)
            # the last sample of an epoch may exceed the total, after which tqdm would not show it
            self._bar.total = max(self._bar.total, self._bar.n + num_steps)
            self._bar.update(num_steps)

    def note(self, metrics: Mapping[str, float], kind: str = "return") -> None:
        """Display the mean return (labelled `kind`, such as "test") and the first loss of `metrics` with the
        progress.
        """
        if not self._is_shown:
            return
        mean = metrics.get("mean_return", float("nan"))
        if isfinite(mean):
            self._texts[kind] = f"{mean:.1f}"
        loss = next((value for name, value in metrics.items() if name.split("/")[0].endswith("loss")), None)
        if loss is not None:
            self._texts["loss"] = f"{loss:.3g}"

    def _text(self) -> str:
        """Return the text of the latest test score, loss and return, such as "test 195.0, loss 0.1"."""
        return ", ".join(f"{name} {self._texts[name]}" for name in ORDER if name in self._texts)

    def _end_epoch(self) -> None:
        """Print the line with steps and scores of the epoch that has ended."""
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
