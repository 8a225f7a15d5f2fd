"""Benchmarks of exported policies: time of one action, time of import and load, and file size."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.figure import Counted, Figure, Side, Size, Timed, at_most

NEEDS = ("onnx", "onnxscript", "onnxruntime")


@lru_cache(maxsize=1)
def _exported() -> tuple[Any, Path]:
    """Return a recurrent actor with observation filter and frame stacking, and the path of its exported file."""
    from connectors import Actor
    from connectors.env_to_module import FrameStacking, MeanStdFilter
    from connectors.export import export
    from episode_learners import LSTMPolicy

    env = gym.make("CartPole-v1")
    pieces = [MeanStdFilter(), FrameStacking(num_frames=4)]
    actor = Actor(LSTMPolicy, env.observation_space, env.action_space, pieces=pieces)
    actor.env_to_module.rewrite(np.array([env.observation_space.sample() for _ in range(9)]), None, True)
    path = Path(tempfile.mkdtemp()) / "policy.onnx"
    export(actor, path, num_steps=20)
    return actor, path


def served_action(size: Size) -> Timed:
    """Time one action of the exported policy (`ServedPolicy.act`)."""
    from connectors.export.serve import ServedPolicy

    actor, path = _exported()
    policy, observation = ServedPolicy(path), actor.observation_space.sample()
    return Timed(lambda: policy.act(observation, 1.0))


def computed_action(size: Size) -> Timed:
    """Time one action of the original actor (`Actor.act`)."""
    actor, _ = _exported()
    observation = actor.observation_space.sample()
    _, state = actor.act(observation)
    return Timed(lambda: actor.act(observation, state, reward=1.0))


def _seconds(code: str, folder: Path) -> float:
    """Run Python code in a new process three times, and return the lowest CPU seconds."""
    code = f"import time; {code}; print(time.process_time())"
    command = [sys.executable, "-c", code]
    return min(
        float(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout) for _ in "123"
    )


def served_import(size: Size) -> Counted:
    """Measure the CPU seconds to start Python, import numpy and onnxruntime, and load the exported policy."""
    _, path = _exported()
    return Counted(_seconds("from serve import ServedPolicy; ServedPolicy('policy.onnx')", path.parent))


def library_import(size: Size) -> Counted:
    """Measure the CPU seconds to start Python and import the packages that act without export."""
    return Counted(_seconds("import connectors, episode_learners", Path(__file__).parents[1]))


def file_size(size: Size) -> Counted:
    """Count the bytes of the exported file."""
    return Counted(_exported()[1].stat().st_size)


def weights_size(size: Size) -> Counted:
    """Count the bytes of the network weights needed for acting, plus 20 kB."""
    actor, _ = _exported()
    weights = [weight for name, weight in actor.policy.named_parameters() if not name.startswith("critic")]
    return Counted(sum(weight.nbytes for weight in weights) + 20_000)


ACTION, LOADED = Side("served", served_action, NEEDS), Side("served", served_import, NEEDS)
FIGURES = (
    Figure("export/one action", ACTION, Side("actor", computed_action), at_most(0.4), "us"),
    Figure("export/import and load", LOADED, Side("library", library_import), at_most(0.1), "ms"),
    Figure(
        "export/file size", Side("ours", file_size, NEEDS), Side("weights + 20 kB", weights_size), at_most(1), "bytes"
    ),
)
