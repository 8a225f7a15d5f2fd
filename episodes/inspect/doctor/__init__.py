"""The doctor finds problems of endings and data in environments and episodes."""

from __future__ import annotations

__all__: list[str] = []
