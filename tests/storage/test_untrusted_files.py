"""Files of a data set that are locked, foreign, special or crafted: errors that name them, and nothing lost."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from episodes import SingleAgentEpisode
from episodes.errors import ChunkMismatch, InvalidArgument, UnreadableData
from episodes.storage import EpisodeDataset, EpisodeWriter, check, compact, copy, merge, seal
from episodes.storage.checksums import signed_line, with_checksum

ROOT = Path(__file__).parents[2]


def episode(i: int, num_steps: int = 3) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(np.arange(num_steps + 1.0), [0] * num_steps, [1.0] * num_steps, id_=str(i))


def written(path: Path, numbers: range, **options: object) -> Path:
    """Write a data set with a flush after each episode."""
    with EpisodeWriter(path, **options) as writer:  # type: ignore[arg-type]
        for i in numbers:
            writer.add([episode(i)])
            writer.flush()
    return path


def ids(path: Path) -> list[int]:
    return [int(result.id_) for result in EpisodeDataset(path)]


# --- locks -------------------------------------------------------------------------------------------------------


def test_seal_in_other_pid_namespace_takes_nothing(tmp_path: Path) -> None:
    command = f"from episodes.storage import seal; print(seal({str(tmp_path)!r}))"
    second = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", command]
    with EpisodeWriter(tmp_path) as writer:
        for i in range(4):
            writer.add([episode(i)])
        writer.flush()
        done = subprocess.run(second, capture_output=True, text=True, cwd=ROOT, check=True)
        assert done.stdout.strip() == "0"
        assert seal(tmp_path) == 0
        for i in range(4, 8):
            writer.add([episode(i)])
        writer.flush()
    assert ids(tmp_path) == list(range(8))


WRITER = """
import sys, numpy as np
from episodes import SingleAgentEpisode
from episodes.storage import EpisodeWriter, compact, seal
path, name = sys.argv[1:]
for turn in range(3):
    with EpisodeWriter(path, shard_bytes=2_000) as writer:
        for number in range(4):
            id_ = f"{name}-{turn}-{number}"
            writer.add([SingleAgentEpisode.from_arrays(np.arange(2.0), [0], [1.0], id_=id_)])
            writer.flush()
            seal(path)
        compact(path)
    compact(path)
"""


def test_writers_in_two_pid_namespaces_lose_nothing(tmp_path: Path) -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", WRITER, str(tmp_path)]
    EpisodeWriter(tmp_path).close()
    writers = [subprocess.Popen([*command, name], cwd=ROOT) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    dataset = EpisodeDataset(tmp_path, verify=True)
    ids = [f"{name}-{turn}-{number}" for name in "ab" for turn in range(3) for number in range(4)]
    assert sorted(dataset.metadata["id"].tolist()) == sorted(ids)
    assert dataset.recovered == 0


def test_forced_seal_of_a_live_writer_raises_at_close(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path)
    writer.add([episode(0)])
    writer.flush()
    assert seal(tmp_path, force=True) == 1
    with pytest.raises(UnreadableData, match="seal\\(force=True\\)"):
        writer.close()
    writer.close()
    assert ids(tmp_path) == [0]


@pytest.mark.parametrize("call", ["flush", "add", "close"])
@pytest.mark.parametrize("left", ["nothing", "an empty directory"])
def test_writer_whose_open_file_is_gone_raises_and_keeps_what_waits(tmp_path: Path, call: str, left: str) -> None:
    writer = EpisodeWriter(tmp_path / "data")
    writer.add([episode(0)])
    writer.flush()
    (tmp_path / "data").rename(tmp_path / "moved")
    if left == "an empty directory":
        (tmp_path / "data").mkdir()
    writer.add([episode(1)])
    large = episode(2, num_steps=100_000)
    with pytest.raises(UnreadableData, match="the directory was moved"):
        {"flush": writer.flush, "add": lambda: writer.add(large), "close": writer.close}[call]()
    assert left == "nothing" or not list((tmp_path / "data").glob("*.arrow*"))
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    (tmp_path / "moved").rename(tmp_path / "data")
    writer.close()
    assert ids(tmp_path / "data") == [0, 1]


def test_writer_of_a_replaced_directory_raises(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path / "data", shard_bytes=1)
    writer.add([episode(0)])
    writer.flush()
    (tmp_path / "data").rename(tmp_path / "moved")
    (tmp_path / "data").mkdir()
    writer.add([episode(1)])
    with pytest.raises(UnreadableData, match="was moved, removed or replaced"):
        writer.flush()
    assert not list((tmp_path / "data").iterdir())
    assert ids(tmp_path / "moved") == [0]
    with pytest.raises(UnreadableData, match="was moved"):
        writer.close()
    (tmp_path / "data").rmdir()
    (tmp_path / "moved").rename(tmp_path / "data")
    writer.close()
    assert ids(tmp_path / "data") == [0, 1]


# --- readers while shards are replaced ---------------------------------------------------------------------------


COMPACT_OR_WRITE = """
import sys, time, numpy as np
from episodes import SingleAgentEpisode
from episodes.storage import EpisodeWriter, compact
until, number = time.monotonic() + float(sys.argv[3]), 0
while time.monotonic() < until:
    if sys.argv[2] == "compact":
        compact(sys.argv[1])
        continue
    with EpisodeWriter(sys.argv[1], shard_bytes=1) as writer:
        for _ in range(5):
            number += 1
            id_ = f"{sys.argv[2]}-{number}"
            writer.add([SingleAgentEpisode.from_arrays(np.arange(2.0), [0], [1.0], id_=id_)])
            writer.flush()
"""


@pytest.mark.parametrize("seconds", [2.0, pytest.param(20.0, marks=pytest.mark.slow)])
def test_readers_see_no_fewer_episodes_while_compacting(tmp_path: Path, seconds: float) -> None:
    EpisodeWriter(tmp_path).close()
    command = [sys.executable, "-c", COMPACT_OR_WRITE, str(tmp_path)]
    kinds = ("compact", "compact", "a", "b")
    workers = [subprocess.Popen([*command, kind, str(seconds)], cwd=ROOT) for kind in kinds]
    lock, observed, failures = threading.Lock(), set[str](), list[str]()

    def read() -> None:
        while any(worker.poll() is None for worker in workers):
            with lock:
                before = set(observed)
            result = EpisodeDataset(tmp_path).metadata["id"].tolist()
            with lock:
                observed.update(result)
            if missing := before - set(result):
                failures.append(f"{len(missing)} of {len(before)} are missing")
            if len(result) != len(set(result)):
                failures.append("an episode is there twice")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for thread in readers:
        thread.join()
    assert [worker.wait() for worker in workers] == [0] * 4
    assert not failures
    dataset = EpisodeDataset(tmp_path, verify=True)
    assert observed <= set(dataset.metadata["id"].tolist())


@pytest.mark.parametrize(
    ("num_shards", "num_descriptors"), [(200, 128), pytest.param(1200, 1024, marks=pytest.mark.slow)]
)
def test_more_shards_than_descriptors_are_opened(tmp_path: Path, num_shards: int, num_descriptors: int) -> None:
    written(tmp_path, range(num_shards), shard_bytes=1)
    program = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({num_descriptors},) * 2)\n"
        "from episodes.storage import EpisodeDataset, compact\n"
        "dataset = EpisodeDataset(sys.argv[1])\n"
        "print(len(dataset), dataset[-1].id_, compact(sys.argv[1]), len(EpisodeDataset(sys.argv[1])), dataset[7].id_)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    num = str(num_shards)
    assert done.stdout.split() == [num, str(num_shards - 1), num, num, "7"], done.stderr


# --- crafted files -----------------------------------------------------------------------------------------------


def put_commit(path: Path, number: int, made: dict, replaces: dict, aside: tuple[str, ...] = ()) -> None:
    text = json.dumps(with_checksum({"made": made, "replaces": replaces, "aside": list(aside)}))
    (path / f"commit-{number:06d}.json").write_text(text)


@pytest.mark.parametrize("name", ["../victim", "/etc/victim", ".", "", "a/b", "a.b", "x\0"])
def test_paths_as_names_in_files_are_rejected(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "data", range(2))
    victims = {(tmp_path / f"victim{end}") for end in (".manifest", ".arrow.new", ".arrow")}
    for victim in victims:
        victim.write_text("mine")
    head = {"host": "nowhere", "pid": 2**22 + 1, "started": "", "writer": name}
    (path / "x.manifest").write_text(signed_line(head))
    made = {name: {"order": "a", "episodes": 1}}
    put_commit(path, 1, made, {})
    put_commit(path, 2, {"made-00000": {"order": name, "episodes": 1}}, {})
    put_commit(path, 3, {}, {}, aside=(name,))
    with pytest.warns(UserWarning, match="is no name of a writer or shard"):
        assert ids(path) == [0, 1]
    compact(path)
    with pytest.raises(UnreadableData, match="is no name of a writer or shard"):
        EpisodeDataset(path, verify=True)
    assert {victim.read_text() for victim in victims} == {"mine"}


def test_commits_that_replace_in_a_circle_are_rejected(tmp_path: Path) -> None:
    path = written(tmp_path / "data", range(2), shard_bytes=1)
    dataset = EpisodeDataset(path)
    a, b = sorted(file.name.partition(".")[0] for file in path.glob("*.arrow"))
    pickled = pickle.dumps(dataset)
    put_commit(path, 1, {b: {"order": a, "episodes": 1}}, {a: [b, 0]})
    put_commit(path, 2, {a: {"order": a, "episodes": 1}}, {b: [a, 0]})
    with pytest.warns(UserWarning, match="was made or replaced before"):
        EpisodeDataset(path)
    with pytest.raises(UnreadableData, match="was made or replaced before"):
        EpisodeDataset(path, verify=True)
    pickle.loads(pickled)  # ends


SPECIAL = ["pipe", "directory", "dangling link", "link to itself"]


def put_special(file: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    else:
        file.symlink_to("nowhere" if kind == "dangling link" else file.name)


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_file_as_shard_is_named(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / "data", range(2))
    put_special(path / "x.arrow", kind)
    with pytest.warns(UserWarning, match=r"x\.arrow is (no regular file|a link to a file that does not exist)"):
        assert ids(path) == [0, 1]
    with pytest.raises(UnreadableData, match=r"x\.arrow is"):
        compact(path)
    assert any("x.arrow is" in problem for problem in check(path).problems)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["x.manifest", "commit-000001.json", "splits.json", "statistics.json"])
def test_special_file_as_small_file_never_blocks(tmp_path: Path, kind: str, name: str) -> None:
    """A pipe that nobody writes to would block for ever."""
    path = written(tmp_path / "data", range(2))
    put_special(path / name, kind)
    with suppress(UserWarning, UnreadableData):
        dataset = EpisodeDataset(path)
        dataset.splits  # noqa: B018
        dataset.statistics()


def test_directory_whose_name_is_no_utf8_is_written_and_read(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path / "data") + b"\xff\xfe"))
    written(path, range(3), shard_bytes=1)
    assert ids(path) == [0, 1, 2]
    assert compact(path) == 3
    assert ids(path) == [0, 1, 2]
    assert copy(path, tmp_path / "copy") == 3


# --- the id of a data set ----------------------------------------------------------------------------------------


def test_shard_of_another_data_set_is_a_problem(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a", range(2)), written(tmp_path / "b", range(2, 4))
    (shard,) = second.glob("*.arrow")
    shutil.copy(shard, first)
    with pytest.warns(UserWarning, match=f"shard {shard.stem} belongs to another data set"):
        assert sorted(ids(first)) == [0, 1, 2, 3]  # both shards are the first ones of their data sets
    with pytest.raises(UnreadableData, match="belongs to another data set"):
        EpisodeDataset(first, verify=True)
    assert any("belongs to another data set" in problem for problem in check(first).problems)


def test_header_of_another_data_set_is_a_problem(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a", range(2)), written(tmp_path / "b", range(2), metadata={"run": 2})
    shutil.copy(second / "episodes.json", first)
    with pytest.raises(UnreadableData, match="belongs to another data set"):
        EpisodeDataset(first, verify=True)


def test_merged_and_compacted_shards_belong(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a", range(2)), written(tmp_path / "b", range(2, 4))
    merge(first, second)
    assert len(EpisodeDataset(first, verify=True)) == 4
    assert check(first).problems == []
    compact(first)
    with pytest.raises(ChunkMismatch, match="two chunks have the steps"):  # `first` has the episodes of `second`
        merge(tmp_path / "c", first, second)
    merge(tmp_path / "c", first, second, prefix=["first/", "second/"])
    assert len(EpisodeDataset(first, verify=True)) == 4
    assert check(tmp_path / "c").problems == []
    copy(first, tmp_path / "d")
    assert len({json.loads((tmp_path / name / "episodes.json").read_text())["id"] for name in "abcd"}) == 4


def test_data_set_without_id_is_read_and_appended_to(tmp_path: Path) -> None:
    path = written(tmp_path / "data", range(2))
    header = json.loads((path / "episodes.json").read_text())
    del header["id"], header["sum"]
    (path / "episodes.json").write_text(json.dumps(with_checksum(header)))
    written(path, range(2, 4))
    assert len(EpisodeDataset(path, verify=True)) == 4
    assert check(path).problems == []
    assert compact(path) == 2


def test_uploaded_data_set_keeps_its_id(tmp_path: Path) -> None:
    from episodes.storage import upload

    url = f"memory://{tmp_path.name}"
    upload(written(tmp_path / "a", range(2)), url)
    with pytest.raises(InvalidArgument, match="is another data set"):
        upload(written(tmp_path / "b", range(2)), url)
