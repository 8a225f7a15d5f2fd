"""Rollouts: the steps of N environments over T rows as one block on a device."""

from __future__ import annotations

__all__: list[str] = []
