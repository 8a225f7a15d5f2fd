"""Recorders of vector environments: they collect N environments' steps and return them as episodes."""

from __future__ import annotations

__all__: list[str] = []
