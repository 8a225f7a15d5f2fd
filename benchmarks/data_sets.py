"""Data set benchmarks: checksums, opening, compaction, queries, file size, and recording of an environment."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np

from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE
from benchmarks.figure import Counted, Figure, Side, Size, Timed, at_least, at_most, cpu_seconds, limit
from benchmarks.peers import MINARI
from benchmarks.storage import (
    Prepare,
    Scratch,
    bare_file,
    bare_writing_pack,
    cartpoles,
    carts,
    frames,
    open_arrow_file,
    our_dataset,
    our_episodes,
    our_pack,
    writing_episodes,
    writing_pack,
)
from episodes import EpisodePack

MANY = 20_000  # episodes
COMMITS = 5_000
STEPS = 2_000
SEARCHED = 10_000_000  # steps
RECORD_SECONDS = 5e-6  # for a step
QUERY = 'select episode, t from steps where "observations/2" > 0.999 and actions = 1'


def without_sums(size: Size, prepare: Prepare) -> Timed:
    """Return the writing benchmark `prepare` without the computation of checksums: each checksum is a constant."""
    timed, none = prepare(size), np.zeros(1, np.uint64)

    def run(path: Path) -> Any:
        with mock.patch("episodes.storage.shards.sums_of", return_value=none):
            return timed.run(path)

    return Timed(run, fresh=timed.fresh)


@cache
def short_pack(num: int) -> Any:
    """Return a pack of `num` short CartPole-like episodes."""
    pack = our_pack(cartpoles(min(num, 1000))).select(np.arange(num) % min(num, 1000))
    return pack.replace(ids=[f"{i:032x}" for i in range(num)])


def opening(size: Size) -> Timed:
    """Time opening a data set of 20,000 episodes and reading the metadata table of all episodes."""
    from episodes.storage import EpisodeDataset

    scratch = Scratch()
    our_dataset(scratch.root / "data", short_pack(size(MANY)))
    return Timed(lambda: (scratch, EpisodeDataset(scratch.root / "data").metadata))


def bare_opening(size: Size) -> Timed:
    """Time opening a memory-mapped Arrow file and reading its four metadata columns with pyarrow only."""
    scratch = Scratch()
    file = bare_file(scratch.root / "data", [short_pack(size(MANY))])

    def run() -> Any:
        batch = open_arrow_file(file).get_batch(0)
        names = ("id", "length", "terminated", "truncated")
        return scratch, [batch.column(name).to_numpy(zero_copy_only=False) for name in names]

    return Timed(run)


def packing(size: Size, *, commits: bool) -> Timed:
    """Time loading a data set into one pack. The data set was written in one commit, or (`commits`) in one commit per
    episode and then compacted.
    """
    from episodes.storage import EpisodeDataset, EpisodeWriter, compact

    scratch, episodes = Scratch(), our_episodes(cartpoles(1000) * 5)
    path = scratch.root / "data"
    with EpisodeWriter(path) as writer:
        if not commits:
            writer.add(episodes[: size(COMMITS)])
        for episode in episodes[: size(COMMITS)] if commits else ():
            writer.add([episode])
            writer.flush()
    compact(path)
    return Timed(lambda: (scratch, EpisodeDataset(path).pack()))


@cache
def searchable_dataset(num: int) -> tuple[Scratch, Any]:
    """Return an open data set with `num` random steps for queries, and its directory."""
    from episodes.storage import EpisodeDataset, EpisodeWriter

    scratch, rng = Scratch(), np.random.default_rng(0)
    with EpisodeWriter(scratch.root / "data") as writer:
        while num > 0:
            lengths = rng.integers(20, 200, 1000)[: 1 + num // 20]
            steps = int(lengths.sum())
            observations = rng.random((steps + len(lengths), 4), np.float32)
            columns = {"actions": rng.integers(0, 2, steps), "rewards": rng.random(steps, np.float32)}
            writer.add(EpisodePack(observations=observations, lengths=lengths, **columns))
            num -= steps
    return scratch, EpisodeDataset(scratch.root / "data")


def querying(size: Size) -> Timed:
    """Time a query for single steps in a data set of 10 million steps, with `EpisodeDataset.sql`."""
    _, dataset = searchable_dataset(size(SEARCHED))
    return Timed(lambda: dataset.sql(QUERY).table)


def flat_querying(size: Size) -> Timed:
    """Time the same query with DuckDB on one flat Arrow table in memory."""
    import duckdb

    _, dataset = searchable_dataset(size(SEARCHED))
    names = ["episode", "t", "observations/2", "actions"]
    connection, table = duckdb.connect(), dataset[:].step_table().table(names).combine_chunks()
    connection.register("steps", table)
    return Timed(lambda: connection.sql(QUERY).to_arrow_table())


def bytes_written(size: Size, prepare: Prepare) -> Counted:
    """Count the bytes of the files that the writing benchmark `prepare` creates."""
    work = prepare(size)
    assert work.fresh is not None
    path = work.fresh()
    work.run(path)
    return Counted(sum(file.stat().st_size for file in path.rglob("*")))


class IdleEnv(gym.Env):
    """Environment that does no work in `step`, to measure the cost of recording. Episodes have 200 steps."""

    observation_space, action_space = OBSERVATION_SPACE, ACTION_SPACE

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t, self.observation = 0, np.zeros(4, np.float32)
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observation, 1.0, self.t == 200, False, {}


def run_steps(env: gym.Env, num_steps: int) -> None:
    """Step an environment `num_steps` times, with a reset after each termination."""
    env.reset()
    for _ in range(num_steps):
        if env.step(1)[2]:
            env.reset()


def recording(size: Size, clock: Callable[[], float] = time.perf_counter) -> Timed:
    """Time steps of an environment inside `RecordEpisodes`, which writes episodes to disk when they end."""
    from episodes.storage import RecordEpisodes

    scratch = Scratch()
    env, num = RecordEpisodes(IdleEnv(), scratch.root / "data"), size(STEPS)
    return Timed(lambda: (scratch, run_steps(env, num)), num, clock=clock)


def recording_alone(size: Size) -> Timed:
    """Time steps of an environment inside `RecordEpisodes`, in CPU seconds of this process only."""
    return recording(size, cpu_seconds)


def minari_recording(size: Size) -> Timed:
    """Time steps of the same environment inside Minari's `DataCollector` with default settings."""
    import minari

    env, num = minari.DataCollector(IdleEnv()), size(STEPS)
    return Timed(lambda: run_steps(env, num), num)


FIGURES = (
    Figure(
        "data sets/sums of lists",
        Side("ours", writing_episodes),
        Side("ours, no sums", partial(without_sums, prepare=writing_episodes)),
        at_most(1.15),
        "ms",
    ),
    Figure(
        "data sets/sums of packs",
        Side("ours", partial(writing_pack, make=carts)),
        Side("ours, no sums", partial(without_sums, prepare=partial(writing_pack, make=carts))),
        at_most(1.25),
        "ms",
    ),
    Figure("data sets/opening", Side("ours", opening), Side("pyarrow", bare_opening), at_most(5), "ms"),
    Figure(
        "data sets/pack after compact",
        Side("ours", partial(packing, commits=True)),
        Side("one commit", partial(packing, commits=False)),
        at_most(1.5),
        "ms",
    ),
    Figure(
        "data sets/step query",
        Side("ours", querying),
        Side("DuckDB on a flat table", flat_querying, ("duckdb",)),
        at_most(3),
        "ms",
    ),
    Figure(
        "data sets/size of frames",
        Side("ours", partial(bytes_written, prepare=partial(writing_pack, make=frames))),
        Side(
            "pyarrow, zstd", partial(bytes_written, prepare=partial(bare_writing_pack, make=frames, compression="zstd"))
        ),
        at_most(1.1),
        "bytes",
    ),
    Figure("data sets/recording", Side("ours", recording_alone), limit("5 us", RECORD_SECONDS), at_most(1), "us"),
    Figure(
        "data sets/recording Minari",
        Side("ours", recording),
        Side("Minari", minari_recording, (*MINARI, "jax")),
        at_least(20),
        "us",
    ),
)
