"""Sampling benchmarks on CartPole. All sides use a tanh perceptron of two layers of 64 and the same number of
environments.

The bare loop does the least that is possible with the policy object that this library samples with: call the policy,
sample from its distribution, step, store nothing. Every other library is used as its documentation shows, after a
warmup, and stores what it usually stores.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.figure import Figure, Side, Size, Timed, at_least, at_most
from benchmarks.peers import RLLIB, SB3, TIANSHOU, samplers

if TYPE_CHECKING:
    from episode_learners import MLPPolicy
    from episode_runners import SingleAgentEnvRunner

ENVIRONMENT = "CartPole-v1"
MakeEnvs = Callable[[int], Any]  # of a number of environments
ROWS = 256  # vector steps of one call: a usual rollout
COUNTED_ROWS = 2000
MANY = 32_768  # steps of one call, of environments that are too many for so many rows
BARE = {1: 0.85, 8: 0.9, 64: 0.93}  # environments: our speed beside the bare loop's
ENVPOOL_BARE = {64: 0.8, 1024: 0.92}  # likewise, over EnvPool
ENVPOOL_SYNC = 3.5  # our speed over EnvPool beside that over Gymnasium's environments
WIDE, WIDE_ROWS = 4096, 24  # of a simulator that lives in torch
KEPT = 100_000  # steps in the replay buffer that ours samples into


def environments(num_envs: int) -> gym.vector.VectorEnv:
    """Return `num_envs` CartPole environments as Gymnasium's synchronous vector environment."""
    return gym.make_vec(ENVIRONMENT, num_envs=num_envs, vectorization_mode="sync")


def envpool(num_envs: int) -> Any:
    """Return EnvPool's own vector environment of CartPole, with one thread."""
    from envpool import make_gymnasium

    pool = make_gymnasium(ENVIRONMENT, num_envs=num_envs, num_threads=1, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _ = pool.observation_space  # made when first asked for, with a warning
    return pool


def adapted_envpool(num_envs: int) -> gym.vector.VectorEnv:
    """Return EnvPool's CartPole environments, with one thread, in this library's adapter for Gymnasium."""
    from episode_runners.environments import EnvPoolVectorEnv

    return EnvPoolVectorEnv(ENVIRONMENT, num_envs, pool_kwargs={"num_threads": 1})


@cache
def policy() -> MLPPolicy:
    """Return the policy that all benchmarks of this file share."""
    return new_policy()


def new_policy() -> MLPPolicy:
    """Return a new policy for CartPole with a tanh perceptron of two layers of 64, always with the same weights."""
    from episode_learners import MLPPolicy

    envs = environments(1)
    spaces = (envs.single_observation_space, envs.single_action_space)
    return MLPPolicy(*spaces, hidden_sizes=(64, 64), generator=torch.Generator().manual_seed(0))


def rows_of(num_envs: int) -> int:
    """Return the number of vector steps that one call samples from `num_envs` environments."""
    return min(ROWS, MANY // num_envs)


def bare_loop(size: Size, num_envs: int, make: MakeEnvs = environments) -> Timed:
    """Time a plain loop that evaluates the policy, samples actions and steps the environments, per environment step.

    Resets take time and are not counted as steps: the row after an ending is a reset.
    """
    envs, module = make(num_envs), policy()
    draw = module.distribution.sample
    observations = np.asarray(envs.reset()[0])
    rows, counted = size(rows_of(num_envs)), size(min(COUNTED_ROWS, 4 * MANY // num_envs))

    def step() -> tuple[np.ndarray, np.ndarray]:
        nonlocal observations
        outputs = module({"obs": torch.from_numpy(observations)}, explore=True)
        actions = draw(outputs["action_dist_inputs"]).numpy()
        observations, _, terminateds, truncateds, _ = envs.step(actions)
        return terminateds, truncateds

    def run() -> None:
        with torch.inference_mode():
            for _ in range(rows):
                step()

    with torch.inference_mode():
        endings = int(sum(np.logical_or(*step()).sum() for _ in range(counted)))
    return Timed(run, rows * num_envs - endings * rows / counted)


def our_runner(num_envs: int, policy: MLPPolicy, make: MakeEnvs = environments) -> SingleAgentEnvRunner:
    """Return this library's runner of `num_envs` environments with a policy."""
    from episode_runners import SingleAgentEnvRunner

    return SingleAgentEnvRunner(make(num_envs), policy, seed=0)


def ours(size: Size, num_envs: int, make: MakeEnvs = environments) -> Timed:
    """Time sampling by this library's runner, per environment step."""
    runner, count = our_runner(num_envs, policy(), make), size(rows_of(num_envs)) * num_envs
    return Timed(lambda: runner.sample(num_timesteps=count), count)


def into_replay(size: Size, num_envs: int) -> Timed:
    """Time sampling by this library's runner into a full replay buffer (`sample_into`), per environment step."""
    from episodes.replay import EpisodeReplayBuffer

    runner, count = our_runner(num_envs, policy()), size(ROWS) * num_envs
    buffer = EpisodeReplayBuffer(max(size(KEPT), 2 * count), seed=0)
    while len(buffer) < buffer.capacity:
        runner.sample_into(buffer, num_timesteps=count)
    return Timed(lambda: runner.sample_into(buffer, num_timesteps=count), count)


def row_into_replay(size: Size, num_envs: int) -> Timed:
    """Time `sample_into` with a single vector step per call, as off-policy algorithms sample, per vector step."""
    from episodes.replay import EpisodeReplayBuffer

    runner, calls = our_runner(num_envs, policy()), size(ROWS)
    buffer = EpisodeReplayBuffer(max(size(KEPT), 2 * num_envs), seed=0)
    while len(buffer) < buffer.capacity:
        runner.sample_into(buffer, num_timesteps=buffer.capacity)
    step, num_rows = runner.env.step, 0

    def counting_step(actions: Any) -> Any:
        nonlocal num_rows
        num_rows += 1
        return step(actions)

    def run() -> None:
        for _ in range(calls):
            runner.sample_into(buffer, num_timesteps=num_envs)

    runner.env.step = counting_step
    run()
    runner.env.step = step
    return Timed(run, num_rows)


def bare_row(num_envs: int) -> Callable[[Size], Timed]:
    """Time the plain loop, per vector step."""
    return lambda size: replace(bare_loop(size, num_envs=num_envs), items=size(ROWS))


def figures(num_envs: int) -> tuple[Figure, ...]:
    """Return benchmarks that compare this library's runner with the plain loop and with other libraries, for `num_envs`
    environments.
    """
    side = Side("ours", partial(ours, num_envs=num_envs))
    peers = (
        (Side("bare loop", partial(bare_loop, num_envs=num_envs)), BARE[num_envs]),
        (Side("RLlib", partial(samplers.rllib, num_envs=num_envs, rows=ROWS), RLLIB), 3.0),
        (Side("Tianshou", partial(samplers.tianshou, num_envs=num_envs, rows=ROWS), TIANSHOU), 2.5),
        (Side("SB3", partial(samplers.sb3, num_envs=num_envs, rows=ROWS), SB3), 1.3),
    )
    return tuple(
        Figure(f"sampling/{num_envs} {peer.name}", side, peer, at_least(times), "steps/s") for peer, times in peers
    )


def envpool_figures() -> tuple[Figure, ...]:
    """Return benchmarks that compare this library's runner on EnvPool with a plain loop, and with Gymnasium's
    environments.

    Both sides evaluate the policy, so no library can be much faster relative to Gymnasium's environments than a
    bare loop. The benchmark "ceiling" measures this limit, without any code of this library.
    """
    sides = {
        num_envs: Side("ours", partial(ours, num_envs=num_envs, make=adapted_envpool)) for num_envs in ENVPOOL_BARE
    }
    bare = {
        num_envs: Side("bare loop", partial(bare_loop, num_envs=num_envs, make=envpool)) for num_envs in ENVPOOL_BARE
    }

    def row(name: str, side: Side, reference: Side, times: float) -> Figure:
        return Figure(f"sampling/EnvPool {name}", side, reference, at_least(times), "steps/s")

    return (
        *(row(f"{n} bare loop", sides[n], bare[n], times) for n, times in ENVPOOL_BARE.items()),
        *(
            row(f"{n} sync", sides[n], Side("Gymnasium's sync", partial(ours, num_envs=n)), ENVPOOL_SYNC)
            for n in ENVPOOL_BARE
        ),
        row("64 ceiling", bare[64], Side("bare loop over sync", partial(bare_loop, num_envs=64)), 1.0),
    )


def torch_bare_loop(size: Size) -> Timed:
    """Time a plain loop over a simulator in torch, with tensors as observations and actions, per environment step."""
    from benchmarks.torch_cartpole import TorchCartPole

    simulator, module, rows = TorchCartPole(size(WIDE)), policy(), size(WIDE_ROWS)
    draw = module.distribution.sample
    observations = simulator.reset()[0]

    def run() -> None:
        nonlocal observations
        with torch.no_grad():
            for _ in range(rows):
                outputs = module({"obs": observations}, explore=True)
                observations = simulator.step(draw(outputs["action_dist_inputs"]))[0]

    return Timed(run, rows * simulator.num_envs)


def torch_ours(size: Size) -> Timed:
    """Time sampling from the same simulator by this library's runner, per environment step."""
    from benchmarks.torch_cartpole import ACTION_SPACE, OBSERVATION_SPACE, TorchCartPole
    from episode_runners import SingleAgentEnvRunner
    from episode_runners.environments import TorchVectorEnv

    env = TorchVectorEnv(TorchCartPole(size(WIDE)), OBSERVATION_SPACE, ACTION_SPACE)
    runner, count = SingleAgentEnvRunner(env, policy(), seed=0), size(WIDE_ROWS) * size(WIDE)
    return Timed(lambda: runner.sample(num_timesteps=count), count)


FIGURES = (
    *(figure for num_envs in BARE for figure in figures(num_envs)),
    Figure(
        "sampling/64 sample_into",
        Side("ours", partial(into_replay, num_envs=64)),
        Side("sample", partial(ours, num_envs=64)),
        at_most(1.1),
        "steps/s",
    ),
    *(
        Figure(
            f"sampling/{num_envs} sample_into, one row",
            Side("ours", partial(row_into_replay, num_envs=num_envs)),
            Side("bare loop", bare_row(num_envs)),
            at_most(1.5),
            "us",
        )
        for num_envs in (1, 8)
    ),
    *envpool_figures(),
    Figure(
        "sampling/torch simulator",
        Side("ours", torch_ours),
        Side("bare loop", torch_bare_loop),
        at_most(1.2),
        "steps/s",
    ),
)
