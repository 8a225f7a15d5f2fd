"""Benchmarks of infos: each operation on steps with four numbers as infos, compared with the same operation without
infos.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from benchmarks.figure import Figure, Side, Size, Timed, at_most
from benchmarks.storage import Scratch, our_dataset, write
from benchmarks.transitions import BATCH

NUM_ENVS, ROWS = 64, 200
KEYS = ("energy", "speed", "height", "contact")
Work = Callable[[Any], Timed]  # of a pack


def vector_rows(num_envs: int, *, with_infos: bool) -> list[tuple[Any, ...]]:
    """Return 200 random steps of a vector environment, each with infos of four numbers per environment or without
    infos.
    """
    rng, everyone = np.random.default_rng(0), np.ones(num_envs, bool)
    rows = []
    for _ in range(ROWS):
        infos = {name: value for key in KEYS for name, value in ((key, rng.random(num_envs)), (f"_{key}", everyone))}
        observations, actions = rng.standard_normal((num_envs, 4), np.float32), rng.integers(0, 2, num_envs)
        ended = rng.random(num_envs) < 0.02
        flags = (ended, np.zeros(num_envs, bool))
        rows.append((observations, actions, np.ones(num_envs, np.float32), *flags, infos if with_infos else {}))
    return rows


def record_pack(rows: list[tuple[Any, ...]], num_envs: int) -> Any:
    """Record the steps of a vector environment with `VectorRecorder`, and return the episodes as a pack."""
    from episodes import VectorRecorder

    recorder = VectorRecorder(num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    recorder.reset(rows[0][0])
    for row in rows:
        recorder.step(*row)
    return recorder.take()


def recording(size: Size, *, with_infos: bool) -> Timed:
    """Time recording 200 vector steps and taking the episodes as a pack."""
    num_envs = size(NUM_ENVS)
    rows = vector_rows(num_envs, with_infos=with_infos)
    return Timed(lambda: record_pack(rows, num_envs))


def on_recorded_pack(size: Size, work: Work, *, with_infos: bool) -> Timed:
    """Time an operation on a pack that was recorded from a vector environment, with or without infos. `work` prepares
    the operation.
    """
    num_envs = size(NUM_ENVS)
    return work(record_pack(vector_rows(num_envs, with_infos=with_infos), num_envs))


def pickling(pack: Any) -> Timed:
    """Time pickling a pack (protocol 5, with arrays out of band)."""
    return Timed(lambda: pickle.dumps(pack, protocol=5, buffer_callback=[].append))


def joining(pack: Any) -> Timed:
    """Time concatenating four packs."""
    return Timed(lambda: type(pack).concat([pack] * 4))


def joining_to_read(pack: Any) -> Timed:
    """Time concatenating four packs and reading one info."""
    return Timed(lambda: type(pack).concat([pack] * 4).infos[0])


def packing(pack: Any) -> Timed:
    """Time creating a pack from single episodes."""
    episodes = list(pack)
    return Timed(lambda: type(pack).from_episodes(episodes))


def selecting(pack: Any) -> Timed:
    """Time selecting every second episode of a pack."""
    even = np.arange(0, len(pack), 2)
    return Timed(lambda: pack.select(even))


def getting(pack: Any) -> Timed:
    """Time `get_infos` for one step of an episode."""
    return Timed(lambda: pack[3].get_infos(2))


def writing(pack: Any) -> Timed:
    """Time writing a pack to a data set."""
    return Timed(lambda path: our_dataset(path, pack), fresh=Scratch().fresh)


def writing_one_by_one(pack: Any) -> Timed:
    """Time writing the episodes of a pack to a data set, with one call per episode."""
    calls = [[episode] for episode in pack]
    return Timed(lambda path: write(path, *calls), fresh=Scratch().fresh)


def reading(pack: Any) -> Timed:
    """Time loading a data set as a pack."""
    from episodes.storage import EpisodeDataset

    scratch = Scratch()
    path = our_dataset(scratch.root / "data", pack).path
    return Timed(lambda: (scratch, EpisodeDataset(path).pack()))


def drawing(size: Size, *, with_infos: bool) -> Timed:
    """Time a replay sample of 256 transitions, with their infos as columns or without infos."""
    from episodes.replay import EpisodeReplayBuffer

    num_envs = size(NUM_ENVS)
    pack = record_pack(vector_rows(num_envs, with_infos=True), num_envs)
    buffer = EpisodeReplayBuffer(pack.num_steps, seed=0)
    buffer.add(pack)
    return Timed(lambda: buffer.sample(BATCH, include_infos="columns" if with_infos else False))


def growing(size: Size, *, with_infos: bool) -> Timed:
    """Time growing an episode of 200 steps, with its conversion to arrays and pickling."""
    from episodes import SingleAgentEpisode

    rng, steps = np.random.default_rng(0), size(ROWS)
    observations = list(rng.standard_normal((steps + 1, 4), np.float32))
    infos = [dict(zip(KEYS, rng.random(len(KEYS)).tolist(), strict=True)) if with_infos else {} for _ in observations]

    def run() -> list[Any]:
        """Grow, finalize and pickle an episode."""
        episode = SingleAgentEpisode()
        episode.add_env_reset(observations[0], infos[0])
        for observation, info in zip(observations[1:], infos[1:], strict=True):
            episode.add_env_step(observation, 1, 1.0, info)
        parts: list[Any] = []
        pickle.dumps(episode.to_numpy(), protocol=5, buffer_callback=parts.append)
        return parts

    return Timed(run)


def figure(name: str, work: Work, max_ratio: float, unit: str = "ms") -> Figure:
    """Return a benchmark of the operation `work` on a pack with infos, compared with a pack without infos."""
    return compare_infos(name, partial(on_recorded_pack, work=work), max_ratio, unit)


def compare_infos(name: str, prepared: Callable[..., Timed], max_ratio: float, unit: str) -> Figure:
    """Return a benchmark of a workload with infos, compared with the same workload without infos."""
    sides = (Side("ours", partial(prepared, with_infos=True)), Side("without", partial(prepared, with_infos=False)))
    return Figure(f"infos/{name}", *sides, at_most(max_ratio), unit)


FIGURES = (
    compare_infos("record and take", recording, 2.2, "ms"),
    figure("pickle", pickling, 2),
    figure("concat", joining, 2),
    # Infos are joined when one is read. Four numbers are 2.1 times the bytes of all else, so reading pays for the rest.
    figure("concat and read", joining_to_read, 3),
    figure("from_episodes", packing, 2),
    figure("select", selecting, 2),
    figure("get_infos", getting, 2, "us"),
    figure("write", writing, 1.5),
    figure("write one by one", writing_one_by_one, 2.5),
    figure("read", reading, 2),
    compare_infos("replay draw", drawing, 2, "us"),
    compare_infos("grow and pickle", growing, 4, "us"),
)
