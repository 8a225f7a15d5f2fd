"""Several agents learn in a PettingZoo environment, with a shared policy and with separate policies."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from episode_learners.loggers import CSVLogger
from episode_runners import MultiAgentEnvRunner

EXAMPLE = Path(__file__).parents[2] / "examples" / "spread_out.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """Import the example from its file, and return the module."""
    spec = importlib.util.spec_from_file_location("spread_out", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def random_return(example: ModuleType) -> float:
    """Return the mean return of all agents together with random actions."""
    runner = MultiAgentEnvRunner(example.make_env, num_envs=4, seed=0)
    runner.sample(num_episodes=100, random_actions=True)
    return runner.stats.mean_return


@pytest.mark.parametrize(
    "separate", [pytest.param(False, id="one policy for all", marks=pytest.mark.slow), pytest.param(True, id="each")]
)
def test_simple_spread_example_learns(example, random_return, separate):
    means = example.train(separate=separate, num_steps=20_000)
    assert means[0] < random_return + 5  # it began no better than random
    assert np.mean(means[-5:]) > random_return + 7


def test_separate_policies_are_two_modules(example):
    env = example.make_env()
    assert list(example.learner_for(env, True, 1000, 0).policies) == env.possible_agents
    assert list(example.learner_for(env, False, 1000, 0).policies) == ["shared"]


SPREAD = (EXAMPLE.parent / "spread_out.toml").read_text()
POLES = """
algo = "multi-agent"
env = "tests.learners.games:TwoPoles"
num_envs = 4
[agents]
"left" = "ppo"
"right" = "dqn"
[modules.ppo]
algo = "ppo"
[modules.ppo.algorithm]
learning_rate = 2e-3
gamma = 0.98
lambda_ = 0.9
num_epochs = 6
minibatch_size = 128
[modules.dqn]
algo = "dqn"
[modules.dqn.algorithm]
learning_rate = 1e-3
n_step = 3
batch_size = 64
target_every = 200
epsilon_steps = 5_000
[trainer]
max_epochs = 20
steps_per_epoch = 5_000
steps_per_collect = 512
gradient_steps_per_collect = 256
warmup_steps = 512
num_test_episodes = 10
"""
GUESTS = """
algo = "multi-agent"
env = "tests.learners.games:Targets"
num_envs = 8
[env_kwargs]
agents = ["a"]
guests = ["g", "h"]
[agents]
"a" = "host"
"*" = "guest"
[modules.host]
algo = "ppo"
[modules.host.algorithm]
learning_rate = 3e-3
gamma = 0.0
[modules.guest]
algo = "ppo"
[modules.guest.algorithm]
learning_rate = 3e-3
gamma = 0.0
[trainer]
max_epochs = 15
steps_per_epoch = 2_000
steps_per_collect = 500
num_test_episodes = 50
"""
# fixed before the first run: mean returns of a test by agent or module; random agents reach -44, 22 each, 4 and 1
GOALS = {
    "simple_spread": (SPREAD, -34.0, {"mean_return": -34.0}),
    "two poles": (POLES, 390.0, {"mean_return/module/ppo": 190.0, "mean_return/module/dqn": 190.0}),
    "guests": (GUESTS, 11.5, {"mean_return/module/host": 7.6, "mean_return/module/guest": 1.9}),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", GOALS)
def test_several_modules_reach_the_goal_from_the_command_line(name: str, seed: int, tmp_path: Path):
    from episode_learners.__main__ import main

    text, stop_at, goals = GOALS[name]
    config, folder = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(text)
    options = ["--seed", str(seed), "--stop-at", str(stop_at), "--logdir", str(folder), "--quiet"]
    assert main(["train", "--config", str(config), *options]) == 0
    best = max(CSVLogger(folder).rows("test"), key=lambda row: float(row["mean_return"]))
    reached = ", ".join(f"{metric} {float(best[metric]):.2f}" for metric in goals)
    print(f"{name}, seed {seed}: {reached} after {best['step']} steps")
    for metric, goal in goals.items():
        assert float(best[metric]) >= goal, (metric, best[metric], best["step"])
