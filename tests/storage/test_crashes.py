"""Crashes: flushed episodes survive a killed writer, and damaged files are read as far as possible."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from episodes import EpisodePack, Ragged, SingleAgentEpisode
from episodes.errors import EpisodeStateError, TrackMismatch, UnreadableData
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage import directory as directory_files
from episodes.storage import shards as shard_files
from episodes.storage.files import reserve

pytestmark = pytest.mark.filterwarnings("ignore:EpisodeWriter.*was not closed:ResourceWarning")

KILLED = """
import sys
from episodes.storage import EpisodeWriter
from tests.storage.test_crashes import episode

writer = EpisodeWriter(sys.argv[1])
for i in range(10_000_000):
    writer.add([episode(i)])
    if i % 7 == 6:
        writer.flush()
        print(i + 1, flush=True)
"""


def ragged(steps: int, dtype: str) -> Ragged:
    return Ragged.from_lengths(np.arange(steps * (steps - 1) // 2, dtype=dtype), np.arange(steps))


def episode(i: int) -> SingleAgentEpisode:
    """Return episode i, of 1 to 50 steps."""
    observations, steps = np.random.default_rng(i).random((i % 50 + 2, 4)), i % 50 + 1
    outputs = {"token_logp": ragged(steps, "f4")}
    return SingleAgentEpisode.from_arrays(
        observations, ragged(steps, "i4"), np.ones(steps), id_=str(i), extra_model_outputs=outputs
    )


def test_killed_writer_keeps_flushed_episodes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        for _ in range(30):
            process.stdout.readline()
        live = EpisodeDataset(tmp_path)  # read while it is being written
        assert live.recovered == len(live) >= 30 * 7
        assert live[100].equals(episode(100))
        process.send_signal(signal.SIGKILL)
        flushed = max(int(line) for line in [*process.stdout, "210"])
    dataset = EpisodeDataset(tmp_path)
    assert dataset.recovered == len(dataset) >= flushed
    assert all(result.equals(episode(i)) for i, result in enumerate(dataset))
    assert f"{len(dataset)} recovered" in repr(dataset)
    with EpisodeWriter(tmp_path) as writer:
        writer.add([episode(1_000_000)])
    assert len(EpisodeDataset(tmp_path)) == len(dataset) + 1


def write_many(path: Path, number: int) -> None:
    with EpisodeWriter(path) as writer:
        for i in range(40):
            writer.add([episode(1000 * number + i)])
            if i % 9 == 0:
                writer.flush()


def test_writers_in_many_processes_write_one_data_set(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(tmp_path / "data", number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    dataset = EpisodeDataset(tmp_path / "data")
    assert sorted(dataset.metadata["id"].tolist(), key=int) == [str(1000 * n + i) for n in range(4) for i in range(40)]
    assert all(result.equals(episode(int(result.id_))) for result in dataset)
    assert len(list((tmp_path / "data").iterdir())) == 9  # the header, and of each a shard and a manifest


def test_second_writer_with_other_tracks_raises(tmp_path: Path) -> None:
    first, second = EpisodeWriter(tmp_path), EpisodeWriter(tmp_path)
    first.add([episode(0)])
    outputs = {"token_logp": ragged(1, "f4")}
    other_episode = SingleAgentEpisode.from_arrays(
        np.zeros((2, 3)), ragged(1, "i4"), [0.0], extra_model_outputs=outputs
    )
    with pytest.raises(TrackMismatch, match=r"track 'observations' is stored as float64 items of shape \[4\]"):
        second.add([other_episode])
    second.add([episode(1)])
    first.close()
    second.close()
    assert [e.id_ for e in EpisodeDataset(tmp_path)] == ["0", "1"]


def unfinished(path: Path, num_batches: int = 3) -> tuple[Path, EpisodePack]:
    """Write an unfinished shard of `num_batches` record batches with two episodes each."""
    writer = EpisodeWriter(path)
    for i in range(num_batches):
        writer.add([episode(2 * i), episode(2 * i + 1)])
        writer.flush()
    (file,) = path.glob("*.arrow.partial")
    return file, EpisodePack.from_episodes([episode(i) for i in range(2 * num_batches)])


@pytest.mark.filterwarnings("ignore:.*its writer wrote 2")
def test_unfinished_shard_reads_complete_batches(tmp_path: Path) -> None:
    file, pack = unfinished(tmp_path)
    whole = EpisodeDataset(tmp_path)
    assert (len(whole), whole.recovered, whole.unread) == (6, 6, {})
    assert whole.pack() == pack
    data = file.read_bytes()
    result = set()
    for size in range(0, len(data), 97):
        file.write_bytes(data[:size])
        dataset = EpisodeDataset(tmp_path)
        assert dataset.recovered == len(dataset)
        assert all(a.equals(b) for a, b in zip(dataset, pack, strict=False))
        assert set(dataset.unread) <= {file.name.removesuffix(".arrow.partial")}
        result.add(len(dataset))
    assert result == {0, 2, 4}


@pytest.mark.parametrize("tail", [b"\0" * 1000, b"\xff" * 1000, bytes(range(256)) * 4, b"x"])
def test_bytes_after_last_batch_are_counted_as_unread(tmp_path: Path, tail: bytes) -> None:
    file, pack = unfinished(tmp_path)
    with file.open("ab") as out:
        out.write(tail)
    dataset = EpisodeDataset(tmp_path)
    assert dataset.pack() == pack
    assert dataset.unread == {file.name.removesuffix(".arrow.partial"): len(tail)}
    assert f"{len(tail)} bytes unread" in repr(dataset)


def test_damaged_sealed_shard_warns_and_reads_intact_part(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        for i in range(3):
            writer.add([episode(i)])
            writer.flush()
    (file,) = tmp_path.glob("*.arrow")
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 3 // 4])
    with pytest.warns(UserWarning, match=rf"shard {file.stem} is damaged .*: 2 record batches were read"):
        dataset = EpisodeDataset(tmp_path)
    assert dataset.recovered == 2
    assert [e.id_ for e in dataset] == ["0", "1"]


@pytest.mark.filterwarnings("ignore:.*is damaged")
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_random_damage_raises_or_is_harmless(tmp_path: Path, compression: str) -> None:
    with EpisodeWriter(tmp_path, compression=compression) as writer:
        for i in range(3):
            infos = [{"n": i, "s": "x" * i}] * (i % 50 + 2)
            whole = episode(i)
            writer.add(
                [
                    SingleAgentEpisode.from_arrays(
                        whole.get_observations(),
                        whole.get_actions(),
                        np.ones(i + 1),
                        infos=infos,
                        custom_data={"i": i},
                        extra_model_outputs={"token_logp": whole.get_extra_model_outputs("token_logp")},
                    )
                ]
            )
            writer.flush()
    (file,) = tmp_path.glob("*.arrow")
    data, rng, text = file.read_bytes(), np.random.default_rng(0), 0
    for _ in range(300):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), rng.choice([1, 3, 20])).tolist():
            damaged[at] = rng.integers(0, 256)
        file.write_bytes(damaged)
        try:
            for result in EpisodeDataset(tmp_path):
                assert len(result.get_observations()) == len(list(result.infos)) == len(result) + 1
            assert repr(EpisodeDataset(tmp_path))
        except UnreadableData:
            text += 1
    assert 0 < text < 300


def test_finished_shard_without_rename_is_complete(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add([episode(0), episode(1)])
    (file,) = tmp_path.glob("*.arrow")
    file.rename(f"{file}.partial")
    dataset = EpisodeDataset(tmp_path)
    assert (len(dataset), dataset.recovered, dataset.unread) == (2, 2, {})


def test_failed_write_is_not_completed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def part_of_a_batch(shard: shard_files.ShardWriter, batch: pa.RecordBatch) -> None:
        shard._sink.write(b"waits to be written with more")
        raise OSError(28, "No space left on device")

    writer = EpisodeWriter(tmp_path)
    writer.add([episode(0)])
    writer.flush()
    (file,) = tmp_path.glob("*.arrow.partial")
    size = file.stat().st_size
    writer.add([episode(1)])
    with monkeypatch.context() as patch:
        patch.setattr(shard_files.ShardWriter, "append", part_of_a_batch)
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
    gc.collect()
    assert file.stat().st_size == size
    assert capfd.readouterr().err == ""
    writer.close()
    assert [e.id_ for e in EpisodeDataset(tmp_path)] == ["0", "1"]


def test_reserve_does_not_change_file_size(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        file.write(b"abc")
        file.flush()
        reserve(file.fileno(), 3, 1 << 23)
        assert os.stat(file.fileno()).st_size == 3
        file.write(b"def")
    assert (tmp_path / "file").read_bytes() == b"abcdef"
    with open(tmp_path / "file", "rb") as file:
        reserve(file.fileno(), 0, 1 << 23)  # of one that cannot be written to: nothing happens


def test_large_batch_round_trips(tmp_path: Path) -> None:
    steps = np.arange(599_997)
    pack = EpisodePack(observations=np.arange(600_000.0), actions=steps, rewards=steps / 2, lengths=[199_999] * 3)
    with EpisodeWriter(tmp_path) as writer:
        writer.add(pack)
        assert EpisodeDataset(tmp_path, verify=True).unread == {}
        writer.add(pack.replace(ids=["a", "b", "c"]))
    dataset = EpisodeDataset(tmp_path, verify=True)
    assert dataset.pack([0, 1, 2]).observations.tolist() == list(range(600_000))
    assert len(dataset) == 6


def test_shard_bytes_limits_shard_size(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path, shard_bytes=20_000) as writer:
        for i in range(60):
            writer.add([episode(i)])
            writer.flush()
    sizes = [file.stat().st_size for file in sorted(tmp_path.glob("*.arrow"))]
    assert len(sizes) > 3
    assert max(sizes) < 35_000
    assert [e.id_ for e in EpisodeDataset(tmp_path)] == [str(i) for i in range(60)]


def test_flush_with_fsync_syncs_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    writer = EpisodeWriter(tmp_path)
    writer.add([episode(0)])
    writer.flush()
    assert not synced
    writer.flush(fsync=True)
    (shard,) = tmp_path.glob("*.arrow.partial")
    assert {str(shard), str(tmp_path / "episodes.json"), str(tmp_path)} <= set(synced)
    assert any("manifest" in file for file in synced)


def test_writer_in_another_process_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EpisodeWriter(tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(EpisodeStateError, match="create a writer for the same path in each process"):
        writer.add([episode(0)])


def test_shard_sealed_while_opening_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, pack = unfinished(tmp_path)

    def sealed_meanwhile(shard: Any, *, mapped: bool) -> shard_files.ShardRead:
        if file.exists():
            file.rename(file.with_suffix(""))
        return shard_files.read_shard(shard, mapped=mapped)

    monkeypatch.setattr(directory_files, "read_shard", sealed_meanwhile)
    with pytest.warns(UserWarning, match="is damaged"):  # it has no footer: it was only renamed
        assert EpisodeDataset(tmp_path).pack() == pack


def test_writer_works_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    for number in range(2):
        with EpisodeWriter(tmp_path) as writer:
            writer.add([episode(number)])
    assert [e.id_ for e in EpisodeDataset(tmp_path)] == ["0", "1"]
    first, second = EpisodeWriter(tmp_path / "new"), EpisodeWriter(tmp_path / "new")
    first.add([episode(0)])
    second.add([episode(1)])
    first.close()
    second.close()
    assert len(EpisodeDataset(tmp_path / "new")) == 2
    assert not list(tmp_path.rglob(".episodes*"))


def test_writer_context_closes_after_an_error(tmp_path: Path) -> None:
    def work() -> None:
        with EpisodeWriter(tmp_path) as writer:
            writer.add([episode(0)])
            raise KeyError("something else")

    with pytest.raises(KeyError):
        work()
    dataset = EpisodeDataset(tmp_path)
    assert (len(dataset), dataset.recovered) == (1, 0)
    assert time.time_ns() > int(next(tmp_path.glob("*.arrow")).name.split("-")[0], 16)
