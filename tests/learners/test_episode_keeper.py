"""Episodes of the training that `EpisodeKeeper` and `episodes train --keep-episodes` store."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episode_learners import DQN, MultiAgentAlgorithm, QPolicy
from episode_learners.trainers import EpisodeKeeper, OffPolicyConfig, OffPolicyTrainer
from episode_learners.trainers.episode_keeper import check_keeps
from episode_runners import Hook, SingleAgentEnvRunner
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset

SHORT = """
algo = "{algo}"
env = "CartPole-v1"
num_envs = 2
[trainer]
max_epochs = 2
steps_per_epoch = 200
steps_per_collect = 50
num_test_episodes = 1
"""
OF_ALGORITHM = {"dqn": "warmup_steps = 50\n"}
RETURNS = st.one_of(st.integers(-9, 9).map(float), st.just(np.nan))


def chunks_of(id_: str, total: float, num_steps: int, at: int) -> list[SingleAgentEpisode]:
    """Return an episode with a return, cut into two chunks at a step unless it is 0."""
    rewards = np.array([0.0] * (num_steps - 1) + [total])
    whole = SingleAgentEpisode.from_arrays(
        np.arange(num_steps + 1.0), np.zeros(num_steps, int), rewards, id_=id_, terminated=True
    )
    return [whole[:at], whole[at:]] if 0 < at < num_steps else [whole]


@given(
    st.lists(st.tuples(RETURNS, st.integers(1, 6), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(1, 400),
)
def test_keeper_stores_the_extremes_of_each_interval(
    tmp_path_factory: pytest.TempPathFactory, ended: list[tuple[float, int, int, int]], seconds: int
) -> None:
    folder, now = tmp_path_factory.mktemp("kept") / "training", [0.0]
    keeper = EpisodeKeeper(folder, per_hour=36.0, clock=lambda: now[0])  # each 100 s
    samples: list[list[SingleAgentEpisode]] = [[] for _ in range(len(ended) + 3)]
    returns_at: dict[int, list[float]] = {}
    for n, (total, num_steps, at, wait) in enumerate(ended):
        chunks = chunks_of(f"e{n}", total, num_steps, at)
        last = n + wait if len(chunks) > 1 and wait else n
        samples[n if last > n else last].append(chunks[0])
        if len(chunks) > 1:
            samples[last].append(chunks[1])
        returns_at.setdefault(last, []).append(total)
    expected, due, group = [], 100.0, list[float]()
    for number, sample in enumerate(samples):
        now[0] += seconds
        keeper.on_collect(SimpleNamespace(num_steps=number), sample)
        group += returns_at.get(number, [])
        if now[0] >= due:
            expected.append(group)
            due, group = now[0] + 100.0, []
    keeper.close()
    expected = [totals for totals in [*expected, group] if totals]
    stored = list(EpisodeDataset(folder))
    groups, kinds = list[list[Any]](), ["worst", "best", "random"]
    for episode in stored:
        names = episode.custom_data["kept_as"].split(", ")
        groups += [[]] if "worst" in names else []
        groups[-1] += [(name, episode.get_return()) for name in names]
    assert len(groups) == len(expected)
    for pairs, totals in zip(groups, expected, strict=True):
        kept, scores = dict(pairs), np.where(np.isnan(totals), -np.inf, totals)
        assert sorted(kept) == sorted(kinds)
        assert -np.inf == scores.min() if np.isnan(kept["worst"]) else kept["worst"] == scores.min()
        assert np.isnan(kept["best"]) if scores.max() == -np.inf else kept["best"] == scores.max()
        assert any(kept["random"] == total or (np.isnan(kept["random"]) and np.isnan(total)) for total in totals)
    lengths = {f"e{n}": num_steps for n, (_, num_steps, *_) in enumerate(ended)}
    assert all(len(episode) == lengths[episode.id_] for episode in stored)


def test_keeper_chooses_random_episodes_evenly(tmp_path: Path) -> None:
    keeper = EpisodeKeeper(tmp_path, clock=lambda: 0.0)
    counts = np.zeros(4)
    for _ in range(2000):
        for n in range(4):
            keeper._consider(chunks_of(f"e{n}", float(n), 1, 0), 0)
        counts[int(keeper._chosen["random"][0])] += 1
        keeper._chosen, keeper._num_ended = {}, 0
    assert np.all(np.abs(counts - 500) < 5 * np.sqrt(2000 * 0.25 * 0.75))


def test_keeper_drops_episodes_that_never_end_or_are_long(tmp_path: Path) -> None:
    keeper = EpisodeKeeper(tmp_path / "data", max_steps=3, clock=lambda: 0.0)
    trainer = SimpleNamespace(num_steps=0)
    for n in range(500):
        keeper.on_collect(trainer, [chunks_of(f"lost {n}", 1.0, 2, 1)[0]])
    assert len(keeper._unfinished) <= 64
    keeper.on_collect(
        trainer, [*chunks_of("long", 9.0, 4, 0), *chunks_of("short", 1.0, 3, 0), chunks_of("x", 0, 3, 1)[1]]
    )
    keeper.close()
    keeper.close()
    assert [episode.id_ for episode in EpisodeDataset(tmp_path / "data")] == ["short"]


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_train_keeps_episodes_and_resumes(algo: str, tmp_path: Path) -> None:
    from episode_learners.__main__ import main

    (tmp_path / "short.toml").write_text(SHORT.format(algo=algo) + OF_ALGORITHM.get(algo, ""))
    run = tmp_path / "run"
    words = ["--quiet", "--keep-episodes", "5/h"]
    assert main(["train", "--config", str(tmp_path / "short.toml"), "--logdir", str(run), "--epochs", "1", *words]) == 0
    assert main(["train", "--resume", str(run), "--epochs", "2", *words]) == 0
    kept = [episode.custom_data for episode in EpisodeDataset(run / "training")]
    assert "worst" in kept[0]["kept_as"]
    assert (
        sorted(", ".join(facts["kept_as"] for facts in kept).split(", "))
        == ["best"] * 2 + ["random"] * 2 + ["worst"] * 2
    )
    assert all(0 <= facts["num_steps"] <= 600 for facts in kept)


@pytest.mark.parametrize("rate", ["5", "0/h", "-1/h", "nan/h", "inf/h", "5/s", "1e9999999/h", ""])
def test_wrong_rate_is_named(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    from episode_learners.__main__ import main

    with pytest.raises(SystemExit):
        main(["train", f"--keep-episodes={rate}"])
    assert "is not a rate: give times per hour, such as 5/h" in capsys.readouterr().err
    with pytest.raises(InvalidArgument, match="per_hour"):
        EpisodeKeeper("nowhere", 0.0)


def test_keeper_stores_episodes_as_they_were_before_the_ring_dropped_them(tmp_path: Path) -> None:
    """The buffer holds 300 steps, so most episodes are overwritten before the keeper writes."""
    env = gym.make_vec("CartPole-v1", 2)
    policy = QPolicy(env.single_observation_space, env.single_action_space)
    seen: dict[str, SingleAgentEpisode] = {}

    class Watch(Hook):
        def on_episode_end(self, runner: Any, env: int, episode: Any) -> None:
            if episode.t_started == 0:
                seen[episode.id_] = deepcopy(episode)

    runner = SingleAgentEnvRunner(env, policy, seed=0, hooks=[Watch()])
    config = OffPolicyConfig(steps_per_collect=100, warmup_steps=100, steps_per_epoch=1000, max_epochs=1)
    with EpisodeKeeper(tmp_path / "data", clock=lambda: 0.0) as keeper:
        trainer = OffPolicyTrainer(DQN(policy), runner, EpisodeReplayBuffer(300, seed=0), config, hooks=[keeper])
        trainer.run()
    kept = list(EpisodeDataset(tmp_path / "data"))
    names = [name for episode in kept for name in episode.custom_data.pop("kept_as").split(", ")]
    assert sorted(names) == ["best", "random", "worst"]
    returns = [episode.get_return() for episode in seen.values()]
    assert {min(returns), max(returns)} <= {episode.get_return() for episode in kept}
    for episode in kept:
        for get in ("get_observations", "get_actions", "get_rewards"):
            np.testing.assert_array_equal(getattr(episode, get)(), getattr(seen[episode.id_], get)())


def test_several_agents_are_refused() -> None:
    trainer = SimpleNamespace(algorithm=MultiAgentAlgorithm.__new__(MultiAgentAlgorithm))
    with pytest.raises(InvalidArgument, match="samples no episodes of one agent"):
        check_keeps(trainer)
