"""Resources dropped without `close` are released at once, with a warning, and without the cyclic collector."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import SingleAgentEpisode
from episodes.batch import Batch
from episodes.storage import EpisodeDataset, EpisodeWriter, seal
from episodes.storage.ledger import Ledger
from tests.fresh_process import run_fresh


def episode(i: int = 0) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(np.arange(4.0), [0] * 3, [1.0] * 3, id_=str(i))


def open_files(path: Path) -> list[str]:
    """Return the files under the path that this process has open or mapped."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return [name for name in links + mapped if name.startswith(str(path))]


def writer_with_shard(path: Path) -> Any:
    writer = EpisodeWriter(path)
    writer.add([episode()])
    writer.flush()
    writer.add([episode(1)])
    return writer


def ledger_with_notes(path: Path) -> Any:
    ledger = Ledger(path, every=1)
    ledger.note(1, Batch(obs=np.zeros((4, 3))))
    return ledger


@pytest.mark.parametrize(
    ("make", "message"),
    [(writer_with_shard, "1 episodes that were not flushed are lost"), (ledger_with_notes, "Ledger.*was not closed")],
)
def test_dropped_resource_is_released_with_a_warning(tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    gc.disable()
    try:
        resource = make(tmp_path)
        assert open_files(tmp_path)
        with pytest.warns(ResourceWarning, match=message):
            del resource
        assert not open_files(tmp_path)
    finally:
        gc.enable()


def test_dropped_writer_loses_only_unflushed_episodes(tmp_path: Path) -> None:
    with pytest.warns(ResourceWarning):
        writer_with_shard(tmp_path)
    assert seal(tmp_path) == 1  # it is not at work any more
    assert [result.id_ for result in EpisodeDataset(tmp_path)] == ["0"]


def test_writer_that_wrote_nothing_drops_without_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EpisodeWriter(tmp_path)


def uses(dataset: EpisodeDataset) -> None:
    dataset.metadata["shard"]
    dataset.metadata["episode_return"]
    dataset.metadata.to_arrow()
    dataset.sql("select * from steps join episodes using (episode)")
    dataset.statistics()
    dataset.pack()
    for options in ({"steps": 4}, {"windows": (2, 3)}, {"episodes": 1}):
        sampler = dataset.sampler(**options)  # type: ignore[arg-type]
        batch = sampler.draw()
        if "episodes" not in options:
            assert batch.origin[0]
    dataset[:1].metadata["writer"]


def test_dropped_data_set_unmaps_its_files(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        for i in range(3):
            writer.add([episode(i)])
    dataset = EpisodeDataset(tmp_path)
    uses(dataset)
    gc.collect()
    gc.disable()
    try:
        dataset = EpisodeDataset(tmp_path)
        uses(dataset)
        assert open_files(tmp_path)
        reference = weakref.ref(dataset)
        del dataset
        assert reference() is None
        assert not open_files(tmp_path)
    finally:
        gc.enable()


IMPORTS = """
import gc, sys, warnings, numpy as np
from episodes import SingleAgentEpisode
from episodes.storage import EpisodeDataset, EpisodeWriter
"""

PROGRAM = """
warnings.simplefilter("ignore")
def use(path):
    writer = EpisodeWriter(path)
    writer.add([SingleAgentEpisode.from_arrays(np.arange(4.0), [0] * 3, [1.0] * 3)])
    writer.flush()
    return writer, EpisodeDataset(path).sampler(steps=2)

def fails(path):
    resources = use(path)
    raise ValueError

del_me = use(sys.argv[1] + "/del"); del del_me; gc.collect()
try:
    fails(sys.argv[1] + "/exception")
except ValueError:
    pass
cycle = [*use(sys.argv[1] + "/cycle")]; cycle.append(cycle); del cycle; gc.collect()
kept = use(sys.argv[1] + "/exit")
print("done")
"""


def test_dropped_resources_never_hang_a_process(tmp_path: Path) -> None:
    assert run_fresh(IMPORTS, PROGRAM, str(tmp_path)) == ("done\n", "")
    assert [len(EpisodeDataset(path)) for path in tmp_path.iterdir()] == [1] * 4
