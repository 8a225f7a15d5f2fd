"""Compacting, sealing, merging, copying and repairing of data sets, also in processes that are killed."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument, UnreadableData
from episodes.storage import EpisodeDataset, EpisodeWriter, check, compact, copy, merge, seal
from episodes.storage.copying import condition

ROOT = Path(__file__).parents[2]


def episode(i: int) -> SingleAgentEpisode:
    steps = i % 7 + 1
    infos = [{"n": i}] * (steps + 1)
    return SingleAgentEpisode.from_arrays(
        np.arange(4.0 * steps + 4).reshape(-1, 4) + i, np.arange(steps), np.full(steps, i / 8), infos=infos, id_=f"e{i}"
    )


def made(path: Path, first: int = 0, num: int = 24, shards: int = 4) -> Path:
    """Write a data set of `num` episodes, each in a record batch, in `shards` shards."""
    for start in range(first, first + num, num // shards):
        with EpisodeWriter(path) as writer:
            for i in range(start, start + num // shards):
                writer.add([episode(i)])
                writer.flush()
    return path


def numbers(path: Path) -> list[int]:
    """Return the numbers of all episodes after checking their contents."""
    result = EpisodeDataset(path, verify=True)
    text = [int(found_id[1:]) for found_id in result.metadata["id"]]
    assert all(a.equals(episode(i)) for a, i in zip(result, text, strict=True))
    return text


def test_compact_keeps_episodes_in_one_file_and_batch(tmp_path: Path) -> None:
    made(tmp_path)
    assert compact(tmp_path) == 4
    assert numbers(tmp_path) == list(range(24))
    (file,) = tmp_path.glob("*.arrow")
    assert pa.ipc.open_file(str(file)).num_record_batches == 1
    assert compact(tmp_path) == 0
    made(tmp_path, 24, 6, 1)
    assert compact(tmp_path) == 2
    assert numbers(tmp_path) == list(range(30))
    assert check(tmp_path).problems == []


def test_compact_keeps_open_readers_and_pickles_valid(tmp_path: Path) -> None:
    made(tmp_path)
    dataset = EpisodeDataset(tmp_path)
    view = pickle.dumps(dataset[20:2:-3])
    all_of_them = pickle.dumps(dataset)
    with EpisodeWriter(tmp_path) as writer:
        writer.add([episode(24)])
        compact(tmp_path)  # while another is written
    compact(tmp_path)
    assert [e.id_ for e in pickle.loads(view)] == [e.id_ for e in dataset[20:2:-3]]
    assert [e.id_ for e in pickle.loads(all_of_them)] == [f"e{i}" for i in range(24)]
    repeated = pickle.loads(pickle.dumps(pickle.loads(view)[1:3]))
    assert [e.id_ for e in repeated] == ["e17", "e14"]
    assert all(dataset[i].equals(episode(i)) for i in range(24))


def test_concurrent_compactions_keep_all_episodes(tmp_path: Path) -> None:
    made(tmp_path)
    threads = [threading.Thread(target=compact, args=(tmp_path,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers(tmp_path) == list(range(24))


def test_compact_damaged_shard_raises_and_check_repairs(tmp_path: Path) -> None:
    made(tmp_path)
    file = sorted(tmp_path.glob("*.arrow"))[1]
    data = bytearray(file.read_bytes())
    data[data.index(np.float64(8 / 8).tobytes())] ^= 4
    file.write_bytes(data)
    with pytest.raises(UnreadableData, match=file.name):
        compact(tmp_path)
    (problem,) = check(tmp_path).problems
    assert file.name in problem
    assert check(tmp_path, repair=True).repaired
    assert check(tmp_path).problems == []
    left = numbers(tmp_path)
    assert len(left) == 23
    assert sorted(left) == left
    assert file.with_name(f"{file.name}.damaged").read_bytes() == data


def test_lost_shard_warns_until_repaired(tmp_path: Path) -> None:
    made(tmp_path)
    first, *_, manifest = sorted(tmp_path.glob("*.arrow"))[0], *sorted(tmp_path.glob("*.manifest"))
    first.unlink()
    manifest.write_bytes(b"nonsense\n")
    assert len(check(tmp_path).problems) == 2
    check(tmp_path, repair=True)
    assert check(tmp_path).problems == []
    assert numbers(tmp_path) == list(range(6, 24))


def test_seal_finishes_shards_of_killed_writers(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from tests.storage import test_compacting as t\n"
        "from episodes.storage import EpisodeWriter\n"
        "w = EpisodeWriter(sys.argv[1])\n"
        "for i in (0, 1):\n    w.add([t.episode(i)]); w.flush()\n"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=False)
    living = EpisodeWriter(tmp_path)
    living.add([episode(2)])
    living.flush()
    assert EpisodeDataset(tmp_path).recovered == 3
    assert seal(tmp_path) == 1
    assert EpisodeDataset(tmp_path).recovered == 1
    living.close()
    assert compact(tmp_path) == 2
    assert numbers(tmp_path) == [0, 1, 2]


def test_merge_twice_copies_shards_once(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a"), made(tmp_path / "b", 24, 8, 2)
    compact(first)
    assert merge(tmp_path / "c", first, second) == 3
    assert merge(tmp_path / "c", first, second) == 0
    assert numbers(tmp_path / "c") == list(range(32))
    compact(tmp_path / "c")
    assert merge(tmp_path / "c", second) == 0
    with EpisodeWriter(tmp_path / "other") as writer:
        writer.add([SingleAgentEpisode.from_arrays(np.zeros((2, 3)), [0], [0.0])])
    with pytest.raises(ValueError, match="track 'observations'"):
        merge(tmp_path / "c", tmp_path / "other")


def test_copy_writes_selected_episodes(tmp_path: Path) -> None:
    made(tmp_path / "a")
    assert copy(tmp_path / "a", tmp_path / "b", "length == 3 or (id == 'e23' and not terminated)") == 4
    assert numbers(tmp_path / "b") == [2, 9, 16, 23]
    with pytest.raises(InvalidArgument, match="exists already"):
        copy(tmp_path / "a", tmp_path / "b")
    for wrong in ("reward > 1", "__import__('os')", "length >"):
        with pytest.raises(InvalidArgument):
            copy(tmp_path / "a", tmp_path / "c", wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(x and y) == 1", [True, False]),
        ("(x or y) == 1", [True, True]),
        ("(x and y) + 1 == 2", [True, False]),
        ("(x and y) > 2", [False, False]),
        ("(not x) == 1", [False, True]),
    ],
)
def test_and_or_and_not_are_flags_whatever_the_dtype_of_their_columns(text: str, expected: list[bool]) -> None:
    """A column with a None has the dtype object."""
    columns = {"x": [2.0, 0.0], "y": [3.0, 3.0]}
    found = [
        condition(text)({name: np.array(values, dtype) for name, values in columns.items()}).tolist()
        for dtype in (np.float64, object)
    ]
    assert found == [expected] * 2


@pytest.mark.parametrize(
    "column",
    [
        np.array([1 + 1j, 2]),
        np.array(["2020", "2021"], "M8[D]"),
        np.array([1, 2], "m8[s]"),
        np.array([b"a", b"b"]),
        np.array([1j, 2], object),
        np.array([np.timedelta64(1, "s"), 1], object),
    ],
    ids=["complex", "dates", "durations", "bytes", "complex object", "duration object"],
)
def test_conditions_refuse_other_values_than_numbers_flags_and_texts(column: np.ndarray) -> None:
    for text in ("c == 1", "c == 'a'", "c + 1 > 2", "not c"):
        with pytest.raises(InvalidArgument, match=r"c has a .*; conditions know numbers, flags and texts"):
            condition(text)({"c": column})


def test_condition_uses_return_and_names_wrong_comparisons(tmp_path: Path) -> None:
    made(tmp_path / "a", num=4)
    assert copy(tmp_path / "a", tmp_path / "b", "return > 0.3 and not truncated and id != 'return > 1'") == 2
    assert numbers(tmp_path / "b") == [2, 3]
    for wrong in ("agent_id < 'b'", "length > 'a'", "-id", "1 / 0 < return", "row.return > 1", "return > '"):
        with pytest.raises(InvalidArgument):
            copy(tmp_path / "a", tmp_path / "c", wrong)


def test_commit_number_of_damaged_commit_is_not_reused(tmp_path: Path) -> None:
    for first in (0, 2, 4):
        made(tmp_path, first, 2, 2)
        compact(tmp_path)
    (tmp_path / "commit-000001.json").write_text("{}")
    report = check(tmp_path, repair=True)
    assert report.episodes == 6
    assert sorted(path.name for path in tmp_path.glob("commit-*")) == [
        "commit-000001.json.damaged",
        *(f"commit-00000{number}.json" for number in (2, 3)),
    ]
    made(tmp_path, 6, 2, 2)
    assert compact(tmp_path) == 3
    assert numbers(tmp_path) == list(range(8))


KILLED = """
import os, random, signal, sys
from episodes.storage import {name}
from episodes.storage import compacting
rest = random.Random(int(sys.argv[1])).randrange({lines})
def trace(frame, event, argument):
    global rest
    if "/episodes/storage/" not in frame.f_code.co_filename:
        return None
    rest -= 1
    if rest < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return trace
sys.settrace(trace)
{name}(*sys.argv[2:])
"""


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["compact", "merge"])
def test_compacting_killed_at_any_line_loses_nothing(tmp_path: Path, name: str, kills: int) -> None:
    source, killed = made(tmp_path / "source"), 0
    for seed in range(kills):
        target = tmp_path / str(seed)
        if name == "compact":
            shutil.copytree(source, target)
        arguments = [str(target)] if name == "compact" else [str(target), str(source)]
        script = KILLED.format(name=name, lines=3000 if name == "compact" else 1800)
        done = subprocess.run([sys.executable, "-c", script, str(seed), *arguments], cwd=ROOT, check=False)
        killed += done.returncode == -signal.SIGKILL
        if name == "compact":
            assert numbers(target) == list(range(24))
            compact(target)
        else:
            assert not (target / "episodes.json").exists() or len(EpisodeDataset(target, verify=True)) in (0, 24)
            merge(target, source)
        check(target, repair=True)
        assert numbers(target) == list(range(24))
        assert not list(target.glob("*.new"))
        assert not check(target).problems
    assert killed > kills / 4


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_writers_and_compactions_lose_nothing_flushed(tmp_path: Path, kills: int) -> None:
    script = (
        "import sys; from tests.storage import test_compacting as t; from episodes.storage import EpisodeWriter\n"
        "w = EpisodeWriter(sys.argv[1], shard_bytes=30_000); i = int(sys.argv[2])\n"
        "while True:\n    w.add([t.episode(i)]); w.flush(); print(i, flush=True); i += 1"
    )
    rng, text = np.random.default_rng(0), set[int]()
    for kill in range(0, kills, 2):
        command = [sys.executable, "-c", script, str(tmp_path)]
        pair = [
            subprocess.Popen([*command, str((kill + k) * 100_000)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
            for k in (0, 1)
        ]
        for process in pair:
            for _ in range(int(rng.integers(1, 60))):
                text.add(int(process.stdout.readline()))  # type: ignore[union-attr]
        for process in pair:
            os.kill(process.pid, signal.SIGKILL)
            text |= {int(line) for line in process.stdout if line.endswith("\n")}  # type: ignore[union-attr]
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
        assert text <= set(numbers(tmp_path))
        if kill % 4 == 0:
            seal(tmp_path)
            compact(tmp_path)
    assert text <= set(numbers(tmp_path))


FLAT = """
import re, sys
from pathlib import Path
import numpy as np
from episodes import EpisodePack
from episodes.storage import EpisodeDataset, EpisodeWriter, compact, compacting

compacting.BATCH_BYTES, compacting.SHARD_BYTES = 1 << 22, 1 << 26
def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10

def write(path, num):
    for _ in range(num):
        with EpisodeWriter(path) as writer:
            for _ in range(4):
                seen, rewards = np.ones((50_500, 8)), np.ones(50_000)
                writer.add(EpisodePack(observations=seen, actions=rewards, rewards=rewards, lengths=[100] * 500))

write(sys.argv[1] + "/warm", 2)
compact(sys.argv[1] + "/warm")
write(sys.argv[1] + "/data", 10)
before = most = anonymous()
real = compacting.ShardWriter.write
def write_and_look(shard, batch):
    global most
    real(shard, batch)
    most = max(most, anonymous())
compacting.ShardWriter.write = write_and_look
print(compact(sys.argv[1] + "/data"), most - before, EpisodeDataset(sys.argv[1] + "/data").nbytes >> 20)
"""


def test_compact_uses_memory_of_one_batch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FLAT, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    num_shards, megabytes, size = map(int, done.stdout.split())
    assert (num_shards, size > 140) == (10, True)
    assert megabytes < 60
