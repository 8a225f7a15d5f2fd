"""Views: what the policy sees at an observation, the same while acting and learning."""

from __future__ import annotations

from connectors.views.agent_id import OneHotAgentId
from connectors.views.flatten import FlattenObservations
from connectors.views.frame_stacking import FrameStacking
from connectors.views.piece import ViewPiece
from connectors.views.previous_steps import PrevActionsPrevRewards
from connectors.views.time_steps import time_steps
from connectors.views.transformer_context import TransformerContext
from connectors.views.view import View, Views

__all__ = [
    "FlattenObservations",
    "FrameStacking",
    "OneHotAgentId",
    "PrevActionsPrevRewards",
    "TransformerContext",
    "View",
    "ViewPiece",
    "Views",
    "time_steps",
]
