"""Storage of a replay buffer: rings of rows, and the links that connect steps to episodes."""

from __future__ import annotations

__all__ = []
