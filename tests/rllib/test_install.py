"""RLlib with `install`, in separate processes, because importing RLlib changes how a process logs."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_checks(*arguments: str) -> None:
    """Run files of this directory with pytest in a new process. The time limit of a test applies to each test of the
    new process, and not to the sum.
    """
    pytest.importorskip("ray")
    faulthandler.cancel_dump_traceback_later()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-W", "default"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "RAY_DISABLE_IMPORT_WARNING": "1"}
    call = [*command, *arguments]
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_install_in_one_process() -> None:
    names = ("config", "algorithm", "callback", "method", "multi_agent", "evaluation", "difference")
    run_checks(*(f"tests/rllib/{name}_checks.py" for name in names))


@pytest.mark.slow
def test_install_with_other_connectors_and_modules() -> None:
    run_checks(*(f"tests/rllib/{name}_checks.py" for name in ("algorithm", "benchmark", "evaluation")), "-m", "slow")


@pytest.mark.slow
def test_install_with_ray_actors() -> None:
    run_checks("tests/rllib/actor_checks.py", "-m", "slow")


@pytest.mark.slow
def test_install_with_killed_ray_actors() -> None:
    run_checks("tests/rllib/kill_checks.py", "-m", "slow")


@pytest.mark.slow
def test_installed_algorithms_learn() -> None:
    run_checks("tests/rllib/learning_checks.py", "-m", "slow")
