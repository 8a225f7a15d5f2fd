"""Ray runners that are killed again and again on a busy machine, and environments that fail inside them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episode_learners import MLPPolicy
from episode_runners import RayRunnerGroup, SingleAgentEnvRunner, start_ray
from episodes.errors import RunnerLost
from tests.runners.failing_environments import LENGTH, Faulty
from tests.runners.test_failing_environments import check_rows
from tests.runners.test_ray_group import Constant, make_plain

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]

LOST_AFTER_S = 120.0


@pytest.fixture(scope="module", autouse=True)
def started() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="ray")
    try:
        with pytest.MonkeyPatch.context() as patch:  # actors import this file
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
            start_ray(6, object_store_memory=100 * 2**20, temp_dir=folder)
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def busy() -> Iterator[None]:
    """Keep every core busy with another process, of the same priority as Ray's workers."""
    command = ["nice", "-n", "15", sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    yield
    for other in others:
        other.kill()
        other.wait()


def check_chunks(chunks: list[Any]) -> None:
    """Check that the chunks of each episode follow each other from its start, in one process, up to a death."""
    ends: dict[str, tuple[int, float]] = {}
    for chunk in chunks:
        pids, times = chunk.get_observations().T
        at, pid = ends.get(chunk.id_, (0, pids[0]))
        assert chunk.t_started == at
        assert set(pids) == {pid}
        assert times.tolist() == [*range(at, at + len(chunk) + 1)]
        assert chunk.is_terminated == (times[-1] == 10)
        ends[chunk.id_] = at + len(chunk), pid


@pytest.mark.usefixtures("busy")
def test_20_killed_runners_are_replaced_and_lose_only_their_last_chunks() -> None:
    rng, chunks, pids, waits = np.random.default_rng(0), list[Any](), dict[int, int](), list[float]()
    with RayRunnerGroup(make_plain, 2, lost_after_s=LOST_AFTER_S) as group:
        group.set_weights(Constant(), version=0)
        samples = group.sample_async(num_timesteps=200)

        def take() -> Any:
            sample = next(samples)
            chunks.extend(sample.data)
            pids[sample.index] = int(sample.data[0].get_observations()[0, 0])
            assert sample.policy_version == 0
            assert sum(map(len, sample.data)) == 200
            return sample

        for number in range(20):
            while len(pids) < 2:
                take()
            for _ in range(int(rng.integers(0, 4))):  # the kill comes at another moment of the runner's work
                take()
            index = int(rng.integers(2))
            killed, killed_at = pids.pop(index), time.monotonic()
            os.kill(killed, signal.SIGKILL)
            while pids.get(index, killed) == killed:  # until a new process has sampled
                take()
            waits.append(time.monotonic() - killed_at)
            assert len(group.replacements) == number + 1
            assert group.replacements[-1].index == index
            assert "pending for" not in group.replacements[-1].reason  # Ray told of the death
    check_chunks(chunks)
    assert max(waits) < LOST_AFTER_S


# --- environments that fail inside actors ---


def make_faulty(folder: Path, options: dict[str, Any], always: bool, index: int, seed: int) -> SingleAgentEnvRunner:
    policy = MLPPolicy(Faulty.observation_space, Faulty.action_space)
    make = partial(OnceEach, options.pop("fault", "raises"), 3, folder / str(index), always)
    return SingleAgentEnvRunner(make, policy, num_envs=2, seed=seed, **options)


class OnceEach(Faulty):
    """Environment that fails at step 3 of the second episode of the first that gets there, or of each."""

    def _may_fail(self) -> Any:
        if (self.always or not self.note.exists()) and self.t == 3 and self.episode == (1 if self.always else 2):
            self.note.touch()
            return self.fault(self.note)
        return ()


@pytest.mark.parametrize(("fault", "vectorization"), [("raises", "sync"), ("raises", "async"), ("dies", "async")])
def test_failed_environment_of_an_actor_is_replaced(fault: str, vectorization: str, tmp_path: Path) -> None:
    options = {"fault": fault, "vectorization": vectorization, "restart_failed": True}
    with RayRunnerGroup(partial(make_faulty, tmp_path, options, False), 2) as group:
        for _ in range(2):
            for sample in group.sample(num_episodes=12):
                assert [len(episode) for episode in sample.data] == [LENGTH] * 6
                check_rows([*sample.data])
        assert not group.replacements
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_failed_environment_of_an_actor_without_restarts_is_its_error(tmp_path: Path) -> None:
    with RayRunnerGroup(partial(make_faulty, tmp_path, {}, False), 1) as group:
        with pytest.raises(ZeroDivisionError, match="motor on fire"):
            group.sample(num_episodes=12)
        assert not group.replacements
        (sample,) = group.sample(num_episodes=4)  # the next call starts new episodes
        assert [len(episode) for episode in sample.data] == [LENGTH] * 4


def test_environment_that_ends_its_actor_every_time_is_an_error(tmp_path: Path) -> None:
    with (
        RayRunnerGroup(partial(make_faulty, tmp_path, {"fault": "dies"}, True), 1) as group,
        pytest.raises(RunnerLost, match="runner 0 died 3 times without a sample"),
    ):
        group.sample(num_episodes=2)
