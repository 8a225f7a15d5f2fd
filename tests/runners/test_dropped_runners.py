"""Runners that are garbage-collected without `close`: environments are released, and nothing blocks."""

from __future__ import annotations

import gc
import multiprocessing
import weakref
from typing import Any

import pytest

from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes.replay import EpisodeReplayBuffer
from tests.fresh_process import run_fresh
from tests.moving.environments import Always, BoxCorridor, Meeting


class Counted(BoxCorridor):
    """Corridor that counts its open instances."""

    num_open = 0

    def __init__(self) -> None:
        super().__init__(length=3)
        type(self).num_open += 1

    def close(self) -> None:
        type(self).num_open -= 1


class CountedMeeting(Meeting):
    """Meeting that counts its open instances."""

    num_open = 0

    def __init__(self) -> None:
        super().__init__()
        CountedMeeting.num_open += 1

    def close(self) -> None:
        CountedMeeting.num_open -= 1


@pytest.mark.parametrize("use", ["nothing", "sample", "sample_into", "in an exception", "evaluate"])
def test_dropped_runner_closes_its_environments(use: str) -> None:
    Counted.num_open = 0
    runner = SingleAgentEnvRunner(Counted, Always(1), num_envs=2, seed=0)
    if use == "sample":
        runner.sample(num_timesteps=9)
        runner.sample(num_episodes=2)
    if use == "sample_into":
        runner.sample_into(EpisodeReplayBuffer(50), num_timesteps=9)
    if use == "in an exception":
        runner.policy = None
        with pytest.raises(Exception, match="no policy"):
            runner.sample(num_timesteps=9)
    if use == "evaluate":
        runner.for_evaluation()
    reference = weakref.ref(runner)
    gc.disable()  # no reference cycle keeps it
    try:
        del runner
        assert reference() is None
    finally:
        gc.enable()
    assert Counted.num_open == 0


def test_dropped_multi_agent_runner_closes_its_environments() -> None:
    CountedMeeting.num_open = 0
    runner = MultiAgentEnvRunner(CountedMeeting, Always(1), num_envs=2, seed=0)
    runner.sample(num_timesteps=9)
    reference = weakref.ref(runner)
    del runner
    gc.collect()
    assert reference() is None
    assert CountedMeeting.num_open == 0


def test_closed_runner_closes_its_environments_once() -> None:
    Counted.num_open = 0
    runner = SingleAgentEnvRunner(Counted, Always(1), seed=0)
    runner.close()
    del runner
    gc.collect()
    assert Counted.num_open == 0


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", BoxCorridor])
def test_dropped_runner_with_processes_terminates_them(env: Any) -> None:
    before = set(multiprocessing.active_children())
    runners = [SingleAgentEnvRunner(env, num_envs=2, vectorization="async", seed=0)]
    runners[0].sample(num_timesteps=9, random_actions=True)
    envs: Any = runners[0].env
    envs.step_async(envs.action_space.sample())  # an answer is pending, so waiting would block
    with pytest.warns(ResourceWarning, match="2 processes was dropped"):
        runners.clear()
    assert set(multiprocessing.active_children()) == before


IMPORTS = "from episode_runners import SingleAgentEnvRunner"
EXIT = """
runner = SingleAgentEnvRunner("CartPole-v1", num_envs=2, vectorization="async", seed=0)
runner.sample(num_timesteps=9, random_actions=True)
runner.itself = runner
print("sampled", flush=True)
"""


@pytest.mark.slow
def test_process_with_an_open_runner_exits() -> None:
    output, _ = run_fresh(IMPORTS, EXIT)
    assert output == "sampled\n"
