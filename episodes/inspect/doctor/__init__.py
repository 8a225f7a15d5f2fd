"""Automatic checks (the "doctor") that find faulty endings and faulty data in environments and episodes."""

from __future__ import annotations

__all__: list[str] = []
