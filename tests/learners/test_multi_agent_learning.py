"""Several agents learn in a real PettingZoo environment, with one policy for all and with a policy each."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from episode_runners import MultiAgentEnvRunner

EXAMPLE = Path(__file__).parents[2] / "examples" / "spread_out.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example, imported from its file."""
    spec = importlib.util.spec_from_file_location("spread_out", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def random_return(example: ModuleType) -> float:
    """The mean return of an episode, all agents together, with random actions."""
    runner = MultiAgentEnvRunner(example.make_env, num_envs=4, seed=0)
    runner.sample(num_episodes=100, random_actions=True)
    return runner.stats.mean_return


@pytest.mark.parametrize("separate", [False, True], ids=["one policy for all", "a policy each"])
def test_two_agents_learn_to_share_out_the_landmarks(example, random_return, separate):
    means = example.train(separate=separate, num_steps=20_000)
    assert means[0] < random_return + 5  # it began no better than random
    assert np.mean(means[-5:]) > random_return + 7


def test_a_policy_each_learns_two_policies(example):
    env = example.make_env()
    assert list(example.learner_for(env, True, 1000, 0).policies) == env.possible_agents
    assert list(example.learner_for(env, False, 1000, 0).policies) == ["shared"]
