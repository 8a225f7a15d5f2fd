"""Converted data of other libraries in use: `examine` reads the data, and algorithms learn from the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from episode_learners import BC, BCConfig, MLPPolicy
from episodes import SingleAgentEpisode
from episodes.converters import from_minari, read, to_minari, to_parquet, to_sb3
from episodes.inspect import examine

BOX, TWO = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)


def played(num: int, steps: int = 20, good: bool = True) -> list[SingleAgentEpisode]:
    """Return episodes in which the action 1 is right for a positive first number. Right actions get reward 1."""
    rng, made = np.random.default_rng(num), []
    for i in range(num):
        observations = rng.uniform(-1, 1, (steps + 1, 2)).astype(np.float32)
        right = (observations[:-1, 0] > 0).astype(np.int64)
        actions = right if good else rng.integers(0, 2, steps)
        rewards = (actions == right).astype(np.float32)
        known: dict[str, Any] = {"observation_space": BOX, "action_space": TWO, "truncated": True, "id_": f"e{i}"}
        made.append(SingleAgentEpisode.from_arrays(observations, actions, rewards, **known))
    return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def share_right(policy: Any, column: str) -> float:
    observations = torch.rand(200, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
    chosen = policy({"obs": observations}, explore=False)[column].argmax(-1)
    return float((chosen == (observations[:, 0] > 0)).float().mean())


def test_bc_learns_from_minari_data(home: Path) -> None:
    to_minari(played(15), "some/good-v0")
    data, _ = from_minari("some/good-v0")
    policy = MLPPolicy(BOX, TWO, hidden_sizes=(16,), generator=torch.Generator().manual_seed(0))
    BC(policy, BCConfig(learning_rate=1e-2, num_epochs=20, minibatch_size=64)).update(data)
    assert share_right(policy, "action_dist_inputs") > 0.9


def test_examine_reads_converted_data(home: Path) -> None:
    frozen = [
        SingleAgentEpisode.from_arrays(
            np.full((21, 2), np.nan, np.float32), np.zeros(20, int), np.zeros(20), observation_space=BOX,
            action_space=TWO, truncated=True, id_=f"n{i}",
        )
        for i in range(3)
    ]  # fmt: skip
    to_parquet(frozen, home / "steps")
    dataset, _ = to_minari(frozen, "some/nan-v0")
    buffer, _ = to_sb3(frozen)
    expected = {finding.kind for finding in examine(frozen)}
    assert expected
    for subject in (home / "steps", home / "some/nan-v0", dataset, buffer):
        assert expected & {finding.kind for finding in examine(read(subject)[0])}, subject
    good, _ = to_minari(played(3), "some/fine-v0")
    assert examine(read(good)[0]) == examine(played(3))
