"""Benchmark of the CPU seconds in which PPO solves CartPole-v1, as the median of five seeds.

The task is solved if the mean return of 20 greedy episodes, tested after each update, reaches the goal, and the mean
return of 20 other episodes as well. Tests are the same for all sides, and their time is not counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from itertools import count

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from benchmarks.figure import Counted, Figure, Side, Size, at_most, cpu_seconds
from benchmarks.loops import ppo as bare_ppo
from benchmarks.loops.networks import perceptron
from benchmarks.peers import TIANSHOU, trainers

ENVIRONMENT, GOAL = "CartPole-v1", 475.0
NUM_SEEDS, MOST_STEPS = 5, 300_000
NUM_TESTED, OTHER_TESTS = 20, 5_000_000
NUM_ENVS, ROWS, EPOCHS, MINIBATCH = 8, 128, 6, 128  # of our settings, and the bare loop's

Act = Callable[[np.ndarray], np.ndarray]  # observations [N, 4] to the likeliest actions [N]
Racer = Callable[[int], tuple[Callable[[], int], Act]]  # of a seed: what samples and learns (how many steps), and acts


def ours(seed: int) -> tuple[Callable[[], int], Act]:
    """Return the training step of this library's PPO trainer with its tested settings, and its greedy policy."""
    from episode_learners.run import Run

    run = Run.of_preset("ppo", ENVIRONMENT)
    run.seed, run.trainer = seed, {**run.trainer, "shows_progress": False, "num_test_episodes": 0}
    trainer = run.make()
    return trainer.step, greedy(trainer.algorithm.policy.actor)  # type: ignore[arg-type]


def bare(seed: int) -> tuple[Callable[[], int], Act]:
    """Return the training step of the plain PPO loop with the same settings, and its greedy policy."""
    torch.manual_seed(seed)
    actor = perceptron((4, 64, 64, 2), nn.Tanh)
    loop = bare_ppo.learning(NUM_ENVS, ROWS, EPOCHS, MINIBATCH, seed, actor)

    def learn() -> int:
        next(loop)
        return NUM_ENVS * ROWS

    return learn, greedy(actor)


def tianshou(seed: int) -> tuple[Callable[[], int], Act]:
    """Return the training step of Tianshou's PPO with its published settings, and its greedy policy.

    The settings are 10 environments, 2,000 steps per update, 10 epochs, and minibatches of 64.
    """
    torch.manual_seed(seed)
    algorithm, params = trainers.tianshou_ppo_run(num_envs=10, num_steps=2_000, epochs=10, minibatch=64, seed=seed)

    def learn() -> int:
        algorithm.run_training(params)
        return 2_000

    return learn, greedy(lambda obs: algorithm.policy.actor(obs)[0])


def greedy(logits: Callable[[torch.Tensor], torch.Tensor]) -> Act:
    """Return a function that selects the most probable action for each observation, given a network that returns
    logits.
    """

    def act(obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return logits(torch.from_numpy(obs)).argmax(-1).numpy()

    return act


def mean_test_return(act: Act, seed: int) -> float:
    """Return the mean return of 20 episodes of CartPole with the greedy policy `act`."""
    env = gym.make_vec(ENVIRONMENT, NUM_TESTED, vectorization_mode="vector_entry_point")
    obs, going, total = env.reset(seed=seed)[0], np.ones(NUM_TESTED, bool), 0
    while going.any():
        obs, _, terminated, truncated, _ = env.step(act(obs))
        total += int(going.sum())
        going &= ~(terminated | truncated)
    return total / NUM_TESTED


def seconds_to_goal(racer: Racer, seed: int, most_steps: int) -> float:
    """Return the CPU seconds of sampling and learning until the goal is reached, or until `most_steps` steps."""
    learn, act = racer(seed)
    spent, steps = 0.0, 0
    for update in count():
        began = cpu_seconds()
        steps += learn()
        spent += cpu_seconds() - began
        is_solved = mean_test_return(act, update) >= GOAL and mean_test_return(act, OTHER_TESTS + update) >= GOAL
        if is_solved or steps >= most_steps:
            break
    return spent


def race(size: Size, racer: Racer) -> Counted:
    """Measure the median CPU seconds to the goal over all seeds. A seed that does not reach the goal counts with all
    its time.
    """
    seeds = range(NUM_SEEDS if size.most is None else 1)
    return Counted(statistics.median(seconds_to_goal(racer, seed, size(MOST_STEPS)) for seed in seeds))


FIGURES = (
    Figure(
        "racing/PPO to 475, bare loop",
        Side("ours", partial(race, racer=ours)),
        Side("bare loop", partial(race, racer=bare)),
        at_most(1.2),
        "s",
    ),
    Figure(
        "racing/PPO to 475, Tianshou",
        Side("ours", partial(race, racer=ours)),
        Side("Tianshou", partial(race, racer=tianshou), TIANSHOU),
        at_most(0.35),
        "s",
    ),
)
