"""Ragged tracks on disk: versions, files, compaction, copies, remote storage, SQL, statistics and samplers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_conversations import conversation

from episodes import EpisodePack, Ragged, SingleAgentEpisode
from episodes.errors import TrackMismatch, UnreadableData
from episodes.storage import EpisodeDataset, EpisodeWriter, check, compact, merge, upload
from episodes.storage.sampling import ChunkBatches, StepBatches


def some(num: int = 12, **options: Any) -> list[SingleAgentEpisode]:
    return [conversation(i, **options).to_numpy() for i in range(num)]


def written(path: Path, episodes: list[SingleAgentEpisode], **options: Any) -> EpisodeDataset:
    with EpisodeWriter(path, **options) as writer:
        for start in range(0, len(episodes), 5):
            writer.add(episodes[start : start + 5])
            writer.flush()
    return EpisodeDataset(path, verify=True)


def assert_equal(dataset: EpisodeDataset, episodes: list[SingleAgentEpisode]) -> None:
    assert len(dataset) == len(episodes)
    assert all(a.equals(b) for a, b in zip(dataset, episodes, strict=True))
    order = np.arange(len(episodes))[::-1]
    assert dataset.pack(order) == EpisodePack.from_episodes([episodes[i] for i in order])
    pack = dataset.pack()
    assert pack.extra_model_outputs["logp"].has_lengths_of(pack.actions)


def test_only_data_sets_with_ragged_tracks_have_version_2(tmp_path: Path) -> None:
    fixed = SingleAgentEpisode.from_arrays(np.zeros((3, 2)), [0, 1], [1.0, 1.0])
    for name, episodes, version in (("ragged", some(2), 2), ("fixed", [fixed], 1)):
        written(tmp_path / name, episodes)
        header = json.loads((tmp_path / name / "episodes.json").read_text())
        assert header["version"] == version
    assert header["tracks"]["observations"] == {"compression": "none", "dtype": "<f8", "shape": [2]}


def test_outputs_beside_ragged_actions_have_no_lengths(tmp_path: Path) -> None:
    dataset = written(tmp_path, some(3))
    header = json.loads((tmp_path / "episodes.json").read_text())
    assert header["tracks"]["extra_model_outputs/logp"]["bounds"] == "actions"
    assert "bounds" not in header["tracks"]["observations"]
    names = dataset.stored_batches()[0][0].batch.schema.names
    assert [name for name in names if name.startswith("lengths/")] == ["lengths/observations", "lengths/actions"]


def test_ragged_and_fixed_episodes_are_not_mixed(tmp_path: Path) -> None:
    fixed = SingleAgentEpisode.from_arrays(np.zeros((3, 2), np.int32), [0, 1], [1.0, 1.0])
    with EpisodeWriter(tmp_path) as writer:
        writer.add(some(1))
        with pytest.raises(TrackMismatch, match="track 'observations' is stored as"):
            writer.add([fixed])
    assert len(EpisodeDataset(tmp_path)) == 1


def test_damaged_lengths_are_found_without_checksums(tmp_path: Path) -> None:
    written(tmp_path, some(5))
    (file,) = tmp_path.glob("*.arrow")
    data = file.read_bytes()
    lengths = np.concatenate([e.get_actions().lengths for e in some(5)]).astype(np.uint32)
    assert data.count(lengths.tobytes()) == 1
    lengths[0] += 1
    file.write_bytes(data.replace(np.concatenate([lengths[:1] - 1, lengths[1:]]).tobytes(), lengths.tobytes()))
    with pytest.raises(UnreadableData, match="lists are not as long"):
        list(EpisodeDataset(tmp_path))
    with pytest.raises(UnreadableData, match="lengths/actions"):
        EpisodeDataset(tmp_path, verify=True)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_compacted_merged_and_remote_data_sets_are_equal(tmp_path: Path, compression: str) -> None:
    episodes = some()
    for i in range(4):
        written(tmp_path / "a", episodes[3 * i : 3 * i + 3], compression=compression)
    compact(tmp_path / "a")
    assert check(tmp_path / "a")
    assert_equal(EpisodeDataset(tmp_path / "a", verify=True), episodes)
    merge(tmp_path / "b", tmp_path / "a")
    assert_equal(EpisodeDataset(tmp_path / "b", verify=True), episodes)
    url = f"memory://{tmp_path.name}"
    upload(tmp_path / "a", url)
    assert_equal(EpisodeDataset(url, cache=tmp_path / "cache", verify=True), episodes)


def test_sql_reads_ragged_tracks_as_lists(tmp_path: Path) -> None:
    episodes = some()
    dataset = written(tmp_path, episodes)
    table = dataset.step_table().table(["actions", "extra_model_outputs/logp", "next_observations"])
    actions = [item.tolist() for episode in episodes for item in episode.get_actions()]
    assert table.column("actions").to_pylist() == actions
    assert table.column(1).to_pylist() == [x.tolist() for e in episodes for x in e.get_extra_model_outputs("logp")]
    assert table.column(2).to_pylist() == [x.tolist() for e in episodes for x in e.get_observations()[1:]]
    selected = dataset.sql("select step from steps where len(actions) >= 3 and list_sum(actions) > 40")
    assert [*selected.steps] == [i for i, item in enumerate(actions) if len(item) >= 3 and sum(item) > 40]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_statistics_of_ragged_tracks_are_of_all_values(tmp_path: Path, compression: str) -> None:
    episodes = some()
    statistics = written(tmp_path, episodes, compression=compression).statistics()
    values = np.concatenate([episode.get_extra_model_outputs("logp").flat for episode in episodes])
    result = statistics["extra_model_outputs/logp"]
    assert result.count == len(values)
    np.testing.assert_allclose(result.mean, values.mean(), rtol=1e-6)
    np.testing.assert_allclose(result.std, values.astype(np.float64).std(), rtol=1e-6)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("lookback", [None, 0, 2])
def test_chunk_batches_equal_slices_of_the_episodes(tmp_path: Path, compression: str, lookback: int | None) -> None:
    whole = [conversation(i).to_numpy() for i in range(8)]
    chunks = []
    for episode in whole:  # two chunks each
        head = episode.slice(slice(0, len(episode) // 2))
        chunks += [head, episode.slice(slice(len(episode) // 2, None), len_lookback_buffer=0)]
    dataset = written(tmp_path, [chunk for chunk in chunks if len(chunk)], compression=compression)
    sampler = dataset.sampler(windows=ChunkBatches(5, 2, lookback), order="stored")
    windows = [window for pack in sampler for window in pack]
    expected = []
    for episode in whole:
        expected += [
            episode.slice(slice(t, t + 2), len_lookback_buffer=t if lookback is None else lookback)
            for t in range(len(episode))
        ]
    assert len(windows) == len(expected)
    assert all(a.equals(b) for a, b in zip(windows, expected, strict=True))


def test_rows_of_ragged_tracks_are_rejected_by_name(tmp_path: Path) -> None:
    dataset = written(tmp_path, some())
    for options in ({"steps": 4}, {"windows": (4, 2)}):
        with pytest.raises(TrackMismatch, match=r"track '(observations|actions)' is ragged.*ChunkBatches"):
            dataset.sampler(**options).draw()
    rewards = dataset.sampler(steps=StepBatches(4, keys=["rewards", "t"]), order="stored").draw()
    assert rewards["t"].tolist() == [t for e in some() for t in range(len(e))][:4]
    assert all(type(pack.actions) is Ragged for pack in dataset.sampler(episodes=4))
