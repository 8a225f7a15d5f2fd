"""Env runners: objects that let policies act in environments and return the episodes."""

from __future__ import annotations

from episode_runners.callbacks import RLlibCallback
from episode_runners.evaluation import Evaluation, evaluate
from episode_runners.metrics_logger import MetricsLogger
from episode_runners.multi_agent import MultiAgentEnvRunner
from episode_runners.multi_agent_stats import MultiAgentCollectStats
from episode_runners.recording import RecordSamples
from episode_runners.remote.actor import RunnerSample
from episode_runners.remote.group import RayRunnerGroup, RunnerReplacement
from episode_runners.remote.group_runner import GroupRunner
from episode_runners.remote.start import start_ray
from episode_runners.runner import Hook
from episode_runners.single_agent import SingleAgentEnvRunner
from episode_runners.stats import CollectStats
from episode_runners.vector_envs import make_vector_env

__all__ = [
    "SingleAgentEnvRunner",
    "CollectStats",
    "Evaluation",
    "Hook",
    "RLlibCallback",
    "RecordSamples",
    "MetricsLogger",
    "evaluate",
    "make_vector_env",
    "MultiAgentEnvRunner",
    "MultiAgentCollectStats",
    "RayRunnerGroup",
    "GroupRunner",
    "RunnerSample",
    "RunnerReplacement",
    "start_ray",
]
