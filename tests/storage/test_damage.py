"""Damage: no damage is unnoticed or ends the interpreter, and messages name the file."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import Ragged, SingleAgentEpisode
from episodes.errors import InvalidArgument, UnreadableData
from episodes.storage import EpisodeDataset, EpisodeWriter, check, compact, seal

ROOT = Path(__file__).parents[2]


def episode(i: int, **options: Any) -> SingleAgentEpisode:
    """Return episode i, with infos and custom data of every kind."""
    steps = i % 5 + 1
    infos = [
        {"n": t, "f": t / 2, "s": "x" * t, "deep": {"a": np.arange(3)}, **({"odd": [t]} if t % 2 else {})}
        for t in range(steps + 1)
    ]
    return SingleAgentEpisode.from_arrays(
        {
            "position": np.arange(4.0 * (steps + 1)).reshape(-1, 4) + i,
            "frame": np.full((steps + 1, 40, 40), i, np.uint8),
        },
        np.arange(steps),
        np.arange(steps) + i / 8,
        infos=infos,
        custom_data={"seed": i, "note": "some words", "array": np.arange(i)},
        terminated=i % 2 == 0,
        id_=f"e{i}",
        extra_model_outputs={
            "logp": np.full(steps, -i, np.float32),
            "tokens": Ragged.from_lengths(np.arange(steps * (steps - 1) // 2), np.arange(steps)),
        },
        **options,
    )


def made(path: Path, *, sealed: bool = True, writers: int = 2) -> Path:
    """Write a data set of some shards with some batches."""
    for w in range(writers):
        writer = EpisodeWriter(path)
        for i in range(6):
            writer.add([episode(6 * w + i)])
            if i % 2:
                writer.flush()
        if sealed:
            writer.close()
    return path


def content(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [result.get_state() for result in EpisodeDataset(path, **options)]


# --- sums -----------------------------------------------------------------------------------------------------------


def test_verify_names_file_and_column_of_flipped_bit(tmp_path: Path) -> None:
    made(tmp_path, writers=1)
    (file,) = tmp_path.glob("*.arrow")
    data, value = bytearray(file.read_bytes()), np.array(3 / 8 + 1, np.float64).tobytes()  # a reward of episode 3
    data[data.index(value)] ^= 1
    file.write_bytes(data)
    EpisodeDataset(tmp_path)
    with pytest.raises(UnreadableData, match=rf"{file.name}: record batch 1 is damaged: rewards"):
        EpisodeDataset(tmp_path, verify=True)


def test_verify_finds_batch_of_another_shard(tmp_path: Path) -> None:
    made(tmp_path)
    first, second = sorted(tmp_path.glob("*.arrow"))
    shutil.copy(first, second)
    with pytest.raises(UnreadableData, match=rf"{second.stem} is damaged \(the file contains shard {first.stem}"):
        EpisodeDataset(tmp_path, verify=True)


def test_lost_shard_warns(tmp_path: Path) -> None:
    made(tmp_path)
    first, second = sorted(tmp_path.glob("*.arrow"))
    first.unlink()
    with pytest.warns(UserWarning, match=f"shard {first.stem} is lost"):
        assert len(EpisodeDataset(tmp_path)) == 6
    second.unlink()
    second.symlink_to("nowhere")
    with pytest.raises(UnreadableData, match=f"shard {first.stem} is lost"):
        EpisodeDataset(tmp_path, verify=True)
    with (
        pytest.warns(UserWarning, match="a link to a file that does not exist"),
        pytest.warns(UserWarning, match="is lost"),
    ):
        assert len(EpisodeDataset(tmp_path)) == 0


def test_finished_shard_without_episodes_warns(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add([episode(0)])
        writer.flush()
        (file,) = tmp_path.glob("*.partial")
        early = file.read_bytes()
        writer.add([episode(1)])
    (file,) = tmp_path.glob("*.arrow")
    end = file.read_bytes()
    file.write_bytes(early + end[-1000:])
    with pytest.raises(UnreadableData, match=file.stem):
        EpisodeDataset(tmp_path, verify=True)
    file.unlink()
    file.with_suffix(".arrow.partial").write_bytes(early)
    with pytest.raises(UnreadableData, match="it has 1 episodes, its writer wrote 2"):
        EpisodeDataset(tmp_path, verify=True)


# --- what may be done to what is read ---------------------------------------------------------------------------------


def test_torch_in_place_changes_leave_the_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    made(tmp_path, writers=1)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    rewards = EpisodeDataset(tmp_path)[1].get_rewards()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the array says that it is shared
        torch.from_numpy(rewards).add_(1)
    assert rewards.tolist() == [1.125, 2.125]
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_truncated_file_is_harmless_without_mmap(tmp_path: Path) -> None:
    made(tmp_path, writers=1)
    (file,) = tmp_path.glob("*.arrow")
    dataset = EpisodeDataset(tmp_path, mmap=False)
    sent = pickle.dumps(dataset)
    os.truncate(file, 1000)
    assert all(result.equals(episode(i)) for i, result in enumerate(dataset))
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(UnreadableData, match="is gone"):
        pickle.loads(sent)


@pytest.mark.parametrize("kind", [EpisodeWriter, compact, seal, check])
def test_local_only_functions_reject_urls(kind: Callable[[str], Any]) -> None:
    with pytest.raises(InvalidArgument, match="s3:// is not one; write here, and upload it"):
        kind("s3://bucket/data")


def test_writer_is_thread_safe(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with EpisodeWriter(tmp_path) as writer, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: (writer.add([episode(i)]), writer.flush()), range(40)))
    result = EpisodeDataset(tmp_path, verify=True)
    assert sorted(result.metadata["id"].tolist()) == sorted(f"e{i}" for i in range(40))


def test_read_only_data_set_is_read(tmp_path: Path) -> None:
    made(tmp_path)
    for path in [*tmp_path.iterdir(), tmp_path]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert len(EpisodeDataset(tmp_path, verify=True)) == 12
    finally:
        tmp_path.chmod(0o755)


# --- damage of every kind -------------------------------------------------------------------------------------------

FULL = """
import resource, sys
from tests.storage.test_damage import episode
from episodes.storage import EpisodeWriter
writer = EpisodeWriter(sys.argv[1])
for i in range(3):
    writer.add([episode(i)])
    writer.flush()
size = int(sys.argv[2])
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
failed = 0
for i in range(3, 30):
    try:
        writer.add([episode(i)])
        writer.flush()
    except OSError:
        failed += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.close()
print(failed)
"""


def test_full_disk_keeps_queued_and_written_episodes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path / "data"), "12345"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    result = EpisodeDataset(tmp_path / "data", verify=True)
    assert [e.id_ for e in result] == [f"e{i}" for i in range(30)]
    assert all(e.equals(episode(i)) for i, e in enumerate(result))


def damage(rng: np.random.Generator, data: bytearray, foreign: bytes) -> bytearray:
    """Return a changed copy of the bytes: flipped bits, zeros, a cut, doubled, missing or foreign bytes."""
    if not data:
        return bytearray(b"\0")
    at, size = int(rng.integers(len(data))), int(rng.choice([1, 8, 64, 1000, 5000]))
    kind = int(rng.integers(6))
    if kind == 0:
        for place in rng.integers(0, len(data), rng.choice([1, 1, 1, 5])).tolist():
            data[place] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        data[at : at + size] = bytes(len(data[at : at + size]))
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        data[at:at] = data[at : at + size]
    elif kind == 4:
        del data[at : at + size]
    else:
        start = int(rng.integers(len(foreign)))
        piece = foreign[start : start + size]
        data[at : at + len(piece)] = piece
    return data


def fuzz(path: Path, num: int, seed: int) -> dict[str, int]:
    """Check that damaged data sets return no wrong values, for many random damages."""
    rng, result = np.random.default_rng(seed), Counter[str]()
    sources = [made(path / "sealed"), made(path / "open", sealed=False)]
    right = [json.dumps(content(source), default=repr) for source in sources]
    states = [[json.dumps(state, default=repr) for state in content(source)] for source in sources]
    target = path / "target"
    for _ in range(num):
        index = int(rng.integers(2))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(sources[index], target)
        files = sorted(target.iterdir())
        file = files[int(rng.integers(len(files)))]
        foreign = files[int(rng.integers(len(files)))].read_bytes()
        file.write_bytes(damage(rng, bytearray(file.read_bytes()), foreign))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:  # without sums: whatever comes, but no end of the interpreter
                content(target)
                repr(EpisodeDataset(target))
            except UnreadableData:
                pass
        try:
            got = [json.dumps(state, default=repr) for state in content(target, verify=True)]
        except UnreadableData as error:
            result["told" if file.name.split(".")[0] in str(error) else f"of another file: {error}"] += 1
            continue
        if got == states[index]:
            result["no harm"] += 1
        else:  # what is left of an open shard that was cut is what a killed writer would have left
            assert index == 1, file
            assert set(got) <= set(states[index]), file
            result["prefix"] += 1
    assert right[0] == json.dumps(content(sources[0]), default=repr)
    return result


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("num", [120, pytest.param(3000, marks=pytest.mark.slow)])
def test_any_byte_damage_raises_or_is_harmless(tmp_path: Path, num: int) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.storage import test_damage as t\n"
        "t.fuzz(Path(sys.argv[1]) / 'warm', 2, 1); before = t.peak()\n"
        "found = t.fuzz(Path(sys.argv[1]), int(sys.argv[2]), 0)\n"
        "print(t.json.dumps([found, (t.peak() - before) // 1024]))"
    )
    command = [sys.executable, "-X", "faulthandler", "-c", script, str(tmp_path), str(num)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *result, megabytes = json.loads(done.stdout)
    assert set(result[0]) <= {"told", "no harm", "prefix"}
    assert result[0]["told"] > num / 4
    assert megabytes < 30
