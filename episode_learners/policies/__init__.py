"""Policies: from a batch of observations to action distributions, values and other outputs."""

from __future__ import annotations

__all__: list[str] = []
