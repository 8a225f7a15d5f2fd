"""Storage of a replay buffer: arrays that overwrite their oldest items, and links between the steps of episodes."""

from __future__ import annotations

__all__ = []
