"""Views: functions that compute the policy's inputs from observations and earlier steps, equally while acting and
learning.
"""

from __future__ import annotations

__all__: list[str] = []
