"""Connectors that change observations before episodes store them, such as normalization."""

from __future__ import annotations

__all__: list[str] = []
