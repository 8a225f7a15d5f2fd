"""Storage of a replay buffer: ring arrays, and links that connect steps to episodes."""

from __future__ import annotations

__all__ = []
