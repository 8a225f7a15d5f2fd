"""Learning algorithms, one per file, with their losses, optimizers and target networks."""

from __future__ import annotations

__all__: list[str] = []
