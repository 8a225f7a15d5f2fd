"""Algorithms, one per file, with their optimizers and target networks."""

from __future__ import annotations

__all__: list[str] = []
