"""Memory-mapped buffers: opened again after a normal end and after a kill, damaged files, locks, full disks."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from episodes.errors import EpisodeStateError, InvalidArgument, StateMismatch, UnreadableData, WrongType
from episodes.facts.policy_versions import UNKNOWN
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.resume_point import read_document, write_document
from episodes.single_agent import SingleAgentEpisode
from tests.fresh_process import run_fresh

KINDS = ("number", "image", "nested")


def chunk(number: int, t_started: int, length: int, *, kind: str = "number", ended: bool = False) -> SingleAgentEpisode:
    """Return a chunk with observations 1000 * number + t, and with rewards equal to the next observations."""
    values = 1000.0 * number + t_started + np.arange(length + 1)
    image = np.repeat(values.astype(np.float32)[:, None], 12, 1)
    observations = {"number": values, "image": image, "nested": {"a": values, "b": (image,)}}[kind]
    return SingleAgentEpisode.from_arrays(
        observations,
        np.arange(length) + t_started,
        values[1:].copy(),
        infos=[{"seen": float(value), "log": {"x": [1, "y"]}} for value in values] if number % 3 else None,
        extra_model_outputs={"wide": np.repeat(values[:-1, None], 5, 1)},
        id_=str(number),
        t_started=t_started,
        policy_versions=np.full(length, version_of(number)),
        truncated=ended,
        agent_id=("agent", number),
        custom_data={"number": number},
        observation_space=gym.spaces.Box(0, 1, (12,)) if kind == "image" else None,
    )


def version_of(number: int) -> int:
    """Return the policy version of an episode, unknown for every third number."""
    return number if number % 3 else UNKNOWN


def check_whole(buffer: EpisodeReplayBuffer) -> None:
    """Check that all steps, sampled in every way, are what was added."""
    assert len(buffer) == sum(map(len, buffer.iter_episodes()))
    for episode in buffer.iter_episodes():
        number = int(episode.id_)
        episode.validate()
        values = 1000 * number + episode.t_started + np.arange(len(episode) + 1)
        assert np.array_equal(episode.get_rewards(), values[1:])
        assert np.array_equal(episode.get_extra_model_outputs("wide")[:, 4], values[:-1])
        leaf = episode.get_observations()
        leaf = leaf["b"][0] if isinstance(leaf, dict) else leaf
        assert np.array_equal(leaf.reshape(len(values), -1)[:, -1], values)
        assert (episode.get_policy_versions() == version_of(number)).all()
        assert (episode.agent_id, episode.custom_data) == (("agent", number), {"number": number})
        infos = (
            [{"seen": float(value), "log": {"x": [1, "y"]}} for value in values] if number % 3 else [{}] * len(values)
        )
        assert list(episode.infos) == infos
    if len(buffer):
        drawn = buffer.sample(50, n_step=3, gamma=1.0, keys=["rewards", "actions", "eps_id", "policy_version"])
        assert drawn.policy_version.tolist() == list(map(version_of, drawn.eps_id.astype(int)))
        first = 1000 * drawn.eps_id.astype(int) + drawn.actions
        assert np.allclose(drawn.rewards, drawn.n_step * first + drawn.n_step * (drawn.n_step + 1) / 2)
        sequences = buffer.sample_sequences(20, 6, burn_in=3, keys=["actions", "eps_id", "policy_version"])
        assert (sequences.policy_version[sequences.indices < 0] == UNKNOWN).all()
        is_step = sequences.indices >= 0
        steps = np.diff(sequences.actions, axis=1)[is_step[:, 1:] & is_step[:, :-1]]
        assert (steps == 1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("maker", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_flushed_buffer_resumes_bit_for_bit(maker: Any, kind: str, tmp_path: Path) -> None:
    with maker(60, seed=0, path=tmp_path, resume=True) as buffer:
        for number in range(9):
            buffer.add([chunk(number, 0, 5, kind=kind), chunk(number, 5, 4, kind=kind, ended=number % 2 == 0)])
        buffer.sample(10)
        buffer.flush()
        expected, first = [copy.deepcopy(episode) for episode in buffer.iter_episodes()], buffer.get_state()
        expected_draw = buffer.sample(32)
    with maker(60, path=tmp_path, resume=True) as resumed:
        assert all(a.equals(b) for a, b in zip(resumed.iter_episodes(), expected, strict=True))
        drawn = resumed.sample(32)
        assert np.array_equal(drawn.indices, expected_draw.indices)
        assert np.array_equal(drawn.weights, expected_draw.weights)
        check_whole(resumed)
        assert resumed.num_added == 81
        resumed.add([chunk(7, 9, 3, kind=kind)])
        check_whole(resumed)
        resumed.set_state(first)
        assert not (tmp_path / "state.msgpack").exists()
        resumed.flush()
    with maker(60, path=tmp_path, resume=True) as resumed:
        check_whole(resumed)


def test_resumed_buffer_counts_ages_from_newest_version(tmp_path: Path) -> None:
    with EpisodeReplayBuffer(10, path=tmp_path, resume=True) as buffer:
        buffer.add([chunk(number, 0, 5, ended=True) for number in (7, 5, 4)])  # the steps of 7 are evicted
        buffer.flush()
    with EpisodeReplayBuffer(10, path=tmp_path, resume=True) as resumed:
        assert set(resumed.sample(50, max_age=2, keys=["policy_version"]).policy_version.tolist()) == {5}
        resumed.add(chunk(8, 0, 5, ended=True))
        assert set(resumed.sample(50, max_age=2, keys=["policy_version"]).policy_version.tolist()) == {8}


def steps_of(buffer: EpisodeReplayBuffer) -> set[tuple[str, int]]:
    return {(e.id_, t) for e in buffer.iter_episodes() for t in range(e.t_started, e.t_started + len(e))}


@pytest.mark.parametrize("length", [1, 2, 30])
def test_resumed_buffer_lacks_only_overwritten_steps(length: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(length)
    for at in range(5):
        path = tmp_path / str(at)
        with EpisodeReplayBuffer(40, seed=0, path=path) as buffer:
            for number in range(int(rng.integers(1, 60))):
                buffer.add([chunk(number, 0, length, ended=True)])
            buffer.flush()
            flushed = steps_of(buffer)
            later = int(rng.integers(0, 50)) // length
            for number in range(100, 100 + later):
                buffer.add([chunk(number, 0, length)])
            left = steps_of(buffer)
        with EpisodeReplayBuffer(40, path=path, resume=True) as resumed:
            check_whole(resumed)
            assert steps_of(resumed) == flushed & left
            for number in range(200, 260):
                resumed.add([chunk(number, 0, length)])
                if number % 20 == 7:
                    check_whole(resumed)


def test_recorder_writes_into_resumed_buffer(tmp_path: Path) -> None:
    no = np.zeros(4, bool)
    for run in range(3):
        with EpisodeReplayBuffer(50, seed=0, path=tmp_path, resume=True) as buffer:
            assert len(buffer) == min(run * 36, 50)
            recorder = buffer.recorder(4, autoreset_mode="NextStep")
            recorder.reset(np.zeros(4))
            for t in range(9):
                recorder.step(np.full(4, t + 1.0), np.full(4, t), np.zeros(4), no, no)
            buffer.flush()
            drawn = buffer.sample(50)
            assert np.array_equal(drawn.obs, drawn.actions)
            assert np.array_equal(drawn.new_obs, drawn.obs + 1)


def test_resume_with_other_arguments_raises(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="resume=True without a path"):
        EpisodeReplayBuffer(10, resume=True)
    with pytest.raises(EpisodeStateError, match="no files"):
        EpisodeReplayBuffer(10).flush()
    path = tmp_path / "ring"
    with EpisodeReplayBuffer(10, path=path) as buffer:
        buffer.add([chunk(1, 0, 4)])
        buffer.flush()
    with pytest.raises(InvalidArgument, match="capacity=10, this one has capacity=11"):
        EpisodeReplayBuffer(11, path=path, resume=True)
    with pytest.raises(StateMismatch, match="without priorities"):
        PrioritizedEpisodeReplayBuffer(10, path=path, resume=True)
    with EpisodeReplayBuffer(10, path=path, resume=True) as buffer:
        later = chunk(2, 0, 2)
        later.custom_data["what"] = object()
        buffer.add([later])
        with pytest.raises(WrongType, match=r"custom_data.*'what'"):
            buffer.flush()
    with EpisodeReplayBuffer(10, path=path, resume=True) as buffer:
        assert len(buffer) == 4


# --- damaged files --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flushed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all kinds of files of a buffer, also of observations that moved to a larger file."""
    folder = tmp_path_factory.mktemp("replay") / "ring"
    with PrioritizedEpisodeReplayBuffer(40, seed=0, path=folder) as buffer:
        for number in range(15):
            buffer.add([chunk(number, 0, 1)])
        buffer.flush()
        buffer.add([chunk(number, 0, 1) for number in range(100, 132)])
    assert {file.name for file in folder.iterdir()} >= {"state.msgpack", "moved.msgpack", "tail"}
    return folder


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def reopened_steps(folder: Path) -> Any:
    with PrioritizedEpisodeReplayBuffer(40, path=folder, resume=True) as buffer:
        check_whole(buffer)
        return steps_of(buffer), buffer.get_state()["generator"], buffer.num_added


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("name", ["state.msgpack", "moved.msgpack", "tail"])
def test_flipped_bit_in_replay_state_raises(name: str, flushed_folder: Path, tmp_path: Path) -> None:
    folder = copied(flushed_folder, tmp_path / "ring")
    file, rng = folder / name, np.random.default_rng(0)
    data = file.read_bytes()
    before = contents(folder)
    places = range(8 * len(data)) if name == "tail" else rng.integers(8 * len(data), size=250).tolist()
    for bit in places:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        with pytest.raises(UnreadableData, match=name):
            reopened_steps(folder)
    file.write_bytes(data)
    assert contents(folder) == before
    assert reopened_steps(folder)


def test_flipped_bit_in_header_of_array_never_changes_steps(flushed_folder: Path, tmp_path: Path) -> None:
    folder, rng = copied(flushed_folder, tmp_path / "ring"), np.random.default_rng(0)
    expected, num_errors = reopened_steps(folder), 0
    for file in sorted(folder.glob("*.npy")):
        data = file.read_bytes()
        for bit in rng.integers(8 * 128, size=40).tolist():
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            try:
                result = reopened_steps(folder)
            except UnreadableData as error:
                result, num_errors = expected, num_errors + (file.name in str(error))
            assert result == expected
        file.write_bytes(data)
    assert num_errors > 100


def test_cut_or_extended_file_raises(flushed_folder: Path, tmp_path: Path) -> None:
    folder = copied(flushed_folder, tmp_path / "ring")
    expected = reopened_steps(folder)
    for file in sorted(folder.iterdir()):
        if file.name == "lock":
            continue
        data = file.read_bytes()
        for changed in (b"", data[: len(data) // 2], data[:-1], data + b"\0"):
            file.write_bytes(changed)
            with pytest.raises(UnreadableData, match=re.escape(file.name)):
                reopened_steps(folder)
        file.write_bytes(data)
    assert reopened_steps(folder) == expected


@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling link", "missing"])
def test_file_of_other_kind_raises(kind: str, flushed_folder: Path, tmp_path: Path) -> None:
    for i, name in enumerate(["state.msgpack", "tail", "ring_2.npy"]):
        folder = copied(flushed_folder, tmp_path / str(i))
        file = folder / name
        file.unlink()
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "folder":
            file.mkdir()
        elif kind == "dangling link":
            file.symlink_to(tmp_path / "nowhere")
        elif name == "state.msgpack":
            continue  # an empty buffer then
        with pytest.raises(UnreadableData, match=re.escape(name)):
            reopened_steps(folder)


@pytest.mark.parametrize(
    "changed",
    [
        {"files": []},
        {"files": ["/etc/passwd"]},
        {"files": ["../ring_1.npy"]},
        {"files": [7]},
        {"numbers": {}},
        {"numbers": None},
        {"tail": 10**6},
        {"head": -1},
        {"num_rows": 1 << 40},
        {"table": {}},
        {"rest": None},
        {"infos": [[0, 1, {"x": [1]}]]},
        {"tracks": {}},
    ],
    ids=repr,
)
def test_crafted_state_raises_and_deletes_nothing(changed: Any, flushed_folder: Path, tmp_path: Path) -> None:
    folder = copied(flushed_folder, tmp_path / "ring")
    (folder / "moved.msgpack").unlink()
    state = read_document(folder / "state.msgpack")[1]
    (name,) = changed
    state = {**state, **changed} if name in state else {**state, "numbers": {**state["numbers"], **changed}}
    write_document(folder / "state.msgpack", state)
    before = contents(folder)
    with pytest.raises(UnreadableData):
        reopened_steps(folder)
    assert contents(folder) == before


def test_links_that_contradict_each_other_raise(tmp_path: Path) -> None:
    with EpisodeReplayBuffer(40, path=tmp_path) as buffer:
        buffer.add([chunk(1, 0, 8, kind="image")])
        buffer.flush()
        for array in (
            buffer.flush_ring().links.t,
            buffer.flush_ring().links.entry,
            buffer.flush_ring().links.row,
            buffer.flush_ring().links.next_row,
        ):
            array[3] ^= 1 << 20
            (tmp_path / "lock").rename(tmp_path / "old lock")
            with pytest.raises(UnreadableData, match="links"):
                EpisodeReplayBuffer(40, path=tmp_path, resume=True)
            array[3] ^= 1 << 20


# --- locks, dropped buffers, full disks -----------------------------------------------------------------------------


def test_second_buffer_of_one_path_raises_until_close(tmp_path: Path) -> None:
    with EpisodeReplayBuffer(40, path=tmp_path) as buffer:
        buffer.add([chunk(1, 0, 8)])
        buffer.flush()
        for resume in (False, True):
            with pytest.raises(InvalidArgument, match="another replay buffer uses these files"):
                EpisodeReplayBuffer(40, path=tmp_path, resume=resume)
        code = f"from episodes.replay import *; EpisodeReplayBuffer(40, path={str(tmp_path)!r}, resume=True)"
        other_process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another replay buffer uses these files" in other_process.stderr
        check_whole(buffer)
    with EpisodeReplayBuffer(40, path=tmp_path, resume=True) as buffer:
        check_whole(buffer)


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("maker", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_closed_buffer_raises_and_closes_again(maker: Any, in_files: bool, tmp_path: Path) -> None:
    buffer = maker(40, path=tmp_path if in_files else None)
    recorder = buffer.recorder(2, autoreset_mode="NextStep")
    row = (np.ones(2), np.zeros(2), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool))
    recorder.reset(np.zeros(2))
    recorder.step(*row)
    buffer.close()
    buffer.close()
    assert "closed" in repr(buffer)
    calls: list[Callable[[], Any]] = [
        buffer.__len__,
        buffer.get_state,
        lambda: buffer.add(chunk(1, 0, 3)),
        lambda: buffer.sample(3),
        lambda: recorder.reset(np.zeros(2)),
        lambda: recorder.step(*row),
    ]
    for call in calls:
        with pytest.raises(EpisodeStateError, match="closed"):
            call()


IMPORTS = """
import gc, os, sys, warnings
import numpy as np
from episodes.replay import EpisodeReplayBuffer
"""

DROPPED = """
path, scenario = sys.argv[1:]
warnings.simplefilter("always")
gc.disable()

def use():
    buffer = EpisodeReplayBuffer(40, path=path)
    recorder = buffer.recorder(2, autoreset_mode="NextStep")
    recorder.reset(np.zeros(2))
    recorder.step(np.ones(2), np.zeros(2), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool))
    assert len(buffer) == 2
    recorder.step(np.ones(2), np.zeros(2), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool))
    if scenario == "exception":
        raise ValueError
    if scenario == "cycle":
        cycle = [buffer]
        cycle.append(cycle)
    return buffer if scenario == "exit" else None

before = len(os.listdir("/proc/self/fd"))
try:
    kept = use()
except ValueError:
    pass
if scenario == "cycle":
    gc.collect()
if scenario != "exit":
    EpisodeReplayBuffer(40, path=path + "/other").close()
    assert len(os.listdir("/proc/self/fd")) == before
    with EpisodeReplayBuffer(40, path=path):
        pass
"""


@pytest.mark.parametrize("scenario", ["del", "exception", "cycle", "exit"])
def test_dropped_buffer_releases_files_with_warning(scenario: str, tmp_path: Path) -> None:
    _, errors = run_fresh(IMPORTS, DROPPED, str(tmp_path / "ring"), scenario)
    assert "ResourceWarning" in errors
    assert "dropped without close()" in errors


FULL_DISK = """
import resource, sys
import numpy as np
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
episode = SingleAgentEpisode.from_arrays(np.zeros((3, 100)), [0, 1], [1.0, 1.0])
with EpisodeReplayBuffer(20_000, path=sys.argv[1], seed=0) as buffer:
    before = str(buffer.get_state())
    for _ in range(2):
        try:
            buffer.add(episode)
        except OSError as error:
            print("refused", error.errno)
    recorder = buffer.recorder(2, autoreset_mode="NextStep")
    try:
        recorder.reset(np.zeros((2, 100)))
    except OSError as error:
        print("refused", error.errno)
    assert str(buffer.get_state()) == before
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    buffer.add(SingleAgentEpisode.from_arrays(np.zeros(3, np.int8), [0, 1], [1.0, 1.0]))
    assert len(buffer) == 2
    buffer.clear()
"""


def test_full_disk_raises_os_error_and_changes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "ring")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("refused") == 3


def fill_for_ever(path: str, seed: int) -> None:
    """Add chunks, flush now and then, and print the number of added steps after each flush."""
    rng, number, t = np.random.default_rng(seed), 0, 0
    buffer = PrioritizedEpisodeReplayBuffer(300, seed=seed, path=path, resume=True)
    number = max((int(e.id_) for e in buffer.iter_episodes()), default=0) + 1
    while True:
        length, ended = int(rng.integers(1, 9)), bool(rng.random() < 0.5)
        buffer.add([chunk(number, t, length, ended=ended)])
        t += length
        if ended:
            number, t = number + 1, 0
        if rng.random() < 0.2:
            buffer.flush()
            print(buffer.num_added, flush=True)


def test_killed_process_loses_no_flushed_and_draws_no_torn_steps(tmp_path: Path) -> None:
    rng, flushed = np.random.default_rng(0), 0
    for kill in range(4):
        code = f"from tests.replay.test_replay_files import fill_for_ever; fill_for_ever({str(tmp_path)!r}, {kill})"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            time.sleep(float(rng.random()) * 0.3)
            os.kill(process.pid, signal.SIGKILL)
            reported = [int(line) for line in process.stdout.read().split()]
        with PrioritizedEpisodeReplayBuffer(300, path=tmp_path, resume=True) as buffer:
            assert buffer.num_added >= max(reported, default=flushed)
            flushed = buffer.num_added
            check_whole(buffer)  # it may be empty: a whole capacity of steps may have come after the last flush


@pytest.mark.parametrize("interrupted", ["before", "while", "after"])
def test_moved_observations_are_found_in_one_of_both_files(
    interrupted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EpisodeReplayBuffer(40, path=tmp_path) as buffer:
        for number in range(15):
            buffer.add([chunk(number, 0, 1)])
        buffer.flush()
        num_rows, put_rows = buffer.flush_ring().num_rows, LinkedRing._put_rows

        def torn(ring: LinkedRing, observations: Any, size: int, first: int, rows: Any) -> None:
            if interrupted == "while":
                ring.links.put_rows(rows[0][:7], rows[1][:7])
            raise KeyboardInterrupt

        if interrupted != "after":
            monkeypatch.setattr(LinkedRing, "_put_rows", torn)
            with pytest.raises(KeyboardInterrupt):
                buffer.add([chunk(number, 0, 1) for number in range(100, 115)])
            monkeypatch.setattr(LinkedRing, "_put_rows", put_rows)
        else:
            buffer.add([chunk(number, 0, 1) for number in range(100, 115)])
    for _ in range(2):
        with EpisodeReplayBuffer(40, path=tmp_path, resume=True) as resumed:
            assert resumed.flush_ring().num_rows > num_rows
            assert [episode.id_ for episode in resumed.iter_episodes()] == [str(number) for number in range(15)]
            check_whole(resumed)
            resumed.flush()


@pytest.mark.parametrize("cls", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
@pytest.mark.parametrize("num_steps", [0, 5])
def test_new_buffer_never_replaces_the_files_of_another_one(
    tmp_path: Path, cls: type[EpisodeReplayBuffer], num_steps: int
) -> None:
    with EpisodeReplayBuffer(20, path=tmp_path) as buffer:
        if num_steps:
            buffer.add([chunk(0, 0, num_steps)])
        buffer.flush()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(InvalidArgument, match=r"a replay buffer has saved its steps there, .*; give resume=True"):
        cls(20, path=tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    with EpisodeReplayBuffer(20, path=tmp_path, resume=True) as buffer:
        assert len(buffer) == num_steps
    (tmp_path / "state.msgpack").unlink()  # as of a process that was killed before it saved
    with EpisodeReplayBuffer(20, path=tmp_path) as buffer, contextlib.suppress(InvalidArgument):
        buffer.add([chunk(0, 0, 5)])
        assert not num_steps


@pytest.mark.parametrize("later", [[], [1], [1] * 20, [4, 5, 1], [10, 10, *[1] * 9], [9, *[1] * 9], [1, 2, 3] * 7])
def test_saved_steps_that_were_all_evicted_while_observations_moved_are_an_empty_buffer(
    tmp_path: Path, later: list[int]
) -> None:
    with EpisodeReplayBuffer(10, path=tmp_path) as buffer:
        buffer.add([chunk(0, 0, 8)])
        buffer.flush()
        for number, length in enumerate(later, 1):  # short episodes need more observations than steps
            buffer.add([chunk(number, 0, length)])
    with EpisodeReplayBuffer(10, path=tmp_path, resume=True) as buffer:
        assert len(buffer) == max(min(8, 10 - sum(later)), 0)
        buffer.add([chunk(1000, 0, 4)])
        check_whole(buffer)
        buffer.flush()
        num_steps = len(buffer)
    with EpisodeReplayBuffer(10, path=tmp_path, resume=True) as buffer:
        assert len(buffer) == num_steps
        check_whole(buffer)
