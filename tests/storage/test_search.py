"""SQL, selections and splits, compared with the episodes."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import lists_of_episodes

from episodes import Ragged, SingleAgentEpisode
from episodes.errors import EpisodeStateError, InvalidArgument, UnknownKey, UnreadableData
from episodes.storage import EpisodeDataset, EpisodeWriter, check, compact
from episodes.storage.search import sql_columns


def episode(i: int, num: int | None = None, **changed: Any) -> SingleAgentEpisode:
    """Return episode i with distinct numbers."""
    num = i % 5 if num is None else num
    infos = [
        {"n": t, "word": "x" * t, "deep": {"list": [t]}, **({"odd": float(t)} if t % 2 else {})} for t in range(num + 1)
    ]
    options = {
        "infos": infos,
        "id_": f"e{i}",
        "terminated": i % 2 == 0,
        "custom_data": {"level": i / 2, "name": f"n{i}"},
    }
    return SingleAgentEpisode.from_arrays(
        {"at": np.arange(4.0 * num + 4).reshape(-1, 4) + i, "frame": np.full((num + 1, 40, 40), i % 256, np.uint8)},
        np.arange(num),
        np.arange(num) + i / 8,
        extra_model_outputs={"logp": np.full(num, -i, np.float32)},
        **options | changed,
    )


def made(path: Path, num: int = 12, *, per_flush: int = 4, first: int = 0) -> EpisodeDataset:
    with EpisodeWriter(path) as writer:
        for i in range(num):
            writer.add([episode(first + i)])
            if i % per_flush == per_flush - 1:
                writer.flush()
    return EpisodeDataset(path)


def rows(dataset: EpisodeDataset, query: str, **options: Any) -> list[dict[str, Any]]:
    return dataset.sql(query, **options).table.to_pylist()


# --- steps ------------------------------------------------------------------------------------------------------------


def plain(value: Any, is_ragged: bool = False) -> Any:
    """Convert arrays inside a value to lists, as in Arrow's results."""
    if is_ragged:
        return list(map(plain, value))
    value = np.asarray(value)
    result = value.astype(np.float32 if value.dtype == np.float16 else value.dtype).reshape(-1).tolist()
    return result if value.ndim else result[0]


def reference(dataset: EpisodeDataset, paths: list[str]) -> dict[str, list[Any]]:
    """Return the columns of all steps, computed from the episodes step by step."""
    columns: dict[str, list[Any]] = {}
    for number, item in enumerate(dataset):
        tracks, first = item.tracks.arrays(), item.tracks.lookback
        for t in range(len(item)):
            last = t == len(item) - 1
            text = {"episode": number, "t": t, "terminated": last and item.is_terminated}
            text |= {"truncated": last and item.is_truncated, "policy_version": item.get_policy_versions()[t]}
            text |= {path: tracks[path][first + t] for path in paths}
            text |= {f"next_{path}": tracks[path][first + t + 1] for path in paths if path.startswith("observations")}
            for name, value in text.items():
                is_ragged = isinstance(tracks.get(name.removeprefix("next_")), Ragged)
                columns.setdefault(name, []).append(plain(value, is_ragged))
    return columns


@given(
    episodes=lists_of_episodes(ragged=None),
    compression=st.sampled_from(["none", "zstd"]),
    flushed=st.booleans(),
    picked=st.none() | st.lists(st.integers(0, 4), max_size=6),
)
def test_step_table_equals_the_episodes(
    episodes: list[SingleAgentEpisode], compression: str, flushed: bool, picked: list[int] | None
) -> None:
    with tempfile.TemporaryDirectory() as path:
        with EpisodeWriter(path, compression=compression) as writer:
            for first in episodes:
                writer.add([first])
                if flushed:
                    writer.flush()
        dataset = EpisodeDataset(path)
        if picked is not None:
            dataset = dataset.select([i % len(episodes) for i in picked])
        table = dataset.step_table(decode=True)
        kinds = {
            p: a.dtype.kind for first in episodes for p, a in first.to_numpy().tracks.arrays().items() if len(first)
        }
        expected = reference(dataset, [path for path in kinds if path in table.names])
        for name, values in expected.items():
            if kinds.get(name.removeprefix("next_")) not in ("c", "S", "U"):
                result = table.table([name]).column(name).to_pylist()
                assert repr(result) == repr(values)  # NaN is NaN
        assert table.table(["step"]).column("step").to_pylist() == list(range(dataset.num_steps))


def test_sql_selects_by_numbers_infos_and_flags(tmp_path: Path) -> None:
    dataset = made(tmp_path)
    result = rows(
        dataset,
        'select step, episode, t, "observations/at/1" as y, "observations/at"[2] as same, '
        '"next_observations/at/1" as y1, '
        '"infos/n" as n, "infos/odd" as odd, "infos/word" as word, "infos/deep/list" as list '
        "from steps where terminated order by step",
    )
    ends = [(i, i % 5 - 1) for i in range(12) if i % 2 == 0 and i % 5]
    assert [(row["episode"], row["t"]) for row in result] == ends
    for row in result:
        whole, t = dataset[row["episode"]], row["t"]
        assert row["y"] == row["same"] == whole.get_observations(t)["at"][1]
        assert row["y1"] == whole.get_observations(t + 1)["at"][1]
        info = whole.get_infos(t + 1)
        assert (row["n"], row["word"], row["list"]) == (t + 1, info["word"], f"[{t + 1}]")
        assert row["odd"] == info.get("odd")


def test_scalar_tracks_are_not_copied(tmp_path: Path) -> None:
    dataset = made(tmp_path, per_flush=100)
    column = dataset.step_table().table(["rewards"]).column("rewards").chunk(0)
    assert np.shares_memory(column.to_numpy(), dataset.pack().rewards)


def test_sql_joins_episodes_with_steps(tmp_path: Path) -> None:
    dataset = made(tmp_path)
    result = rows(
        dataset,
        'select id, ending, sum(rewards) as told, any_value("return") as known, '
        'any_value("custom_data/level") as level '
        "from steps join episodes using (episode) where \"custom_data/name\" <> 'n3' group by all order by id",
    )
    assert [row["id"] for row in result] == sorted(f"e{i}" for i in range(12) if i % 5 and i != 3)
    assert all(row["told"] == row["known"] and row["level"] == int(row["id"][1:]) / 2 for row in result)
    assert {row["ending"] for row in result} == {"terminated", "cut"}


def test_sql_reads_unfinished_shards(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path)
    writer.add([episode(4)])
    writer.flush()
    assert rows(EpisodeDataset(tmp_path), "select max(rewards) as r from steps") == [{"r": 3.5}]
    writer.close()


def test_sql_reads_a_table_twice_and_empty_tables(tmp_path: Path) -> None:
    dataset = made(tmp_path)
    twice = "select count(*) as n from steps a join steps b on a.step = b.step + 1"
    assert rows(dataset, twice) == [{"n": dataset.num_steps - 1}]
    assert rows(dataset[:0], 'select step, rewards, "observations/at" from steps') == []
    assert rows(dataset[:0], "select count(*) as n from episodes") == [{"n": 0}]
    assert len(dataset[:0].sql("select step from steps").episodes) == 0


def test_large_columns_spill_to_a_file(tmp_path: Path, monkeypatch: Any) -> None:
    dataset, names = made(tmp_path), ["step", "t", "observations/at/2", "next_observations/at"]
    expected = dataset[:].step_table().table(names)
    monkeypatch.setattr(sql_columns, "MOST_KEPT", 100)
    result = dataset[:].step_table().table(names)
    assert result.equals(expected)
    assert dataset.sql("select max(t) as t from steps").table.to_pylist() == [{"t": 3}]


FLAT = """
import re, sys
from pathlib import Path
import numpy as np
from episodes import EpisodePack
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.search import sql_columns

sql_columns.MOST_KEPT = 1 << 22
QUERIES = [
    "select step from steps where rewards > 49990 and actions < 49995 and not truncated",
    'select step from steps where "observations/3" > 0.9999 and t > 3 order by rewards limit 10',
    "select episode, max(next_observations[1]) as most from steps group by episode order by most desc limit 5",
]

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10

def written(name, num):
    with EpisodeWriter(f"{sys.argv[1]}/{name}") as writer:
        for i in range(num):
            seen, steps = np.random.default_rng(i).random((50_500, 8)), np.arange(50_000.0)
            writer.add(EpisodePack(observations=seen, actions=steps, rewards=steps, lengths=np.full(500, 100)))
    return EpisodeDataset(f"{sys.argv[1]}/{name}")

warm, dataset = written("warm", 2), written("data", int(sys.argv[2]))
for query in QUERIES:
    assert warm.sql(query).table.num_rows
before = anonymous()
for query in QUERIES:
    found, most = dataset.sql(query), anonymous() - before
    print(found.table.num_rows, most, dataset.nbytes >> 20)
"""


@pytest.mark.parametrize("num", [12, pytest.param(120, marks=pytest.mark.slow)])
def test_sql_on_data_larger_than_memory(tmp_path: Path, num: int) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", FLAT, str(tmp_path), str(num)]
    text = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True).stdout
    lines = [tuple(map(int, line.split())) for line in text.splitlines()]
    assert [result for result, _, _ in lines] == [4 * num, 10, 5]
    for _, megabytes, size in lines:
        assert size > 3.5 * num
        assert megabytes < 32


def test_sql_reads_frames_only_with_decode(tmp_path: Path) -> None:
    dataset = made(tmp_path)
    assert "observations/frame" not in dataset.sql("select * from steps").table.column_names
    with pytest.raises(InvalidArgument, match=r"'observations/frame' is compressed: give decode=True"):
        dataset.sql('select "observations/frame/3/3" from steps')
    result = rows(
        dataset, 'select episode, max("observations/frame/3/3") as f from steps group by 1 order by 1', decode=True
    )
    assert result == [{"episode": i, "f": i} for i in range(12) if i % 5]


def test_sql_names_ignore_case_unless_ambiguous(tmp_path: Path) -> None:
    first = SingleAgentEpisode.from_arrays(
        {"Cam.x": np.arange(6.0).reshape(3, 2)},
        np.arange(2),
        np.ones(2),
        extra_model_outputs={"V": np.array([[1, 2], [3, 4]]), "v": np.array([5, 6])},
        custom_data={"Who": "me", "who": "you"},
    )
    with EpisodeWriter(tmp_path) as writer:
        writer.add([first])
    dataset = EpisodeDataset(tmp_path)
    columns = {
        "observations/Cam.x/1": [1.0, 3.0],
        "Next_Observations/cam.X/0": [2.0, 4.0],
        "extra_model_outputs/V/1": [2, 4],
        "extra_model_outputs/V": [[1, 2], [3, 4]],
        "extra_model_outputs/v": [5, 6],
    }
    for name, values in columns.items():
        assert dataset.sql(f'select "{name}" from steps').table.column(0).to_pylist() == values
    assert [*dataset.sql('select "custom_data/who" from episodes').table.column(0).to_pylist()] == ["you"]
    assert len(rows(dataset, "select * from steps")[0]) == 6 + 2 + 2 + 2
    for both in ('"extra_model_outputs/V", "extra_model_outputs/v" from steps', '"custom_data/WHO" from episodes'):
        with pytest.raises(InvalidArgument, match="are one name to SQL"):
            dataset.sql(f"select {both}")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("selec 1", "syntax error"),
        ("select nothing from steps", "columns: step, episode, t, .*infos/word"),
        ('select "observations/at/9" from steps', r"items of 'observations/at' have shape \[4\]"),
        ("select * from elsewhere", "tables: steps, episodes"),
        ("select 1; select 2", "2 statements; give one SELECT"),
        ("copy (select 1) to 'file'", "Only SELECT"),
        ("from '/etc/hostname'", "tables: steps, episodes"),
        ("select * from local_table", "local_table"),
    ],
)
def test_wrong_query_lists_columns(tmp_path: Path, query: str, message: str) -> None:
    local_table = pa.table({"secret": [1]})
    with pytest.raises(InvalidArgument, match=message):
        made(tmp_path).sql(query)
    assert local_table.num_rows == 1


OF_SYSTEM = {
    "duckdb_settings()": "function 'duckdb_settings'",
    "system.main.DuckDB_Settings()": "function 'duckdb_settings'",
    "duckdb_tables": "table 'duckdb_tables'",
    "SQLite_Master": "table 'SQLite_Master'",
    "pg_catalog.pg_settings": "table 'pg_catalog.pg_settings'",
    "pg_tables": "table 'pg_tables'",
    "information_schema.tables": "table 'information_schema.tables'",
    "pragma_database_size()": "function 'pragma_database_size'",
    "duckdb_secrets()": "function 'duckdb_secrets'",
    "duckdb_logs": "table 'duckdb_logs'",
    "read_csv('/etc/passwd')": "function 'read_csv'",
    "read_text('/etc/hostname')": "function 'read_text'",
    "glob('/*')": "function 'glob'",
    "query('from duckdb_settings()')": "function 'query'",
    "query_table('duckdb_settings')": "function 'query_table'",
    "json_execute_serialized_sql('')": "function 'json_execute_serialized_sql'",
    "pandas_scan(1)": "function 'pandas_scan'",
    "(select current_setting('temp_directory'))": "function 'current_setting'",
    "(select 'temp_directory'.current_setting())": "function 'current_setting'",
    "(select main.current_setting('temp_directory'))": "function 'current_setting'",
    "(select getenv('HOME'))": "function 'getenv'",
    "(show databases)": "list of databases",
    "(describe duckdb_tables)": "table 'duckdb_tables'",
}
FORMS = [
    "select * from {}",
    "with steps as (from {}) select * from steps",
    "with duckdb_tables as (select 1), pg_tables as (select 1) select * from (from {})",
    "select * from steps where exists (select * from {})",
    "select t, (select count(*) from {}) from steps union all select 1, 2",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> EpisodeDataset:
    return made(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("source", OF_SYSTEM)
def test_query_reads_nothing_of_the_system(small: EpisodeDataset, source: str, form: str) -> None:
    refused = f"the (table )?{OF_SYSTEM[source]} is of the database system; tables:"
    with pytest.raises(InvalidArgument, match=f"{refused}|syntax error"):  # DuckDB 1.2 does not know each form
        small.sql(form.format(source))


@pytest.mark.parametrize(
    "statement",
    [
        "pragma version",
        "set temp_directory='x'",
        "attach 'x.db'",
        "call pragma_version()",
        "install httpfs",
        "load 'x'",
    ],
)
def test_statement_that_is_no_select_is_rejected(small: EpisodeDataset, statement: str) -> None:
    with pytest.raises(InvalidArgument, match="give a SELECT over steps and episodes"):
        small.sql(statement)


def test_queries_may_compute_tables_of_their_own(small: EpisodeDataset) -> None:
    query = "with recursive a as (select 1 x union all select x + 1 from a where x < 3) select x, y, z from a, "
    computed = rows(small, f"{query} unnest([4, 5]) b(y), range(2) c(z)")
    assert sorted(tuple(row.values()) for row in computed) == [
        (x, y, z) for x in (1, 2, 3) for y in (4, 5) for z in (0, 1)
    ]
    assert "actions" in {row["column_name"] for row in rows(small, "select * from (describe steps)")}


# --- selections -------------------------------------------------------------------------------------------------------


def test_selection_has_episodes_and_windows(tmp_path: Path) -> None:
    dataset = made(tmp_path)
    result = dataset.sql("select step from steps where rewards > 2.5")
    hits = [(i, t) for i in range(12) for t in range(i % 5) if t + i / 8 > 2.5]
    assert list(zip(result.numbers.tolist(), result.t.tolist(), strict=True)) == hits
    assert [first.id_ for first in result.episodes] == [f"e{i}" for i in dict(hits)]
    windows = result.windows(1, 2)
    for window, (i, t) in zip(windows, hits, strict=True):
        assert window.equals(episode(i).to_numpy()[max(t - 1, 0) : t + 3])
    assert dataset.sql("select episode, t from steps where rewards > 2.5").steps.tolist() == result.steps.tolist()
    assert len(dataset.sql("select episode from episodes where length = 4").episodes) == 2
    with pytest.raises(InvalidArgument, match="is of episodes: let it select step"):
        dataset.sql("select episode from episodes").windows(1)
    with pytest.raises(InvalidArgument, match="of no steps or episodes"):
        dataset.sql("select count(*) as n from steps").episodes  # noqa: B018
    with pytest.raises(InvalidArgument, match="'step' has not the numbers of steps"):
        dataset.sql("select 1.5 as step").steps  # noqa: B018
    with pytest.raises(InvalidArgument, match="steps that their episodes do not have"):
        dataset.sql("select 0 as episode, 3 as t").steps  # noqa: B018


def test_loaded_selection_finds_steps_and_lists_changes(tmp_path: Path) -> None:
    dataset, file = made(tmp_path / "data"), tmp_path / "found.json"
    result = dataset.sql("select step from steps where rewards > 2.5")
    result.save(file)
    repeated = EpisodeDataset(tmp_path / "data").load_selection(file)
    assert (repeated.query, repeated.changes) == (result.query, [])
    assert repeated.steps.tolist() == result.steps.tolist()
    made(tmp_path / "data", 3, first=12)
    compact(tmp_path / "data")
    later = EpisodeDataset(tmp_path / "data")[::-1]
    repeated = later.load_selection(file)
    assert sorted(first.id_ for first in repeated.episodes) == sorted(first.id_ for first in result.episodes)
    assert [w.get_rewards(0) for w in repeated.windows()] == [w.get_rewards(0) for w in result.windows()]
    assert sum(int(change.split(" has ")[1].split()[0]) for change in repeated.changes) == 3
    assert all(change.endswith("episodes that the query did not see") for change in repeated.changes)
    few = later.select(later.metadata["id"] == "e4").load_selection(file)
    assert len(few) == 1
    assert f"{len(result) - 1} of {len(result)} hits are in episodes that are gone, or not in this view" in few.changes
    file.write_text(file.read_text().replace("rewards", "actions"))
    with pytest.raises(UnreadableData, match="not as it was written"):
        later.load_selection(file)


def test_loaded_selection_names_lost_shards(tmp_path: Path) -> None:
    made(tmp_path / "data", per_flush=100)
    dataset = made(tmp_path / "data", 5, per_flush=100, first=12)
    dataset.sql("select step from steps where episode >= 12").save(tmp_path / "found")
    files = sorted((tmp_path / "data").glob("*.arrow"))
    num_new = len({*dataset.metadata["shard"][12:]})
    for file in files[-num_new:]:
        file.unlink()
    with pytest.warns(UserWarning, match="is lost"):
        left = EpisodeDataset(tmp_path / "data").load_selection(tmp_path / "found")
    assert len(left) == 0
    assert sum(" is gone, " in change for change in left.changes) == num_new


# --- the table of episodes --------------------------------------------------------------------------------------------


def test_metadata_converts_to_arrow_pandas_polars(tmp_path: Path) -> None:
    dataset = made(tmp_path, per_flush=100)
    table = dataset.metadata.to_arrow()
    assert table.column("episode").to_pylist() == list(range(12))
    assert table.column("custom_data/level").to_pylist() == [i / 2 for i in range(12)]
    assert table.column("lookback").to_pylist() == [0] * 12
    assert pa.table(dataset.metadata).equals(table)
    shards = {file.stem for file in tmp_path.glob("*.arrow")}
    assert set(table.column("shard").to_pylist()) == shards
    assert set(table.column("writer").to_pylist()) == {shard.rpartition("-")[0] for shard in shards}
    pandas = dataset[::-1].metadata.to_pandas()
    assert pandas["id"].tolist() == [f"e{i}" for i in reversed(range(12))]
    as_polars = dataset.metadata.to_polars()
    assert as_polars.to_arrow().cast(table.schema).to_pylist() == table.to_pylist()
    assert as_polars.filter(polars.col("custom_data/level") > 4.5)["id"].to_list() == ["e10", "e11"]
    assert polars.DataFrame(dataset.metadata)["length"].to_list() == [i % 5 for i in range(12)]
    assert list(dataset.metadata) == table.column_names
    with pytest.raises(UnknownKey, match=r"no column 'x'; there are id, "):
        dataset.metadata["x"]


def test_selection_converts_to_arrow_pandas_polars(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data")
    result = dataset.sql('select step, t, rewards, "observations/at", "infos/word" from steps where rewards > 1')
    table = pa.table(result)
    assert table.equals(result.table)
    assert table.num_rows
    assert result.to_pandas()["rewards"].tolist() == table["rewards"].to_pylist()
    for frame in (result.to_polars(), polars.DataFrame(result)):
        assert frame["infos/word"].to_list() == table["infos/word"].to_pylist()
        assert frame.columns == table.column_names
    result.save(tmp_path / "found")
    loaded = dataset.load_selection(tmp_path / "found")
    with pytest.raises(EpisodeStateError, match="ask again"):
        loaded.to_polars()


def test_custom_data_of_one_kind_are_columns(tmp_path: Path) -> None:
    facts = [
        {"a": 1, "b": "x", "c": True, "d": [1], "e": 1 << 70, "f": np.float32(0.5)},
        {},
        {"a": 2.5, "b": 3, "f": math.nan},
    ]
    with EpisodeWriter(tmp_path) as writer:
        for i, custom in enumerate(facts):
            writer.add([episode(i, custom_data=custom)])
    table = EpisodeDataset(tmp_path).metadata.to_arrow()
    result = {name: table.column(name).to_pylist() for name in table.column_names if name.startswith("custom_data/")}
    assert result["custom_data/a"] == [1, None, 2.5]
    assert result["custom_data/c"] == [True, None, None]
    assert result["custom_data/f"][:2] == [0.5, None]
    assert result.keys() == {"custom_data/a", "custom_data/c", "custom_data/f"}


# --- splits -----------------------------------------------------------------------------------------------------------


def test_splits_assign_later_episodes_too(tmp_path: Path) -> None:
    dataset = made(tmp_path, 400, per_flush=100)
    dataset.add_splits({"train": 0.75, "test": 0.25}, seed=3)
    assert dataset.splits == ["train", "test"]
    train, test = (set(dataset.split(name).metadata["id"]) for name in ("train", "test"))
    assert not train & test
    assert train | test == set(dataset.metadata["id"])
    assert 60 < len(test) < 140
    made(tmp_path, 40, first=400)
    repeated = EpisodeDataset(tmp_path)
    assert set(repeated[:400].split("test").metadata["id"]) == test
    assert 4 < len(repeated[400:].split("test")) < 20
    assert [*repeated[5:9].split("train").metadata["id"]] == [
        id_ for id_ in repeated[5:9].metadata["id"] if id_ in train
    ]
    repeated.add_splits({"few": ["e3", "e5"]})
    assert set(repeated.split("few").metadata["id"]) == {"e3", "e5"}
    assert repeated.splits == ["train", "test", "few"]
    with pytest.raises(UnknownKey, match="no split 'valid'; there are: train, test, few"):
        repeated.split("valid")
    wrongs: list[Any] = [{"a": 0.7, "b": 0.4}, {"a": 0.0}, {}, {"": 0.5}, {3: 0.5}, {"one": "e3"}, {"none": None}]
    for wrong in wrongs:
        with pytest.raises(InvalidArgument):
            repeated.add_splits(wrong)
    repeated.add_splits({"half": np.float32(0.5)})
    assert 0 < len(repeated.split("half")) < len(repeated)


def test_damaged_splits_raise_and_are_repaired(tmp_path: Path) -> None:
    made(tmp_path).add_splits({"train": 0.5})
    file = tmp_path / "splits.json"
    file.write_text(file.read_text().replace("0.5", "0.6"))
    with pytest.raises(UnreadableData, match=r"splits\.json is not as it was written"):
        EpisodeDataset(tmp_path, verify=True)
    (problem,) = check(tmp_path).problems
    assert "splits.json is not as it was written" in problem
    assert check(tmp_path, repair=True).repaired == [f"{file}: kept as *.damaged"]
    assert check(tmp_path).problems == []
    assert EpisodeDataset(tmp_path, verify=True).splits == []


def test_split_keeps_chunks_and_agents_together(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        for i in range(60):
            agents = [{"agent_id": name, "multi_agent_episode_id": f"m{i}"} for name in "ab"]
            writer.add([episode(2 * i + k, 2, **text) for k, text in enumerate(agents)])
    dataset = EpisodeDataset(tmp_path)
    dataset.add_splits({"train": 0.5, "test": 0.5})
    parts = [set(dataset.split(name).metadata["multi_agent_episode_id"]) for name in ("train", "test")]
    assert not parts[0] & parts[1]
    assert all(parts)
