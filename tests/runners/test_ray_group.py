"""Runners in Ray actors: sampled episodes, recovery after a death, network access, and released resources."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from gymnasium import spaces
from mpe2 import simple_spread_v3

from benchmarks import actors
from benchmarks.figure import Figure, Size
from benchmarks.measure import try_once
from connectors import env_to_module_pipeline
from connectors.env_to_module import MeanStdFilter
from episode_learners import IMPALA, PPO
from episode_learners.run import Run, remote_runner
from episode_learners.trainers import OnPolicyConfig, OnPolicyTrainer
from episode_runners import GroupRunner, MultiAgentEnvRunner, RayRunnerGroup, SingleAgentEnvRunner, start_ray
from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import EpisodeStateError, InvalidArgument, LostInConversion, RunnerLost
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.ledger import Ledger, LedgerReader
from tests.code_rules import ROOT

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("ray")

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Pids(gym.Env):
    """Environment with the process id and the time as its observation. A policy with equal logits never takes action
    1.
    """

    observation_space, action_space = OBSERVATIONS, spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observed(), {}

    def observed(self) -> np.ndarray:
        return np.array([os.getpid(), self.t], np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observed(), float(self.np_random.random()), self.t == 10, False, {}


class Constant(torch.nn.Module):
    """Policy with one parameter, which is its extra output "number"."""

    def __init__(self) -> None:
        super().__init__()
        self.number = torch.nn.Parameter(torch.zeros(()))

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        rows = len(batch["obs"])
        return {"action_dist_inputs": torch.zeros(rows, 2), "number": self.number.detach().expand(rows)}


def make_plain(index: int, seed: int) -> SingleAgentEnvRunner:
    return SingleAgentEnvRunner(Pids, Constant(), num_envs=2, seed=seed)


def make_filtered(index: int, seed: int) -> SingleAgentEnvRunner:
    seeing = env_to_module_pipeline(OBSERVATIONS, Pids.action_space, pieces=[MeanStdFilter()])
    return SingleAgentEnvRunner(Pids, Constant(), num_envs=2, seed=seed, env_to_module=seeing)


def make_broken(index: int, seed: int) -> SingleAgentEnvRunner:
    raise ValueError(f"no simulator for runner {index}")


def make_spread(index: int, seed: int) -> MultiAgentEnvRunner:
    return MultiAgentEnvRunner(simple_spread_v3.parallel_env, num_envs=2, seed=seed, policies=Spread())


class Spread(Constant):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return super().forward(batch) | {"action_dist_inputs": torch.zeros(len(batch["obs"]), 5)}


class Stuck(Pids):
    """Environment that steps only while a file exists."""

    def __init__(self, while_there: Path) -> None:
        self.while_there = while_there

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        while not self.while_there.exists():
            time.sleep(0.01)
        return super().step(action)


def make_stuck(folder: Path, index: int, seed: int) -> SingleAgentEnvRunner:
    return SingleAgentEnvRunner(partial(Stuck, folder / str(index)), Constant(), seed=seed)


@pytest.fixture(scope="module", autouse=True)
def started() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="ray")
    try:
        with pytest.MonkeyPatch.context() as patch:  # actors import this file
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
            patch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # of a cluster that nobody has asked for
            start_ray(6, object_store_memory=100 * 2**20, temp_dir=folder)
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def group(started: None) -> Iterator[RayRunnerGroup]:
    """Yield a group of two plain runners for all tests that only sample, because starting actors takes seconds."""
    with RayRunnerGroup(make_plain, 2, seed=3) as made:
        yield made


def test_part_of_shared_pack_retains_memory_until_copied() -> None:
    rows = 20 * 100
    pack = EpisodePack(
        observations=np.arange(4.0 * (rows + 20)).reshape(-1, 4),
        actions=np.arange(rows),
        rewards=np.arange(rows, dtype=np.float32),
        lengths=[100] * 20,
    )
    got = ray.get(ray.put(pack))
    assert got == pack
    part = got[3:5]
    assert part.retained_nbytes == got.retained_nbytes == pack.nbytes
    copied = part.copied()
    assert copied == part
    assert copied.retained_nbytes == copied.nbytes == pack.nbytes // 10
    assert not any(np.shares_memory(copied.tracks[path], track) for path, track in got.tracks.items())


def pid_of(pack: EpisodePack) -> int:
    return int(pack.observations[0, 0])


def numbers_of(sample: Any) -> set[float]:
    return set(np.unique(sample.data.extra_model_outputs["number"]).tolist())


def test_ray_listens_on_loopback_alone(group: RayRunnerGroup) -> None:
    ours = psutil.Process()
    connections = [found for each in (ours, *ours.children(recursive=True)) for found in each.net_connections("tcp")]
    addresses = [found.laddr.ip for found in connections if found.status == psutil.CONN_LISTEN]
    assert len(addresses) >= 3
    assert set(addresses) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def test_group_divides_steps_and_seeds_without_copies(group: RayRunnerGroup) -> None:
    first, second = group.sample(num_timesteps=4000)
    assert (first.index, second.index, first.policy_version) == (0, 1, None)
    assert first.data.num_steps == second.data.num_steps == 2000
    assert pid_of(first.data) != pid_of(second.data)
    assert not first.data.rewards.flags.writeable
    assert not np.array_equal(first.data.rewards, second.data.rewards)
    assert [sample.stats.num_episodes for sample in (first, second)] == [200, 200]
    assert [len(sample.data) for sample in group.sample(num_episodes=3)] == [2, 1]
    assert [len(sample.data) for sample in group.sample(num_episodes=1)] == [1]


def test_group_weights_arrive_with_the_next_sample(group: RayRunnerGroup) -> None:
    policy = Constant()
    for version, number in ((0, 0.5), (1, 2.0), (7, 3.0)):
        policy.number.data.fill_(number)
        group.set_weights(policy if version else policy.state_dict(), version if version == 7 else None)
        for sample in group.sample(num_timesteps=8):
            assert numbers_of(sample) == {number}
            assert set(sample.data.get_policy_versions().tolist()) == {sample.policy_version} == {version}


def test_killed_runner_is_replaced_with_weights_and_statistics() -> None:
    policy = Constant()
    policy.number.data.fill_(4.0)
    with RayRunnerGroup(make_filtered, 2, merge_every=10**6) as group:
        group.set_weights(policy)
        group.sample(num_timesteps=40)
        observations = 2 * 2 * (10 + 1)  # each runner has two episodes of 10 steps
        assert _count(group.statistics()) == observations
        os.kill(pid_in(group, 0), signal.SIGKILL)
        assert _count(group.statistics()) == observations
        result = group.sample(num_timesteps=40)
        assert [numbers_of(sample) for sample in result] == [{4.0}, {4.0}]
        assert [sample.policy_version for sample in result] == [0, 0]
        assert [replacement.index for replacement in group.replacements] == [0]
        assert _count(group.statistics()) == 2 * observations


@pytest.mark.slow
def test_killed_runner_is_replaced_in_sample_async() -> None:
    with RayRunnerGroup(make_filtered, 2, merge_every=10**6) as group:
        samples = group.sample_async(num_timesteps=20, in_flight=1)  # without a merge
        while group._workers[0].statistics is None:  # on a busy machine the other runner may be faster for long
            next(samples)
        metadata = _count(group._workers[0].statistics)
        os.kill(pid_in(group, 0), signal.SIGKILL)
        while not group.replacements or group._workers[0].num_deaths:  # until the new one has sampled
            next(samples)
        assert _count(group._workers[0].statistics) > metadata
        group.resize(1)
        assert _count(group.statistics()) > metadata  # also what the one told of that is gone


def pid_in(group: RayRunnerGroup, index: int) -> int:
    return ray.get(group._workers[index].actor.__ray_call__.remote(lambda actor: os.getpid()))


def _count(state: Any) -> int:
    known = next(iter(state.values()))
    return sum(part["count"] for half in known.values() for part in half.values())


def test_sample_async_continues_while_group_is_resized(group: RayRunnerGroup) -> None:
    samples = group.sample_async(num_timesteps=8)
    group.resize(3)
    observations = set[int]()
    while len(observations) < 3:  # on a busy machine one may be long in coming
        observations.add(next(samples).index)
    group.resize(2)
    left = {sample.index for sample in islice(samples, 20)}
    assert left <= {0, 1}


@pytest.mark.slow
def test_slow_runner_is_skipped_and_a_stuck_one_replaced(tmp_path: Path) -> None:
    first, second = tmp_path / "0", tmp_path / "1"
    first.touch()
    with RayRunnerGroup(partial(make_stuck, tmp_path), 2, slow_after_s=0.3) as group:
        assert [sample.index for sample in group.sample(num_timesteps=4)] == [0]
        second.touch()
        while [sample.index for sample in group.sample(num_timesteps=4)] != [0, 1]:  # what it had not finished then
            time.sleep(0.01)
        second.unlink()
        group.lost_after_s = 4.0
        samples = group.sample_async(num_timesteps=60)
        while 1 not in (result := {replacement.index: replacement.reason for replacement in group.replacements}):
            next(samples)
        assert "pending for" in result[1]


def test_group_raises_errors_of_a_runner_and_continues(group: RayRunnerGroup) -> None:
    with pytest.raises(InvalidArgument, match="exactly one"):
        group.sample()
    for _ in range(3):
        group.sample(num_timesteps=8)  # takes what is under way since other tests, with the weights of then
    group.set_weights({"number": torch.zeros(3)})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="size mismatch"):
            group.sample(num_timesteps=8)
    group.set_weights(Constant())
    assert not group.replacements
    assert [sample.index for sample in group.sample(num_timesteps=8)] == [0, 1]


@pytest.mark.slow
def test_group_with_failing_make_runner_raises() -> None:
    with pytest.raises(RunnerLost, match="no simulator for runner"):
        RayRunnerGroup(make_broken, 1)


@pytest.mark.slow
def test_group_without_enough_cpus_raises() -> None:
    with pytest.raises(RunnerLost, match="1 runners did not start within 1 s; Ray has 6 CPUs"):
        RayRunnerGroup(make_plain, 1, num_cpus_each=100, start_within_s=1.0)


def test_group_of_multi_agent_runners_leaves_nothing_behind() -> None:
    policy = Spread()
    policy.number.data.fill_(2.0)
    group = RayRunnerGroup(make_spread, 1)
    group.set_weights({"default_policy": policy})
    for sample in group.sample(num_timesteps=8):
        assert sample.stats.num_env_steps == 8
        numbers = [
            agent_episode.extra_model_outputs["number"]
            for e in sample.data
            for agent_episode in e.agent_episodes.values()
        ]
        assert {float(value) for agent_episode in numbers for value in np.asarray(agent_episode.data).ravel()} == {2.0}
    pid = pid_in(group, 0)
    group.close()
    group.close()
    until = time.monotonic() + 300
    while (is_left := Path(f"/proc/{pid}").exists()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_left
    with pytest.raises(EpisodeStateError, match="closed"):
        group.sample(num_timesteps=8)


DROPPED = """
import gc, sys, tempfile, warnings
from pathlib import Path
from episode_runners import RayRunnerGroup
from tests.runners.test_ray_group import make_plain

def folders():
    return sorted(path.name for path in Path(tempfile.gettempdir()).glob("runners-*"))

def use():
    group = RayRunnerGroup(make_plain, 1)
    group.sample(num_timesteps=4)
    raise ValueError("an error of the user")

warnings.simplefilter("always")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "group = RayRunnerGroup(make_plain, 1); group.sample(num_timesteps=4); del group; assert not folders()",
        "try:\n    use()\nexcept ValueError:\n    pass\nassert not folders()",
        "group = [RayRunnerGroup(make_plain, 1)]; group[0].mine = group; del group; gc.collect(); assert not folders()",
        "group = RayRunnerGroup(make_plain, 1)",
    ],
    ids=["deleted", "exception", "cycle", "exit"],
)
def test_dropped_group_ends_ray_with_a_warning(case: str, tmp_path: Path) -> None:
    folder = tempfile.mkdtemp(prefix="t")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": folder}
    try:
        command = [sys.executable, "-c", DROPPED + case]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "ResourceWarning: a RayRunnerGroup was dropped without close()" in done.stderr
        assert not list(Path(folder).glob("runners-*"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- trainers ---

SETTINGS = {
    "algo": "ppo",
    "env": "CartPole-v1",
    "num_envs": 2,
    "policy": {"hidden_sizes": [8]},
    "algorithm": {"num_epochs": 1},
    "trainer": {
        "max_epochs": 2,
        "steps_per_epoch": 64,
        "steps_per_collect": 32,
        "num_test_episodes": 2,
        "checkpoint_every": 1,
        "shows_progress": False,
    },
}


@pytest.fixture(scope="module")
def of_settings(started: None) -> Iterator[RayRunnerGroup]:
    """Yield a group with one runner, created by the function of the command line."""
    with RayRunnerGroup(partial(remote_runner, SETTINGS), 1) as made:
        yield made


def trainer_of(group: RayRunnerGroup, folder: Path, is_asynchronous: bool) -> OnPolicyTrainer:
    run = Run.of_table(SETTINGS)
    local, algorithm = run.runner(), IMPALA if is_asynchronous else PPO
    runner = GroupRunner(local, group, is_asynchronous=is_asynchronous)
    return OnPolicyTrainer(algorithm(local.policy, seed=0), runner, OnPolicyConfig(**run.trainer), folder=folder)


def test_resumed_run_with_a_group_equals_the_whole_run(of_settings: RayRunnerGroup, tmp_path: Path) -> None:
    whole = trainer_of(of_settings, tmp_path / "whole", is_asynchronous=False)
    whole.runner.set_state(whole.runner.get_state())  # as after a checkpoint: nothing of other tests goes on
    result = whole.run()
    assert result.num_epochs == 2
    assert whole.runner.stats.num_steps >= 32
    (tmp_path / "half").mkdir()
    shutil.copy(tmp_path / "whole" / "checkpoint-000001.pt", tmp_path / "half")
    half = trainer_of(of_settings, tmp_path / "half", is_asynchronous=False)
    assert half.resume()
    assert half.runner.num_steps == half.num_steps > 0
    half.run()
    for ours, other_accumulator in zip(whole.algorithm.parameters(), half.algorithm.parameters(), strict=True):
        assert torch.equal(ours, other_accumulator)
    whole.runner.local.close()
    half.runner.local.close()


def test_asynchronous_trainer_learns_from_each_sample(of_settings: RayRunnerGroup, tmp_path: Path) -> None:
    versions: list[int] = []

    class Look:
        def on_collect(self, trainer: Any, pack: EpisodePack) -> None:
            versions.extend(pack.get_policy_versions().tolist())

    trainer = trainer_of(of_settings, tmp_path, is_asynchronous=True)
    trainer.hooks.append(Look())
    trainer.runner.set_state(trainer.runner.get_state())
    trainer.ledger = Ledger(tmp_path / "ledger", measures_rows=True)
    assert trainer.run().num_updates >= 4
    trainer.ledger.close()
    for update in LedgerReader(tmp_path):
        measured = np.isfinite(update.measured["loss"])
        assert set(update.measured["worker"][measured].tolist()) == {0.0}
    assert versions == sorted(versions)
    assert 0 == versions[0] < versions[-1] < trainer.num_updates
    trainer.runner.sample(num_timesteps=32)
    with pytest.raises(InvalidArgument, match="request the same counts in each call"):
        trainer.runner.sample(num_timesteps=7)
    trainer.runner.local.close()


def test_dqn_with_several_runners_raises() -> None:
    with pytest.raises(InvalidArgument, match="dqn does not sample with several runners"):
        Run(algo="dqn", env="CartPole-v1", num_runners=2).make()


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "goal"), [("ppo", 475), ("impala", 450)])
def test_algorithms_learn_cartpole_with_a_killed_runner(algo: str, goal: float) -> None:
    class Kill:
        def on_update(self, trainer: Any, metrics: Any) -> None:
            if trainer.num_updates == 5:
                os.kill(pid_in(trainer.runner.group, 1), signal.SIGKILL)

    run = Run.of_preset(algo, "CartPole-v1")
    run.num_runners, run.trainer["shows_progress"] = 2, False
    trainer = run.make(stop_fn=lambda score: score >= goal)
    trainer.hooks.append(Kill())
    with trainer.runner:
        result = trainer.run()
        assert result.best_score >= goal
        assert [replacement.index for replacement in trainer.runner.group.replacements] == [1]


# --- Ray Data ---


def walk(id_: str, steps: int, **options: Any) -> SingleAgentEpisode:
    observations = np.arange(2.0 * steps + 2, dtype=np.float32).reshape(-1, 2)
    return SingleAgentEpisode.from_arrays(observations, np.arange(steps), np.arange(steps) / 4, id_=id_, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")  # Ray's, of its own settings
def test_to_ray_data_has_a_row_for_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.data import DataContext

    from episodes.converters import to_ray_data

    monkeypatch.setattr(DataContext.get_current(), "enable_progress_bars", False)
    made = [walk("a", 3, infos=[{"n": n} for n in range(4)]), walk("b", 0), walk("c", 5, truncated=True)]
    with EpisodeWriter(tmp_path / "x") as writer:
        for episode in made:
            writer.add(episode)
    dataset = EpisodeDataset(tmp_path / "x")
    with pytest.raises(LostInConversion, match="no rows of an episode without a step"):
        to_ray_data(dataset, strict=True)
    rows, lost = to_ray_data(dataset)
    assert [(loss.what, loss.num_episodes, loss.first) for loss in lost] == [("the episode", 1, "b")]
    (batch,) = rows.iter_batches(batch_size=8, batch_format="numpy")
    order = np.lexsort([batch["t"], batch["episode_id"].astype("U")])
    result = {name: column[order] for name, column in batch.items()}
    assert result["episode_id"].tolist() == ["a"] * 3 + ["c"] * 5
    assert result["t"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    for name, part in (("observations", slice(None, -1)), ("next_observations", slice(1, None))):
        expected_values = np.concatenate([episode.get_observations()[part] for episode in made])
        assert result[name].dtype == np.float32
        assert np.array_equal(result[name], expected_values)
    assert result["rewards"].tolist() == [0, 0.25, 0.5, 0, 0.25, 0.5, 0.75, 1]
    assert result["truncated"].tolist() == [False] * 7 + [True]
    assert result["next_infos/n"][:3].tolist() == [1, 2, 3]
    assert to_ray_data(made)[0].count() == 8
    with pytest.raises(InvalidArgument, match="no episodes with a step"):
        to_ray_data(dataset[1:2])


@pytest.mark.slow
def test_rllib_learner_learns_from_a_group() -> None:
    command = [sys.executable, "-m", "tests.runners.rllib_learner"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *_, last = map(float, done.stdout.split())
    assert first < 40
    assert last > 120


SLOW = [pytest.param(figure, marks=pytest.mark.slow) for figure in actors.FIGURES[1:]]  # they start actors


@pytest.mark.parametrize("figure", [actors.FIGURES[0], *SLOW], ids=lambda figure: figure.name)
def test_each_ray_benchmark_runs_once(figure: Figure) -> None:
    assert try_once(figure.ours, Size(most=8)) > 0
