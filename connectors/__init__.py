"""Episodes into batches, batches into tensors, model outputs into actions."""

from __future__ import annotations

__all__: list[str] = []
