"""Storage benchmarks: writing episodes to disk and reading them, compared with pyarrow alone and with Minari."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE, Steps, steps
from benchmarks.figure import Figure, Side, Size, Timed, at_least, at_most
from benchmarks.peers import MINARI, datasets

EPISODES = 1000
LENGTHS = (20, 380)  # of steps, 200 on average
FRAME_EPISODES, FRAME_STEPS, FRAME = 50, 500, (84, 84)
ROWS = 32  # of a slice

Prepare = Callable[[Size], Timed]


class Scratch:
    """Temporary directory for data sets, which is removed with this object."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self._numbers = count()
        weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)

    def fresh(self) -> Path:
        """Remove all earlier data sets, and return a path for a new data set."""
        for old in self.root.iterdir():
            shutil.rmtree(old)
        return self.root / str(next(self._numbers))


@cache
def cartpoles(num: int) -> list[Steps]:
    """Return `num` random episodes with the shapes of CartPole and lengths from 20 to 379."""
    lengths = np.random.default_rng(0).integers(*LENGTHS, num)
    return [steps(int(length), i) for i, length in enumerate(lengths)]


@cache
def sprites(num: int, length: int) -> list[Steps]:
    """Return `num` episodes of frames [84, 84] with a few moving squares on a constant background."""
    rng, made = np.random.default_rng(0), []
    ground = np.kron(rng.integers(0, 4, (12, 12)), np.ones((7, 7))).astype(np.uint8) * 20
    for _ in range(num):
        frames = np.tile(ground, (length + 1, 1, 1))
        walk = np.cumsum(rng.integers(-2, 3, (length + 1, 4, 2)), axis=0) % 76
        for t, places in enumerate(walk):
            for y, x in places:
                frames[t, y : y + 8, x : x + 8] = 255
        zeros = np.zeros(length, np.float32)
        made.append(Steps(frames, np.zeros(length, np.int64), zeros, {}))
    return made


def our_episodes(data: list[Steps]) -> list[Any]:
    """Convert the arrays of episodes to finalized episodes of this library."""
    from episodes import SingleAgentEpisode

    plain = data[0].observations.dtype == np.float32
    return [
        SingleAgentEpisode.from_arrays(
            part.observations,
            part.actions,
            part.rewards,
            terminated=part.terminated,
            observation_space=OBSERVATION_SPACE if plain else None,
            action_space=ACTION_SPACE if plain else None,
        )
        for part in data
    ]


def our_pack(data: list[Steps]) -> Any:
    """Convert the arrays of episodes to one pack of this library."""
    from episodes import EpisodePack

    return EpisodePack.from_episodes(our_episodes(data))


def write(path: Path, *calls: Any, **options: Any) -> None:
    """Write a data set, with one call of `EpisodeWriter.add` for each item of `calls`."""
    from episodes.storage import EpisodeWriter

    with EpisodeWriter(path, **options) as writer:
        for episodes in calls:
            writer.add(episodes)


def our_dataset(path: Path, episodes: Any, **options: Any) -> Any:
    """Write episodes to a data set in one call, and return the opened data set."""
    from episodes.storage import EpisodeDataset

    write(path, episodes, **options)
    return EpisodeDataset(path)


# --- bare pyarrow ---------------------------------------------------------------------------------------------------


def list_column(array: np.ndarray, offsets: np.ndarray) -> Any:
    """Return an Arrow list column over the memory of an array, whose rows are split at `offsets`."""
    import pyarrow as pa

    type_ = pa.from_numpy_dtype(array.dtype)
    values = pa.Array.from_buffers(type_, array.size, [None, pa.py_buffer(array)])
    starts = pa.py_buffer(offsets * int(np.prod(array.shape[1:])))
    return pa.Array.from_buffers(pa.large_list(type_), len(offsets) - 1, [None, starts], children=[values])


def bare_batch(pack: Any) -> Any:
    """Convert a pack's arrays, ids and flags to an Arrow record batch with pyarrow only."""
    import pyarrow as pa

    columns = {
        "observations": list_column(pack.observations, pack.observation_offsets),
        "actions": list_column(pack.actions, pack.offsets),
        "rewards": list_column(pack.rewards, pack.offsets),
        "id": pa.array(pack.ids),
        "length": pa.array(pack.lengths),
        "terminated": pa.array(pack.terminated),
        "truncated": pa.array(pack.truncated),
    }
    return pa.RecordBatch.from_pydict(columns)


def bare_file(path: Path, packs: list[Any], compression: str | None = None) -> Path:
    """Write an Arrow file with one record batch per pack, with pyarrow only, and return its path."""
    import pyarrow as pa

    path.mkdir()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path / "x.arrow"), "wb") as sink:
        first = bare_batch(packs[0])
        with pa.ipc.new_file(sink, first.schema, options=options) as writer:
            writer.write_batch(first)
            for pack in packs[1:]:
                writer.write_batch(bare_batch(pack))
    return path / "x.arrow"


def bare_arrays(batch: Any, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of one episode, read from an Arrow record batch without copying."""
    return {
        name: np.frombuffer(batch.column(name).buffers()[3], dtypes[name]).reshape(-1, *shape)
        for name, shape in shapes.items()
    }


def open_arrow_file(file: Path) -> Any:
    """Open an Arrow file by memory mapping."""
    import pyarrow as pa

    return pa.ipc.open_file(pa.memory_map(str(file)))


def shapes_and_dtypes(pack: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Return two dicts with the item shape and the dtype of each track of a pack."""
    return {k: v.shape[1:] for k, v in pack.tracks.items()}, {k: v.dtype for k, v in pack.tracks.items()}


# --- to disk --------------------------------------------------------------------------------------------------------


def carts(size: Size) -> list[Steps]:
    """Return the CartPole-like episodes of the storage benchmarks."""
    return cartpoles(size(EPISODES))


def frames(size: Size) -> list[Steps]:
    """Return the episodes of frames of the storage benchmarks."""
    return sprites(size(FRAME_EPISODES), size(FRAME_STEPS))


def writing_pack(size: Size, make: Callable[[Size], list[Steps]], **options: Any) -> Timed:
    """Time writing a pack to a data set."""
    pack = our_pack(make(size))
    return Timed(lambda path: write(path, pack, **options), fresh=Scratch().fresh)


def bare_writing_pack(size: Size, make: Callable[[Size], list[Steps]], compression: str | None = None) -> Timed:
    """Time writing a pack to an Arrow file with pyarrow only."""
    pack, scratch = our_pack(make(size)), Scratch()
    return Timed(lambda path: bare_file(path, [pack], compression), fresh=scratch.fresh)


def writing_episodes(size: Size) -> Timed:
    """Time writing a list of episodes to a data set in one call."""
    episodes = our_episodes(carts(size))
    return Timed(lambda path: write(path, episodes), fresh=Scratch().fresh)


def writing_one_by_one(size: Size) -> Timed:
    """Time writing a list of episodes to a data set, with one call per episode."""
    calls = [[episode] for episode in our_episodes(carts(size))]
    return Timed(lambda path: write(path, *calls), fresh=Scratch().fresh)


def bare_writing_one_by_one(size: Size) -> Timed:
    """Time writing an Arrow file with one record batch per episode, with pyarrow only."""
    from episodes import EpisodePack

    packs, scratch = [EpisodePack.from_episodes([e]) for e in our_episodes(carts(size))], Scratch()
    return Timed(lambda path: bare_file(path, packs), fresh=scratch.fresh)


# --- back -----------------------------------------------------------------------------------------------------------


def reading(size: Size) -> Timed:
    """Time opening a data set and reading the observations of every episode."""
    from episodes.storage import EpisodeDataset

    scratch = Scratch()
    our_dataset(scratch.root / "data", our_episodes(carts(size)))
    path = scratch.root / "data"
    return Timed(lambda: (scratch, [episode.get_observations() for episode in EpisodeDataset(path)]))


def bare_reading(size: Size) -> Timed:
    """Time opening an Arrow file with one record batch per episode, and reading the arrays of every episode with
    pyarrow only.
    """
    from episodes import EpisodePack

    packs, scratch = [EpisodePack.from_episodes([e]) for e in our_episodes(carts(size))], Scratch()
    file = bare_file(scratch.root / "data", packs)
    shapes, dtypes = shapes_and_dtypes(packs[0])

    def run() -> Any:
        reader = open_arrow_file(file)
        return scratch, [bare_arrays(reader.get_batch(i), shapes, dtypes) for i in range(reader.num_record_batches)]

    return Timed(run)


def slicing(size: Size, make: Callable[[Size], list[Steps]], **options: Any) -> Timed:
    """Time reading 32 observations of one episode of an open data set."""
    data, scratch = make(size), Scratch()
    dataset = our_dataset(scratch.root / "data", our_episodes(data), **options)
    middle, rows = len(data) // 2, slice(5, 5 + min(ROWS, len(data[len(data) // 2])))
    expected = np.array(data[middle].observations[rows])
    if options.get("compression") == "none" or make is carts:
        run = lambda: (scratch, dataset[middle].get_observations(rows))  # noqa: E731
    else:
        run = lambda: (scratch, dataset.steps(middle, 5, rows.stop - 1).get_observations())  # noqa: E731
    np.testing.assert_array_equal(run()[1][: len(expected)], expected)
    return Timed(run)


def bare_slicing(size: Size, make: Callable[[Size], list[Steps]], compression: str | None = None) -> Timed:
    """Time reading 32 observations of one episode with pyarrow only, from an open file with one record batch per
    episode.
    """
    from episodes import EpisodePack

    packs, scratch = [EpisodePack.from_episodes([e]) for e in our_episodes(make(size))], Scratch()
    reader = open_arrow_file(bare_file(scratch.root / "data", packs, compression))
    shapes, dtypes = shapes_and_dtypes(packs[0])
    shape, dtype = {"observations": shapes["observations"]}, dtypes
    middle = len(packs) // 2
    return Timed(lambda: (scratch, bare_arrays(reader.get_batch(middle), shape, dtype)["observations"][5 : 5 + ROWS]))


def minari(make: Callable[..., Timed], *options: Any) -> Side:
    """Return a benchmark side that runs a Minari workload in a temporary directory."""

    def prepare(size: Size) -> Timed:
        scratch = Scratch()
        timed = make(carts(size), scratch.root, *options)
        return Timed(lambda: (scratch, timed.run()))

    return Side("Minari", prepare, MINARI)


def frame_figures(
    work: str, reference: str, unit: str, ours: Callable[..., Timed], bare: Callable[..., Timed]
) -> tuple[Figure, Figure]:
    """Return benchmarks that compare work on frames with pyarrow, without and with compression."""
    plain, packed = (
        Side("ours", partial(ours, make=frames, compression="none")),
        Side("ours", partial(ours, make=frames)),
    )
    return (
        Figure(
            f"storage/frames {work} pyarrow", plain, Side(reference, partial(bare, make=frames)), at_most(1.5), unit
        ),
        Figure(
            f"storage/frames {work}, zstd",
            packed,
            Side("pyarrow, zstd", partial(bare, make=frames, compression="zstd")),
            at_most(1.5),
            unit,
        ),
    )


WRITE_LIST, READ, SLICE = (
    Side("ours", writing_episodes),
    Side("ours", reading),
    Side("ours", partial(slicing, make=carts)),
)
FIGURES = (
    Figure(
        "storage/pack to disk pyarrow",
        Side("ours", partial(writing_pack, make=carts)),
        Side("pyarrow", partial(bare_writing_pack, make=carts)),
        at_most(2),  # of a file without sums, header or manifest
        "ms",
    ),
    Figure(
        "storage/to disk pyarrow",
        WRITE_LIST,
        Side("pyarrow, batch each", bare_writing_one_by_one),
        at_most(1.5),
        "ms",
    ),
    Figure("storage/to disk Minari", WRITE_LIST, minari(datasets.minari_writing), at_least(50), "ms"),
    Figure(
        "storage/one by one Minari",
        Side("ours", writing_one_by_one),
        minari(datasets.minari_writing),
        at_least(10),
        "ms",
    ),
    Figure("storage/back pyarrow", READ, Side("pyarrow, batch each", bare_reading), at_most(1.5), "ms"),
    Figure("storage/back Minari", READ, minari(datasets.minari_reading), at_least(50), "ms"),
    Figure(
        "storage/slice pyarrow",
        SLICE,
        Side("pyarrow, batch each", partial(bare_slicing, make=carts)),
        at_most(1.5),
        "us",
    ),
    Figure("storage/slice Minari", SLICE, minari(datasets.minari_slice, ROWS), at_least(20), "us"),
    *frame_figures("to disk", "pyarrow", "ms", writing_pack, bare_writing_pack),
    *frame_figures("slice", "pyarrow, batch each", "us", slicing, bare_slicing),
)
