"""The `episodes` command: `info`, `ls`, `show`, `record`, `report`."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from episodes import SingleAgentEpisode
from episodes.command import main
from episodes.command.app import app
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tokens import Conversation


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def printed(*words: object):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with EpisodeWriter(tmp_path / "data", env_spec="Walk-v0", metadata={"author": "[red]me[/red]"}) as writer:
        for n, id_ in ((3, "bb1"), (5, "bb2"), (2, "[bold]a")):
            rewards = np.full(n, np.nan if n == 5 else 1.0)
            writer.add(
                [
                    SingleAgentEpisode.from_arrays(
                        np.arange(n + 1.0), np.zeros(n, int), rewards, id_=id_, terminated=n == 3
                    )
                ]
            )
    return tmp_path / "data"


def test_info_prints_facts(data: Path) -> None:
    facts = printed("info", data)
    assert (facts["episodes"], facts["steps"], facts["environment"]) == (3, 10, "Walk-v0")
    assert facts["endings"] == {"terminated": 1, "cut": 2}
    assert "[red]me[/red]" in run("info", data).output


def test_ls_sorts_by_any_column_with_nan_last(data: Path) -> None:
    assert [row["id"] for row in printed("ls", data)] == ["bb1", "bb2", "[bold]a"]
    assert [row["id"] for row in printed("ls", data, "--sort", "return")] == ["[bold]a", "bb1", "bb2"]
    assert [row["length"] for row in printed("ls", data, "--sort", "length", "--descending", "--limit", 2)] == [5, 3]
    assert "[bold]a" in run("ls", data).output
    assert run("ls", data, "--sort", "colour").exit_code == 2
    assert run("ls", data, "--limit", "-1").exit_code == run("watch", data, "--port", "65536").exit_code == 2


def test_print_table_without_a_terminal_has_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add([SingleAgentEpisode.from_arrays(np.arange(2.0), [0], [1.0], id_="long " * 12, terminated=True)])
    assert run("ls", tmp_path / "data").output.splitlines()[1].split() == ["long"] * 12 + ["1", "1", "terminated", "0"]


def test_print_table_without_unicode_shows_other_letters(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="latin-1"))
    with EpisodeWriter(data) as writer:
        writer.add([SingleAgentEpisode.from_arrays(np.arange(2.0), [0], [1.0], id_="\U0001f642")])
    monkeypatch.setattr("sys.argv", ["episodes", "show", str(data), "--episode", "-1"])
    with pytest.raises(SystemExit) as ended:
        main()
    sys.stdout.flush()
    assert not ended.value.code
    assert written.getvalue().startswith(b"SingleAgentEpisode(?: 1 step,")


def test_show_finds_an_episode_by_id_prefix_and_index(data: Path, tmp_path: Path) -> None:
    assert printed("show", data, "--episode", "bb2")["length"] == 5
    assert printed("show", data, "--episode", "[b")["length"] == 2
    assert printed("show", data, "--episode", "-1")["length"] == 2
    assert run("show", data, "--episode", "bb").exit_code == 2
    assert "observations" in run("show", data).output
    page = tmp_path / "episode.html"
    assert run("show", data, "--episode", "0", "--html", page).exit_code == 0
    assert "<!doctype html>" in page.read_text()


def test_record_with_equal_seeds_writes_equal_episodes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run("record", tmp_path / name, "--env", "CartPole-v1", "--episodes", 3, "--seed", 7).exit_code == 0
    a, b = (EpisodeDataset(tmp_path / name) for name in ("a", "b"))
    assert [len(episode) for episode in a] == [len(episode) for episode in b]
    assert a.env_spec == "CartPole-v1"
    assert run("record", tmp_path / "c", "--env", "NoSuchPole-v9").exit_code == 2


def test_report_writes_one_page(data: Path, tmp_path: Path) -> None:
    result = run("report", data, "--html", tmp_path / "page.html")
    assert result.exit_code == 0
    assert "3 episodes" in result.output
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_show_prints_the_turns_of_a_conversation(tmp_path: Path) -> None:
    talk = Conversation("a", outputs={})
    talk.begin([1, 2])
    talk.turn([3], [4], 0.5)
    talk.turn([5], reward=1.0, terminated=True)
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add([talk.episode])
    lines = run("show", tmp_path / "data", "--decode", "json:dumps").output.splitlines()
    assert lines[-4:] == [
        "prompt   0  [1][2]",
        "model    0  [3]  [reward 0.5]",
        "reply    1  [4]",
        "model    1  [5]  [reward 1]",
    ]
    run("show", tmp_path / "data", "--html", tmp_path / "show.html", "--decode", "json:dumps")
    assert ">[3]</span>" in (tmp_path / "show.html").read_text()
    for name, message in (("json:nothing", "give MODULE:NAME"), ("json:decoder", "module is not a function")):
        result = run("show", tmp_path / "data", "--decode", name)
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())
    result = run("report", tmp_path / "data", "--html", tmp_path / "page.html", "--decode", "json:loads")
    assert result.exit_code == 2
    assert "decode([1]) raised TypeError" in " ".join(result.output.split())
