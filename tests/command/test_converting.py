"""`episodes convert`: results, reports and errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from running import assert_fails, episode, output, printed, run, write

from episodes.storage import EpisodeDataset


@pytest.fixture
def source(tmp_path: Path) -> Path:
    known = {"observation_space": spaces.Box(-99, 99, (2,), np.float64), "action_space": spaces.Discrete(2)}
    made = []
    for n in (5, 6, 7):
        facts = {"infos": [{"t": t} for t in range(n + 1)], "custom_data": {"seed": n}}
        made.append(episode([1.0] * n, f"e{n}", terminated=n % 2 == 0, truncated=n % 2 == 1, **facts, **known))
    return write(tmp_path / "ours", made)


def test_convert_through_all_formats_loses_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    at: object = source
    for name in ("parquet", "rllib", "lerobot"):
        text = output("convert", at, tmp_path / name, "--to", name, "--strict")
        assert text == f"{tmp_path / name}: 3 episodes, 18 steps\nnothing was lost\n"
        at = tmp_path / name
    output("convert", at, "some/data-v0", "--to", "minari")
    output("convert", "some/data-v0", tmp_path / "back", "--from", "minari")
    output("convert", tmp_path / "minari/some/data-v0", tmp_path / "again")
    for name in ("back", "again"):
        pairs = zip(EpisodeDataset(source), EpisodeDataset(tmp_path / name), strict=True)
        assert all(left.equals(right) for left, right in pairs)
    output("doctor", tmp_path / "minari/some/data-v0")


def test_convert_prints_losses_and_strict_writes_nothing(source: Path, tmp_path: Path) -> None:
    parts = [whole.slice(slice(2, None), len_lookback_buffer=1) for whole in EpisodeDataset(source)]
    cut = write(tmp_path / "cut", parts)
    report = printed("convert", cut, tmp_path / "x", "--to", "parquet")
    assert (report["episodes"], report["steps"]) == (3, 12)
    assert [(loss["what"], loss["num_episodes"], loss["first"]) for loss in report["losses"]] == [("lookback", 3, "e5")]
    assert_fails("lookback", "convert", cut, tmp_path / "y", "--to", "parquet", "--strict")
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{ours}", "{ours}"), "exists already"),
        (("{ours}", "{new}", "--to", "csv"), "unknown format"),
        (("{ours}", "{new}", "--to", "d4rl"), "can be read, not written"),
        (("{new}", "{new}"), "the path does not exist"),
        (("{new}", "{new}", "--from", "episodes"), "the path does not exist"),
        (("{ours}", "{new}", "--fps", "3"), "--to episodes has no such option"),
        (("{ours}", "{new}", "--to", "lerobot", "--fps", "0"), "give the steps a second"),
    ],
)
def test_convert_wrong_call_prints_an_error_and_writes_nothing(
    words: tuple[str, ...], message: str, source: Path, tmp_path: Path
) -> None:
    assert_fails(message, "convert", *(word.format(ours=source, new=tmp_path / "new") for word in words))
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_convert_with_a_prefix_renames_the_episodes(source: Path, tmp_path: Path) -> None:
    output("convert", source, tmp_path / "named", "--prefix", "run 7")
    assert [episode.id_ for episode in EpisodeDataset(tmp_path / "named")] == ["run 7/e5", "run 7/e6", "run 7/e7"]


LOG = "run,clock,x,y,a,gain\np,0.0,1,2,0,0.5\np,0.1,3,,1,1.5\np,0.5,5,6,,\nq,0.0,7,8,1,2\nq,0.1,9,9,,\n"


def test_convert_table_prints_the_mapping_and_dry_run_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    words = ("convert", tmp_path / "log.csv", tmp_path / "out", "--episode", "run", "--t", "clock")
    words += ("--observation", "x,y", "--action", "a", "--reward", "gain", "--prefix", "k")
    text = output(*words, "--dry-run")
    assert "observation: x, y; action: a; episode: run; t: clock; reward: gain" in text
    assert "SingleAgentEpisode(k/p: 2 steps, return 2, cut)" in text
    assert not (tmp_path / "out").exists()
    text = output(*words)
    for said in (
        "2 episodes, 3 steps",
        "values of 'y': they are missing",
        "'clock' is irregular",
        "endings: no column",
    ):
        assert said in text
    assert [episode.id_ for episode in EpisodeDataset(tmp_path / "out")] == ["k/p", "k/q"]
    assert_fails("no column 'z'", *words[:3], "--observation", "z")
    assert_fails("has no option 'episode'", "convert", tmp_path / "out", tmp_path / "new", "--episode", "run")


READING = {"info": (), "ls": (), "show": (), "check": (), "doctor": (), "sql": ("SELECT count(*) FROM steps",)}
SOURCES = ["parquet", "rllib", "lerobot", "episodes", "csv"]


@pytest.mark.parametrize("format", SOURCES)
def test_reading_commands_take_all_formats(format: str, source: Path, tmp_path: Path) -> None:
    path = tmp_path / "other"
    if format == "csv":
        path.write_text("episode,t,obs,action,reward,terminated\n1,0,0,0,1,False\n1,1,1,0,1,True\n1,2,2,,,\n")
    else:
        output("convert", source, path, "--to", format)
    before = sorted(path.rglob("*"))
    for command, words in READING.items():
        status, text = run(command, path, *words)
        assert status == 0, (command, text)
    assert '"episodes": 3' in output("info", path, "--json") or format == "csv"
    assert "episodes are equal" in output("diff", path, path)
    output("report", path, "--html", tmp_path / "page.html")
    assert sorted(path.rglob("*")) == before


@pytest.mark.parametrize("command", READING)
def test_reading_command_of_a_wrong_file_names_the_cause(command: str, tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_bytes(b"\x89PNG....")
    status, text = run(command, tmp_path / "x.h5", *READING[command])
    assert (status, "it is a picture" in text) == (2, True), text
