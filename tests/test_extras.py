"""The library without its extras can be imported."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.code_rules import ROOT

EXTRAS = [
    "aiohttp",
    "duckdb",
    "datasets",
    "envpool",
    "fsspec",
    "imageio",
    "matplotlib",
    "minari",
    "orjson",
    "pandas",
    "pettingzoo",
    "polars",
    "pyarrow",
    "ray",
    "tensorboard",
    "tensordict",
    "wandb",
    "xxhash",
    "zmq",
]
CODE = f"""
import importlib, pkgutil, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ImportError(f"{{name}} is not installed", name=name)

sys.meta_path.insert(0, Missing())
for name in ("episodes", "connectors", "episode_runners", "episode_learners"):
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."):
        if "__main__" not in module.name and not module.name.startswith("episode_runners.rllib."):  # derives from RLlib
            importlib.import_module(module.name)
"""


def test_every_module_imports_without_extras() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
