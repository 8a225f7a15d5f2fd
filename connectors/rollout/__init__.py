"""Rollouts: T steps of N environments as one TensorDict on a device."""

from __future__ import annotations

__all__: list[str] = []
