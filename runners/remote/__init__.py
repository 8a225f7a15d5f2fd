"""Runners in processes of their own, here or on other machines, by Ray (extra `ray`)."""

from __future__ import annotations

from runners.remote.group import RayRunnerGroup, Replacement
from runners.remote.group_runner import GroupRunner
from runners.remote.sampling import RunnerSample
from runners.remote.start import start_ray

__all__ = ["GroupRunner", "RayRunnerGroup", "Replacement", "RunnerSample", "start_ray"]
