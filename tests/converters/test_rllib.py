"""Tests of RLlib conversions in a new process, since importing RLlib changes the logging of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_rllib_checks_pass_in_new_process() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(root)} | {"PYTEST_ADDOPTS": ""}
    checks = "tests/converters/rllib_checks.py"
    done = subprocess.run([*command, checks], cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
