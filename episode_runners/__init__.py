"""Env runners: objects that let policies act in environments and return the episodes."""

from __future__ import annotations

from rl_episodes import check_packages

check_packages("episodes", "connectors")  # a user's package of the same name may be found first

from episode_runners.callbacks import RLlibCallback
from episode_runners.evaluation import evaluate
from episode_runners.metrics_logger import MetricsLogger
from episode_runners.multi_agent import MultiAgentEnvRunner
from episode_runners.recording import RecordSamples
from episode_runners.remote.group import RayRunnerGroup
from episode_runners.remote.group_runner import GroupRunner
from episode_runners.remote.start import start_ray
from episode_runners.runner import Hook
from episode_runners.single_agent import SingleAgentEnvRunner
from episode_runners.vector_envs import make_vector_env

__all__ = [
    "SingleAgentEnvRunner",
    "Hook",
    "RLlibCallback",
    "RecordSamples",
    "MetricsLogger",
    "evaluate",
    "make_vector_env",
    "MultiAgentEnvRunner",
    "RayRunnerGroup",
    "GroupRunner",
    "start_ray",
]
