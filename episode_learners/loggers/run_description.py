"""Description of a training run, from which the run can be reproduced."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from typing import Any

__all__ = ["describe_run"]

_PACKAGES = ("rl-episodes", "numpy", "torch", "gymnasium")


def describe_run(**configuration: object) -> dict[str, Any]:
    """Return a dict that describes a training run, so that it can be reproduced: configuration, command line, package
    versions and git commit.
    """
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {"command": sys.argv, "configuration": configuration, "versions": versions, "git": _git_state()}


def _git_state() -> dict[str, Any]:
    """Return the git commit of the working directory and whether files have changed since, or an empty dict if git is
    not available.
    """
    try:
        commit = _output_of("git", "rev-parse", "HEAD")
        return {
            "commit": commit,
            "is_changed": bool(_output_of("git", "status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return {}


def _output_of(*command: str) -> str:
    """Run a command, and return its output as text."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    return done.stdout.strip()
