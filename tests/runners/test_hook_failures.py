"""A call of `sample` that fails after recording loses no recorded steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpe2 import simple_spread_v3

from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner


class FailsOnce:
    """Hook that fails at the end of the second call, in one of several ways."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error, self.calls = error, 0

    def on_sample_end(self, runner: Any, samples: Any) -> None:
        self.calls += 1
        if self.calls == 2:
            raise self.error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("returns_interrupted", [False, True])
def test_take_returns_steps_before_a_failing_hook(error: type[BaseException], returns_interrupted: bool) -> None:
    options: dict[str, Any] = {"seed": 0, "num_envs": 2}
    whole = SingleAgentEnvRunner("CartPole-v1", **options)
    expected = [whole.sample(num_timesteps=60, random_actions=True).observations for _ in range(3)]
    options |= {"hooks": [FailsOnce(error)], "returns_interrupted": returns_interrupted}
    runner = SingleAgentEnvRunner("CartPole-v1", **options)
    result = [runner.sample(num_timesteps=60, random_actions=True).observations]
    with pytest.raises(error):
        runner.sample(num_timesteps=60, random_actions=True)
    if not returns_interrupted:
        result.append(runner.take().observations)
    result.append(runner.sample(num_timesteps=60, random_actions=True).observations)
    assert np.array_equal(np.concatenate(result), np.concatenate(expected))


@pytest.mark.parametrize("returns_interrupted", [False, True])
def test_take_returns_multi_agent_steps_before_a_failing_hook(returns_interrupted: bool) -> None:
    hooks, make = [FailsOnce(RuntimeError)], simple_spread_v3.parallel_env
    runner = MultiAgentEnvRunner(make, num_envs=2, hooks=hooks, seed=0, returns_interrupted=returns_interrupted)
    runner.sample(num_timesteps=20, random_actions=True)
    with pytest.raises(RuntimeError):
        runner.sample(num_timesteps=20, random_actions=True)
    result = [] if returns_interrupted else runner.take()
    result += runner.sample(num_timesteps=20, random_actions=True)
    assert sum(map(len, result)) == 40
