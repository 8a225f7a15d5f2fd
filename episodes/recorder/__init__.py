"""Recorders that collect the steps of vector environments into packs of episodes."""

from __future__ import annotations

__all__: list[str] = []
