"""View with the agent's id as a one-hot vector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from episodes.history import History

__all__ = ["OneHotAgentId"]


class OneHotAgentId:
    """View that adds "agent_id" [B, num_agents], one-hot. Agents that are not listed get zeros.

    It is for a module that acts for several agents.
    """

    def __init__(self, agent_ids: Iterable[Any], *, column: str = "agent_id") -> None:
        self.agent_ids, self.column = list(agent_ids), column

    def __call__(self, history: History) -> dict[str, Any]:
        owners = history.agent_ids
        return {self.column: np.stack([owners == agent_id for agent_id in self.agent_ids], 1).astype(np.float32)}
