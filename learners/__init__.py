"""Batches in, better policies out."""

from __future__ import annotations

__all__: list[str] = []
