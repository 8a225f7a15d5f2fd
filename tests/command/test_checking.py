"""The `episodes` command: `check` and `keys`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from episodes import SingleAgentEpisode
from episodes.command import main
from episodes.command.app import app
from episodes.storage import EpisodeWriter
from episodes.transport import EpisodeReceiver


@pytest.fixture
def data(tmp_path: Path) -> Path:
    episode = SingleAgentEpisode.from_arrays(np.arange(4.0), [0, 1, 0], [1.0, 1.0, 1.0], terminated=True)
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add([episode])
    return tmp_path / "data"


def test_check_as_a_module_finds_no_problem_in_a_sound_data_set(data: Path) -> None:
    command = [sys.executable, "-m", "episodes", "check", str(data), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert json.loads(result.stdout)["problems"] == []


def test_keys_creates_keys_and_overwrites_none(tmp_path: Path) -> None:
    run = CliRunner().invoke
    result = run(app, ["keys", str(tmp_path)])
    assert result.exit_code == 0, result.output
    receivers, senders = map(Path, result.output.split())
    assert (senders / "receiver.key").exists()
    EpisodeReceiver(keys=receivers).close()
    assert run(app, ["keys", str(tmp_path)]).exit_code == 2
    assert run(app, ["keys", str(tmp_path), "--sender", "second"]).exit_code == 0


def test_main_with_a_wrong_path_prints_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["episodes", "check", str(tmp_path)])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a data set" in line


def test_main_without_typer_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert "rl-episodes[command]" in capsys.readouterr().err
