"""Benchmarks that count the library functions called by an operation, which does not depend on the machine's load. Each
call costs about 0.1 us.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.figure import Counted, Figure, Side, Size, at_most

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(f"{ROOT / name}/" for name in ("episodes", "connectors", "episode_runners", "episode_learners"))


def count_calls(run: Callable[[], object]) -> int:
    """Run a function, and return how many functions of this library it calls."""
    count = 0

    def record(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(PACKAGES)

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def _runner(num_envs: int) -> tuple[Any, Any]:
    """Return a runner of CartPole environments, and its policy."""
    from episode_learners import MLPPolicy
    from episode_runners import SingleAgentEnvRunner, make_vector_env

    env = make_vector_env("CartPole-v1", num_envs)
    policy = MLPPolicy(env.single_observation_space, env.single_action_space)
    return SingleAgentEnvRunner(env, policy, seed=0), policy


def vector_step(size: Size) -> Counted:
    """Count the library functions called per vector step while a runner samples."""
    runner, _ = _runner(8)
    runner.sample(num_timesteps=800)
    few = count_calls(lambda: runner.sample(num_timesteps=800))
    many = count_calls(lambda: runner.sample(num_timesteps=2400))
    return Counted((many - few) / 200)


def preprocess(size: Size) -> Counted:
    """Count the library functions that `PPO.preprocess` calls for a pack of 2,000 steps."""
    from episode_learners import PPO

    runner, policy = _runner(8)
    ppo, pack = PPO(policy), runner.sample(num_timesteps=2000)
    ppo.preprocess(pack)
    return Counted(count_calls(lambda: ppo.preprocess(pack)))


def _replay(size: Size, kind: str, draw: Callable[[Any], object]) -> Counted:
    """Count the library functions called by `draw(buffer)`, with a replay buffer of the class `kind`."""
    from episodes import replay

    runner, _ = _runner(8)
    buffer = getattr(replay, kind)(10_000, seed=0)
    buffer.add(runner.sample(num_timesteps=2000))
    draw(buffer)
    return Counted(count_calls(lambda: draw(buffer)))


def writer_add(size: Size) -> Counted:
    """Count the library functions called by `EpisodeWriter.add` for one episode of 50 steps."""
    import numpy as np

    from episodes import SingleAgentEpisode
    from episodes.storage import EpisodeWriter

    episodes = [
        SingleAgentEpisode.from_arrays(np.zeros((51, 4), np.float32), np.zeros(50, int), np.ones(50), id_=str(i))
        for i in range(4)
    ]
    with tempfile.TemporaryDirectory() as folder, EpisodeWriter(folder) as writer:
        for episode in episodes[:3]:
            writer.add(episode)
        return Counted(count_calls(lambda: writer.add(episodes[3])))


def _figure(name: str, prepare: Callable[[Size], Counted], limit: int) -> Figure:
    """Return a benchmark that requires at most `limit` calls."""
    goal = Side(f"{limit} calls", lambda size: Counted(limit))
    return Figure(f"calls/{name}", Side("ours", prepare), goal, at_most(1.0), "calls")


FIGURES = (
    _figure("vector step", vector_step, 28),
    _figure("PPO.preprocess", preprocess, 90),
    *(
        _figure(f"{prefix}replay {name}", partial(_replay, kind=kind, draw=draw), 20)
        for prefix, kind in (("", "EpisodeReplayBuffer"), ("prioritized ", "PrioritizedEpisodeReplayBuffer"))
        for name, draw in (
            ("sample", lambda buffer: buffer.sample(256)),
            ("sample, n-step", lambda buffer: buffer.sample(256, n_step=3)),
            ("sequences", lambda buffer: buffer.sample_sequences(8, 32, burn_in=4)),
        )
    ),
    _figure("writer.add, one episode", writer_add, 45),
)
