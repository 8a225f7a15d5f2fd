"""An episode, and a new Python process, for tests of converters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes import SingleAgentEpisode

ROOT = Path(__file__).parents[2]
BOX = spaces.Box(-9, 9, (2,))


def some(steps: int = 3, id_: str = "a", **options: Any) -> SingleAgentEpisode:
    arrays = np.arange(2.0 * steps + 2, dtype=np.float32).reshape(-1, 2), np.arange(steps) + 2, np.arange(steps) / 4
    facts = {"observation_space": BOX, "action_space": spaces.Discrete(99, start=2), "id_": id_, "terminated": True}
    return SingleAgentEpisode.from_arrays(*arrays, **facts | options)


def run_python(*arguments: object, **environment: str) -> None:
    """Run Python with these arguments in a new process, which must succeed."""
    command, env = [sys.executable, *map(str, arguments)], {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
