"""Files of tables that are read in parts: types, values and episodes are those of the whole table."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes.converters import read, table_files
from episodes.converters.contents import Contents
from episodes.errors import UnreadableData

WORDS = {
    "int": ["1", "0", "-5", "12345678901", " 7"],
    "float": ["1.5", "1e5", "inf", ".5", "nan", " 2.5 "],
    "null": ["", "NA", "NaN", "null"],
    "bool": ["true", "False", "1", "0"],
    "date": ["2020-01-01", "1999-12-31"],
    "timestamp": ["2020-01-01 10:00:00", "2020-01-01T10:00:00"],
    "nanoseconds": ["2020-01-01 10:00:00.123", "2020-01-01T10:00:00.5"],
    "zone": ["2020-01-01 10:00:00Z", "2020-01-01T10:00:00+02:00"],
    "text": ["abc", "a,b", "a\nb", 'x"y', "ünï", "0x1F"],
    "huge": ["123456789012345678901234"],
}
VALUES: dict[str, list[Any]] = {
    "int": [0, -3, 2**40], "float": [1.5, -2.0, float("nan")], "null": [None], "bool": [True], "text": ["a", "ü\n"],
    "time": ["2020-01-01 10:00:00"], "list": [[1, 2], [1.5], []], "dict": [{"a": 1}, {"b": 1.5, "a": None}],
    "nested": [[[1], [2.5]]],
}  # fmt: skip
BLOCKS = [100, 600, 1 << 20]


@st.composite
def columns_of(draw: st.DrawFn, kinds: dict[str, list[Any]]) -> list[list[Any]]:
    """Return the columns of a table, each with values of one to three kinds."""
    length = draw(st.integers(1, 30))
    columns = []
    for _ in range(draw(st.integers(1, 3))):
        allowed = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=3, unique=True))
        items = st.sampled_from([value for kind in allowed for value in kinds[kind]])
        columns.append(draw(st.lists(items, min_size=length, max_size=length)))
    return columns


def in_parts(path: Path, block: int) -> pa.Table:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "_BLOCK", block)
        names, groups = table_files.table_of_file(Contents(path))
        return pa.concat_tables(groups(names))


@given(columns_of(WORDS), st.sampled_from(BLOCKS), st.booleans())
def test_types_of_text_in_parts_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, columns: list[list[str]], block: int, zipped: bool
) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*(f"c{number}" for number in range(len(columns))), "z"])
    writer.writerows([*row, "1"] for row in zip(*columns, strict=True))
    data = text.getvalue().encode()
    whole = pa.csv.read_csv(
        io.BytesIO(data),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(strings_can_be_null=True),
    )
    path = tmp_path_factory.mktemp("csv") / "x"
    path.write_bytes(gzip.compress(data) if zipped else b"\xef\xbb\xbf" + data)
    found = in_parts(path, block)
    assert found.schema == whole.schema
    assert repr(found.to_pydict()) == repr(whole.to_pydict())


@given(columns_of(VALUES), st.sampled_from(BLOCKS), st.booleans())
def test_types_of_json_in_parts_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, columns: list[list[Any]], block: int, zipped: bool
) -> None:
    rows = [{f"c{k}": value for k, value in enumerate(row)} | {"z": 1} for row in zip(*columns, strict=True)]
    data = "\n\n".join(map(json.dumps, [{"z": 0}, *rows])).encode()
    path = tmp_path_factory.mktemp("json") / "x"
    path.write_bytes(gzip.compress(data) if zipped else data)
    try:
        whole = pa.json.read_json(io.BytesIO(data))
    except pa.ArrowInvalid:
        with pytest.raises(UnreadableData):
            in_parts(path, block)
        return
    found = in_parts(path, block).select(whole.column_names)
    assert found.schema == whole.schema
    assert repr(found.to_pydict()) == repr(whole.to_pydict())


def write_csv(table: pa.Table, path: Path) -> None:
    pa.csv.write_csv(table, path)


def write_lines(table: pa.Table, path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def write_stream(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


WAYS: dict[str, Callable[[pa.Table, Path], None]] = {
    "csv": write_csv,
    "lines of json": write_lines,
    "arrow file": lambda table, path: pa.feather.write_feather(table, str(path), chunksize=7),
    "arrow stream": write_stream,
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=7),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("has_episode", [False, True])
@pytest.mark.parametrize("time", ["of the episode", "of all", "shuffled", ""])
@pytest.mark.parametrize("way", WAYS)
def test_episodes_of_parts_are_those_of_the_whole_table(
    way: str, time: str, has_episode: bool, zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 20)
    number = np.repeat(np.arange(20), lengths)
    times = np.concatenate([np.arange(length) for length in lengths])
    columns: dict[str, Any] = {"obs_x": rng.random(len(number)), "obs_y": rng.random(len(number))}
    columns |= {"action": rng.integers(0, 3, len(number)), "reward": rng.random(len(number))}
    columns |= {"terminated": np.append(np.diff(number) > 0, True), "note": [f"n{i}" for i in range(len(number))]}
    columns |= {"episode": [f"e{k}" for k in number]} if has_episode else {}
    columns |= {"t": times if time == "of the episode" else np.arange(len(number))} if time else {}
    table = pa.table(columns)
    given = table.take(rng.permutation(len(number))) if time == "shuffled" else table
    monkeypatch.setattr(table_files, "_BLOCK", 300)
    path = tmp_path / "x"
    WAYS[way](given, path)
    if zipped and way in ("csv", "lines of json"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    episodes = sorted(read(path, prefix="k")[0], key=lambda one: one.get_infos(0)["note"][1:].zfill(3))
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    assert len(episodes) == 20
    for episode, start, length in zip(episodes, starts.tolist(), lengths.tolist(), strict=True):
        rows = slice(start, start + length)
        seen = np.stack([columns["obs_x"][rows], columns["obs_y"][rows]], 1)
        assert episode.get_observations()[:length].tolist() == seen.tolist()
        assert episode.get_actions().tolist() == columns["action"][rows].tolist()
        assert episode.get_rewards().tolist() == columns["reward"][rows].tolist()
        assert [info["note"] for info in episode.get_infos()[:length]] == columns["note"][rows]
        assert episode.is_terminated


@pytest.mark.parametrize("way", WAYS)
def test_times_that_start_again_without_flags_ask_for_the_column_of_episodes(way: str, tmp_path: Path) -> None:
    WAYS[way](pa.table({"t": [0, 1, 0, 1], "obs": [0.0, 1, 2, 3], "action": [0, 1, 0, 1]}), tmp_path / "x")
    with pytest.raises(UnreadableData, match=r"two rows with 't' 0.*--episode"):
        list(read(tmp_path / "x")[0])


@pytest.mark.parametrize("way", ["csv", "lines of json", "arrow file", "arrow stream", "parquet"])
def test_all_columns_of_wide_tables_are_known(way: str, tmp_path: Path) -> None:
    columns = {f"obs_{k}": [float(k)] * 2 for k in range(700)} | {"action": [0, 1], "terminated": [False, True]}
    WAYS[way](pa.table(columns), tmp_path / "x")
    (episode,) = read(tmp_path / "x")[0]
    assert episode.get_observations(0).tolist() == list(range(700))


HEADERS = {
    "spaces after commas": ("run, x, y, a\nr, 0.5, 1, 0\nr, 1.5, 2, 1\n", {"observation": "x,y", "action": "a"}),
    "units": ("run;x [m];y;a\nr;0.5;1;0\nr;1.5;2;1\n", {"observation": "x [m],y", "action": "a"}),
    "an index without a name": (",run,x,y,a\n0,r,0.5,1,0\n1,r,1.5,2,1\n", {"observation": "x,y", "action": "a"}),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_real_files(name: str, tmp_path: Path) -> None:
    text, options = HEADERS[name]
    (tmp_path / "x").write_text(text)
    (episode,) = read(tmp_path / "x", episode="run", **options)[0]
    assert episode.get_observations().tolist() == [[0.5, 1], [1.5, 2]]
    assert episode.get_actions().tolist() == [0]


LONG = b"obs,action\n" + b"1,2\n" * 30_000
WRONG_TEXT = {
    "utf-16": ("obs,action\n1,2\n".encode("utf-16"), "text in UTF-16; save it as UTF-8"),
    "latin-1": ("x [°],action\n1,2\n".encode("latin-1"), "not in UTF-8.*; save it as UTF-8"),
    "two columns of one name": (b"obs,obs,action\n1,2,3\n", "several columns are named 'obs'; give each"),
    "a short row": (b"obs,action\n1,2\n3\n", "Expected 2 columns, got 1"),
    "truncated gzip": (gzip.compress(b"obs,action\n" + b"1,2\n" * 99)[:-9], "gzip compressed ends too early"),
    "damaged gzip": (gzip.compress(b"obs,action\n" + b"1,2\n" * 99)[:12] + bytes(40), "gzip compressed is damaged"),
    "truncated gzip of a long table": (gzip.compress(LONG)[:-9], "end-of-stream"),
    "truncated gzip of long lines": (gzip.compress(b'{"obs": 1, "action": 0}\n' * 9999)[:-9], "end-of-stream"),
    "a picture in gzip": (gzip.compress(b"\x89PNG" + bytes(99)), "compressed by gzip"),
}


@pytest.mark.parametrize("name", WRONG_TEXT)
def test_wrong_text_raises_with_the_remedy(name: str, tmp_path: Path) -> None:
    data, words = WRONG_TEXT[name]
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(UnreadableData, match=words):
        list(read(tmp_path / "x")[0])


def long_csv() -> str:
    names = [f"obs_{number}" for number in range(7000)]
    return "\n".join([",".join([*names, "action"]), *(",".join(["1.5"] * 7000 + ["0"]) for _ in range(2))])


def long_lines() -> str:
    return "".join(json.dumps({"obs": [1.5] * 20_000, "action": 0}) + "\n" for _ in range(2))


def long_batch() -> str:
    rows = {"obs": [[1.5] * 40] * 900, "new_obs": [[1.5] * 40] * 900, "actions": [0] * 900, "rewards": [0.5] * 900}
    batch = rows | {"type": "SampleBatch", "eps_id": [1] * 900, "terminateds": [False] * 899 + [True]}
    return "".join(json.dumps(batch | {"eps_id": [number] * 900}) + "\n" for number in range(2))


LONG_LINES = {
    "csv": (long_csv(), False, [1]),
    "csv with gzip": (long_csv(), True, [1]),
    "lines of json": (long_lines(), False, [1]),
    "lines of json with gzip": (long_lines(), True, [1]),
    "batches of rllib": (long_batch(), False, [900, 900]),
    "batches of rllib with gzip": (long_batch(), True, [900, 900]),
}


@pytest.mark.parametrize("name", LONG_LINES)
def test_first_line_may_be_longer_than_what_recognition_looks_at(name: str, tmp_path: Path) -> None:
    text, zipped, steps = LONG_LINES[name]
    (tmp_path / "x").write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert list(map(len, read(tmp_path / "x")[0])) == steps
