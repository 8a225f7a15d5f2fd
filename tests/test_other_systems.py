"""The documented jobs on Windows and macOS, as far as a process on Linux can look like one there."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.code_rules import ROOT
from tests.other_system import LIBRARY, SYSTEMS, pretend


def import_packages() -> None:
    import importlib
    import pkgutil

    optional = ("rllib", "remote", "converters", "wandb", "__main__", "testing", "export")
    for package in ("episodes", "connectors", "episode_runners", "episode_learners"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not any(part in module.name for part in optional):
                importlib.import_module(module.name)
    for name in ("episodes.converters", "episodes.storage.remote", "episode_runners.remote", "connectors.export"):
        importlib.import_module(name)


def pack() -> Any:
    import numpy as np

    from episodes import EpisodePack, SingleAgentEpisode

    arrays = np.arange(8.0), np.zeros(7, int), np.ones(7)
    return EpisodePack.from_episodes([SingleAgentEpisode.from_arrays(*arrays, terminated=True) for _ in range(3)])


def train_and_resume() -> None:
    from tests.storage.test_owners import CSVLogger, trainer

    folder = Path(tempfile.mkdtemp())
    for expected in (False, True):
        learner = trainer(folder)
        learner.logger, learner.ledger = CSVLogger(folder), None
        assert learner.resume() is expected
        learner.run()
        learner.save()
        learner.logger.describe({"name": "Zoë"})
        learner.logger.close()


def replay_in_memory_and_in_files() -> None:
    from episodes.errors import InvalidArgument
    from episodes.replay import EpisodeReplayBuffer

    path = Path(tempfile.mkdtemp())
    memory = EpisodeReplayBuffer(64, seed=0)
    memory.add(pack())
    assert len(memory.sample(4).obs) == 4
    with EpisodeReplayBuffer(64, path=path, seed=0) as buffer:
        buffer.add(pack())
        buffer.flush()
        with pytest.raises(InvalidArgument, match="another replay buffer uses these files"):
            EpisodeReplayBuffer(64, path=path)
    with EpisodeReplayBuffer(64, path=path, resume=True) as buffer:
        assert len(buffer) == 21
        for _ in range(20):
            buffer.add(pack())
        assert len(buffer.sample(8).obs) == 8
        buffer.flush()


def data_sets() -> None:
    from episodes.storage import EpisodeDataset, EpisodeWriter, check, compact, copy, merge, seal

    path = Path(tempfile.mkdtemp()) / "data"
    packs = [pack() for _ in range(4)]
    for each in packs[:3]:
        with EpisodeWriter(path, metadata={"who": "Zoë"}) as writer:
            writer.add(each)
            writer.flush(fsync=True)
            seen = EpisodeDataset(path)  # has the files mapped while they are renamed
            assert len(seen[-1]) == 7
        assert (sys.platform == "win32") == bool(list(path.glob("*.partial")))  # one is still mapped
    before = [episode.id_ for episode in EpisodeDataset(path, verify=True)]
    reader = EpisodeDataset(path)
    assert [episode.id_ for episode in reader] == before
    compact(path)
    seal(path, force=True)
    assert [episode.id_ for episode in EpisodeDataset(path, verify=True)] == before
    assert [episode.id_ for episode in reader] == before
    del reader, seen
    compact(path)
    assert not check(path, repair=True).problems
    assert [episode.id_ for episode in EpisodeDataset(path)] == before
    copy(path, path.with_name("copy"))
    other = path.with_name("other")
    with EpisodeWriter(other, metadata={"who": "Zoë"}) as writer:
        writer.add(packs[3])
    merge(path, other)
    assert len(EpisodeDataset(path, verify=True)) == 12
    assert len(EpisodeDataset(path).sampler(steps=8, seed=0).draw().obs) == 8


def ledger() -> None:
    import numpy as np

    from episodes.errors import InvalidArgument
    from episodes.storage.ledger import Ledger
    from episodes.storage.ledger.ledger_reader import LedgerReader

    path = Path(tempfile.mkdtemp()) / "ledger"
    with Ledger(path) as first:
        first.note(1, {"obs": np.zeros((2, 1))})
        first.flush(fsync=True)
        with pytest.raises(InvalidArgument, match="another ledger writes there"):
            Ledger(path).note(2, {"obs": np.zeros((2, 1))})
    assert [update.update for update in LedgerReader(path)] == [1]


def report() -> None:
    from episodes.command import main
    from episodes.storage import EpisodeWriter

    path = Path(tempfile.mkdtemp())
    with EpisodeWriter(path / "data") as writer:
        writer.add(pack())
    page = str(path / "page.html")
    for arguments in (["show", str(path / "data")], ["report", str(path / "data"), "--html", page]):
        sys.argv = ["episodes", *arguments]
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
    assert (path / "page.html").stat().st_size > 1000


def transport_over_tcp() -> None:
    from episodes.errors import InvalidArgument
    from episodes.transport import EpisodeReceiver, EpisodeSender

    if sys.platform == "win32":
        with pytest.raises(InvalidArgument, match=r"ipc:// .* tcp://"):
            EpisodeReceiver("ipc:///tmp/nowhere")
    journal = Path(tempfile.mkdtemp()) / "journal"
    sent = pack()
    for _ in range(2):
        with EpisodeReceiver(journal=journal) as receiver, EpisodeSender(receiver.address) as sender:
            sender.send(sent)
            assert receiver.recv(timeout=60.0) == sent


def test_each_text_file_has_a_named_encoding() -> None:
    """Without one, Windows reads and writes cp1252."""
    for package in LIBRARY:
        for file in (ROOT / package).rglob("*.py"):
            for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("read_text", "write_text"):
                    assert "encoding" in {keyword.arg for keyword in call.keywords}, f"{file}:{call.lineno}"


JOBS = [
    *(import_packages, train_and_resume, replay_in_memory_and_in_files, data_sets, ledger, report),
    transport_over_tcp,
]


def main(system: str) -> None:
    """Run all jobs on the pretended system, and print a line of JSON: the errors by job."""
    import traceback

    pretend(system)
    errors = {}
    for job in JOBS:
        try:
            job()
        except BaseException:
            errors[job.__name__] = traceback.format_exc()
    print("\n" + json.dumps(errors))


@pytest.mark.parametrize(
    "system", [pytest.param(name, marks=[pytest.mark.slow] * (name == "macos")) for name in SYSTEMS]
)
def test_documented_jobs_on_another_system(system: str, tmp_path: Path) -> None:
    code = f"import sys; from tests import test_other_systems as t; t.main({system!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "0"}
    command = [sys.executable, "-X", "warn_default_encoding", "-W", "ignore::EncodingWarning", "-c", code]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    assert not (errors := json.loads(result.stdout.splitlines()[-1])), "\n".join(errors.values())
