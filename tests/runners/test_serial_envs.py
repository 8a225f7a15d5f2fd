"""`SerialVectorEnv` returns the same values as `SyncVectorEnv`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from episode_runners import make_vector_env
from episode_runners.serial_envs import SerialVectorEnv
from episodes.tracks import nested


class Odd(gym.Env):
    """Environment with random endings and infos whose keys change between steps."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        rng = self.np_random
        self.observation_space.seed(int(rng.integers(2**31)))
        infos = {"n": float(rng.random()), "who": "odd"} if rng.random() < 0.3 else {}
        return self.observation_space.sample(), infos | ({"array": rng.random(2)} if rng.random() < 0.2 else {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, infos = self._seen()
        rng = self.np_random
        return (
            observation,
            float(sum(np.sum(leaf) for leaf in nested.leaves(action))),
            bool(rng.random() < 0.2),
            bool(rng.random() < 0.1),
            infos,
        )


def same(ours: Any, expected: Any) -> bool:
    """Return True if two nested values are equal, also inside object arrays."""
    if type(ours) is not type(expected):
        return False
    if isinstance(ours, dict):
        return ours.keys() == expected.keys() and all(same(value, expected[key]) for key, value in ours.items())
    if isinstance(ours, (tuple, list)):
        return len(ours) == len(expected) and all(map(same, ours, expected))
    if isinstance(ours, np.ndarray) and ours.dtype == object:
        return ours.shape == expected.shape and all(map(same, ours.ravel().tolist(), expected.ravel().tolist()))
    if isinstance(ours, np.ndarray):
        return ours.dtype == expected.dtype and np.array_equal(ours, expected)
    return ours == expected


BOX = spaces.Box(-1, 1, (2, 3), np.float32)
SPACES = (BOX, spaces.Box(0, 255, (2,), np.uint8), spaces.Discrete(5), spaces.Dict(a=BOX, b=spaces.Discrete(2)))
ACTIONS = (spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float64), spaces.Tuple([spaces.Discrete(2), BOX]))


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("action_space", ACTIONS, ids=lambda space: type(space).__name__)
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_serial_rows_equal_sync_vector_env_rows(space, action_space, mode, num_envs):
    makers = [lambda: Odd(space, action_space)] * num_envs
    pair = [kind(makers, autoreset_mode=mode) for kind in (SyncVectorEnv, SerialVectorEnv)]
    pair[0].action_space.seed(0)
    rows = [env.reset(seed=1) for env in pair]
    row_pairs: list[tuple[Any, Any]] = []
    for _ in range(40):
        assert same(rows[1], rows[0])
        row_pairs.append((rows[1], rows[0]))
        actions = pair[0].action_space.sample()
        rows = [env.step(actions) for env in pair]
    for ours, expected in row_pairs:  # later rows have not written into earlier ones
        assert same(ours, expected)


def test_serial_reset_by_mask_equals_sync_vector_env():
    makers = [lambda: Odd(BOX, ACTIONS[0])] * 2
    pair = [kind(makers) for kind in (SyncVectorEnv, SerialVectorEnv)]
    for env in pair:
        env.reset(seed=3)
    for _ in range(10):
        actions = np.array([0, 1])
        rows = [env.step(actions) for env in pair]
        assert same(rows[1], rows[0])
        masked = [env.reset(options={"reset_mask": np.array([True, False])}) for env in pair]
        assert same(masked[1], masked[0])


def test_make_vector_env_returns_serial_env():
    env = make_vector_env("CartPole-v1", 2)
    assert type(env) is SerialVectorEnv
    assert isinstance(env, SyncVectorEnv)
    env.close()
