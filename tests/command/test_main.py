"""The command line as a whole: help, exit statuses, imports, commands of other packages; `check` and `keys`."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from running import assert_fails, episode, output, run, write

from episode_learners.__main__ import ALGORITHM_NAMES
from episode_learners.run import ALGORITHMS
from episodes import SingleAgentEpisode
from episodes.command import main, plugins
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.transport import EpisodeReceiver

ROOT = Path(__file__).parents[2]
calls: list[list[str]] = []


def passed_on(arguments: list[str]) -> int:
    """Record the arguments and return the exit status 3, as the command of another package."""
    calls.append(arguments)
    return 3


def run_main(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["episodes", *map(str, words)])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code


def test_main_prints_version_and_completion() -> None:
    assert output("--version").startswith("episodes")
    assert "--show-completion" in output("--help")


def imported(arguments: list[str]) -> set[str]:
    """Return the names of the modules that Python imports with these arguments."""
    command = [sys.executable, "-X", "importtime", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}


@pytest.mark.parametrize(
    "arguments", [["-m", "episodes", "--help"], ["-m", "episode_learners", "train", "--help"]], ids=str
)
def test_main_help_imports_no_heavy_package(arguments: list[str]) -> None:
    assert not imported(arguments) & {"numpy", "torch", "gymnasium", "rich", "pyarrow", "jinja2"}


def test_ls_of_a_data_set_imports_no_converter_and_no_pandas(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add(SingleAgentEpisode.from_arrays(np.zeros(2), [0], [1.0], id_="a"))
    modules = imported(["-m", "episodes", "ls", str(tmp_path / "data")])
    assert "pyarrow" in modules
    assert not modules & {"episodes.converters", "pandas", "torch"}


def test_plugin_gets_all_arguments_and_sets_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("train", f"{__name__}:passed_on", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry] if group == plugins.GROUP else [])
    assert "Train a policy" in output("--help")
    assert run("train", "--algo", "ppo", "--help")[0] == 3
    assert calls == [["train", "--algo", "ppo", "--help"]]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [])
    assert run("train")[0] == 2


def test_commands_and_algorithms_of_the_help_exist() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][plugins.GROUP]
    assert set(declared) == set(plugins.HELP)
    for name, value in declared.items():
        with pytest.raises(SystemExit) as exit_:
            EntryPoint(name, value, plugins.GROUP).load()([name, "--help"])
        assert not exit_.value.code
    assert tuple(ALGORITHMS) == ALGORITHM_NAMES


def test_main_prints_warnings_and_errors_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert run_main(monkeypatch, "check", tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a data set" in line

    write(tmp_path, [episode([1.0])])

    def warn(self, *_, **__):
        warnings.warn("2 shards are unread", UserWarning, stacklevel=2)

    monkeypatch.setattr(EpisodeDataset, "__init__", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert "episodes: warning: 2 shards are unread" in run("ls", tmp_path)[1].splitlines()


def test_main_without_typer_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    assert run_main(monkeypatch, "--help") == 2
    assert "pip install '.[command]'" in capsys.readouterr().err


def test_check_as_a_module_finds_no_problem_in_a_sound_data_set(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "episodes", "check", str(write(tmp_path, [episode([1.0])])), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(result.stdout)["problems"] == []


def test_keys_creates_keys_and_overwrites_none(tmp_path: Path) -> None:
    receivers, senders = map(Path, output("keys", tmp_path).split())
    assert (senders / "receiver.key").exists()
    EpisodeReceiver(keys=receivers).close()
    assert run("keys", tmp_path)[0] == 2
    output("keys", tmp_path, "--sender", "second")


def test_empty_data_set_and_wrong_ledger_are_named(tmp_path: Path) -> None:
    write(tmp_path, [])
    assert_fails("no episodes; add some with", "show", tmp_path)
    assert_fails("is a data set", "ledger", "diff", tmp_path, tmp_path)
