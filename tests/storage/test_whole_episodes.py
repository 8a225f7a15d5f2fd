"""Columns of whole episodes and of custom data, under one name in metadata, select, copy and SQL."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from episodes import SingleAgentEpisode
from episodes.errors import ChunkMismatch, InvalidArgument, TrackMismatch, UnknownKey
from episodes.storage import EpisodeDataset, EpisodeWriter, compact, copy
from episodes.storage.search.whole_episodes import columns_of_whole_episodes

CHUNKS = st.lists(
    st.tuples(
        st.sampled_from("ab"),  # id
        st.sampled_from([None, "x", "y"]),  # agent id
        st.integers(0, 3),  # gap before it, mostly none
        st.integers(0, 4),  # length
        st.sampled_from([(False, False), (True, False), (False, True)]),
    ),
    max_size=12,
)


@example([("a", "x", 0, 1, (False, False)), ("a", "x", 3, 0, (True, False))], Random(0))  # a hole before the ending
@given(CHUNKS, st.randoms(use_true_random=False))
def test_whole_episode_columns_equal_a_loop(chunks: list[Any], random: Any) -> None:
    rows, ends = [], dict[Any, int]()
    for id_, agent, gap, length, (terminated, truncated) in chunks:
        start = ends.get((id_, agent), 0) + max(gap - 2, 0)
        ends[id_, agent] = start + length
        rows.append((id_, agent, None, start, length, length * 0.5, terminated, truncated))
    random.shuffle(rows)
    names = ("id", "agent_id", "multi_agent_episode_id", "t_started", "length", "return", "terminated", "truncated")
    table = {name: np.array([row[k] for row in rows], object) for k, name in enumerate(names)}
    dtypes = {"t_started": int, "length": int, "return": float, "terminated": bool, "truncated": bool}
    table |= {name: table[name].astype(dtype) for name, dtype in dtypes.items()}
    made = columns_of_whole_episodes(table, None, None)
    with_steps = sorted((row for row in rows if row[4]), key=lambda row: (row[0], str(row[1]), row[3]))
    if any(a[:2] == b[:2] and (a[6] or a[7]) for a, b in pairwise(with_steps)):
        for make in made.values():
            with pytest.raises(ChunkMismatch, match="follows one that ended"):
                make()
        return
    columns = {name: make() for name, make in made.items()}
    for i, row in enumerate(rows):
        episode = sorted((second for second in rows if second[:2] == row[:2]), key=lambda second: second[3:5])
        assert columns["episode_length"][i] == sum(second[4] for second in episode)
        assert columns["episode_return"][i] == sum(second[5] for second in episode)
        follows, t = True, 0
        for second in episode:
            follows, t = follows and second[3] == t, second[3] + second[4]
        ended = any((second[6] or second[7]) and second[3] + second[4] == t for second in episode)
        assert columns["is_complete"][i] == (follows and ended)


def chunked(path: Path, first: int = 0) -> EpisodeDataset:
    """Write episode 0 in three chunks, episode 1 in one, and episode 2 without its beginning, with custom data."""
    with EpisodeWriter(path, shard_bytes=1) as writer:
        for number, bounds in enumerate(([0, 4, 7, 10], [0, 6], [3, 9]), first):
            for start, stop in pairwise(bounds):
                whole = SingleAgentEpisode.from_arrays(
                    np.arange(11.0), np.zeros(10), np.ones(10), id_=f"e{number}", terminated=True
                )
                chunk = whole[start:stop] if stop < 10 else whole[start:]
                chunk.custom_data.update({"prompt": number, "my key": f"k{number}", "list": [1]})
                if number == first + 1:
                    chunk.custom_data["rate"] = 0.5
                writer.add([chunk])
                writer.flush()
    return EpisodeDataset(path)


def test_metadata_has_columns_of_whole_episodes(tmp_path: Path) -> None:
    dataset = chunked(tmp_path)
    rows = dataset.metadata
    assert rows["episode_length"].tolist() == [10, 10, 10, 6, 6]
    assert rows["episode_return"].tolist() == [10.0, 10.0, 10.0, 6.0, 6.0]
    assert rows["is_complete"].tolist() == [True, True, True, False, False]
    assert dataset.select(rows["episode_return"] >= 10).num_steps == 10
    assert dataset[1:2].metadata["episode_length"].tolist() == [10]
    assert len(dataset.sql("select * from episodes where is_complete and episode_return > 9")) == 3
    assert copy(tmp_path, tmp_path / "copy", "episode_length == 10") == 3


def test_snapshot_of_a_data_set_has_its_own_whole_episodes(tmp_path: Path) -> None:
    chunked(tmp_path)
    before = EpisodeDataset(tmp_path).snapshot()
    chunked(tmp_path, 3)
    compact(tmp_path)
    assert EpisodeDataset(tmp_path).at_snapshot(before).metadata["episode_length"].tolist() == [10, 10, 10, 6, 6]
    assert EpisodeDataset(tmp_path).metadata["episode_length"].tolist() == [10, 10, 10, 6, 6] * 2


def test_custom_data_has_one_name_everywhere(tmp_path: Path) -> None:
    dataset = chunked(tmp_path)
    rows = dataset.metadata
    assert rows["custom_data/prompt"].tolist() == [0, 0, 0, 1, 2]
    assert rows["custom_data/my key"].tolist() == ["k0", "k0", "k0", "k1", "k2"]
    np.testing.assert_array_equal(rows["custom_data/rate"], [np.nan] * 3 + [0.5, np.nan])
    assert "custom_data/prompt" in list(rows)
    assert "custom_data/list" not in list(rows)
    assert len(dataset.select(lambda table: table["custom_data/prompt"] == 0)) == 3
    assert len(dataset.sql("""select * from episodes where "custom_data/my key" = 'k0'""")) == 3
    assert copy(tmp_path, tmp_path / "a", "custom_data/prompt == 2 and custom_data/'my key' != 'k0'") == 1
    assert copy(tmp_path, tmp_path / "b", "-custom_data/prompt / 2 < -0.5") == 1
    with pytest.raises(UnknownKey, match="custom_data/prompt"):
        rows["custom_data/list"]
    with pytest.raises(InvalidArgument, match="custom_data/prompt"):
        dataset.sql('select "custom_data/nothing" from episodes')
    with pytest.raises(InvalidArgument, match="custom_data/prompt"):
        copy(tmp_path, tmp_path / "c", "custom_data/nothing == 1")


@pytest.mark.parametrize("name", ["loss_mask", "seq_lens", "weights", "t", "obs", "indices"])
def test_sampler_of_reserved_column_name_raises(tmp_path: Path, name: str) -> None:
    extra = {name: np.zeros(5)}
    try:
        with EpisodeWriter(tmp_path) as writer:
            chunk = SingleAgentEpisode.from_arrays(np.arange(6.0), np.zeros(5), np.ones(5), extra_model_outputs=extra)
            writer.add([chunk])
    except TrackMismatch as error:
        assert name in str(error)  # noqa: PT017
        return
    with pytest.raises(TrackMismatch, match=name):
        EpisodeDataset(tmp_path).sampler(windows=(4, 3))
