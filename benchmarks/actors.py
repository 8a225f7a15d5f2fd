"""Ray benchmarks: packs in the object store, and sampling in Ray actors compared with one runner and with RLlib's
actors.

Ray is started once, on 127.0.0.1 only, and ends with this process. Actors end when the workload that created them is
deleted.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.data import our_episode, rllib_episode, steps
from benchmarks.figure import Figure, Side, Size, Timed, at_least
from benchmarks.peers import RLLIB
from benchmarks.sampling import ENVIRONMENT, environments, new_policy

EPISODES, LENGTH = 100, 200  # in the object store
NUM_ENVS, EACH, ACTORS = 64, 8192, 2  # environments and steps of each actor, in one call
LONG = 32_768  # steps of each in one call, where what the machine does otherwise has to even out
NUM_CPUS = 2 * ACTORS + 1  # both sides' actors, and what is asked for between them


def start_ray_once() -> Any:
    """Start Ray unless this process has started it already, and return the module `ray`."""
    import ray

    from episode_runners import start_ray

    if not ray.is_initialized():
        folder = tempfile.mkdtemp(prefix="ray-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(ray.shutdown)
        start_ray(NUM_CPUS, temp_dir=folder)
    return ray


# --- the object store ---


def object_store(size: Size, make: Callable[[int], Any]) -> Timed:
    """Time `ray.put` and `ray.get` of an object with 100 episodes, which `make` creates."""
    ray, episodes = start_ray_once(), make(size(EPISODES))
    return Timed(lambda: ray.get(ray.put(episodes)))


def our_pack(num: int) -> Any:
    """Return `num` episodes of 200 steps as a pack."""
    from episodes import EpisodePack

    return EpisodePack.from_episodes([our_episode(steps(LENGTH, i)) for i in range(num)])


def rllib_list(num: int) -> list[Any]:
    """Return `num` episodes of 200 steps as a list of finalized RLlib episodes, which RLlib's runners send."""
    return [rllib_episode(steps(LENGTH, i)) for i in range(num)]


# --- sampling ---


def cpu_of_all() -> float:
    """Return the total CPU seconds of this process and of all child processes that still run."""
    import psutil

    return time.process_time() + sum(cpu_of(child) for child in psutil.Process().children(recursive=True))


def cpu_of(process: Any) -> float:
    """Return the CPU seconds of another process: from its CPU clock on Linux, else with a resolution of 10 ms."""
    if sys.platform == "linux":
        return time.clock_gettime(~process.pid << 3 | 2)  # CPUCLOCK_SCHED, as clock_getcpuclockid(3) makes it
    times = process.cpu_times()
    return times.user + times.system


def make_runner(index: int, seed: int) -> Any:
    """Return this library's runner with 64 CartPole environments. `RayRunnerGroup` calls this function in each
    actor.
    """
    from episode_runners import SingleAgentEnvRunner

    return SingleAgentEnvRunner(environments(NUM_ENVS), new_policy(), seed=seed)


def our_group(size: Size, clock: Callable[[], float], each: int = LONG) -> Timed:
    """Time sampling by this library's `RayRunnerGroup` with two actors, per environment step."""
    from episode_runners import RayRunnerGroup

    start_ray_once()
    count, group = size(each) * ACTORS, RayRunnerGroup(make_runner, ACTORS)

    def run() -> None:
        group.sample(num_timesteps=count)

    weakref.finalize(run, group.close)
    run()
    return Timed(run, count, clock=clock)


def one_runner(size: Size, clock: Callable[[], float]) -> Timed:
    """Time sampling by one runner in this process, per environment step."""
    count, runner = size(LONG), make_runner(0, 0)
    return Timed(lambda: runner.sample(num_timesteps=count), count, clock=clock)


def rllib_group(size: Size) -> Timed:
    """Time sampling by RLlib's `EnvRunnerGroup`, per environment step, with the same environments, network and number
    of runners.
    """
    start_ray_once()
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    count = size(EACH)
    config = (
        PPOConfig()
        .environment(ENVIRONMENT)
        .env_runners(num_env_runners=ACTORS, num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length="auto")
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
    )
    group = EnvRunnerGroup(config=config, local_env_runner=False)

    def run() -> None:
        group.foreach_env_runner(lambda runner: runner.sample(num_timesteps=count), local_env_runner=False)

    run()
    return Timed(run, count * ACTORS)


FIGURES = (
    Figure(
        "ray/100 episodes through the object store",
        Side("a pack", partial(object_store, make=our_pack)),
        Side("RLlib's list", partial(object_store, make=rllib_list), RLLIB),
        at_least(8),
        "ms",
    ),
    Figure(
        "ray/steps per CPU second, 2 actors",
        Side("ours", partial(our_group, clock=cpu_of_all)),
        Side("one runner", partial(one_runner, clock=time.process_time)),
        at_least(0.75),
        "us",
    ),
    Figure(
        "ray/steps per second, 2 actors beside one runner",
        Side("ours", partial(our_group, clock=time.perf_counter)),
        Side("one runner", partial(one_runner, clock=time.perf_counter)),
        at_least(1.5),
        "us",
    ),
    Figure(
        "ray/steps per second, 2 actors",
        Side("ours", partial(our_group, clock=time.perf_counter, each=EACH)),
        Side("RLlib's group", rllib_group, RLLIB),
        at_least(4),
        "us",
    ),
)
