"""`time_steps`: view that gives the policy the time step of each observation in its episode."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.columns import Columns
from episodes.history import History

__all__ = ["time_steps"]


def time_steps(history: History) -> dict[str, Any]:
    """Return the column "t" [B], float32: the time step of each observation in its episode. This function is a view."""
    return {Columns.T: history.t.astype(np.float32)}
