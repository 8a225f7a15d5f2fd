"""Integration into RLlib: its algorithms sample and learn with the pipelines of this library."""

from __future__ import annotations

from episode_runners.rllib.installation import install, uninstall

__all__ = ["install", "uninstall"]
