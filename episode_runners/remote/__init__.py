"""Runners in separate processes, on this machine or others, by means of Ray (extra `ray`)."""

from __future__ import annotations

__all__: list[str] = []
