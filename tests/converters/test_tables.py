"""Tables of steps with columns of any names, against episodes that are built row by row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes.converters import from_table, read
from episodes.errors import InvalidArgument, UnreadableData, WrongType

NAMES = {"episode": "run", "t": "clock", "observation": ["x", "y"], "action": "a", "reward": "gain"}
NAMES |= {"terminated": "over", "truncated": "late"}


def rows_of(lengths: list[int], endings: list[int], convention: str) -> list[dict[str, Any]]:
    """Return rows of episodes. With "N + 1", each episode has a last row with an observation alone."""
    rows = []
    for k, (length, ending) in enumerate(zip(lengths, endings, strict=True)):
        for t in range(length + (convention == "N + 1")):
            is_step, is_last = t < length, t == length - 1
            row = {"run": f"r{k}", "clock": t, "x": 10.0 * k + t, "y": -t, "a": t % 3 if is_step else None}
            row |= {
                "gain": float(t) if is_step else None,
                "over": is_last and ending == 1,
                "late": is_last and ending == 2,
            }
            if convention == "next":
                row |= {"nx": 10.0 * k + t + 1, "ny": -t - 1}
            rows.append(row | {"note": f"{k}-{t}"})
    return rows


def written_csv(table: pa.Table, folder: Path) -> Path:
    pa.csv.write_csv(table, folder / "x.dat")
    return folder / "x.dat"


def written_lines(table: pa.Table, folder: Path) -> Path:
    (folder / "x").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return folder / "x"


def written_parquet(table: pa.Table, folder: Path) -> Path:
    pq.write_table(table, folder / "x.csv", row_group_size=2)
    return folder / "x.csv"


def written_arrow(table: pa.Table, folder: Path) -> Path:
    pa.feather.write_feather(table, folder / "x", compression="uncompressed")
    return folder / "x"


def duckdb_relation(table: pa.Table, folder: Path) -> Any:
    import duckdb

    return duckdb.connect().from_arrow(table)


def dataset(table: pa.Table, folder: Path) -> Any:
    from datasets import Dataset

    return Dataset.from_list(table.to_pylist())


def polars_frame(table: pa.Table, folder: Path) -> Any:
    import polars

    return polars.DataFrame(table)


WAYS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "arrow": lambda table, folder: table,
    "pandas": lambda table, folder: table.to_pandas(),
    "polars": polars_frame,
    "duckdb": duckdb_relation,
    "datasets": dataset,
    "dict": lambda table, folder: table.to_pydict(),
    "csv file": written_csv,
    "json lines": written_lines,
    "parquet file": written_parquet,
    "arrow file": written_arrow,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("convention", ["N + 1", "N", "next"])
def test_table_through_each_library_has_the_same_episodes(way: str, convention: str, tmp_path: Path) -> None:
    lengths, endings = [3, 2, 4], [1, 2, 0]
    rows = rows_of(lengths, endings, convention)
    names = NAMES | ({"next_observation": "nx,ny"} if convention == "next" else {})
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    shuffled.sort(key=lambda row: row["run"])  # episodes in order, rows in any
    source = WAYS[way](pa.Table.from_pylist(shuffled), tmp_path)
    if isinstance(source, Path):
        stream, report = read(source, prefix="k", **names)
        episodes = list(stream)
    else:
        episodes, report = from_table(source, prefix="k", **names)
    for k, (episode, length, ending) in enumerate(zip(episodes, lengths, endings, strict=True)):
        is_short = convention == "N" and ending != 1
        num = length - is_short
        last = [] if convention != "N" or is_short else [[10.0 * k + num - 1, 1 - num]]
        seen = [[10.0 * k + t, -t] for t in range(num + (not last))] + last
        assert episode.get_observations().tolist() == seen
        assert episode.get_actions().tolist() == [t % 3 for t in range(num)]
        assert episode.get_rewards().tolist() == list(range(num))
        assert episode.id_ == f"k/r{k}"
        assert (episode.is_terminated, episode.is_truncated) == (ending == 1, ending == 2)
        assert [info["note"] for info in episode.get_infos()[:num]] == [f"{k}-{t}" for t in range(num)]
        if way != "pandas" or convention != "N + 1":  # pandas makes integers with missing values floats
            assert episode.get_actions().dtype == np.int64
    lost = {loss.what for loss in report}
    assert lost == ({"the last observation", "the last step"} if convention == "N" else set())


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=4), st.randoms())
def test_order_of_rows_has_no_effect(parts: list[tuple[int, int]], random: Any) -> None:
    rows = rows_of(*map(list, zip(*parts, strict=True)), "N + 1")
    expected = from_table(pa.Table.from_pylist(rows), prefix="k", **NAMES)[0]
    random.shuffle(rows)
    found = from_table(pa.Table.from_pylist(rows), prefix="k", **NAMES)[0]
    assert len(found) == len(expected) == len(parts)
    by_id = {episode.id_: episode for episode in found}
    assert all(by_id[episode.id_].equals(episode) for episode in expected)


def table(**changes: Any) -> dict[str, list[Any]]:
    columns = {"episode": [0, 0, 0], "obs": [0.0, 1.0, 2.0], "action": [0, 1, 0], "reward": [1.0, 1.0, 1.0]}
    columns |= {"done": [False, False, True], "next_obs": [1.0, 2.0, 3.0], **changes}
    return {key: value for key, value in columns.items() if value is not None}


WRONG = {  # columns, options, and words of the error
    "no action": (table(action=None), {}, UnreadableData, "none has a usual name for action; name them"),
    "no such column": (table(), {"action": "b"}, InvalidArgument, "no column 'b'; the columns are"),
    "a column twice": (
        table(),
        {"observation": "obs", "action": "obs"},
        InvalidArgument,
        "give each column one meaning",
    ),
    "two rewards": (table(), {"reward": "reward,done"}, InvalidArgument, "2 columns; name one column"),
    "a missing action": (table(action=[0, None, 1]), {}, UnreadableData, "row 1 has no action"),
    "text as action": (table(action=["l", "r", "l"]), {}, UnreadableData, "holds text, numbers are needed"),
    "text as flag": (table(done=["no", "no", "yes"]), {}, UnreadableData, "holds the words"),
    "a number as flag": (table(done=[0, 0, 7]), {}, UnreadableData, "flags are needed"),
    "a row twice": (table(t=[0, 1, 1]), {}, UnreadableData, "two rows with 't' 1"),
    "text as time": (table(t=["a", "b", "c"]), {}, UnreadableData, "times are numbers or dates"),
    "a row without episode": (table(episode=[0, None, 0]), {}, UnreadableData, "rows have no 'episode'"),
    "lists of several lengths": (table(obs=[[1.0], [1.0, 2.0], [1.0]]), {}, UnreadableData, "lists of several lengths"),
    "other next shape": (table(next_obs=[[1.0, 2.0]] * 3), {}, InvalidArgument, "columns of the same number"),
    "lists with missing values": (table(obs=[[1, 2], [1, None], [1, 2]]), {}, UnreadableData, "lists with missing"),
    "lengths": (table(obs=[1.0]), {}, InvalidArgument, "columns of a dict have one length"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_table_raises(name: str) -> None:
    columns, options, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        from_table(columns, **options)
    with pytest.raises(WrongType, match="a int is no table"):
        from_table(3)


REPORTED = {  # columns, and what the report names
    "a missing observation": (table(obs=[0.0, None, 2.0], next_obs=None), "values of 'obs'"),
    "a missing reward": (table(reward=[1.0, None, 1.0]), "values of 'reward'"),
    "no rewards": (table(reward=None), "rewards"),
    "no endings": (table(done=None), "endings"),
    "done alone": (table(), "truncations"),
    "irregular times": (table(time=[0.0, 0.1, 0.7]), "'time' is irregular"),
    "a missing row": (table(t=[0, 1, 3], next_obs=None), "what lies between two steps"),
    "late times": (table(t=[2, 3, 4]), "the first steps"),
    "another next observation": (table(next_obs=[1.0, 9.0, 3.0]), "what lies between two steps"),
    "no last observation": (table(next_obs=None), "the last observation"),
}


@pytest.mark.parametrize("name", REPORTED)
def test_report_names_what_was_assumed(name: str) -> None:
    columns, what = REPORTED[name]
    episodes, report = from_table(columns)
    assert what in {loss.what for loss in report}
    assert sum(map(len, episodes)) == 3 - (name in ("a missing row", "no endings") and "next_obs" not in columns)


@pytest.mark.parametrize("kind", ["int", "bool"])
def test_missing_value_of_one_episode_makes_all_episodes_floats(kind: str, tmp_path: Path) -> None:
    values = [1, None, 0, 1, 1, 0] if kind == "int" else [True, None, False, True, True, False]
    rows = {"run": [0, 0, 0, 1, 1, 1], "obs": values, "a": [0, 1, None] * 2, "reward": [1, 1, None] * 2}
    pq.write_table(pa.table(rows), tmp_path / "x", row_group_size=3)
    episodes = list(read(tmp_path / "x", action="a")[0])
    assert len({episode.get_observations().dtype for episode in episodes}) == 1
    assert [episode.get_rewards().dtype.kind for episode in episodes] == ["i", "i"]


def test_another_next_observation_cuts_and_keeps_it() -> None:
    episodes, _ = from_table(table(next_obs=[1.0, 9.0, 3.0]), prefix="k")
    assert [episode.get_observations().tolist() for episode in episodes] == [[0, 1, 9], [2, 3]]
    assert [(episode.id_, episode.is_done) for episode in episodes] == [("k/0", False), ("k/0/1", True)]


def test_dict_of_observations_and_patterns() -> None:
    columns = table() | {"next_obs": None, "img": [[1, 2], [3, 4], [5, 6]], "p_0": [1, 2, 3], "p_1": [4, 5, 6]}
    del columns["next_obs"]
    (episode,), _ = from_table(columns, observation={"image": "img", "place": "p_*"})
    assert {key: value.tolist() for key, value in episode.get_observations(slice(0, 2)).items()} == {
        "image": [[1, 2], [3, 4]], "place": [[1, 4], [2, 5]],
    }  # fmt: skip
    assert episode.get_infos(0) == {"obs": 0.0}
