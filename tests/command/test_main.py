"""The command line as a whole: version, help, exit statuses, imports, and the commands of other packages."""

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
from typer.testing import CliRunner, Result

from episodes import SingleAgentEpisode
from episodes.command import plugins
from episodes.command.app import app
from episodes.storage import EpisodeDataset, EpisodeWriter

ROOT = Path(__file__).parents[2]
calls: list[list[str]] = []


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def passed_on(arguments: list[str]) -> int:
    """Record the arguments and return the exit status 3, as the command of another package."""
    calls.append(arguments)
    return 3


def test_main_prints_version_and_completion() -> None:
    assert run("--version").output.startswith("episodes")
    assert "--show-completion" in run("--help").output


@pytest.mark.parametrize(
    "arguments", [["-m", "episodes", "--help"], ["-m", "episode_learners", "train", "--help"]], ids=str
)
def test_main_help_imports_no_heavy_package(arguments: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    modules = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert not modules & {"numpy", "torch", "gymnasium", "rich", "pyarrow", "jinja2"}


def test_plugin_gets_all_arguments_and_sets_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("train", f"{__name__}:passed_on", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry] if group == plugins.GROUP else [])
    assert "Train a policy" in run("--help").output
    assert run("train", "--algo", "ppo", "--help").exit_code == 3
    assert calls == [["train", "--algo", "ppo", "--help"]]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [])
    assert run("train").exit_code == 2


def test_commands_of_this_project_can_be_loaded() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][plugins.GROUP]
    assert set(declared) == set(plugins.HELP)
    for name, value in declared.items():
        with pytest.raises(SystemExit) as exit_:
            EntryPoint(name, value, plugins.GROUP).load()([name, "--help"])
        assert not exit_.value.code


def test_algorithms_of_the_help_are_those_of_runs() -> None:
    from episode_learners.__main__ import ALGORITHM_NAMES
    from episode_learners.run import ALGORITHMS

    assert tuple(ALGORITHMS) == ALGORITHM_NAMES


def test_main_warning_is_one_line_without_a_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(self, *_, **__):
        warnings.warn("2 shards are unread", UserWarning, stacklevel=2)

    monkeypatch.setattr(EpisodeDataset, "__init__", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        lines = run("ls", tmp_path).output.splitlines()
    assert "episodes: warning: 2 shards are unread" in lines


def test_show_states_missing_and_non_finite_numbers(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        infos = [{}, {"success": True}, {}, {}]
        rewards = [1.0, np.nan, -np.inf]
        writer.add([SingleAgentEpisode.from_arrays(np.zeros(4), [0, 1, 2], rewards, infos=infos, id_="e")])
    output = run("show", tmp_path).output
    assert "1 NaN, 1 infinite" in output
    assert "in 1 of 4 infos" in output


def test_show_json_has_numbers(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add([SingleAgentEpisode.from_arrays(np.array([-2.5, 1.0]), [0], [np.inf], id_="e")])
    tracks = {track["track"]: track for track in json.loads(run("show", tmp_path, "--json").output)["tracks"]}
    assert (tracks["observations"]["lowest"], tracks["observations"]["shape"]) == (-2.5, [2])
    assert (tracks["rewards"]["lowest"], tracks["rewards"]["above"]) == (None, 1)


def test_empty_data_set_and_wrong_ledger_are_named(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path):
        pass
    result = run("show", tmp_path)
    assert (result.exit_code, "has no episodes" in result.output) == (2, True)
    result = run("ledger", "diff", tmp_path, tmp_path)
    assert (result.exit_code, "is a data set" in result.output) == (2, True)


def test_ls_filters_and_shows_custom_data_and_whole_episodes(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        for n in range(4):
            episode = SingleAgentEpisode.from_arrays(np.zeros(3), [0, 1], [1.0, n], id_=f"e{n}", terminated=True)
            episode.custom_data["score"] = n / 2
            writer.add([episode] if n else [episode[:1], episode[1:]])
    output = run("ls", tmp_path, "--where", "custom_data/score > 0.5", "--sort", "custom_data/score").output
    assert [line.split()[0] for line in output.splitlines()[1:]] == ["e2", "e3"]
    assert "episode_return" not in output
    assert "episode_return" in run("ls", tmp_path).output
    assert run("ls", tmp_path, "--where", "score >").exit_code == 2
    facts = json.loads(run("info", tmp_path, "--json").output)
    assert (facts["complete episodes"], facts["mean return of complete episodes"]) == (4, 2.5)
