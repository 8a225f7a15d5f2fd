"""Objects that own files: a second object, another process and a forked one are refused by name, and change nothing.

| owner | second object, second process | forked child | after close, after kill -9 |
|---|---|---|---|
| `EpisodeWriter` | allowed: each has its own files | refused | allowed |
| mapped replay buffer | refused | refused, reading too | allowed |
| `Ledger`, `CSVLogger`, trainer's folder, `Journal` | refused | refused | allowed |
"""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest

from episode_learners import PPO, MLPPolicy
from episode_learners.loggers import CSVLogger
from episode_learners.trainers import OnPolicyConfig, OnPolicyTrainer
from episode_runners import SingleAgentEnvRunner
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.ledger import Ledger
from episodes.storage.ledger.ledger_reader import LedgerReader
from episodes.storage.ownership import Owner
from tests.interrupts import Breaking

warnings.filterwarnings("ignore", message=".*use of fork.. may lead to deadlocks")


def open_journal(path: Path) -> Any:
    from episodes.transport.journal import Journal

    return Journal(path)


def episode(id_: str) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(np.arange(4.0), [0, 1, 0], [1.0, 1.0, 1.0], terminated=True, id_=id_)


def trainer(folder: Path) -> OnPolicyTrainer:
    env = gym.make_vec("CartPole-v1", num_envs=1)
    policy = MLPPolicy(env.single_observation_space, env.single_action_space)
    config = OnPolicyConfig(max_epochs=1, steps_per_epoch=8, steps_per_collect=8, num_test_episodes=0)
    return OnPolicyTrainer(PPO(policy), SingleAgentEnvRunner(env, policy, seed=0), config, folder=folder)


class _Running:
    """Trainer in the middle of its run: the context of its folder is entered."""

    def __init__(self, folder: Path) -> None:
        self.trainer = trainer(folder)
        self.owned = self.trainer._folder.owned()
        self.owned.__enter__()

    def close(self) -> None:
        self.owned.__exit__(None, None, None)


class Kind(NamedTuple):
    """Owner of files: how to make one, how it writes, and how to read what was written."""

    make: Callable[[Path], Any]
    write: Callable[[Any, int], object]
    read: Callable[[Path], object]
    has_several: bool = False


def read_replay(path: Path) -> object:
    return sorted((file.name, file.read_bytes()) for file in path.glob("*"))


KINDS = {
    "writer": Kind(
        EpisodeWriter,
        lambda writer, i: (writer.add(episode(os.urandom(8).hex())), writer.flush()),
        lambda path: sorted(str(each.id_) for each in EpisodeDataset(path)),
        has_several=True,
    ),
    "replay": Kind(
        lambda path: EpisodeReplayBuffer(64, path=path, seed=0),
        lambda buffer, i: buffer.add(episode(os.urandom(8).hex())),
        read_replay,
    ),
    "ledger": Kind(
        lambda path: Ledger(path, every=1),
        lambda ledger, i: ledger.note(i, {"obs": np.full((2, 1), i)}),
        lambda path: [update.update for update in LedgerReader(path)],
    ),
    "tables": Kind(
        CSVLogger,
        lambda logger, i: logger.log("train", {"loss": float(i)}, i),
        lambda path: CSVLogger(path).rows("train"),
    ),
    "trainer": Kind(
        _Running, lambda run, i: run.trainer.save(), lambda path: [f.read_bytes() for f in path.glob("*.pt")]
    ),
    "journal": Kind(
        open_journal,
        lambda journal, i: journal.note(i.to_bytes(8, "little"), i + 1, i),
        lambda path: path.read_bytes(),
    ),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def in_child(work: Callable[[], object]) -> str:
    """Call `work` in a forked process, and return its error as text, or "" if there is none."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            text = ""
            work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        text = result.read()
    os.waitpid(child, 0)
    return text


def living_child() -> Callable[[], None]:
    """Fork a process that lives, and return a function that ends it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)

    def end() -> None:
        os.close(writer)
        os.waitpid(child, 0)

    return end


def second(kind: str, path: Path) -> None:
    """Make another owner of the path, and write."""
    other = KINDS[kind].make(path)
    KINDS[kind].write(other, 7)
    other.close()


@each_kind
def test_second_object_is_refused_until_close(kind: str, tmp_path: Path) -> None:
    path, (make, write, read, has_several) = tmp_path / "it", KINDS[kind]
    owner = make(path)
    write(owner, 1)
    before = read(path)
    if has_several:
        second(kind, path)
    else:
        with pytest.raises(InvalidArgument, match="another"):
            second(kind, path)
        gc.collect()
        assert read(path) == before
    write(owner, 2)
    owner.close()
    if kind != "replay":  # old files need resume=True
        second(kind, path)


@each_kind
def test_forked_child_is_refused_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    path, (make, write, read, _) = tmp_path / "it", KINDS[kind]
    owner = make(path)
    write(owner, 1)
    before = read(path)
    refused = in_child(lambda: write(owner, 2))
    assert refused.startswith("EpisodeStateError")
    assert f"process {os.getpid()} " in refused
    assert in_child(owner.close).startswith("EpisodeStateError") or kind in ("journal", "trainer", "tables")
    assert read(path) == before
    write(owner, 3)
    owner.close()


@each_kind
def test_second_owner_in_a_child_is_refused(kind: str, tmp_path: Path) -> None:
    path, (make, write, read, has_several) = tmp_path / "it", KINDS[kind]
    owner = make(path)
    write(owner, 1)
    before = read(path)
    refused = in_child(lambda: second(kind, path))
    assert refused == "" if has_several else refused.startswith("InvalidArgument")
    assert has_several or read(path) == before
    owner.close()


@each_kind
def test_close_frees_the_files_while_a_child_lives(kind: str, tmp_path: Path) -> None:
    path, (make, write, _, _) = tmp_path / "it", KINDS[kind]
    owner = make(path)
    write(owner, 1)
    end = living_child()
    try:
        owner.close()
        if kind == "replay":
            EpisodeReplayBuffer(64, path=path, resume=True).close()
        else:
            second(kind, path)
    finally:
        end()


@each_kind
def test_kill_frees_the_files_while_a_child_lives(kind: str, tmp_path: Path) -> None:
    path, (make, write, _, _) = tmp_path / "it", KINDS[kind]
    reader, writer = os.pipe()
    killed = os.fork()
    if killed == 0:
        owner = make(path)
        write(owner, 1)
        if os.fork() == 0:  # lives on, as a worker may
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(reader)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == -signal.SIGKILL
        if kind == "replay":
            EpisodeReplayBuffer(64, path=path, resume=True).close()
        else:
            second(kind, path)
    finally:
        os.close(writer)


def test_forked_child_cannot_read_a_mapped_buffer(tmp_path: Path) -> None:
    with EpisodeReplayBuffer(64, path=tmp_path / "files", seed=0) as buffer:
        buffer.add(episode("a"))
        for call in (lambda: buffer.sample(2), lambda: buffer.get_state(), buffer.clear, buffer.flush):
            assert in_child(call).startswith("EpisodeStateError: the replay buffer with files in")
        memory = EpisodeReplayBuffer(64, seed=0)
        memory.add(episode("a"))
        assert in_child(lambda: memory.sample(2)) == ""  # a copy of its own
        assert len(buffer.sample(2).obs) == 2


def test_run_of_a_second_trainer_in_one_folder_is_refused(tmp_path: Path) -> None:
    refused = []

    class Starts:
        """Hook that starts another trainer in the same folder."""

        def on_epoch(self, first: Any) -> None:
            for call in (lambda: trainer(tmp_path).run(), trainer(tmp_path).resume, trainer(tmp_path).save):
                with pytest.raises(InvalidArgument, match="another trainer writes checkpoints there"):
                    call()
                refused.append(call)

    (tmp_path / ".checkpoint-000001.pt.123.0badcafe").write_bytes(b"half a file of a killed run")
    (tmp_path / ".checkpoint-000001.pt.notes").write_bytes(b"not a draft")
    first = trainer(tmp_path)
    first.hooks.append(Starts())
    first.run()
    assert len(refused) == 3
    assert [file.name for file in sorted(tmp_path.glob(".checkpoint*"))] == [".checkpoint-000001.pt.notes"]
    first.save()
    assert trainer(tmp_path).resume()


def test_interrupted_owner_is_never_one_of_two(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(150):
        first, second_one = (Owner("", tmp_path / str(number), refusal="another") for _ in range(2))
        for _ in range(8):
            owner = (first, second_one)[rng.integers(2)]
            call = (owner.claim, owner.claim, owner.release)[rng.integers(3)]
            with suppress(InvalidArgument):
                Breaking(KeyboardInterrupt, int(rng.integers(1, 60)), rooms=("/storage/",)).run(call)
            assert not (first.is_active and second_one.is_active)
        first.release()
        second_one.claim()
        with pytest.raises(InvalidArgument, match="another"):
            first.claim()
        second_one.release()


def test_file_system_without_locks_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*arguments: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuses)
    with pytest.warns(RuntimeWarning, match="no locks"), CSVLogger(tmp_path) as logger:
        logger.log("train", {"loss": 1.0}, 1)
    assert len(logger.rows("train")) == 1


def test_process_of_the_owner_is_checked_at_each_write(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    assert in_child(lambda: logger.log("train", {"loss": 1.0}, 1)) == ""  # nobody has written yet
    logger.log("train", {"loss": 2.0}, 2)
    assert [row["step"] for row in logger.rows("train")] == ["1", "2"]
    assert "cannot be used in process" in in_child(lambda: logger.log("train", {"loss": 3.0}, 3))
