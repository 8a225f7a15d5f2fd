"""How far the episode has come."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.columns import Columns
from episodes.history import History

__all__ = ["time_steps"]


def time_steps(history: History) -> dict[str, Any]:
    """A view: column "t" [B], the time step of each observation in its episode, float32."""
    return {Columns.T: history.t.astype(np.float32)}
