"""Description of a training run, with the data needed to reproduce the run."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from typing import Any

__all__ = ["describe_run"]

_PACKAGES = ("rl-episodes", "numpy", "torch", "gymnasium")


def describe_run(**configuration: Any) -> dict[str, Any]:
    """Return configuration, command line, versions and git state, for reproducing a run."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {"command": sys.argv, "configuration": configuration, "versions": versions, "git": _git()}


def _git() -> dict[str, Any]:
    """Return the commit of the working directory and whether it has changes, or an empty dict without git."""
    try:
        commit = _said("git", "rev-parse", "HEAD")
        return {"commit": commit, "is_changed": bool(_said("git", "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return {}


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    return done.stdout.strip()
