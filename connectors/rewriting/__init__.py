"""Connectors that change the observations that episodes store."""

from __future__ import annotations

__all__: list[str] = []
