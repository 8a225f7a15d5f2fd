"""The `episodes` command: `sql`, `split`, and the statistics of `info`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from episodes import SingleAgentEpisode
from episodes.command.app import app
from episodes.storage import EpisodeDataset, EpisodeWriter


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with EpisodeWriter(tmp_path / "data") as writer:
        for i in range(20):
            rewards = np.array([1.0, np.nan, i])
            writer.add([SingleAgentEpisode.from_arrays(np.arange(8.0).reshape(4, 2), [0, 1, 0], rewards, id_=f"e{i}")])
    return tmp_path / "data"


def test_sql_prints_and_saves_the_result(data: Path, tmp_path: Path) -> None:
    query = 'select step, rewards, "observations/1" as y from steps where rewards > 17.5 and not isnan(rewards)'
    rows = json.loads(run("sql", data, query, "--json", "--save", tmp_path / "found").output)
    assert rows == [{"step": 56, "rewards": 18.0, "y": 5.0}, {"step": 59, "rewards": 19.0, "y": 5.0}]
    assert EpisodeDataset(data).load_selection(tmp_path / "found").steps.tolist() == [56, 59]
    assert json.loads(run("sql", data, "select rewards from steps where step = 1", "--json").output) == [
        {"rewards": None}
    ]
    assert "18" in run("sql", data, query).output
    assert run("sql", data, "select").exit_code == 2


def test_split_defines_and_lists_splits(data: Path) -> None:
    assert run("split", data).output.strip() == ""
    first = run("split", data, "train=0.8", "test=0.2", "--seed", 3).output
    assert first == run("split", data).output
    assert first.split()[0::5] == ["train", "test"]
    tracks = json.loads(run("info", data, "--json").output)["splits"]
    assert sum(tracks.values()) == 20
    assert run("split", data, "train").exit_code == 2


def test_split_with_a_repeated_name_is_rejected(data: Path) -> None:
    result = run("split", data, "a=0.5", "a=0.5")
    assert (result.exit_code, "a name occurs twice" in result.output) == (2, True)
    assert EpisodeDataset(data).splits == []


def test_info_stats_has_statistics_of_each_track(data: Path) -> None:
    tracks = {row["track"]: row for row in json.loads(run("info", data, "--stats", "--json").output)["tracks"]}
    assert list(tracks) == ["observations/0", "observations/1", "actions", "rewards"]
    assert (tracks["rewards"]["count"], tracks["rewards"]["nan"], tracks["rewards"]["highest"]) == (40, 20, 19)
    assert tracks["actions"]["mean"] == pytest.approx(1 / 3)
    assert "observations/1" in run("info", data, "--stats").output
