"""What a run shows while it goes on: a bar with steps, speed and time left, the newest return and loss."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from types import TracebackType
from typing import Self

from tqdm import tqdm

__all__ = ["Progress"]


class Progress:
    """One bar for all epochs. Time left is that to `total`: a run may be done earlier.

    Args:
        total: steps of the whole run, at most.
        done: those of an earlier part of it.
    """

    def __init__(self, total: int, done: int, is_shown: bool) -> None:
        self._bar = tqdm(total=total, initial=done, unit=" steps", unit_scale=True, disable=not is_shown)
        self._is_shown = is_shown
        self._words: dict[str, str] = {}

    def begin(self, epoch: int, most: int) -> None:
        """An epoch begins."""
        self._bar.set_description(f"epoch {epoch}/{most}", refresh=False)

    def add(self, num_steps: int) -> None:
        """So many steps more were taken."""
        if self._is_shown:
            self._write()
            # the last sample of an epoch may go beyond its steps, and tqdm forgets a total that was passed
            self._bar.total = max(self._bar.total, self._bar.n + num_steps)
            self._bar.update(num_steps)

    def note(self, metrics: Mapping[str, float], kind: str = "return") -> None:
        """Show a mean return, if there is one, as `kind`, and the first loss."""
        if not self._is_shown:
            return
        mean = metrics.get("mean_return", float("nan"))
        if isfinite(mean):
            self._words[kind] = f"{mean:.1f}"
        loss = next((value for name, value in metrics.items() if name.endswith("loss")), None)
        if loss is not None:
            self._words["loss"] = f"{loss:.3g}"

    def _write(self) -> None:
        self._bar.set_postfix_str(", ".join(f"{name} {value}" for name, value in self._words.items()), refresh=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        # however short the run was (tqdm draws ten times a second at most), its end is drawn, and it stays
        if self._is_shown:
            self._write()
        self._bar.close()
