"""Random outputs of policies are recorded unchanged, or raise an error before they are recorded."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from episode_runners import SingleAgentEnvRunner, make_vector_env
from episodes.errors import EpisodeError

N = 3
MODES = (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)  # each call of the policy is a step of all environments
ACTIONS = {
    "choices": spaces.Discrete(3),
    "numbers": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "both": spaces.Dict(arm=spaces.Box(-np.inf, np.inf, (1,), np.float32), gear=spaces.MultiDiscrete([2, 3])),
}


class Noted(gym.Env):
    """Environment that records its actions and observes the time."""

    observation_space = spaces.Box(0, 99, (2,), np.float32)

    def __init__(self, action_space: spaces.Space, length: int) -> None:
        self.action_space, self.length = action_space, length

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(2, self.t, np.float32), 1.0, self.t == self.length, False, {}


class Misbehaving:
    """Policy with valid outputs for some calls, then with slightly wrong outputs. It keeps copies of its outputs."""

    def __init__(self, space: spaces.Space, seed: int) -> None:
        self.rng, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.space, self.said = space, []
        self.good_calls = self.rng.choice([0, 1, 4])
        self.has_extra, self.kept = self.rng.random() < 0.7, []

    def __call__(self, batch: Any, explore: bool | None = None) -> Any:
        outputs = self.right(len(batch["obs"]))
        if len(self.said) >= self.good_calls and self.rng.random() < 0.5:
            outputs = self.spoilt(outputs)
        self.said.append(copied(outputs))
        if self.rng.random() < 0.3:  # writes to what it was given, and to what it gave before
            batch["obs"].fill_(-7)
            for column in self.kept:
                column[...] = 0
        self.kept = [outputs["extra"]] if isinstance(outputs, dict) and is_numbers(outputs.get("extra")) else []
        return outputs

    def right(self, num_rows: int) -> dict[str, Any]:
        outputs: dict[str, Any] = {"actions": self.item(self.space, num_rows)}
        if self.has_extra:
            outputs["extra"] = self.numbers.normal(size=(num_rows, 2)).astype(np.float32)
        return outputs

    def item(self, space: spaces.Space, num_rows: int) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self.item(part, num_rows) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Box):
            return self.numbers.normal(size=(num_rows, *space.shape)).astype(np.float32)
        return self.numbers.integers(0, 2, (num_rows, *(space.shape or ())))

    def spoilt(self, outputs: dict[str, Any]) -> Any:
        """Return the outputs with a wrong column, or an output of another type."""
        if self.rng.random() < 0.1:
            return self.rng.choice([None, [], (outputs,), iter(()), torch.zeros(N), "outputs", {}])
        name = self.rng.choice([*outputs, "more"])
        output = outputs.get(name, np.ones(N))
        if isinstance(output, dict) and self.rng.random() < 0.7:
            key = self.rng.choice(list(output))
            return {**outputs, name: {**output, key: self.odd(output[key])}}
        return {**outputs, name: self.odd(output)}

    def odd(self, column: Any) -> Any:
        """Return a value similar to the column, of another layout, dtype, shape or type."""
        kinds = {
            "gone": lambda array: None,
            "a tensor": torch.from_numpy,
            "a tensor with a gradient": lambda array: torch.from_numpy(array.astype(np.float32)).requires_grad_(),
            "bfloat16": lambda array: torch.from_numpy(array.astype(np.float32)).bfloat16(),
            "without data": lambda array: torch.empty(array.shape, device="meta"),
            "in the other order": lambda array: np.asfortranarray(array)[::-1],
            "read-only": lambda array: np.broadcast_to(array[:1], array.shape),
            "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
            "doubles": lambda array: array.astype(np.float64),
            "whole numbers": lambda array: array.astype(np.int16),
            "NaN": lambda array: np.full(array.shape, np.nan, np.float32),
            "infinite": lambda array: np.full(array.shape, np.inf, np.float32),
            "a row too many": lambda array: np.concatenate([array, array[:1]]),
            "a row too few": lambda array: array[1:],
            "no rows": lambda array: array[:0],
            "an axis more": lambda array: array[:, None],
            "an axis less": lambda array: array[..., 0],
            "one number": lambda array: 1.0,
            "lists": lambda array: array.tolist(),
            "words": lambda array: np.full(array.shape, "word"),
            "objects": lambda array: np.full(array.shape, None),
            "by name": lambda array: {"a": array},
            "a generator": lambda array: (row for row in array),
        }
        make = self.rng.choice(list(kinds.values()))
        return make(column) if isinstance(column, np.ndarray) else self.rng.choice([None, 1.0, "word"])


def is_numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.flags.writeable


def copied(value: Any) -> Any:
    """Return a copy of the value, with arrays copied."""
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        value = value.detach()
        return (value.float() if value.dtype is torch.bfloat16 else value).numpy().copy()
    return np.array(value) if isinstance(value, (np.ndarray, list)) else value


def check_recorded(result: Any, outputs: list[Any], row: int) -> None:
    """Check that the recorded items are the items of this row in the policy's outputs, in order."""
    if isinstance(result, dict):
        for key, part in result.items():
            check_recorded(part, [output[key] for output in outputs], row)
        return
    for item, output in zip(result, outputs, strict=True):
        assert item.shape == np.shape(output[row])
        if np.asarray(item).dtype.kind in "US":
            assert item.tolist() == output[row].tolist()
        else:
            assert np.array_equal(item, np.asarray(output[row]).astype(item.dtype), equal_nan=True)


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("seeds", [range(40), range(40, 80)])
def test_random_outputs_are_recorded_or_raise(name: str, seeds: range) -> None:
    outcomes: set[str] = set()
    for seed in seeds:
        mode = MODES[seed % 2]
        lengths = iter([3, 50, 50, 50])
        env = make_vector_env(lambda lengths=lengths: Noted(ACTIONS[name], next(lengths)), N, autoreset_mode=mode)
        policy = Misbehaving(ACTIONS[name], seed)
        runner = SingleAgentEnvRunner(env, policy, seed=0)
        with np.errstate(all="ignore"):
            outcomes.add(outcome_of(runner, policy))
    assert outcomes == {"told", "recorded"}


def outcome_of(runner: SingleAgentEnvRunner, policy: Misbehaving) -> str:
    """Sample, and check the recorded steps."""
    try:
        pack, outcome = runner.sample(num_timesteps=4 * N), "recorded"
    except EpisodeError:
        pack, outcome = runner.take(), "told"
    ages = [0] * N
    for episode, env in zip(pack, runner._recorder.taken_envs.tolist(), strict=True):
        outputs = policy.said[ages[env] : ages[env] + len(episode)]
        ages[env] += len(episode)
        assert episode.get_observations()[1:, 0].tolist() == list(range(episode.t_started + 1, episode.t + 1))
        check_recorded(episode.get_actions(), [output["actions"] for output in outputs], env)
        for key in episode.extra_model_outputs:
            check_recorded(episode.get_extra_model_outputs(key), [output[key] for output in outputs], env)
    assert len(set(ages)) == 1
    assert ages[0] <= len(policy.said)
    return outcome
