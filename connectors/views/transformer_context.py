"""View that gives the policy the last k steps as a sequence, for attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from episodes.columns import Columns
from episodes.history import History
from episodes.tracks.validation import checked_count

__all__ = ["TransformerContext"]


@dataclass(frozen=True)
class TransformerContext:
    """View of the last k steps: "obs" [B, k, ...], "attention_mask" [B, k] and "past_actions" [B, k, D].

    "attention_mask" is true for observations that exist. "past_actions" has the action before each observation, one-hot
    or raveled.
    """

    k: int = 20

    def __post_init__(self) -> None:
        checked_count("k", self.k)

    def __call__(self, history: History) -> dict[str, Any]:
        return {
            Columns.OBS: history.observations(self.k),
            "attention_mask": history.observed(self.k),
            "past_actions": history.flat_actions(self.k),
        }
