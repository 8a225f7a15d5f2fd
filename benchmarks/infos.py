"""Four numbers of infos each step, beside none: 64 environments, 200 steps, recorded, moved, kept and read."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from benchmarks.figure import Figure, Side, Size, Timed, at_most
from benchmarks.storage import Scratch, our_dataset

NUM_ENVS, ROWS = 64, 200
KEYS = ("energy", "speed", "height", "contact")
Work = Callable[[Any], Timed]  # of a pack


def vector_rows(num_envs: int, *, told: bool) -> list[tuple[Any, ...]]:
    """What a vector environment's steps give, with infos of four numbers or none."""
    rng, everyone = np.random.default_rng(0), np.ones(num_envs, bool)
    rows = []
    for _ in range(ROWS):
        infos = {name: value for key in KEYS for name, value in ((key, rng.random(num_envs)), (f"_{key}", everyone))}
        observations, actions = rng.standard_normal((num_envs, 4), np.float32), rng.integers(0, 2, num_envs)
        ended = rng.random(num_envs) < 0.02
        flags = (ended, np.zeros(num_envs, bool))
        rows.append((observations, actions, np.ones(num_envs, np.float32), *flags, infos if told else {}))
    return rows


def recorded(rows: list[tuple[Any, ...]], num_envs: int) -> Any:
    from episodes.recorder import VectorRecorder

    recorder = VectorRecorder(num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    recorder.reset(rows[0][0])
    for row in rows:
        recorder.step(*row)
    return recorder.take()


def recording(*, told: bool) -> Callable[[Size], Timed]:
    """Every row recorded, and taken as a pack."""

    def prepare(size: Size) -> Timed:
        num_envs = size(NUM_ENVS)
        rows = vector_rows(num_envs, told=told)
        return Timed(lambda: recorded(rows, num_envs))

    return prepare


def working(work: Work, *, told: bool) -> Callable[[Size], Timed]:
    def prepare(size: Size) -> Timed:
        num_envs = size(NUM_ENVS)
        return work(recorded(vector_rows(num_envs, told=told), num_envs))

    return prepare


def pickling(pack: Any) -> Timed:
    return Timed(lambda: pickle.dumps(pack, protocol=5, buffer_callback=[].append))


def joining(pack: Any) -> Timed:
    return Timed(lambda: type(pack).concat([pack] * 4))


def packing(pack: Any) -> Timed:
    episodes = list(pack)
    return Timed(lambda: type(pack).from_episodes(episodes))


def selecting(pack: Any) -> Timed:
    which = np.arange(0, len(pack), 2)
    return Timed(lambda: pack.select(which))


def getting(pack: Any) -> Timed:
    return Timed(lambda: pack[3].get_infos(2))


def writing(pack: Any) -> Timed:
    scratch = Scratch()
    return Timed(lambda path: our_dataset(path, pack), fresh=scratch.fresh)


def writing_one_by_one(pack: Any) -> Timed:
    from episodes.storage import EpisodeWriter

    episodes, scratch = list(pack), Scratch()

    def run(path: Any) -> None:
        with EpisodeWriter(path) as writer:
            for episode in episodes:
                writer.add([episode])

    return Timed(run, fresh=scratch.fresh)


def reading(pack: Any) -> Timed:
    from episodes.storage import EpisodeDataset

    scratch = Scratch()
    path = our_dataset(scratch.root / "data", pack).path
    return Timed(lambda: (scratch, EpisodeDataset(path).pack()))


def figure(name: str, work: Work, most: float, unit: str = "ms") -> Figure:
    sides = (Side("ours", working(work, told=True)), Side("without", working(work, told=False)))
    return Figure(f"infos/{name}", *sides, at_most(most), unit)


FIGURES = (
    Figure(
        "infos/record and take",
        Side("ours", recording(told=True)),
        Side("without", recording(told=False)),
        at_most(2.2),
        "ms",
    ),
    figure("pickle", pickling, 2),
    figure("concat", joining, 2),
    figure("from_episodes", packing, 2),
    figure("select", selecting, 2),
    figure("get_infos", getting, 2, "us"),
    figure("write", writing, 1.5),
    figure("write one by one", writing_one_by_one, 2.5),
    figure("read", reading, 2),
)
