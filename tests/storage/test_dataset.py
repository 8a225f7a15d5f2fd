"""A data set is a sequence of episodes that reads what is asked for, refuses what does not fit, and goes to workers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from torch.utils.data import DataLoader

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import (
    EpisodeError,
    InvalidArgument,
    TrackMismatch,
    UnreadableData,
    WrongType,
)
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage import compressed_tracks as frame_blocks
from episodes.storage.checksums import with_checksum


def some(num: int = 6, seed: int = 0) -> EpisodePack:
    """Return episodes of 1, 2, ... steps: terminated, truncated and cut in turns."""
    rng, lengths = np.random.default_rng(seed), np.arange(1, num + 1)
    steps = int(lengths.sum())
    return EpisodePack(
        observations={"o": rng.random((steps + num, 2)), "p": rng.random(steps + num)},
        actions=rng.integers(0, 3, steps),
        rewards=rng.random(steps),
        extra_model_outputs={"logp": rng.random(steps)},
        lengths=lengths,
        terminated=np.arange(num) % 3 == 0,
        truncated=np.arange(num) % 3 == 1,
    )


def images(num: int = 4, length: int = 70) -> EpisodePack:
    """Return episodes of frames [32, 32, 4] with a few blocks each."""
    frames = np.random.default_rng(0).integers(0, 256, (num * (length + 1), 32, 32, 4), np.uint8)
    return EpisodePack(
        observations={"camera": frames, "joints": np.zeros((len(frames), 2))},
        actions=np.arange(num * length),
        rewards=np.arange(num * length) / 2,
        lengths=np.full(num, length),
    )


def in_batches(path: Path, pack: EpisodePack, size: int, **options: Any) -> EpisodeDataset:
    with EpisodeWriter(path, **options) as writer:
        for start in range(0, len(pack), size):
            writer.add(pack[start : start + size])
            writer.flush()
    return EpisodeDataset(path)


@pytest.fixture(params=["none", "zstd"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[EpisodePack, EpisodeDataset]:
    pack = some(10)
    return pack, in_batches(tmp_path, pack, 4, compression=request.param)


INDICES: list[Any] = [
    None,
    slice(1, 3),
    slice(2, 9),
    slice(None, None, -2),
    [3],
    [9, 0, 5, 5, -1],
    [0, 1, 4, 5, 8],
    np.arange(10) % 3 == 0,
    np.zeros(0, int),
]


@pytest.mark.parametrize("indices", INDICES, ids=str)
def test_pack_of_any_indices_equals_the_episodes(stored: tuple[EpisodePack, EpisodeDataset], indices: Any) -> None:
    pack, dataset = stored
    expected = pack if indices is None else pack[indices] if isinstance(indices, slice) else pack.select(indices)
    assert dataset.pack(indices) == expected
    if indices is not None:
        view = dataset[indices] if isinstance(indices, slice) else dataset.select(indices)
        assert isinstance(view, EpisodeDataset)
        assert len(view) == len(expected)
        assert view.pack() == expected
        assert list(view.metadata["id"]) == list(expected.ids)
        assert view.num_steps == expected.num_steps
        assert [a.id_ for part in view.packs() for a in part] == list(expected.ids)


def test_views_of_views_select_from_the_view(stored: tuple[EpisodePack, EpisodeDataset]) -> None:
    pack, dataset = stored
    view = dataset[2:9].select(lambda rows: rows["length"] % 2 == 0)[::-1]
    expected = [i for i in range(2, 9) if (i + 1) % 2 == 0][::-1]
    assert view.pack() == pack.select(expected)
    assert view[-1].equals(pack[expected[-1]])
    assert view.pack([0, 1]) == pack.select(expected[:2])
    assert len(dataset) == len(pack)


def test_episode_arrays_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    dataset = in_batches(tmp_path, some(10), 5)
    whole = dataset.pack(slice(5, 10))
    for part in (dataset.pack([6, 7]).tracks, dataset[6].get_observations(), {"rewards": dataset[6].get_rewards()}):
        for name, array in part.items():
            path = f"observations/{name}" if name in "op" else name
            assert np.shares_memory(array, whole.tracks[path])
            assert not array.flags.writeable
            assert not array.flags.owndata


def test_changed_episode_leaves_the_file(tmp_path: Path) -> None:
    dataset = in_batches(tmp_path, some(3), 3)
    before = dataset[1].get_rewards().tolist()
    episode = dataset[1]
    episode.set_rewards(new_data=[7.0, 8.0])
    assert EpisodeDataset(tmp_path)[1].get_rewards().tolist() == before == dataset[1].get_rewards().tolist()


@pytest.mark.parametrize(("start", "stop"), [(None, None), (3, 9), (0, 0), (60, 200), (-5, None), (63, 64)])
def test_steps_of_compressed_episode_equal_its_slice(tmp_path: Path, start: int | None, stop: int | None) -> None:
    pack = images()
    dataset = in_batches(tmp_path, pack, 3)
    for i in range(len(pack)):
        assert dataset.steps(i, start, stop).equals(pack[i][start:stop])


def test_steps_decompress_only_their_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = in_batches(tmp_path, images(4, length=200), 4)
    read, block = [], frame_blocks.CompressedTrack.decoded
    monkeypatch.setattr(
        frame_blocks.CompressedTrack, "decoded", lambda track, number: read.append(number) or block(track, number)
    )
    assert dataset.steps(2, 10, 20).get_observations()["camera"].shape == (11, 32, 32, 4)
    assert len(read) == 1
    read.clear()
    assert len(dataset[2].get_observations()["camera"]) == 201
    assert len(read) == 4


def test_auto_compresses_only_images(tmp_path: Path) -> None:
    pack = images()
    plain = pack.replace(observations=pack.observations | {"camera": pack.observations["camera"] // 255})
    dataset = in_batches(tmp_path / "auto", plain, 4)
    tracks = json.loads((tmp_path / "auto" / "episodes.json").read_text())["tracks"]
    kinds = {path: track["compression"] for path, track in tracks.items()}
    assert kinds == {
        "observations/camera": "zstd",
        "observations/joints": "none",
        "actions": "none",
        "rewards": "none",
    }
    assert dataset.pack() == plain
    bare = in_batches(tmp_path / "none", plain, 4, compression="none")
    assert bare.pack() == plain
    assert dataset.nbytes < bare.nbytes / 10


@pytest.mark.parametrize(("context", "num_workers"), [("fork", 2), ("spawn", 1)])
def test_data_set_works_in_data_loader_workers(tmp_path: Path, context: str, num_workers: int) -> None:
    pack = some(10)
    dataset = in_batches(tmp_path, pack, 4, compression="zstd")
    loader = DataLoader(
        dataset[1:],  # type: ignore[arg-type]
        batch_size=4,
        num_workers=num_workers,
        collate_fn=EpisodePack.from_episodes,
        multiprocessing_context=context,
    )
    assert EpisodePack.concat(list(loader)) == pack[1:]


def test_pickled_data_set_is_small_and_equal(tmp_path: Path) -> None:
    pack = some(8)
    early, late = EpisodeWriter(tmp_path), EpisodeWriter(tmp_path)
    early.add(pack[:2])
    early.flush()
    late.add(pack[2:5])
    late.flush()
    dataset = EpisodeDataset(tmp_path).select([4, 0, 3])
    data = pickle.dumps(dataset)
    assert len(data) < 2000
    early.add(pack[5:])  # into a file that is before the other's
    early.close()
    late.close()
    assert pickle.loads(data).pack() == pack.select([4, 0, 3])
    assert len(EpisodeDataset(tmp_path)) == 8


def test_select_and_pack_reject_wrong_indices(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add(some())
    dataset = EpisodeDataset(tmp_path)
    for wrong in (2, [[0, 1]], [0.5], "e1"):
        for pick in (dataset.select, dataset.pack):
            with pytest.raises(WrongType, match="give integers or a mask of bools"):
                pick(wrong)


def test_relative_data_set_unpickles_in_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add(some())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps((EpisodeDataset("data"), EpisodeDataset("data").sampler(steps=4, seed=0)))
    monkeypatch.chdir(tmp_path / "elsewhere")
    dataset, sampler = pickle.loads(pickled)
    assert len(dataset) == 6
    assert len(sampler.draw()) == 4


def test_pickled_pack_outlives_its_data_set(tmp_path: Path) -> None:
    episodes = [SingleAgentEpisode.from_arrays([0.0, 1.0], [0], [0.0], custom_data={"i": i}) for i in range(3)]
    pack = in_batches(tmp_path, EpisodePack.from_episodes(episodes), 3).pack()
    assert pickle.loads(pickle.dumps(pack)) == EpisodePack.from_episodes(episodes)


def test_repr_of_data_set_is_one_line(tmp_path: Path) -> None:
    dataset = in_batches(tmp_path, some(4), 2)
    assert repr(dataset).startswith(f"EpisodeDataset({str(tmp_path)!r}: 3 whole episodes with mean return ")
    assert ", 1 chunk, 10 steps, " in repr(dataset)
    assert "2 terminated, 1 truncated, 1 cut, " in repr(dataset)
    assert "closed" not in repr(EpisodeWriter(tmp_path))


def test_second_writer_appends_without_arguments(tmp_path: Path) -> None:
    pack = some().replace(action_space=spaces.Discrete(3))
    with EpisodeWriter(tmp_path, metadata={"by": "me"}, env_spec="CartPole-v1") as writer:
        writer.add(pack)
    with EpisodeWriter(tmp_path) as writer:
        writer.add(more := pack[:2].replace(ids=["x", "y"]))
    dataset = EpisodeDataset(tmp_path)
    assert dataset.pack() == EpisodePack.concat([pack, more])
    assert (dataset.user_metadata, dataset.env_spec) == ({"by": "me"}, "CartPole-v1")


# --- errors -----------------------------------------------------------------------------------------------------


def one(observations: Any = None, **options: Any) -> list[SingleAgentEpisode]:
    observed = {"o": np.zeros((2, 2)), "p": np.zeros(2)} if observations is None else observations
    return [
        SingleAgentEpisode.from_arrays(
            observed, [0], [0.5], **{"extra_model_outputs": {"logp": np.zeros(1)}, **options}
        )
    ]


def test_add_distinguishes_tuples_from_dicts(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add(one((np.zeros(2), np.ones(2))))
        with pytest.raises(TrackMismatch, match="tracks are nested as"):
            writer.add(one({"0": np.zeros(2), "1": np.ones(2)}))


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "observations": (
        {"observation_space": spaces.Discrete(3)},
        r"the data set has Discrete\(2\), not Discrete\(3\)",
    ),
    "environment": ({"env_spec": "Acrobot-v1"}, "env_spec: the data set has CartPole-v1, not Acrobot-v1"),
    "metadata": ({"metadata": {"by": "you"}}, r"metadata: the data set has \{'by': 'me'\}"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_writer_with_other_metadata_raises(tmp_path: Path, name: str) -> None:
    stated = {"observation_space": spaces.Discrete(2), "env_spec": "CartPole-v1", "metadata": {"by": "me"}}
    EpisodeWriter(tmp_path, **stated).close()
    options, message = DIFFERENT[name]
    with pytest.raises(InvalidArgument, match=message):
        EpisodeWriter(tmp_path, **(stated | options))
    EpisodeWriter(tmp_path, **stated).close()


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "compression": ({"compression": "gzip"}, "'gzip': give one of 'auto', 'none', 'zstd'"),
    "shard_bytes": ({"shard_bytes": 0}, "shard_bytes=0"),
    "a space that has no form": (
        {"observation_space": spaces.Dict({"g": spaces.Graph(spaces.Discrete(2), None)})},
        r"observation_space\['g'\]: a Graph space cannot be written",
    ),
    "metadata": ({"metadata": {"fn": len}}, r"metadata\['fn'\] cannot be written"),
    "metadata that is no dict": ({"metadata": 3}, "metadata=3: give a dict"),
    "env_spec": ({"env_spec": 3}, "env_spec is a int; give an EnvSpec"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_writer_constructor_rejects_wrong_arguments(tmp_path: Path, name: str) -> None:
    options, message = BAD_OPTIONS[name]
    with pytest.raises(EpisodeError, match=message):
        EpisodeWriter(tmp_path / "data", **options)
    assert not (tmp_path / "data").exists()


HEADERS: dict[str, tuple[Callable[[dict[str, Any]], str], str]] = {
    "a newer version": (lambda header: json.dumps(header | {"version": 4}), "format 4; .* formats 1 to 3"),
    "something else": (lambda header: json.dumps({"name": "x"}), "is not the header of a data set"),
    "JSON cannot represent": (lambda header: "{", "is not JSON"),
    "a space of a later day": (
        lambda header: json.dumps(with_checksum(header | {"action_space": {"type": "Later"}})),
        "a space of type 'Later' is not known here",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_newer_or_foreign_header_raises(tmp_path: Path, name: str) -> None:
    in_batches(tmp_path, some(2), 2)
    change, message = HEADERS[name]
    file = tmp_path / "episodes.json"
    header = json.loads(file.read_text())
    del header["sum"]
    file.write_text(change(header))
    with pytest.raises(UnreadableData, match=message):
        EpisodeDataset(tmp_path)
    with pytest.raises(UnreadableData, match=message):
        EpisodeWriter(tmp_path)


def test_index_out_of_range_names_the_range(tmp_path: Path) -> None:
    dataset = in_batches(tmp_path, some(3), 3)
    for ask in (lambda: dataset[3], lambda: dataset[-4], lambda: dataset.pack([0, 3]), lambda: dataset.steps(5)):
        with pytest.raises(IndexError, match=r"there are episodes 0\.\.2"):
            ask()
    with pytest.raises(WrongType, match="select and pack take arrays"):
        dataset[[1, 2]]  # type: ignore[call-overload]
    with pytest.raises(WrongType, match="give integers or a mask"):
        dataset.select(lambda rows: rows["return"])


def test_empty_data_set_has_no_pack(tmp_path: Path) -> None:
    EpisodeWriter(tmp_path).close()
    dataset = EpisodeDataset(tmp_path)
    assert list(dataset) == list(dataset.packs()) == []
    assert len(dataset.select(lambda rows: rows["return"] > 0)) == 0
    with pytest.raises(IndexError, match="there are none"):
        dataset[0]
    with pytest.raises(InvalidArgument, match="has no episodes"):
        dataset.pack()


def test_foreign_arrow_file_is_named(tmp_path: Path) -> None:
    import pyarrow as pa

    dataset = in_batches(tmp_path, some(2), 2)
    table = pa.table({"x": [1]})
    with pa.OSFile(str(tmp_path / "zz.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.warns(UserWarning, match="shard zz is damaged .an Arrow file that is not of episodes"):
        repeated = EpisodeDataset(tmp_path)
    assert repeated.pack() == dataset.pack()
    assert list(repeated.unread) == ["zz"]


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir, Path.touch])
def test_missing_data_set_raises_with_its_path(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "other")
    with pytest.raises(UnreadableData, match="other is not a data set: it has no "):
        EpisodeDataset(tmp_path / "other")
