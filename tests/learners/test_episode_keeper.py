"""Episodes of the training that `EpisodeKeeper` and `episodes train --keep-episodes` store."""

from __future__ import annotations

import gc
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episode_learners import DQN, QPolicy
from episode_learners.trainers import EpisodeKeeper, OffPolicyConfig, OffPolicyTrainer
from episode_learners.trainers.episode_keeper import check_keeps
from episode_runners import Hook, MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, GameDataset
from tests.interrupts import Breaking
from tests.learners.games import Targets
from tests.learners.test_multi_agent_trainers import mixed, on_policy, recurrent

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
            keeper._consider(float(n), 0, partial(chunks_of, f"e{n}", float(n), 1, 0))
        counts[int(keeper._chosen["random"][0])] += 1
        keeper._chosen, keeper._num_ended = {}, 0
    assert np.all(np.abs(counts - 500) < 5 * np.sqrt(2000 * 0.25 * 0.75))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a writer dropped before its `with`
def test_keeper_works_on_after_an_interrupted_write(error: type[BaseException], tmp_path: Path) -> None:
    samples, num_seen = [chunks_of(f"e{n}", float(n), 2, 0) for n in range(3)], 0
    for share in (2.0, 0.1, 0.4, 0.7, 0.78, 0.8, 0.82, 0.84, 0.97):  # at the first, the write is complete
        keeper = EpisodeKeeper(tmp_path / str(share), per_hour=1e9)  # each sample is written
        consider = partial(keeper.on_collect, SimpleNamespace(num_steps=0))
        breaking = Breaking(error, int(share * num_seen) or -1, rooms=("/episodes/storage/", "/trainers/"))
        interrupted = breaking.run(partial(consider, samples[0]))
        num_seen = num_seen or breaking.num_seen
        for sample in samples[1:]:
            consider(sample)
        keeper.close()
        ids = [episode.id_ for episode in EpisodeDataset(tmp_path / str(share))]
        assert sorted(ids)[-2:] == ["e1", "e2"]
        assert len(set(ids)) == len(ids)
        assert interrupted or len(ids) == 3
        del keeper, consider, breaking
        gc.collect()  # the writer of the interrupted write


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


@pytest.mark.parametrize("algo", ["ppo", "dqn", "several"])
def test_train_keeps_episodes_and_resumes(algo: str, tmp_path: Path) -> None:
    from episode_learners.__main__ import main
    from episodes.inspect.page_server import PageServer
    from tests.learners.test_command_line import SEVERAL

    text = SEVERAL if algo == "several" else SHORT.format(algo=algo) + OF_ALGORITHM.get(algo, "")
    (tmp_path / "short.toml").write_text(text)
    run = tmp_path / "run"
    words = ["--quiet", "--keep-episodes", "5/h"]
    assert main(["train", "--config", str(tmp_path / "short.toml"), "--logdir", str(run), "--epochs", "1", *words]) == 0
    assert main(["train", "--resume", str(run), "--epochs", "2", *words]) == 0
    kept: list[Any] = list((GameDataset if algo == "several" else EpisodeDataset)(run / "training"))
    assert "worst" in kept[0].custom_data["kept_as"]
    assert names_of(kept) == ["best"] * 2 + ["random"] * 2 + ["worst"] * 2
    assert all(0 < episode.custom_data["num_steps"] <= 600 for episode in kept)
    with PageServer(run) as server:
        source: Any = server.source
        lists = source.files.message(None)["runs"][0]["episodes"]["training"]
        rows = [row for rows in lists.values() for row in rows]
        assert sorted(row["id"] for row in rows) == sorted(episode.id_ for episode in kept)  # each in one list
        for row in rows:
            query = {key: "" if row[key] is None else str(row[key]) for key in ("id", "t", "agent")}
            assert source.answer("episodes/0/training/episode", query)[0] == 200


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


def names_of(episodes: list[Any]) -> list[str]:
    """Return why episodes were kept, sorted."""
    return sorted(name for episode in episodes for name in episode.custom_data["kept_as"].split(", "))


@pytest.mark.parametrize("steps", [5, 16, 30], ids="{} steps".format)
@pytest.mark.parametrize("make", [on_policy, mixed, recurrent])
def test_keeper_stores_whole_games_of_several_agents(
    make: Any, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples cut games anywhere, warmup has no outputs of policies, and off-policy modules store few outputs."""
    totals: list[float] = []

    class Summed(Targets):
        total = 0.0

        def reset(self, **arguments: Any) -> Any:
            self.total = 0.0
            return super().reset(**arguments)

        def step(self, actions: dict[str, Any]) -> Any:
            row = super().step(actions)
            self.total += sum(row[1].values())
            if row[3]["__all__"]:
                totals.append(self.total)
            return row

    monkeypatch.setattr("tests.learners.test_multi_agent_trainers.Targets", Summed)
    with EpisodeKeeper(tmp_path, clock=lambda: 0.0) as keeper:
        config = {"num_test_episodes": 0, "steps_per_collect": steps, "max_epochs": 2}
        trainer = make(config=config, hooks=[keeper])
        trainer.run()
    kept = list(GameDataset(tmp_path))
    assert names_of(kept) == ["best", "random", "worst"]
    by_name = {name: game for game in kept for name in game.custom_data["kept_as"].split(", ")}
    assert (by_name["worst"].get_return(), by_name["best"].get_return()) == (min(totals), max(totals))
    for game in kept:
        game.validate()
        assert (game.env_t_started, len(game), game.is_truncated) == (0, 8, True)
        assert 0 < game.custom_data["num_steps"] <= trainer.num_steps
        assert all(agent.custom_data == game.custom_data for agent in game.agent_episodes.values())


@pytest.mark.parametrize("make", [on_policy, mixed, recurrent])
def test_games_of_each_sample_go_into_one_data_set(make: Any, tmp_path: Path) -> None:
    """Games of the warmup have other outputs than later games."""
    config = {"num_test_episodes": 0, "steps_per_collect": 16, "max_epochs": 2}
    with EpisodeKeeper(tmp_path, per_hour=1.0, clock=iter(range(0, 10**9, 3600)).__next__) as keeper:
        make(config=config, hooks=[keeper]).run()
    kept = list(GameDataset(tmp_path))
    assert len({game.custom_data["num_steps"] for game in kept}) > 2


@given(st.integers(1, 7), st.integers(0, 99))
@settings(max_examples=25)
def test_return_of_a_game_in_turns_counts_rewards_that_wait_at_a_cut(
    tmp_path_factory: pytest.TempPathFactory, num_steps: int, seed: int
) -> None:
    folder, totals = tmp_path_factory.mktemp("kept"), list[float]()

    class Paid(Relay):
        def step(self, actions: dict[str, Any]) -> Any:
            row = super().step(actions)
            self.total += sum(row[1].values())
            totals.extend([self.total] * row[2]["__all__"])
            return row

    with (
        MultiAgentEnvRunner(lambda: Paid(seed), None, num_envs=1, seed=seed) as runner,
        EpisodeKeeper(folder, clock=lambda: 0.0) as keeper,
    ):
        for _ in range(8):
            keeper.on_collect(SimpleNamespace(num_steps=0), runner.sample(num_timesteps=num_steps, random_actions=True))
    if not totals:
        assert not (folder / "episodes.json").exists()
        return
    kept = list(GameDataset(folder))
    returns = [game.get_return() for game in kept]
    assert names_of(kept) == ["best", "random", "worst"]
    np.testing.assert_allclose([min(returns), max(returns)], [min(totals), max(totals)])


class Relay:
    """Game of two agents who act in turn, with rewards for both at each step, and for one that is not yet there."""

    possible_agents = ("a", "b", "late")

    def __init__(self, seed: int) -> None:
        self.observation_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Box(-1, 1, (1,)))
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(2))
        self.generator = np.random.default_rng(seed)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.total = 0, 0.0
        return {"a": np.zeros(1, np.float32)}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        over = self.t == 9
        seen = self.possible_agents if over else [("a", "b", "late")[self.t % 2 if self.t < 4 else self.t % 3]]
        rewards = {agent: float(self.generator.integers(-5, 6)) for agent in self.possible_agents}
        observations = {agent: np.zeros(1, np.float32) for agent in seen}
        return observations, rewards, {"__all__": over}, {"__all__": False}, {}


def test_trainer_that_samples_nothing_is_refused() -> None:
    trainer = SimpleNamespace(algorithm=None)
    with pytest.raises(InvalidArgument, match="samples no episodes"):
        check_keeps(trainer)


@pytest.mark.parametrize("capacity", [40, 100, 400])
def test_newest_ended_are_the_episodes_in_the_order_of_their_ends(capacity: int) -> None:
    buffer, ended = EpisodeReplayBuffer(capacity, seed=0), list[tuple[str, float, int]]()

    class Watch(Hook):
        def on_episode_end(self, runner: Any, env: int, episode: Any) -> None:
            ended.append((episode.id_, episode.get_return(), episode.t))

    assert buffer.newest_ended(1) == []
    with SingleAgentEnvRunner("CartPole-v1", num_envs=3, seed=0, hooks=[Watch()]) as runner:
        for _ in range(6):
            runner.sample_into(buffer, num_timesteps=60, random_actions=True)
            newest = buffer.newest_ended(1000)
            assert [episode.id_ for episode in newest] == [id_ for id_, *_ in ended[len(ended) - len(newest) :]]
            assert [episode.t for episode in newest] == [t for *_, t in ended[len(ended) - len(newest) :]]
            assert all(episode.is_done for episode in newest)
            assert [episode.id_ for episode in buffer.newest_ended(2)] == [episode.id_ for episode in newest[-2:]]
    with pytest.raises(InvalidArgument, match="n=0"):
        buffer.newest_ended(0)


def test_episode_is_read_from_the_buffer_only_where_one_is_chosen(tmp_path: Path) -> None:
    env = gym.make_vec("CartPole-v1", 4)
    policy = QPolicy(env.single_observation_space, env.single_action_space)
    num_reads, num_episodes = 0, 0

    class Counted(EpisodeReplayBuffer):
        def newest_ended(self, n: int) -> list[SingleAgentEpisode]:
            nonlocal num_reads, num_episodes
            num_reads, num_episodes = num_reads + 1, num_episodes + n
            return super().newest_ended(n)

    config = OffPolicyConfig(
        steps_per_collect=4, warmup_steps=100, steps_per_epoch=4000, max_epochs=1, num_test_episodes=0
    )
    runner = SingleAgentEnvRunner(env, policy, seed=0)
    with EpisodeKeeper(tmp_path / "data", clock=lambda: 0.0) as keeper:
        OffPolicyTrainer(DQN(policy), runner, Counted(5000, seed=0), config, hooks=[keeper]).run()
    assert runner.num_episodes > 100
    assert 0 < num_reads < 40 + 5 * np.log(runner.num_episodes)
