"""Rollouts: the steps of N environments over T rows as one block on a device."""

from __future__ import annotations

from connectors.rollout.buffer import RolloutBuffer
from connectors.rollout.episodes import episodes_to_rollout, rollout_to_episodes

__all__ = ["RolloutBuffer", "rollout_to_episodes", "episodes_to_rollout"]
