"""Differences between the ledgers of two runs are found by row. `test_killed_runs` compares ledgers of killed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from episode_learners import BC, BCConfig, MLPPolicy
from episode_learners.trainers import OfflineConfig, OfflineTrainer
from episodes import SingleAgentEpisode
from episodes.storage.ledger import difference


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
