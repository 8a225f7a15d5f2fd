"""Example views of a user: a context with a mask, and joint observations of several agents."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.history import History


def attention(history: History) -> dict[str, Any]:
    """Return a context with a mask and positions."""
    observed = history.observed(6)
    return {
        "obs": history.observations(6),
        "mask": observed,
        "position": np.where(observed, history.t[:, None] - np.arange(5, -1, -1), 0),
    }


def joint(history: History) -> dict[str, Any]:
    """Return the observations of all agents of an env step in one vector per agent."""
    agents = history.observations(2)
    return {"obs": np.concatenate([part.reshape(len(history), -1) for part in agents.values()], 1)}
