"""`OneHotAgentId`: view that adds the agent's id as a one-hot vector to the policy's inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from episodes.history import History

__all__ = ["OneHotAgentId"]


class OneHotAgentId:
    """View that adds the id of each observation's agent to the policy's inputs, as a one-hot column "agent_id" [B,
    num_agents].

    It is for a module (policy) that acts for several agents. Agents that are not listed get zeros.

    Args:
        agent_ids: the agents' ids, in the order of the one-hot vector.
        column: name of the column.
    """

    def __init__(self, agent_ids: Iterable[Any], *, column: str = "agent_id") -> None:
        self.agent_ids, self.column = list(agent_ids), column

    def __call__(self, history: History) -> dict[str, Any]:
        owners = history.agent_ids
        return {self.column: np.stack([owners == agent_id for agent_id in self.agent_ids], 1).astype(np.float32)}
