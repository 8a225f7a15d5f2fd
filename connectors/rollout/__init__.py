"""Rollouts: T steps of N environments as one TensorDict, and their conversion to episodes and back."""

from __future__ import annotations

__all__: list[str] = []
