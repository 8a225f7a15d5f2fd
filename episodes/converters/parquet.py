"""Parquet with a row for each step, and such tables in memory: for pandas and for `datasets` of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from episodes.converters.bounded_packs import Given, packs_of
from episodes.converters.loss_report import LossReport
from episodes.converters.parquet_files import files_of, groups_of, new_parts
from episodes.converters.step_tables import pack_of, table_of
from episodes.errors import InvalidArgument, needing
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.arrow import pyarrow, reading


def to_parquet(episodes: Given, path: str | Path, *, strict: bool = False) -> LossReport:
    """Write a new directory of Parquet files with a row for each step; gives what was lost.

    Columns: episode_id, t, terminated, truncated, a column for each array by its path (`observations/camera`, lists
    where items have a shape), `last_observations` on the last row of a chunk alone, `infos/KEY`. pandas, polars, DuckDB
    and `datasets.load_dataset("parquet", data_dir=PATH)` read them. Infos or tracks of another kind begin another file.
    An iterator of episodes is never held whole. Several agents' episodes go as the agents' own, with their clocks.

    Raises:
        MissingExtra: without pyarrow.
        InvalidArgument: there is something at the path.
        WrongType: a track of complex numbers or the like.
        LostInConversion: with `strict`, when something would be lost; nothing is left behind.
    """
    report = LossReport()
    with new_parts(path) as parts:
        for table in _tables(episodes, report, strict):
            parts.write(table)
    return report


def _tables(episodes: Given, report: LossReport, strict: bool = False) -> Iterator[Any]:
    for pack in packs_of(episodes):
        table = table_of(pack, report)
        report.check(strict)
        if table is not None:
            yield table


def from_parquet(path: str | Path) -> tuple[list[SingleAgentEpisode], LossReport]:
    """The episodes that `to_parquet` wrote, and what was lost: nothing.

    Raises:
        MissingExtra: without pyarrow.
        UnreadableData: Parquet of something else.
    """
    report = LossReport()
    return list(parquet_episodes(path, report)), report


def parquet_episodes(path: str | Path, report: LossReport) -> Iterator[SingleAgentEpisode]:
    """The episodes that `to_parquet` wrote one after another."""
    for file in files_of(path):
        for table in groups_of(file):
            with reading(str(file)):
                pack = pack_of(table, str(file))
            yield from pack


def to_pandas(episodes: Given, *, strict: bool = False) -> tuple[Any, LossReport]:
    """A `DataFrame` with a row for each step, in the columns of `to_parquet`, and what was lost.

    Raises:
        MissingExtra: without pandas or pyarrow.
        InvalidArgument: no episodes with a step.
        LostInConversion: with `strict`, when something would be lost.
    """
    with needing("pandas", "a DataFrame needs pandas"):
        import pandas  # noqa: F401
    report = LossReport()
    return _whole(episodes, report, strict, "to_pandas").to_pandas(), report


def to_huggingface(episodes: Given, *, strict: bool = False) -> tuple[Any, LossReport]:
    """A `datasets.Dataset` with a row for each step, in the columns of `to_parquet`, and what was lost.

    It is held in memory. What is larger, `to_parquet` writes, and `datasets.load_dataset("parquet", data_dir=PATH)`
    reads.

    Raises:
        MissingExtra: without datasets.
        InvalidArgument: no episodes with a step.
        LostInConversion: with `strict`, when something would be lost.
    """
    with needing("huggingface", "a Dataset of Hugging Face needs datasets"):
        from datasets import Dataset
        from datasets.table import InMemoryTable
    report = LossReport()
    table = _whole(episodes, report, strict, "to_huggingface").replace_schema_metadata(None)
    return Dataset(InMemoryTable(table)), report


def _whole(episodes: Given, report: LossReport, strict: bool, name: str) -> Any:
    tables = list(_tables(episodes, report, strict))
    if not tables:
        raise InvalidArgument(f"{name}: no episodes with a step were given")
    return pyarrow().concat_tables(tables, promote_options="permissive")
