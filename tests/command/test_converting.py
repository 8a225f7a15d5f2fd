"""`episodes convert`: results, reports and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from episodes import SingleAgentEpisode
from episodes.command.app import app
from episodes.converters import write
from episodes.storage import EpisodeDataset


@pytest.fixture
def source(tmp_path: Path) -> Path:
    known = {"observation_space": spaces.Box(-9, 9, (2,)), "action_space": spaces.Discrete(2)}
    made = []
    for n in (5, 6, 7):
        observations = np.arange(2.0 * n + 2, dtype=np.float32).reshape(-1, 2) % 9
        facts = {"infos": [{"t": t} for t in range(n + 1)], "custom_data": {"seed": n}, "id_": f"e{n}"}
        ends = {"terminated": n % 2 == 0, "truncated": n % 2 == 1}
        made.append(
            SingleAgentEpisode.from_arrays(observations, np.zeros(n, int), np.ones(n), **facts, **ends, **known)
        )
    write(made, tmp_path / "ours", "episodes")
    return tmp_path / "ours"


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def test_convert_through_all_formats_loses_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    at: object = source
    for name in ("parquet", "rllib", "lerobot"):
        assert run("convert", at, tmp_path / name, "--to", name, "--strict") == (
            0, f"{tmp_path / name}: 3 episodes, 18 steps\nnothing was lost\n"
        )  # fmt: skip
        at = tmp_path / name
    assert run("convert", at, "some/data-v0", "--to", "minari")[0] == 0
    assert run("convert", "some/data-v0", tmp_path / "back", "--from", "minari")[0] == 0
    assert run("convert", tmp_path / "minari/some/data-v0", tmp_path / "again")[0] == 0
    for name in ("back", "again"):
        pairs = zip(EpisodeDataset(source), EpisodeDataset(tmp_path / name), strict=True)
        assert all(left.equals(right) for left, right in pairs)
    assert run("doctor", tmp_path / "minari/some/data-v0")[0] == 0


def test_convert_prints_losses_and_strict_writes_nothing(source: Path, tmp_path: Path) -> None:
    cut = [episode.slice(slice(2, None), len_lookback_buffer=1) for episode in EpisodeDataset(source)]
    write(cut, tmp_path / "cut", "episodes")
    code, output = run("convert", tmp_path / "cut", tmp_path / "x", "--to", "parquet", "--json")
    report = json.loads(output)
    assert (code, report["episodes"], report["steps"]) == (0, 3, 12)
    assert [(loss["what"], loss["num_episodes"], loss["first"]) for loss in report["losses"]] == [("lookback", 3, "e5")]
    code, output = run("convert", tmp_path / "cut", tmp_path / "y", "--to", "parquet", "--strict")
    assert (code, "lookback" in output) == (2, True)
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{ours}", "{ours}"), "exists already"),
        (("{ours}", "{new}", "--to", "csv"), "unknown format"),
        (("{ours}", "{new}", "--to", "d4rl"), "can be read, not written"),
        (("{new}", "{new}"), "looks like none of"),
        (("{new}", "{new}", "--from", "episodes"), "is not a data set"),
        (("{ours}", "{new}", "--fps", "3"), "--to episodes has no such option"),
        (("{ours}", "{new}", "--to", "lerobot", "--fps", "0"), "give the steps a second"),
    ],
)
def test_convert_wrong_call_prints_an_error_and_writes_nothing(
    words: tuple[str, ...], message: str, source: Path, tmp_path: Path
) -> None:
    code, line = run("convert", *(word.format(ours=source, new=tmp_path / "new") for word in words))
    assert code == 2
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
