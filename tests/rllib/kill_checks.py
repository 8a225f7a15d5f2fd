"""RLlib with `install`, and remote env runners that are killed: they are replaced, and nothing is doubled or lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ray

from tests.rllib.rllib_envs import RECEIVED, Chunk, Drawn, DrawnAgents, Receive, counts_of, filtered, log_distance

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def ray_session() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    yield
    ray.shutdown()


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
        if not chunk.start:
            episode_id = chunk.key[0] or chunk.key[2]
            assert draws.setdefault(chunk.drawn, episode_id) == episode_id


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
    unseen = [0]  # received observations that the statistics lack

    def check(result: Any) -> None:
        new = RECEIVED[known["chunks"] :]
        check_received(RECEIVED)
        # All act with the newest weights. Agent "b" ends steps that it began in the sample before.
        assert len(set().union(*(chunk.versions for chunk in new if chunk.key[1] != "b"))) == 1
        steps = result["env_runners"]["num_env_steps_sampled_lifetime"]
        if not agents:
            assert sum(chunk.stop - chunk.start for chunk in new) == steps - known["steps"]
        known.update(chunks=len(RECEIVED), steps=steps)
        counts = counts_of(algorithm)
        observed = sum(chunk.stop - chunk.start + (chunk.start == 0) for chunk in RECEIVED)
        assert known["count"] < counts[0]
        known["count"] = counts[0]
        unseen.append(observed - counts[0])

    trained(algorithm, algorithm.env_runner_group, random.Random(agents), check, num_kills)
    # A runner that dies after its sample takes the statistics of this sample with it. Four resets may be ahead.
    lost = np.diff(unseen)
    assert sum(lost > 4) <= num_kills
    assert lost.max() <= 64 * (1 + agents)  # one sample of one runner
    assert min(unseen) >= -8
    algorithm.stop()


def test_dqn_stores_each_step_once_whatever_runner_dies() -> None:
    config = filtered("DQN", False).environment(Drawn).fault_tolerance(restart_failed_env_runners=True)
    config.env_runners(num_env_runners=2, rollout_fragment_length=20)
    config.training(replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 100_000})
    algorithm = config.build_algo()
    counts = [0]

    def check(result: Any) -> None:
        buffer = algorithm.local_replay_buffer
        assert buffer.get_added_timesteps() == result["env_runners"]["num_env_steps_sampled_lifetime"]
        counts.append(counts_of(algorithm)[0])
        resets = buffer.get_num_episodes() + 8  # those of two runners may be ahead
        assert counts[-2] <= counts[-1] <= buffer.get_added_timesteps() + resets

    trained(algorithm, algorithm.env_runner_group, random.Random(2), check, 4)
    algorithm.stop()


def test_evaluation_acts_on_statistics_of_training_whatever_runner_dies() -> None:
    config = filtered("PPO", False).environment(Drawn).fault_tolerance(restart_failed_env_runners=True)
    config.training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    config.evaluation(evaluation_interval=1, evaluation_num_env_runners=2, evaluation_duration=8)
    config.evaluation(evaluation_config={"explore": False})
    algorithm = config.callbacks(on_episode_end=log_distance).build_algo()

    def check(result: Any) -> None:
        evaluated = result["evaluation"]["env_runners"]
        assert evaluated["num_episodes"] >= 8
        assert evaluated["distance"] < 1e-3
        assert evaluated["num_observed"] == counts_of(algorithm)[0]

    trained(algorithm, algorithm.eval_env_runner_group, random.Random(3), check, 4)
    algorithm.stop()
