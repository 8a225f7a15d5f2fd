"""The differences between RLlib alone and with `install` that the documentation lists, in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ray.rllib.connectors.env_to_module import MeanStdFilter

from episode_runners.rllib import install
from tests.rllib.rllib_envs import Scripted, ppo


class Numbered(Scripted):
    """The scripted environment whose even episodes are truncated. Infos have the copy, the episode and the step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        observation, _ = super().reset()
        return observation, self.numbers()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, ended, _, _ = super().step(action)
        cut = self.num_episodes % 2 == 0
        return observation, reward, ended and not cut, ended and cut, self.numbers()

    def numbers(self) -> dict[str, int]:
        return {"copy": self.copy, "episode": self.num_episodes, "t": self.t}


def sampled(choose: Any, num_envs: int, steps: int, **settings: Any) -> tuple[Any, list[Any]]:
    """Return the algorithm of a config that `choose` has changed, and the chunks of one sample."""
    Scripted.num_copies = 0
    algorithm = choose(ppo(Numbered, num_envs=num_envs).env_runners(**settings)).build_algo()
    return algorithm, algorithm.env_runner.sample(num_timesteps=steps)


def test_train_batches_have_rllibs_rows_in_another_order() -> None:
    (rllib, theirs), (algorithm, ours) = (sampled(choose, 3, 120) for choose in (lambda config: config, install))
    assert theirs[0].get_rewards().dtype == np.float64
    assert ours[0].get_rewards().dtype == np.float32
    copies = [[episode.get_infos(-1)["copy"] for episode in episodes] for episodes in (theirs, ours)]
    assert copies[1] == sorted(copies[1]) != copies[0]
    unfinished = sum(not episode.is_done for episode in ours)
    truncated = sum(bool(episode.is_truncated) for episode in ours)
    learners = [made.learner_group._learner for made in (rllib, algorithm)]
    learners[1].module.set_state(learners[0].module.get_state())
    tables = []
    for learner, episodes in zip(learners, (theirs, ours), strict=True):
        connector = learner._learner_connector
        made = connector(rl_module=learner.module, batch={}, episodes=episodes, shared_data={}, metrics=learner.metrics)
        batch = {name: np.asarray(column) for name, column in made["default_policy"].items()}
        kept = batch.get("loss_mask", np.ones(len(batch["obs"]), bool))
        assert batch["rewards"].dtype == np.float32
        names = ("obs", "rewards", "value_targets", "terminateds")
        rows = np.column_stack([batch[name][kept] for name in names]).astype(float)
        tables.append((rows[np.lexsort(rows[:, :2].round(2).T)], batch["truncateds"][kept], batch["advantages"][kept]))
    (their_rows, their_cuts, their_advantages), (rows, cuts, advantages) = tables
    assert len(rows) == sum(map(len, ours)) == len(their_rows)
    np.testing.assert_allclose(np.sort(rows, 0), np.sort(their_rows, 0), atol=1e-5)
    assert cuts.sum() == truncated
    assert their_cuts.sum() == truncated + unfinished
    assert np.abs(np.sort(advantages) - np.sort(their_advantages)).max() < 0.1
    rllib.stop()
    algorithm.stop()


@pytest.mark.parametrize("num_envs", [1, 4])
def test_filter_differs_from_rllibs_in_the_first_rows_of_several_environments(num_envs: int) -> None:
    normalized: list[dict[Any, np.ndarray]] = []
    for choose in (lambda config: config, install):
        settings = {"env_to_module_connector": lambda *_: MeanStdFilter()}
        algorithm, episodes = sampled(choose, num_envs, 400 * num_envs, **settings)
        rows = {}
        for episode in episodes:
            for observation, info in zip(episode.get_observations(), episode.get_infos(), strict=True):
                rows[info["copy"], info["episode"], info["t"]] = observation
        normalized.append(rows)
        algorithm.stop()
    theirs, ours = normalized
    assert theirs.keys() == ours.keys()
    first = [np.abs(ours[key] - theirs[key]).max() for key in ours if key[1] == 1]
    later = [np.abs(ours[key] - theirs[key]).max() for key in ours if key[1] > 20]
    assert max(first) < (2e-6 if num_envs == 1 else 0.5)
    assert max(later) < (2e-6 if num_envs == 1 else 0.01)
