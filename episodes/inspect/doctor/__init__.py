"""The doctor finds problems of endings and data in environments and episodes."""

from __future__ import annotations

from episodes.inspect.doctor.examine import examine
from episodes.inspect.doctor.finding import Finding

__all__ = ["examine", "Finding"]
