"""Adapters that make environments of other libraries Gymnasium vector environments."""

from __future__ import annotations

from episode_runners.environments.envpool import EnvPoolVectorEnv
from episode_runners.environments.torch_rollout import fill_rollout
from episode_runners.environments.torch_simulator import TorchVectorEnv

__all__ = ["EnvPoolVectorEnv", "TorchVectorEnv", "fill_rollout"]
