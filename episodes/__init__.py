"""What happened: episodes, packs of them, how they are recorded, kept, moved and looked at. numpy only, never torch."""

from __future__ import annotations

__all__: list[str] = []
