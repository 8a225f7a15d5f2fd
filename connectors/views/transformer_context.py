"""`TransformerContext`: view that gives a transformer policy the last k observations and actions as a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from episodes.columns import Columns
from episodes.history import History
from episodes.tracks.validation import checked_count

__all__ = ["TransformerContext"]


@dataclass(frozen=True)
class TransformerContext:
    """View that gives a transformer policy the last `k` observations and actions as sequences, with an attention mask.

    The columns are "obs" [B, k, ...], "attention_mask" [B, k] and "past_actions" [B, k, D]. "attention_mask" is true
    for observations that exist. "past_actions" has the action before each observation, one-hot or raveled.

    Args:
        k: number of observations in a sequence.

    Raises:
        InvalidArgument: `k` is not an int of at least 1.
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
