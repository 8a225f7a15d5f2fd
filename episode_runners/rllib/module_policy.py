"""`ModulePolicy`: an RLlib `RLModule` as a policy of this library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import tree

from episodes.tracks import nested

__all__ = ["ModulePolicy"]


class ModulePolicy:
    """Policy that calls an RLlib `RLModule`.

    Args:
        find: function that returns the module. RLlib may replace its module at any time.
        count: function that returns the number of env steps of all runners, for exploration schedules.

    Attributes:
        changes_batches: whether the module's `compute_values` adds, removes or moves columns of its batch.
    """

    def __init__(self, find: Callable[[], Any], count: Callable[[], int] = lambda: 0) -> None:
        self._find, self._count = find, count
        self.changes_batches = False

    @property
    def device(self) -> torch.device:
        """Device of the RLModule's first parameter, or the CPU."""
        parameters = getattr(self._find(), "parameters", tuple)
        return next((parameter.device for parameter in parameters()), torch.device("cpu"))

    def __call__(self, batch: Mapping[str, Any], explore: bool | None = None) -> Any:
        module = self._find()
        return module.forward_exploration(batch, t=self._count()) if explore else module.forward_inference(batch)

    def compute_values(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the RLModule's values [B], or [B, T] if it is recurrent, of the batch's observations."""
        columns = nested.map_leaves(lambda leaf: leaf, dict(batch))  # the module may change its dicts
        values = self._find().unwrapped().compute_values(columns)
        self.changes_batches |= _paths(columns) != _paths(dict(batch))
        return values

    def get_initial_state(self) -> dict[str, Any]:
        """Return the RLModule's recurrent state at an episode's start. It is empty without a recurrent state."""
        module = self._find().unwrapped()  # with several learners, the module is wrapped for them
        return module.get_initial_state() if module.is_stateful() else {}


def _paths(batch: dict[str, Any]) -> set[tuple[Any, ...]]:
    """Return the paths of the tensors in a batch."""
    return {path for path, _ in tree.flatten_with_path(batch)}
