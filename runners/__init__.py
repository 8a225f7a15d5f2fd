"""Environment and policy in, episodes out."""

from __future__ import annotations

__all__: list[str] = []
