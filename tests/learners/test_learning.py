"""Tested settings solve their tasks: continuous actions, a task that needs memory, and mixed data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from episode_learners.run import Run
from episode_runners import SingleAgentEnvRunner
from episodes.pack import EpisodePack
from episodes.storage import EpisodeWriter

pytestmark = pytest.mark.slow
HIDDEN = "episode_learners.environments:CartPoleWithoutVelocities-v1"


def best_score(run: Run, goal: float) -> float:
    run.trainer["shows_progress"] = False
    return run.make(stop_fn=lambda score: score >= goal).run().best_score


@pytest.mark.parametrize(("algo", "env", "goal"), [("ppo", "Pendulum-v1", -250), ("recurrent-ppo", HIDDEN, 450)])
def test_settings_reach_the_goal(algo: str, env: str, goal: float) -> None:
    assert best_score(Run.of_preset(algo, env), goal) >= goal


def test_policy_without_memory_does_not_solve_hidden_velocities() -> None:
    blind = Run.of_preset("ppo", "CartPole-v1")
    blind.env = HIDDEN
    assert best_score(blind, 450) < 150


class SwingsUp:
    """Controller that gains energy until the pendulum is nearly upright, and balances the pendulum."""

    def __call__(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        cos, sin, speed = batch["obs"].unbind(-1)
        lacks_energy = speed.square() / 2 + 10 * cos < 10
        swinging = 2 * speed.sign() * torch.where(lacks_energy, 1, -1)
        torque = torch.where(cos > 0.8, -8 * sin - 2 * speed, swinging)
        return {"actions": (torque / 2).clamp(-1, 1).unsqueeze(-1)}


def test_cql_exceeds_the_mean_return_of_mixed_data(tmp_path: Path) -> None:
    with (
        SingleAgentEnvRunner("Pendulum-v1", SwingsUp(), num_envs=4, seed=0) as runner,
        EpisodeWriter(tmp_path) as writer,
    ):
        packs = [runner.sample(num_episodes=24, random_actions=True), runner.sample(num_episodes=12)]
        for pack in packs:
            writer.add(pack)
    mean, best = EpisodePack.concat(packs).returns().mean(), packs[1].returns().mean()
    assert best > -250
    run = Run.of_preset("continuous-cql", "Pendulum-v1")
    run.data, run.trainer = str(tmp_path), {**run.trainer, "max_epochs": 8, "shows_progress": False}
    result = run.make(stop_fn=lambda score: score > mean + 100).run()
    assert result.best_score > mean + 100
