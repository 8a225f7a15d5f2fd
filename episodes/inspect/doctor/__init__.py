"""The doctor: lies about endings and data, found in an environment or in episodes by what they show."""

from __future__ import annotations

from episodes.inspect.doctor.examine import examine
from episodes.inspect.doctor.finding import Finding

__all__ = ["examine", "Finding"]
