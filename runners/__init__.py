"""Environment and policy in, episodes out."""

from __future__ import annotations

from runners.env_runner import SingleAgentEnvRunner
from runners.hooks import Hook
from runners.stats import CollectStats
from runners.vector_envs import make_vector_env

__all__ = [
    "SingleAgentEnvRunner",
    "CollectStats",
    "Hook",
    "make_vector_env",
]
