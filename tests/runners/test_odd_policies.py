"""Unusual policies: samples are correct, or an error is raised and earlier steps can be taken."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import example, given, settings
from hypothesis import strategies as st

from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes.replay import EpisodeReplayBuffer
from tests.agents_together import Together

N = 3
GOOD = ("plain", "numpy", "a list", "requires grad", "not contiguous", "keeps", "writes", "a column more in the batch")
ODD = (
    "no actions",
    "None",
    "a float action",
    "too many rows",
    "too few rows",
    "an action out of range",
    "NaN logits",
    "an output more",
    "an output less",
    "another shape",
    "another dtype",
    "NaN output",
    "a nested output",
    "a string output",
    "an output without data",
    "a big-endian output",
    "an output of objects",
    "a generator",
    "an action with an axis more",
    "nothing",
    "raises",
    "no dict",
    "logits only",
)


class Line(gym.Env):
    """Environment whose observations are (environment, step, previous action). The reward is action plus step."""

    observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(4)
    num_made = 0

    def __init__(self, number: int = 0) -> None:
        self.number, self.t = number, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.array([self.number, 0, -1], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        observation = np.array([self.number, self.t, action], np.float32)
        return observation, float(10 * self.t + action), self.t == 5 + self.number, False, {}


def meeting() -> Together:
    """Return an environment of two agents, of which the first ends before the second."""
    return Together({"a": Line(0), "b": Line(1)})


class Odd:
    """Policy with the behavior `kinds[i]` in its i-th call, and normal behavior afterwards."""

    def __init__(self, kinds: list[str], seed: int) -> None:
        self.kinds, self.calls, self.rng = kinds, 0, np.random.default_rng(seed)
        self.kept: list[Any] = []

    def __call__(self, batch: Any, explore: bool | None = None) -> Any:
        kind = self.kinds[self.calls] if self.calls < len(self.kinds) else "plain"
        self.calls += 1
        n = len(batch["obs"])
        actions = self.rng.integers(0, 4, n)
        observed = np.asarray(batch["obs"][:, 1]).copy()
        return self.answer(kind, batch, n, actions, observed)

    def answer(self, kind: str, batch: Any, n: int, actions: np.ndarray, observed: np.ndarray) -> Any:
        """Return the outputs of the policy: for valid kinds with the observed time and the doubled action."""
        outputs: dict[str, Any] = {"actions": torch.from_numpy(actions), "time": torch.from_numpy(observed)}
        outputs["pair"] = torch.from_numpy(np.stack([actions, 2 * actions], 1).astype(np.float32))
        changes: dict[str, Any] = {
            "numpy": {"actions": actions, "time": observed},
            "a list": {"actions": actions.tolist()},
            "None": {"actions": None},
            "a float action": {"actions": torch.rand(n)},
            "too many rows": {"time": torch.zeros(n + 1)},
            "too few rows": {"actions": torch.zeros(n - 1, dtype=torch.long), "time": torch.zeros(n - 1)},
            "an action out of range": {"actions": torch.full((n,), 9)},
            "an output more": {"more": torch.zeros(n)},
            "another shape": {"pair": torch.zeros(n, 3)},
            "another dtype": {"time": torch.from_numpy(observed.astype(np.float64)) + 1e-9},
            "NaN output": {"time": torch.full((n,), torch.nan)},
            "a nested output": {"pair": {"x": torch.zeros(n)}},
            "a string output": {"time": ["x"] * n},
            "an output without data": {"time": torch.empty(n, device="meta")},
            "a big-endian output": {"time": observed.astype(">f8")},
            "an output of objects": {"time": np.full(n, None)},
            "a generator": {"time": (row for row in observed)},
            "an action with an axis more": {"actions": torch.from_numpy(actions)[:, None]},
            "not contiguous": {"pair": torch.from_numpy(np.stack([actions, 2 * actions]).astype(np.float32)).T},
        }
        if kind == "raises":
            raise RuntimeError("the policy's own")
        if kind in ("no dict", "nothing"):
            return outputs["actions"] if kind == "no dict" else None
        if kind in ("no actions", "an output less"):
            del outputs["actions" if kind == "no actions" else "pair"]
        if kind in ("NaN logits", "logits only"):
            outputs["action_dist_inputs"] = torch.full((n, 4), torch.nan if kind == "NaN logits" else 0.0)
            del outputs["actions"]
        if kind == "requires grad":
            with torch.inference_mode(False), torch.enable_grad():
                outputs["pair"] = torch.tensor(outputs["pair"].numpy(), requires_grad=True) * 1
        if kind == "keeps":
            self.kept.append((batch, outputs))
        if kind == "writes":
            for kept_batch, arguments in self.kept:
                kept_batch["obs"].fill_(-7)
                arguments["time"].fill_(-7)
            batch["obs"].fill_(-5)
        if kind == "a column more in the batch":
            batch["new"] = "column"
        return outputs | changes.get(kind, {})


def check(episodes: Any, lenient: bool) -> int:
    """Check that every episode equals an episode of `Line` with the outputs of a normal policy, and count its steps.

    Args:
        lenient: outputs may have been odd, so only what the environments gave is checked.
    """
    for episode in episodes:
        observations, actions = np.array(episode.get_observations()), np.array(episode.get_actions())
        assert len(set(observations[:, 0].tolist())) == 1
        assert observations[:, 1].tolist() == list(range(episode.t_started, episode.t_started + len(episode) + 1))
        assert observations[1:, 2].tolist() == actions.tolist()
        assert np.array(episode.get_rewards()).tolist() == (10 * observations[1:, 1] + actions).tolist()
        assert episode.is_terminated == (observations[-1, 1] == 5 + observations[-1, 0])
        if not lenient:
            assert episode.get_extra_model_outputs("time").tolist() == observations[:-1, 1].tolist()
            assert episode.get_extra_model_outputs("pair").tolist() == [[a, 2 * a] for a in actions.tolist()]
    return sum(map(len, episodes))


def parts(episodes: Any) -> list[Any]:
    """Return the single-agent episodes with steps of multi-agent episodes."""
    return [
        agent_episode for episode in episodes for agent_episode in episode.agent_episodes.values() if len(agent_episode)
    ]


kinds = st.lists(st.sampled_from(GOOD), max_size=9).flatmap(
    lambda good: st.lists(st.sampled_from(ODD), max_size=2).map(lambda invalid: [*good, *invalid])
)


def with_each_kind(**arguments: Any) -> Callable[[Any], Any]:
    """Return a decorator that adds an example of each odd kind to a property with other `arguments`."""
    return lambda test: reduce(lambda made, kind: example(kinds=["plain", kind], **arguments)(made), ODD, test)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@given(kinds=kinds, seed=st.integers(0, 2**16), into_buffer=st.booleans())
@with_each_kind(seed=0, into_buffer=False)
@settings(max_examples=15)
def test_any_policy_is_recorded_right_or_loses_no_step(
    mode: AutoresetMode, kinds: list[str], seed: int, into_buffer: bool
) -> None:
    envs = SyncVectorEnv([lambda i=i: Line(i) for i in range(N)], autoreset_mode=mode)
    unusual = any(kind in ODD for kind in kinds)
    policy = Odd(kinds, seed)
    runner = SingleAgentEnvRunner(envs, policy, seed=seed)
    buffer = EpisodeReplayBuffer(1000)
    good_steps, failed = 0, False
    for _ in range(4):
        try:
            if into_buffer:
                runner.sample_into(buffer, num_timesteps=12)
            else:
                good_steps += check(runner.sample(num_timesteps=12), unusual)
        except Exception as error:
            if not unusual or not str(error):
                raise
            failed = True
            good_steps += 0 if into_buffer else check(runner.take(), unusual)
    if into_buffer:
        assert check(list(buffer.iter_episodes()), True) == len(buffer)
    elif not failed:
        assert good_steps >= 4 * 12
    assert policy.calls >= 4 or failed


@given(kinds=kinds, seed=st.integers(0, 2**16))
@with_each_kind(seed=0)
@settings(max_examples=15)
def test_any_multi_agent_policy_is_right_or_loses_no_step(kinds: list[str], seed: int) -> None:
    unusual = any(kind in ODD for kind in kinds)
    runner = MultiAgentEnvRunner(meeting, Odd(kinds, seed), num_envs=2, seed=seed)
    steps = 0
    for _ in range(4):
        try:
            steps += check(parts(runner.sample(num_timesteps=8)), unusual)
        except Exception as error:
            if not unusual or not str(error):
                raise
            steps += check(parts(runner.take()), unusual)
    assert steps or unusual
