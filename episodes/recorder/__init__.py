"""Recorders of vector environments, which collect the steps of N environments and return them as episodes."""

from __future__ import annotations

__all__: list[str] = []
