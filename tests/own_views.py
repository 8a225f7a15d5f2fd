"""Views as a user writes them: a context with a mask, and what several agents observe together."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.history import History


def attention(history: History) -> dict[str, Any]:
    """A context of our own, with positions."""
    seen = history.observed(6)
    return {
        "obs": history.observations(6),
        "mask": seen,
        "position": np.where(seen, history.t[:, None] - np.arange(5, -1, -1), 0),
    }


def joint(history: History) -> dict[str, Any]:
    """What all agents of an env step observe, in one vector each."""
    agents = history.observations(2)
    return {"obs": np.concatenate([part.reshape(len(history), -1) for part in agents.values()], 1)}
