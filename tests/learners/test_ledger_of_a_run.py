"""Differences between the ledgers of two runs are found by row. `test_killed_runs` compares ledgers of killed runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from episode_learners import BC, BCConfig, MLPPolicy
from episode_learners.trainers import OfflineConfig, OfflineTrainer
from episode_learners.trainers.run_settings import FREE, settings_of
from episodes import SingleAgentEpisode
from episodes.storage.ledger import LedgerReader, difference
from episodes.storage.ledger.row_hashes import hash_of_values


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
    cloning(episodes, folder, learning_rate, seed).run()
    return folder


def cloning(episodes: list[SingleAgentEpisode], folder: Path, learning_rate: float = 1e-3, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    policy = MLPPolicy(spaces.Box(0, 1, (3,)), spaces.Discrete(2), hidden_sizes=(4,), generator=generator)
    numbers: dict[str, Any] = {"steps_per_epoch": 60, "max_epochs": 1, "num_test_episodes": 0, "shows_progress": False}
    config = OfflineConfig(episodes_per_update=4, **numbers)
    algorithm = BC(policy, BCConfig(learning_rate=learning_rate))
    return OfflineTrainer(algorithm, episodes, config, ledger=folder / "ledger")


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


class Wider(torch.nn.Linear):
    """Layer that has another `repr`."""


def change_rate(trainer: Any) -> None:
    trainer.algorithm.set_learning_rates(dict.fromkeys(trainer.algorithm.optimizers, 1e-4))


def change_algorithm_config(trainer: Any) -> None:
    trainer.algorithm.config = replace(trainer.algorithm.config, learning_rate=0.5)


def change_trainer_config(trainer: Any) -> None:
    trainer.config = replace(trainer.config, episodes_per_update=2)


def change_policy(trainer: Any) -> None:
    trainer.algorithm.policy.extra = Wider(1, 1)


def change_nothing(trainer: Any) -> None:
    pass


class ChangingHook:
    """Hook that changes a trainer at an event, from the second update on."""

    def __init__(self, event: str, change: Callable[[Any], None]) -> None:
        self._change = change
        setattr(self, event, self._run)

    def _run(self, trainer: Any, *_: object) -> None:
        if trainer.num_updates >= 2:
            self._change(trainer)


def settings_hash(trainer: Any) -> int:
    algorithm = trainer.algorithm
    settings = {"trainer": type(trainer).__name__, **settings_of(trainer.config, algorithm, trainer.runner)}
    rates = {name: optimizer.learning_rate for name, optimizer in algorithm.optimizers.items()}
    return hash_of_values({**{name: value for name, value in settings.items() if name not in FREE}, "rates": rates})


@pytest.mark.parametrize("event", ["on_update", "on_epoch", "between runs"])
@pytest.mark.parametrize(
    "change", [change_nothing, change_rate, change_algorithm_config, change_trainer_config, change_policy]
)
def test_ledger_records_settings_of_each_update(event: str, change: Callable[[Any], None], tmp_path: Path) -> None:
    """Settings that a hook or the caller changes are those of the next update, as if all were read at each update."""
    trainer = cloning(episodes_of(0, [5] * 12), tmp_path)
    trainer.config = replace(trainer.config, max_epochs=2)
    expected: list[int] = []
    note = trainer.ledger.note

    def noting(*args: Any, **kwargs: Any) -> None:
        expected.append(settings_hash(trainer))
        note(*args, **kwargs)

    trainer.ledger.note = noting
    if event != "between runs":
        trainer.hooks.append(ChangingHook(event, change))
    trainer.run()
    change(trainer)
    trainer.config = replace(trainer.config, max_epochs=3)
    trainer.run()
    assert [update.settings for update in LedgerReader(tmp_path)] == expected
    assert len(set(expected)) == 1 + (change is not change_nothing)


def test_ledger_reads_settings_once_per_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a run are read when an epoch begins, and not for each update."""
    trainer = cloning(episodes_of(0, [5] * 12), tmp_path)
    texts: list[int] = []
    monkeypatch.setattr(type(trainer.algorithm.policy), "__repr__", lambda policy: texts.append(0) or "policy")
    trainer.run()
    assert len(LedgerReader(tmp_path)) == 3
    assert len(texts) == 1
