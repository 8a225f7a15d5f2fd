"""`episodes runs` and `episodes diff` of runs: damaged files, sorting, settings that differ, and comparisons."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import assert_fails, output, printed, run

from episodes.command.runs_command import comparison, verdict
from episodes.errors import UnreadableData
from episodes.storage.runs import DESCRIPTION, STATUS, StoredRun, differing, rank, write_status

SCORES = st.none() | st.integers(-3, 3).map(float)
SETTINGS = st.dictionaries(st.sampled_from(["env", "algorithm.gamma", "trainer.gamma"]), st.integers(0, 2))


def store(folder: Path, score: float | None = None, end: str | None = "max_epochs", **settings: Any) -> Path:
    """Write the status of a run, and return its folder."""
    folder.mkdir(parents=True)
    numbers = {"best_score": score, "last_score": score, "seconds": 1.0, "num_steps": 10}
    write_status(folder, settings=settings, stopped_by=end, **numbers)
    return folder


@given(runs=st.lists(st.tuples(SCORES, SETTINGS), min_size=1, max_size=4))
def test_runs_are_ranked_and_compared(runs: list[tuple[float | None, dict[str, int]]]) -> None:
    stored = [
        StoredRun(folder=Path(str(i)), status="finished", best_score=score, settings=settings)
        for i, (score, settings) in enumerate(runs)
    ]
    order = [int(str(run.folder)) for run in sorted(stored, key=rank)]
    assert sorted(order) == list(range(len(runs)))
    for i, j in pairwise(order):
        (score, settings), (next_score, next_settings) = runs[i], runs[j]
        if settings.get("env") == next_settings.get("env"):
            assert next_score is None or (score is not None and score >= next_score)
    (a, mine), (b, theirs) = runs[0], runs[-1]
    facts = comparison(stored[0], stored[-1])
    names = {name for name in (*mine, *theirs) if mine.get(name) != theirs.get(name)}
    assert facts["settings"] == {name: [mine.get(name), theirs.get(name)] for name in names}
    assert facts["differs"] == (runs[0] != runs[-1])
    is_comparable = a is not None and b is not None and len({mine.get("env"), theirs.get("env")} - {None}) < 2
    assert facts["better"] == (None if not is_comparable or a == b else "a" if a > b else "b")  # type: ignore[operator]
    assert ("was better" in verdict(stored[0], stored[-1])) == (facts["better"] is not None)


@given(tables=st.lists(SETTINGS, max_size=4))
def test_differing_finds_names_whose_values_are_not_all_equal(tables: list[dict[str, int]]) -> None:
    names = {name for table in tables for name in table}
    assert set(differing(tables)) == {name for name in names if len({table.get(name) for table in tables}) > 1}


DAMAGE = {
    "half a status": (STATUS, '{"stopped_by": "max_ep', "not valid JSON"),
    "a list": (STATUS, "[1]", "contains a list"),
    "a text for a number": (STATUS, '{"num_steps": "many"}', "num_steps 'many', not a number"),
    "a fraction for a count": (STATUS, '{"num_steps": 1.5}', "num_steps 1.5, not a number"),
    "a flag for a number": (STATUS, '{"best_score": true}', "best_score True, not a number"),
    "NaN": (STATUS, '{"best_score": NaN}', "best_score nan, not a number"),
    "a number for a reason": (STATUS, '{"stopped_by": 3}', "stopped_by 3, not a text"),
    "bytes": (DESCRIPTION, "\udcff", "not valid JSON"),
    "deep nesting": (DESCRIPTION, "[" * 100_000, "not valid JSON"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_run_is_listed_as_unreadable_and_refused_by_diff(name: str, tmp_path: Path) -> None:
    file, content, message = DAMAGE[name]
    sound, damaged = store(tmp_path / "sound", 1.0), store(tmp_path / "damaged", 2.0)
    (damaged / file).write_bytes(content.encode("utf-8", "surrogateescape"))
    first, second = printed("runs", tmp_path)
    assert (Path(first["folder"]), first["status"]) == (sound, "finished")
    assert Path(second["folder"]) == damaged
    assert second["status"].startswith("unreadable: ")
    assert message in second["status"]
    with pytest.raises(UnreadableData):
        StoredRun.read(damaged)
    assert_fails(message, "diff", sound, damaged)


@pytest.mark.parametrize(
    ("status", "description", "expected"),
    [
        ({}, {"configuration": {"algo": "ppo", "env": "E", "policy": {"size": 3}}}, {"algo", "env", "policy.size"}),
        ({"policy": "P", "algorithm.gamma": "1"}, {}, {"policy", "algorithm.gamma"}),
        ({"policy": "P", "a.b": "1"}, {"configuration": {"lr": 1}}, {"lr", "policy", "a.b"}),
        (
            {"policy/m": "P", "environment": "E", "a.b": "1"},
            {"configuration": {"algo": 1, "env": 2}},
            {"algo", "env", "a.b"},
        ),
        ({"trainer.shows_progress": "True"}, {"configuration": []}, set()),
    ],
)
def test_settings_come_from_the_status_and_the_description(
    status: dict[str, Any], description: dict[str, Any], expected: set[str], tmp_path: Path
) -> None:
    if status:
        store(tmp_path / "run", **status)
    else:
        (tmp_path / "run").mkdir()
    (tmp_path / "run" / DESCRIPTION).write_text(json.dumps(description))
    found = StoredRun.read(tmp_path / "run")
    assert set(found.settings) == expected
    assert found.status == ("finished" if status else "not begun")


def test_versions_and_commits_that_differ_are_part_of_diff(tmp_path: Path) -> None:
    for name, commit in (("a", "1234"), ("b", "5678")):
        store(tmp_path / name, 1.0)
        (tmp_path / name / DESCRIPTION).write_text(json.dumps({"git": {"commit": commit}, "versions": {"torch": "2"}}))
    status, text = run("diff", tmp_path / "a", tmp_path / "b")
    assert status == 1
    assert ["git.commit", "1234", "5678"] in [line.split() for line in text.splitlines()]
    assert "torch" not in text


def test_environment_with_other_arguments_is_not_compared(tmp_path: Path) -> None:
    store(tmp_path / "a", 1.0, env="E", **{"env_kwargs.level": 1})
    store(tmp_path / "b", 2.0, env="E")
    assert "the environments differ" in run("diff", tmp_path / "a", tmp_path / "b")[1]


def test_runs_are_found_below_and_not_inside_of_runs(tmp_path: Path) -> None:
    store(tmp_path / "sweep" / "one")
    store(tmp_path / "two")
    store(tmp_path / "two" / "inner")
    assert [line.split()[0] for line in output("runs", tmp_path).splitlines()[1:]] == ["sweep/one", "two"]
    assert len(printed("runs", tmp_path / "two")) == 1


def test_table_has_few_settings_and_those_of_all_runs_first(tmp_path: Path) -> None:
    for run_index in range(2):
        only = {f"only_{run_index}.{i}": i for i in range(6)}
        store(tmp_path / f"{run_index}", 1.0, **only, **{f"common.{name}": run_index for name in "abc"})
    title, *_, last = output("runs", tmp_path).splitlines()
    assert title.split()[8:11] == ["a", "b", "c"]
    assert len(title.split()) == 8 + 8
    assert last.startswith("7 more settings differ")


def test_folder_without_runs_is_named(tmp_path: Path) -> None:
    assert_fails("no runs in it", "runs", tmp_path)
    assert_fails("no directory", "runs", tmp_path / "missing")
    assert_fails("neither a data set nor a run", "diff", tmp_path, store(tmp_path / "a"))
