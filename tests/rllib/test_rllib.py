"""RLlib with `install`, in separate processes, because importing RLlib changes how a process logs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_checks(name: str) -> None:
    """Run the tests of one file of this directory in a new process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-W", "default"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "RAY_DISABLE_IMPORT_WARNING": "1"}
    checks = [*command, f"tests/rllib/{name}.py"]
    done = subprocess.run(checks, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["config_checks"])
def test_install_in_rllib(name: str) -> None:
    pytest.importorskip("ray")
    run_checks(name)
