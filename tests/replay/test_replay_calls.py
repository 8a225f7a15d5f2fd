"""What a draw after each step costs, in calls: they do not depend on the machine's mood. Bars leave a tenth of room."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from episodes.replay import EpisodeReplayBuffer

OBSERVATIONS = spaces.Box(-1, 1, (4,), np.float32)
DRAWN = ("obs", "new_obs", "actions", "rewards", "terminateds")


def calls_of(run: Callable[[], object]) -> int:
    """How many functions `run` calls, ours and those written in C."""
    count = 0

    def told(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(told)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def row(num_envs: int, ends: bool = False) -> tuple[Any, ...]:
    ones = np.ones(num_envs, np.float32)
    observations, nothing = np.ones((num_envs, 4), np.float32), np.zeros(num_envs, bool)
    return observations, np.zeros(num_envs, np.int64), ones, np.full(num_envs, ends), nothing


def fed(num_envs: int) -> tuple[EpisodeReplayBuffer, Any]:
    buffer = EpisodeReplayBuffer(10_000, seed=0)
    options: dict[str, Any] = {"observation_space": OBSERVATIONS, "action_space": spaces.Discrete(2), "keys": ()}
    recorder = buffer.recorder(num_envs, autoreset_mode="NextStep", **options)
    recorder.reset(row(num_envs)[0])
    for _ in range(5):
        recorder.step(*row(num_envs))
        buffer.sample(8, keys=DRAWN)
    return buffer, recorder


@pytest.mark.parametrize("num_envs", [1, 8])
@pytest.mark.parametrize(("ends", "most"), [(False, 170), (True, 185)])
def test_a_step_and_a_draw_take_a_fixed_number_of_calls(num_envs, ends, most):
    buffer, recorder = fed(num_envs)
    recorder.policy_version = 3

    def step_and_draw() -> None:
        recorder.step(*step)
        buffer.sample(8, keys=DRAWN)

    step = row(num_envs, ends)
    found = [calls_of(step_and_draw) for _ in range(4)]  # where episodes end, every second row is a reset
    assert max(found) <= most, found


def test_a_step_that_nobody_draws_from_takes_a_handful_of_calls():
    _, recorder = fed(8)
    step = row(8)
    recorder.step(*step)
    assert calls_of(lambda: recorder.step(*step)) <= 10


def test_a_draw_alone_takes_a_fixed_number_of_calls():
    buffer, _ = fed(8)
    assert calls_of(lambda: buffer.sample(8, keys=DRAWN)) <= 50
