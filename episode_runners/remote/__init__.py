"""Runners in separate processes, on this machine or others, by Ray (extra `ray`)."""

from __future__ import annotations

from episode_runners.remote.actor import RunnerSample
from episode_runners.remote.group import RayRunnerGroup, RunnerReplacement
from episode_runners.remote.group_runner import GroupRunner
from episode_runners.remote.start import start_ray

__all__ = ["GroupRunner", "RayRunnerGroup", "RunnerReplacement", "RunnerSample", "start_ray"]
