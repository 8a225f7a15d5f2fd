"""Storage of a replay buffer: arrays used as rings, and links between the steps of each episode."""

from __future__ import annotations

__all__ = []
