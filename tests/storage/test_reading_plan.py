"""Record batches read as the packs they were written from, and damage of any column is an error or changes nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from episodes import SingleAgentEpisode
from episodes.errors import UnreadableData
from episodes.pack import EpisodePack
from episodes.storage import episode_rows, info_schema
from episodes.storage.header import Header
from episodes.storage.layout import Layout, StoredBatch
from episodes.storage.track_schema import fields_of, pack_columns, structure_of

COMPRESSIONS = ("none", "zstd")


@cache
def pack(num_steps: int = 3) -> EpisodePack:
    """Return a pack of nested tracks, infos of one and of several types, and ids of several types."""
    rng, episodes = np.random.default_rng(0), []
    for i in range(3):
        length = num_steps and num_steps + i
        infos = [{"speed": float(t), "note": ["a", t]} | ({"odd": t} if t % 2 else {}) for t in range(length + 1)]
        episode = SingleAgentEpisode.from_arrays(
            {"image": rng.integers(0, 9, (length + 1, 2, 2), np.uint8), "speed": (rng.random(length + 1),)},
            np.arange(length),
            np.ones(length),
            extra_model_outputs={"vf_preds": rng.random((length, 2))},
            infos=infos,
            id_=("text", 7, ("a", 1))[i],  # type: ignore[arg-type]
            agent_id="left" if i else None,
            truncated=bool(length) and i == 1,
            terminated=bool(length) and i == 2,
        )
        episode.custom_data["seed"] = i
        episodes.append(episode)
    return EpisodePack.from_episodes(episodes)


def layout_of(whole: EpisodePack, compression: str) -> Layout:
    fields = info_schema.combine_fields({}, info_schema.written_columns(whole.infos))
    written = Layout(structure_of(pack_columns(whole)), fields_of(whole, compression), fields)
    return Layout.from_schema(written.schema())


def batch_of(whole: EpisodePack, layout: Layout) -> Any:
    return layout.batch(layout.schema(), whole, info_schema.written_columns(whole.infos), False)


def stored(batch: Any, layout: Layout) -> StoredBatch:
    header = Header(tracks=layout.tracks, structure=layout.structure)
    return StoredBatch(batch, layout, header, "the file", b"")


def names(compression: str) -> list[str]:
    return batch_of(pack(), layout_of(pack(), compression)).schema.names


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("num_steps", [0, 3])
@pytest.mark.parametrize("lacks", [(), ("acting_pipeline",), ("policy_versions", "policy_version_begins")], ids=str)
def test_batch_reads_as_its_pack(compression: str, num_steps: int, lacks: tuple[str, ...]) -> None:
    whole = pack(num_steps)
    layout = layout_of(whole, compression)
    batch = batch_of(whole, layout)
    assert set(lacks) <= episode_rows.optional_names()
    batch = batch.drop_columns(list(lacks)) if lacks else batch
    read = stored(batch, Layout.from_schema(batch.schema))
    for i, episode in enumerate(whole):
        assert read.episode(i).equals(episode)


def test_files_of_one_layout_may_lack_different_columns() -> None:
    layout = layout_of(pack(), "none")
    batch = batch_of(pack(), layout)
    for name in 2 * sorted(episode_rows.optional_names() - {"agent_id"}):
        older = batch.drop_columns([name])
        assert stored(older, Layout.from_schema(older.schema)).episode(1).equals(pack()[1])


def shorter_lists(column: Any) -> Any:
    """Return a list column whose first list lost its last value to the second."""
    bounds = np.array(np.frombuffer(column.buffers()[1], np.int64, len(column) + 1))
    bounds[1] -= 1
    return pa.LargeListArray.from_arrays(pa.array(bounds), column.values)


def with_null(column: Any) -> Any:
    """Return a column of one value per episode, the first of which is null."""
    return pa.array([None, *column.to_pylist()[1:]], column.type)


LISTS = [
    (compression, name)
    for compression in COMPRESSIONS
    for name in names(compression)
    if name.startswith(("observations", "actions", "rewards", "extra_model_outputs", "infos"))
]
REQUIRED = ("t_started", "terminated", "truncated", "length", "lookback")


@pytest.mark.parametrize(
    ("compression", "name", "damage"),
    [(*column, shorter_lists) for column in LISTS] + [("none", name, with_null) for name in REQUIRED],
)
def test_damaged_column_is_named(compression: str, name: str, damage: Any) -> None:
    layout = layout_of(pack(), compression)
    batch = batch_of(pack(), layout)
    place = batch.schema.names.index(name)
    columns = [*batch.columns[:place], damage(batch.column(place)), *batch.columns[place + 1 :]]
    read = stored(pa.RecordBatch.from_arrays(columns, schema=batch.schema), layout)
    with pytest.raises(UnreadableData, match=f"the file: column '{name}': "):
        read.episode(0)
