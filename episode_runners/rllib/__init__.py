"""Sampling and learner pipelines of this library inside RLlib's algorithms."""

from __future__ import annotations

from episode_runners.rllib.installation import install, uninstall

__all__ = ["install", "uninstall"]
