"""Tables that this library wrote, read again after another library had them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from episodes import SingleAgentEpisode
from episodes.converters import from_table, read, to_huggingface, to_pandas, to_parquet
from episodes.errors import UnreadableData


def made() -> list[SingleAgentEpisode]:
    space = spaces.Dict(cam=spaces.Box(0, 255, (2, 2, 3), np.uint8), p=spaces.Box(-9, 9, (), np.float32))
    episodes = []
    for k, n in enumerate((3, 1, 2)):
        seen = {"cam": np.arange((n + 1) * 12, dtype=np.uint8).reshape(n + 1, 2, 2, 3)}
        seen["p"] = np.where(np.arange(n + 1) == n - k, np.nan, 0.5).astype(np.float32)
        infos = [{"a": t, "s": "x", "b": t > 1, "f": 0.5} if t % 2 else {} for t in range(n + 1)]
        facts = {"infos": infos, "terminated": k == 0, "truncated": k == 1, "policy_versions": 7 if k else None}
        facts |= {"observation_space": space, "action_space": spaces.Discrete(9), "custom_data": {"seed": k}}
        facts["extra_model_outputs"] = {"logits": np.full((n, 2), 0.25, np.float32)}
        episodes.append(
            SingleAgentEpisode.from_arrays(seen, np.arange(n), np.ones(n, np.float32), id_=f"e{k}", **facts)
        )
    return episodes


def pandas_file(file: Path, folder: Path) -> Any:
    import pandas

    pandas.read_parquet(file).to_parquet(folder / "again")
    return folder / "again"


def polars_file(file: Path, folder: Path) -> Any:
    import polars

    polars.read_parquet(file).write_parquet(folder / "again")
    return folder / "again"


def duckdb_file(file: Path, folder: Path) -> Any:
    import duckdb

    duckdb.connect().sql(f"copy (select * from '{file}') to '{folder}/again' (format parquet)")
    return folder / "again"


def datasets_file(file: Path, folder: Path) -> Any:
    to_huggingface(made())[0].to_parquet(str(folder / "again"))
    return folder / "again"


def polars_frame(file: Path, folder: Path) -> Any:
    import polars

    return polars.read_parquet(file)


def duckdb_relation(file: Path, folder: Path) -> Any:
    import duckdb

    return duckdb.connect().from_parquet(str(file))


WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "pandas file": pandas_file,
    "polars file": polars_file,
    "duckdb file": duckdb_file,
    "datasets file": datasets_file,
    "pandas": lambda file, folder: to_pandas(made())[0],
    "polars": polars_frame,
    "duckdb": duckdb_relation,
    "datasets": lambda file, folder: to_huggingface(made())[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_own_table_is_equal_after_another_library_had_it(way: str, tmp_path: Path) -> None:
    to_parquet(made(), tmp_path / "x")
    (file,) = (tmp_path / "x").iterdir()
    source = WAYS[way](file, tmp_path)
    if isinstance(source, Path):
        stream, report = read(source)
        episodes = list(stream)
    else:
        episodes, report = from_table(source)
    assert not report
    assert [a.equals(b) for a, b in zip(episodes, made(), strict=True)] == [True] * 3
    assert episodes[0].observation_space == made()[0].observation_space


def test_own_frame_with_other_rows_is_restored_or_an_error() -> None:
    frame, _ = to_pandas(made())
    shuffled, _ = from_table(frame.sample(frac=1, random_state=0))
    assert sorted(episode.id_ for episode in shuffled) == ["e0", "e1", "e2"]
    assert [len(episode) for episode in from_table(frame[frame.episode_id != "e1"])[0]] == [3, 2]
    with pytest.raises(UnreadableData, match="has no description of the table, which is on its first row; keep all"):
        from_table(frame[frame.episode_id != "e0"])
    with pytest.raises(UnreadableData, match="rows are missing"):
        from_table(frame.drop(index=1))
    with pytest.raises(UnreadableData, match="the column 'actions' is missing"):
        from_table(frame.drop(columns="actions"))
