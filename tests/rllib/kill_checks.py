"""RLlib with `install`, and remote env runners that are killed: they are replaced, and nothing is doubled or lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import ray
from ray.rllib.connectors.connector_v2 import ConnectorV2

from tests.rllib.rllib_envs import Scripted, ScriptedAgents, counts_of, filtered

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def ray_session() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    yield
    ray.shutdown()


class Drawn(Scripted):
    """The scripted environment with 5 ms for a step, and a random number of each episode in its infos."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        observation, _ = super().reset()
        self.drawn = int(self.np_random.integers(2**60))
        return observation, {"drawn": self.drawn}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(0.005)
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"drawn": self.drawn}


class DrawnAgents(ScriptedAgents):
    """The same with two agents."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.script = Drawn(config)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, info = self.script.reset(seed=seed)
        return dict.fromkeys(self.agents, observation), dict.fromkeys(self.agents, info)


class Chunk(NamedTuple):
    """A part of an episode that a learner received."""

    key: tuple[Any, ...]  # ids of its episode
    start: int  # number of its first step
    stop: int
    drawn: int  # random number of the episode
    versions: frozenset[int]  # of the policies that acted


RECEIVED: list[Chunk] = []


class Receive(ConnectorV2):
    """Learner connector that stores the chunks that a learner in this process receives in `RECEIVED`."""

    def __call__(self, *, batch: Any, episodes: Any, **arguments: Any) -> Any:
        for part in episodes:
            key = (part.multi_agent_episode_id, part.agent_id, part.id_)
            start = part.t_started
            versions = frozenset(part.get_policy_versions().tolist())
            RECEIVED.append(Chunk(key, start, start + len(part), part.get_infos(0).get("drawn", -1), versions))
        return batch


def pids_of(group: Any) -> dict[int, int]:
    """Return the process ids of the healthy remote env runners of a group, by index."""
    found = group.foreach_env_runner(lambda runner: (runner.worker_index, os.getpid()), local_env_runner=False)
    return dict(found)


def killed_in(call: Callable[[], Any], group: Any, chance: random.Random, duration: float) -> tuple[int, Any]:
    """Return the process id of one remote env runner that is killed during `call`, and the result of `call`."""
    pid = chance.choice(sorted(pids_of(group).values()))
    timer = threading.Timer(chance.random() * duration, os.kill, [pid, signal.SIGKILL])
    timer.start()
    result = call()
    timer.join()
    return pid, result


def check_received(chunks: list[Chunk]) -> None:
    """Check that no step was received twice, and that chunks follow the earlier chunks of their episodes."""
    stops: dict[tuple[Any, ...], int] = {}
    draws: dict[int, Any] = {}
    for chunk in chunks:
        assert chunk.start == stops.get(chunk.key, 0)
        stops[chunk.key] = chunk.stop
        assert draws.setdefault(chunk.drawn, chunk.key[0] or chunk.key[2]) == (chunk.key[0] or chunk.key[2])


def trained(algorithm: Any, group: Any, chance: random.Random, check: Callable[[Any], None], num_kills: int) -> float:
    """Train, kill an env runner of a group `num_kills` times, and train until it is replaced. Return the longest time
    to a replacement in seconds.

    Args:
        check: called with the result of each call of `train`.
    """
    slowest = 0.0
    for _ in range(num_kills):
        began = time.monotonic()
        check(algorithm.train())
        killed, result = killed_in(algorithm.train, group, chance, time.monotonic() - began)
        died = time.monotonic()
        check(result)
        for _ in range(200):
            pids = pids_of(group)
            if len(pids) == 2 and killed not in pids.values():
                break
            check(algorithm.train())
        assert len(pids) == 2
        assert killed not in pids.values()
        slowest = max(slowest, time.monotonic() - died)
        check(algorithm.train())
    print(f"longest time to a replacement: {slowest:.1f} s")
    return slowest


@pytest.mark.parametrize(("agents", "num_kills"), [(False, 8), (True, 4)])
def test_ppo_learns_each_step_once_whatever_runner_dies(agents: bool, num_kills: int) -> None:
    RECEIVED.clear()
    config = filtered("PPO", agents).environment(DrawnAgents if agents else Drawn)
    config.env_runners(num_env_runners=2).fault_tolerance(restart_failed_env_runners=True)
    config.training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    config.training(learner_connector=lambda *_: Receive())
    algorithm = config.build_algo()
    known = {"chunks": 0, "steps": 0.0, "count": 0}

    def check(result: Any) -> None:
        new = RECEIVED[known["chunks"] :]
        check_received(RECEIVED)
        assert len(set().union(*(chunk.versions for chunk in new))) == 1  # all act with the newest weights
        steps = result["env_runners"]["num_env_steps_sampled_lifetime"]
        if not agents:
            assert sum(chunk.stop - chunk.start for chunk in new) == steps - known["steps"]
        known.update(chunks=len(RECEIVED), steps=steps)
        counts = counts_of(algorithm)
        observed = sum(chunk.stop - chunk.start + (chunk.start == 0) for chunk in RECEIVED)
        assert known["count"] < counts[0]
        print(counts, observed)
        known["count"] = counts[0]

    trained(algorithm, algorithm.env_runner_group, random.Random(agents), check, num_kills)
    algorithm.stop()
