"""Content of notebook views: functions that build a `Card` for each kind of object, later rendered as HTML."""

from __future__ import annotations

__all__: list[str] = []
