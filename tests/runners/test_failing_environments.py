"""Environments that raise errors, die, hang or return rubbish: what the caller sees, and that the rest goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv

from episode_learners import MLPPolicy
from episode_runners import SingleAgentEnvRunner, async_envs, env_process, evaluate, make_vector_env
from episode_runners.env_process import EnvProcess
from episode_runners.restarts import MAX_FAILURES
from episodes.errors import EnvironmentLost, InvalidArgument, TrackMismatch, WrongType
from episodes.replay import EpisodeReplayBuffer
from tests.runners.failing_environments import FAULTS, IN_PROCESS, LENGTH, RUNNERS, Faulty, of_one_agent

TIMEOUT_S = 1000.0
SLOW = pytest.mark.slow

SEEN: dict[str, tuple[type[Exception] | tuple[type[Exception], ...], str]] = {  # the error without restarts
    "raises": (ZeroDivisionError, "motor on fire"),
    "raises_a_class_of_its_own": (Exception, "motor on fire"),
    "dies": (EnvironmentLost, "environment 1.*: its process was ended by SIGKILL; restart_failed=True"),
    "exits": (EnvironmentLost, "environment 1.*: its process has ended with exit code 3"),
    "crashes": (EnvironmentLost, "environment 1.*: its process has ended with exit code 4"),
    "hangs": (EnvironmentLost, "environment 1.*: it did not reply within 1000 s"),
    "stops": (EnvironmentLost, "environment 1.*: it did not reply within 1000 s"),
    "returns_rubbish": ((TrackMismatch, WrongType), "NoneType"),
}
QUICK = {("raises", 0), ("raises", 2), ("dies", 2), ("hangs", 2), ("returns_rubbish", 2)}
CASES = [
    pytest.param(kind, fault, at, marks=() if (fault, at) in QUICK and kind != "several agents, async" else SLOW)
    for kind in RUNNERS
    for fault in FAULTS
    for at in (0, 2)
    if "async" in kind or fault in IN_PROCESS
]
KINDS = [pytest.param(kind, marks=SLOW if "async" in kind else ()) for kind in RUNNERS]


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File of hanging environments. The clock stands still but for them: nothing depends on how busy the machine is."""
    path = tmp_path / "hanging"
    path.touch()

    def clock() -> float:
        caller = sys._getframe(1).f_locals.get("self")
        hangs = isinstance(caller, EnvProcess) and str(caller.process.pid) in path.read_text().splitlines()
        return 2 * TIMEOUT_S * hangs

    monkeypatch.setattr(env_process, "monotonic", clock)
    monkeypatch.setattr(env_process, "_LOOK_S", 0.02)
    return path


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


def made(kind: str, fault: str, at: int, note: Path, always: bool = False, **options: Any) -> Any:
    if "async" in kind:
        options["env_timeout_s"] = TIMEOUT_S
    return RUNNERS[kind](lambda env: env(fault, at, note, always), **options)


def notes_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@pytest.mark.parametrize(("kind", "fault", "at"), CASES)
def test_failure_is_an_error_that_names_the_environment(kind: str, fault: str, at: int, note: Path) -> None:
    errors, message = SEEN[fault]
    runner = made(kind, fault, at, note)
    with pytest.raises(errors, match=message) as raised:
        runner.sample(num_timesteps=40, random_actions=True)
    assert "environment 1" in notes_of(raised.value)
    chunks = of_one_agent(runner.take())
    before = LENGTH + at - (1 if at else 0)  # steps of environment 1
    assert sum(map(len, chunks)) == 2 * before
    with runner:
        if errors is EnvironmentLost:  # it is told again, and nothing waits
            with pytest.raises(errors, match=message):
                runner.sample(num_timesteps=40, random_actions=True)
        elif fault.startswith("raises"):  # the next call starts new episodes
            assert sum(map(len, of_one_agent(runner.sample(num_timesteps=6, random_actions=True)))) == 6
    runner.close()


@pytest.mark.parametrize(("kind", "fault", "at"), CASES)
def test_failed_environment_is_replaced_and_its_episode_is_cut(kind: str, fault: str, at: int, note: Path) -> None:
    with made(kind, fault, at, note, restart_failed=True) as runner:
        if fault == "returns_rubbish":
            with pytest.raises(SEEN[fault][0], match="NoneType"):
                runner.sample(num_timesteps=40, random_actions=True)
            return
        first = runner.sample(num_timesteps=40, random_actions=True)
        stats = runner.stats
        second = runner.sample(num_timesteps=20, random_actions=True)
        replacements = [replacement.index for replacement in runner.replacements]
        assert replacements == [1]
    chunks = of_one_agent(first)
    check_rows([*chunks, *of_one_agent(second)])
    lengths = [len(chunk) for chunk in chunks if not chunk.is_done and len(chunk) == at - 1]
    assert lengths or at == 0  # the cut chunk has the steps before the failure
    ended = [chunk for chunk in chunks if chunk.is_done]
    assert stats.num_episodes == len(ended)
    assert set(stats.lengths) == {LENGTH}
    assert all(chunk.is_terminated for chunk in ended)
    assert sum(map(len, chunks)) >= 40


def check_rows(chunks: list[Any]) -> None:
    """Check that each chunk is a part of one episode of one environment, with its own rewards and ending."""
    by_id: dict[str, list[Any]] = {}
    for chunk in chunks:
        by_id.setdefault(chunk.id_, []).append(chunk)
    numbers = set()
    for parts in by_id.values():
        observations = np.concatenate([part.get_observations()[bool(i) :] for i, part in enumerate(parts)])
        steps = np.arange(len(observations))
        assert observations[:, 1].tolist() == steps.tolist()
        assert len(set(observations[:, 0])) == 1
        assert np.concatenate([part.get_rewards() for part in parts]).tolist() == steps[1:].tolist()
        assert [part.is_done for part in parts][-1] == (len(steps) == LENGTH + 1)
        numbers.add(observations[0, 0])
    assert len(numbers) == len(by_id)  # the new environment has a seed of its own


@pytest.mark.parametrize("kind", RUNNERS)
def test_whole_episodes_are_whole_and_as_many_as_asked(kind: str, note: Path) -> None:
    with made(kind, "raises", 3, note, restart_failed=True) as runner:
        whole = of_one_agent(runner.sample(num_episodes=8, random_actions=True))
        assert len(runner.replacements) == 1
        assert runner.stats.num_episodes == 8
    assert [len(episode) for episode in whole] == [LENGTH] * 8
    check_rows(whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 3])
def test_environment_that_always_fails_is_an_error_with_the_last_cause(kind: str, at: int, note: Path) -> None:
    with (
        made(kind, "raises", at, note, always=True, restart_failed=True) as runner,
        pytest.raises(EnvironmentLost, match=rf"failed {MAX_FAILURES + 1} times .* ZeroDivisionError: motor on fire"),
    ):
        runner.sample(num_episodes=3, random_actions=True)


@pytest.mark.parametrize("kind", KINDS)
def test_seeded_runs_with_the_same_failure_are_equal(kind: str, note: Path) -> None:
    def run() -> list[list[float]]:
        with made(kind, "raises", 3, note, restart_failed=True) as runner:
            chunks = of_one_agent(runner.sample(num_timesteps=60, random_actions=True))
        return [chunk.get_observations().tolist() for chunk in chunks]

    assert run() == run()


@pytest.mark.parametrize("kind", ["sync", pytest.param("async", marks=SLOW)])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
@pytest.mark.parametrize("num_at_once", [1, 7, 60])
def test_replay_of_a_failed_environment_has_no_step_that_did_not_happen(
    kind: str, at: int, num_at_once: int, note: Path
) -> None:
    buffer = EpisodeReplayBuffer(200, seed=0)
    num_steps = num_episodes = 0
    with made(kind, "raises", at, note, restart_failed=True) as runner:
        while num_steps < 60:
            stats = runner.sample_into(buffer, num_timesteps=num_at_once, random_actions=True)
            num_steps, num_episodes = num_steps + stats.num_steps, num_episodes + stats.num_episodes
            assert set(stats.lengths) <= {LENGTH}
        assert len(runner.replacements) == 1
    assert len(buffer) == num_steps
    batch = buffer.sample(500)
    assert np.array_equal(batch.new_obs, batch.obs + np.array([0, 1]))
    assert np.array_equal(batch.rewards, batch.new_obs[:, 1])
    assert np.array_equal(batch.terminateds, batch.new_obs[:, 1] == LENGTH)
    assert not batch.truncateds.any()


class FailsOnce(Faulty):
    """Environment that fails in the first second episode of any of its kind."""

    def _may_fail(self) -> Any:
        if self.episode == 2 and self.t == 3 and not self.note.exists():
            self.note.touch()
            raise ZeroDivisionError("motor on fire")
        return ()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_evaluation_uses_the_restarts_of_its_runner(kind: str, tmp_path: Path) -> None:
    policy = MLPPolicy(Faulty.observation_space, Faulty.action_space)
    options: dict[str, Any] = {"vectorization": kind, "restart_failed": True}
    with SingleAgentEnvRunner(partial(FailsOnce, "raises", 3, tmp_path / "a"), policy, num_envs=2, **options) as runner:
        assert evaluate(runner, num_episodes=5, seed=0).lengths.tolist() == [LENGTH] * 5
    env = make_vector_env(partial(FailsOnce, "raises", 3, tmp_path / "b"), 2, **options)
    assert evaluate(env, policy, num_episodes=5, seed=0).lengths.tolist() == [LENGTH] * 5
    env.close()
    assert (tmp_path / "a").exists()
    assert (tmp_path / "b").exists()


# --- what is not possible --------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "one environment": (lambda: gym.make("CartPole-v1"), {"restart_failed": True}, "that were made before"),
    "vector environment": (
        lambda: make_vector_env("CartPole-v1", 2),
        {"env_timeout_s": 3.0, "vectorization": "async"},
        "env_timeout_s= with environments that were made before: give an id",
    ),
    "callable of one": (
        lambda: lambda: make_vector_env("CartPole-v1", 2),
        {"restart_failed": True},
        "a callable that makes a vector environment",
    ),
    "entry point": (
        lambda: "CartPole-v1",
        {"restart_failed": True, "vectorization": "vector_entry_point"},
        "the environment's own vector environment",
    ),
    "same step": (
        lambda: "CartPole-v1",
        {"restart_failed": True, "autoreset_mode": "SameStep"},
        "only next-step autoreset",
    ),
    "time": (lambda: "CartPole-v1", {"env_timeout_s": 3.0}, "can only be stopped in a process of its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_restart_that_is_not_possible_is_refused(name: str) -> None:
    env, options, message = REFUSED[name]
    with pytest.raises(InvalidArgument, match=message):
        SingleAgentEnvRunner(env(), **options)


def test_restarts_below_a_vector_wrapper_are_refused() -> None:
    env = gym.wrappers.vector.RecordEpisodeStatistics(make_vector_env("CartPole-v1", 2, restart_failed=True))
    with pytest.raises(InvalidArgument, match="wrap each environment in the callable"):
        SingleAgentEnvRunner(env)


# --- closing ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium prints the traceback of the process
@pytest.mark.parametrize("fault", ["dies", pytest.param("exits", marks=SLOW), "raises", "hangs", "stops"])
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "Gymnasium's"])
def test_close_returns_whatever_the_environment_does(
    fault: str, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (env_process, async_envs):
        monkeypatch.setattr(module, "_CLOSING_S", 0.1)
    note = tmp_path / "hanging"
    makers = [lambda: Faulty(fault, 2, note)] * 3
    env = make_vector_env(makers[0], 3, vectorization="async") if ours else AsyncVectorEnv(makers)
    runner = SingleAgentEnvRunner(env, seed=0)
    if fault in ("hangs", "stops"):  # the step is begun, and nobody waits for it
        runner.sample(num_timesteps=3 * (LENGTH + 1), random_actions=True)
        env: Any = runner.env
        env.step_async(env.action_space.sample())
    else:
        with pytest.raises((EnvironmentLost, ZeroDivisionError)) as raised:
            runner.sample(num_timesteps=100, random_actions=True)
        assert "environment 1" in notes_of(raised.value)
        if not ours:  # Gymnasium's process is gone, which is told
            with pytest.raises(EnvironmentLost, match="environment 1"):
                runner.sample(num_timesteps=100, random_actions=True)
    runner.close()
    runner.close()


@pytest.mark.parametrize("name", ["idle", "in a step"])
def test_close_after_all_processes_were_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_process, "_CLOSING_S", 0.1)
    runner = SingleAgentEnvRunner("CartPole-v1", num_envs=2, vectorization="async", seed=0)
    runner.sample(num_timesteps=9, random_actions=True)
    env: Any = runner.env
    for process in env.processes:
        os.kill(process.pid, signal.SIGSTOP)
    if name == "in a step":
        env.step_async(env.action_space.sample())
    runner.close()


def test_ctrl_c_reaches_no_environment() -> None:
    with SingleAgentEnvRunner("CartPole-v1", num_envs=2, vectorization="async", seed=0) as runner:
        for _ in range(5):
            for process in runner.env.processes:
                os.kill(process.pid, signal.SIGINT)
            assert runner.sample(num_timesteps=10, random_actions=True).num_steps >= 10
