"""Policies: neural networks that map a batch of observations to inputs of an action distribution, values and other
outputs.
"""

from __future__ import annotations

__all__: list[str] = []
