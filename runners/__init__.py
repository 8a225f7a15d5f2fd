"""Environment and policy in, episodes out."""

from __future__ import annotations

from runners.callbacks import RLlibCallback
from runners.evaluation import Evaluation, evaluate
from runners.metrics_logger import MetricsLogger
from runners.multi_agent import MultiAgentEnvRunner
from runners.multi_agent_stats import MultiAgentCollectStats
from runners.recording import RecordSamples
from runners.remote import GroupRunner, RayRunnerGroup, Replacement, RunnerSample, start_ray
from runners.runner import Hook
from runners.single_agent import SingleAgentEnvRunner
from runners.stats import CollectStats
from runners.vector_envs import make_vector_env

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
    "Replacement",
    "start_ray",
]
