"""Views: functions that compute the policy's inputs from observations and earlier steps, equally while acting and
learning.
"""

from __future__ import annotations

from connectors.views.piece import ViewPiece
from connectors.views.time_steps import time_steps
from connectors.views.view import View, Views

__all__ = ["View", "ViewPiece", "Views", "time_steps"]
