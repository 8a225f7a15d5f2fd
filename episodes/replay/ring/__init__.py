"""Where steps lie: rings of rows, and the links that make them episodes again."""

from __future__ import annotations

__all__ = []
