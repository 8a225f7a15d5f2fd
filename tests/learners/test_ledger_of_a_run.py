"""A killed and resumed run has the same ledger as an uninterrupted run, and differences are found by row."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from episode_learners import BC, BCConfig, MLPPolicy
from episode_learners.trainers import OfflineConfig, OfflineTrainer
from episodes import SingleAgentEpisode
from episodes.storage.ledger import difference
from episodes.storage.ledger.ledger_reader import LedgerReader
from tests.code_rules import ROOT
from tests.learners.ledger_runs import trainer_of


def killed(kind: str, folder: Path, updates: int, at: int) -> None:
    arguments = [kind, str(folder), str(updates), str(at)]
    run = subprocess.run([sys.executable, "-m", "tests.learners.ledger_runs", *arguments], cwd=ROOT)
    assert run.returncode == -signal.SIGKILL


def test_ledger_of_killed_run_equals_that_of_whole_run(tmp_path: Path) -> None:
    trainer_of("dqn", tmp_path / "whole", 12).run()
    killed("dqn", tmp_path / "killed", 12, at=7)
    resumed = trainer_of("dqn", tmp_path / "killed", 12)
    assert resumed.resume()
    resumed.run()
    whole, resumed_reader = LedgerReader(tmp_path / "whole"), LedgerReader(tmp_path / "killed")
    assert len(whole) == len(resumed_reader) == resumed.algorithm.num_updates >= 11
    assert difference(whole, resumed_reader) is None
    assert whole.ids == resumed_reader.ids
    assert all((update.episode >= 0).all() for update in whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dqn", "ppo"])
def test_ledger_of_long_run_with_three_kills_is_equal(kind: str, tmp_path: Path) -> None:
    trainer_of(kind, tmp_path / "whole", 4000).run()
    for at in (1003, 2006, 3009):
        killed(kind, tmp_path / "killed", 4000, at)
    resumed = trainer_of(kind, tmp_path / "killed", 4000)
    assert resumed.resume()
    resumed.run()
    assert len(LedgerReader(tmp_path / "killed")) == resumed.algorithm.num_updates >= 3998
    assert difference(tmp_path / "whole", tmp_path / "killed") is None


def episodes_of(seed: int, lengths: list[int]) -> list[SingleAgentEpisode]:
    generator = np.random.default_rng(seed)
    return [
        SingleAgentEpisode.from_arrays(
            generator.random((length + 1, 3), np.float32), generator.integers(0, 2, length), np.ones(length), id_=str(i)
        )
        for i, length in enumerate(lengths)
    ]


def cloned(episodes: list[SingleAgentEpisode], folder: Path, learning_rate: float = 1e-3, seed: int = 0) -> Path:
    """Return the folder of a behavior cloning run with four episodes per update."""
    generator = torch.Generator().manual_seed(seed)
    policy = MLPPolicy(spaces.Box(0, 1, (3,)), spaces.Discrete(2), hidden_sizes=(4,), generator=generator)
    numbers: dict[str, Any] = {"steps_per_epoch": 60, "max_epochs": 1, "num_test_episodes": 0, "shows_progress": False}
    config = OfflineConfig(episodes_per_update=4, **numbers)
    algorithm = BC(policy, BCConfig(learning_rate=learning_rate))
    OfflineTrainer(algorithm, episodes, config, ledger=folder / "ledger").run()
    return folder


def test_ledger_diff_finds_a_swapped_episode(tmp_path: Path) -> None:
    lengths = [5, 3, 4, 6, 2, 7, 5, 4, 3, 8, 5, 6, 4, 5]
    episodes, other_episodes = episodes_of(0, lengths), episodes_of(1, lengths)
    whole = cloned(episodes, tmp_path / "whole")
    swapped = cloned([*episodes[:6], other_episodes[6], *episodes[7:]], tmp_path / "swapped")
    result = difference(whole, swapped)
    assert result is not None
    assert (result.update, result.row, result.what) == (2, 2 + 7, "content")
    assert "t=0 of episode 6" in result.first
    turned = [*episodes[:9], episodes[10], episodes[9], *episodes[11:]]
    result = difference(whole, cloned(turned, tmp_path / "turned"))
    assert result is not None
    assert (result.update, result.row, result.what) == (3, 3, "content")


def test_ledger_diff_separates_settings_and_weights(tmp_path: Path) -> None:
    episodes = episodes_of(0, [5] * 8)
    whole = cloned(episodes, tmp_path / "whole")
    begun_elsewhere = difference(whole, cloned(episodes, tmp_path / "begun elsewhere", seed=1))
    assert begun_elsewhere is not None
    assert begun_elsewhere.what == "weights"
    faster = difference(whole, cloned(episodes, tmp_path / "faster", learning_rate=1e-2))
    assert faster is not None
    assert (faster.update, faster.what) == (1, "settings")
