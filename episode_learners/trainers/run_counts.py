"""`RunCounts`: counts, scores and duration of a training run so far."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["RunCounts"]


@dataclass(slots=True)
class RunCounts:
    """Counts, scores and duration of a training run so far, including the time before it was resumed.

    Checkpoints store them.

    Attributes:
        num_epochs, num_steps, num_updates, num_tests: Completed epochs, steps, updates and tests.
        best_score: Highest mean return of a test; -inf without tests.
        best_epoch: Epoch of that test.
        last_score: Mean return of the last test; None without tests.
        seconds: Duration of the run, as last read from its clock, without pauses before it was resumed.
        is_stopped: Whether the run ends after the current update.
    """

    num_epochs: int = 0
    num_steps: int = 0
    num_updates: int = 0
    num_tests: int = 0
    best_score: float = float("-inf")
    best_epoch: int = 0
    last_score: float | None = None
    seconds: float = 0.0
    is_stopped: bool = False
    _began: float = field(default_factory=time.perf_counter, repr=False, compare=False)

    def begin(self) -> None:
        """Let the clock continue from `seconds`."""
        self._began = time.perf_counter() - self.seconds

    def read_clock(self) -> float:
        """Set `seconds` to the duration of the run until now, and return it."""
        self.seconds = time.perf_counter() - self._began
        return self.seconds

    def get_state(self) -> dict[str, Any]:
        """Return all values by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "_began"}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the values that `get_state` returned. A value that `state` lacks stays as it is."""
        for name, value in state.items():
            setattr(self, name, value)
