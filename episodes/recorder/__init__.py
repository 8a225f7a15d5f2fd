"""Recorders that turn vector steps into packs."""

from __future__ import annotations

__all__: list[str] = []
