"""The recipes of docs/how_to/tune_settings.md for Optuna and Weights & Biases, with fewer and shorter trials."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "tune_settings.md").read_text()


def recipe(names: dict[str, Any], first_line: str, **shorter: str) -> None:
    """Run the Python block of the page with this first line, with each text of `shorter` instead of the other."""
    (block,) = re.findall(rf"^```python\n({re.escape(first_line)}.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for text, replacement in shorter.values():
        assert text in block
        block = block.replace(text, replacement)
    exec(compile(block, "tune_settings.md", "exec"), names)


@pytest.fixture
def names() -> dict[str, Any]:
    """The names that the first example of the page defines, with trials of two epochs of 200 steps."""
    (session,) = re.findall(r"^```pycon\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    examples = doctest.DocTestParser().get_examples(session)
    names: dict[str, Any] = {}
    for example in examples[:2]:
        source = example.source.replace(
            '"steps_per_epoch": 1_000, "num_test_episodes": 5', '"steps_per_epoch": 200, "num_test_episodes": 2'
        )
        exec(compile(source, "tune_settings.md", "exec"), names)
    return names


def test_optuna_recipe_finds_the_best_of_its_trials(names: dict[str, Any]):
    optuna = pytest.importorskip("optuna", reason="the recipe needs optuna: pip install optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    recipe(names, "import optuna", fewer=("n_trials=30", "n_trials=3"))
    study = names["study"]
    assert len(study.trials) == 3
    assert study.best_value == max(trial.value for trial in study.trials if trial.value is not None)
    assert set(study.best_params) == {"learning_rate", "num_epochs"}
    assert all(trial.intermediate_values for trial in study.trials)


def test_wandb_recipe_stores_a_run_for_each_setting(names: dict[str, Any], tmp_path: Path, monkeypatch):
    pytest.importorskip("wandb")
    for name, value in {
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",
        "WANDB_DISABLE_GIT": "true",
        "WANDB__SERVICE_WAIT": "300",
        "WANDB_INIT_TIMEOUT": "300",
    }.items():
        monkeypatch.setenv(name, value)
    recipe(names, "import wandb")
    # wandb remembers the directory of its first run in this process, so `dir` names another one.
    folder = ('mode="offline"', f'mode="offline", dir={str(tmp_path)!r}')
    recipe(names, "import itertools", fewer=("[3e-4, 1e-3, 3e-3], [2, 8]", "[1e-3, 3e-3], [2]"), folder=folder)
    runs = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(runs) == 2
    assert all(path.stat().st_size > 0 for path in runs)
