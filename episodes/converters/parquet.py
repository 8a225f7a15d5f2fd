"""Export of episodes to tables with one row per step: Parquet files, pandas and Hugging Face `datasets`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from episodes.converters.bounded_packs import Given, packs_of
from episodes.converters.contents import Contents
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.loss_report import LossReport
from episodes.converters.parquet_files import files_of, groups_of, new_parts, schema_of
from episodes.converters.source_ids import prefixed
from episodes.converters.step_tables import (
    OTHER,
    are_whole_chunks,
    has_description,
    pack_of,
    read_description,
    restored,
    table_of,
    unknown_columns,
)
from episodes.errors import InvalidArgument, UnreadableData, needing
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.arrow import as_unreadable_data, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa


def to_parquet(episodes: Given, path: str | Path, *, strict: bool = False) -> LossReport:
    """Write episodes to a new directory of Parquet files with one row per step, and return a report of what was lost.

    Tables that pandas, polars, DuckDB or `datasets` read and wrote again can be read too: the column `other` has a
    description of all columns on its first row.

    Columns: episode_id, t, terminated, truncated, one per array by its path (`observations/camera`; items with a shape
    are lists), `last_observations` on the last row of each chunk, `infos/KEY`. pandas, polars, DuckDB and
    `datasets.load_dataset("parquet", data_dir=PATH)` can read them. Actions are those that were sent to the
    environment. Infos or tracks of another schema start another file. An iterator of episodes is not collected in
    memory. Episodes of several agents become one episode per agent.

    Args:
        episodes: the episodes.
        path: the new directory.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: pyarrow is not installed.
        InvalidArgument: the path exists.
        WrongType: a track of complex numbers or another unsupported dtype.
        LostInConversion: with `strict`, something would be lost. Nothing is left behind.
    """
    report = LossReport()
    with new_parts(path) as parts:
        for table in _tables(episodes, report, strict):
            parts.write(table)
    return report


def _tables(episodes: Given, report: LossReport, strict: bool = False) -> Iterator[Any]:
    """Yield one Arrow table per pack of episodes. Packs without a step have none."""
    for pack in packs_of(episodes):
        table = table_of(pack, report)
        report.check(strict)
        if table is not None:
            yield table


def from_parquet(path: str | Path, *, prefix: str | None = None) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Return the episodes in a directory that `to_parquet` wrote, and a report of columns that others added.

    The rows may have another order, since the columns episode_id and t say to which step each one belongs.

    Args:
        path: a directory or a file.
        prefix: first part of the ids, "PREFIX/ID". None: the stored ids.

    Raises:
        MissingExtra: pyarrow is not installed.
        UnreadableData: Parquet that `to_parquet` did not write, or rows are missing.
    """
    report = LossReport()
    return list(parquet_episodes(path, report, prefix)), report


def parquet_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes in a directory that `to_parquet` wrote.

    Raises:
        UnreadableData: there are no Parquet files, one is damaged, or rows are missing.
    """
    for file in files_of(path):
        schema = schema_of(file)
        if not has_description(schema):
            read_description(schema, str(file))  # raises
        is_first = True
        for table in _whole_tables(file):
            with as_unreadable_data(str(file)):
                table = restored(table, groups_of(file, [OTHER]) if OTHER in schema.names else [])
                unknown = unknown_columns(table.schema, str(file)) if is_first else []
                pack = pack_of(table, str(file))
            for name in unknown:
                report.add(name, "to_parquet did not write it", file.name)
            is_first = False
            for episode in pack:
                yield prefixed(episode, prefix)


def episodes_of_table(table: pa.Table, report: LossReport, prefix: str | None = None) -> list[SingleAgentEpisode]:
    """Return the episodes of an Arrow table of `to_parquet` or `to_pandas`, also after another library had it."""
    table = restored(table, [table])
    for name in unknown_columns(table.schema, "table"):
        report.add(name, "to_parquet did not write it", "table")
    return [prefixed(episode, prefix) for episode in pack_of(_sorted_whole(table, "table"), "table")]


def _whole_tables(file: Path) -> Iterator[Any]:
    """Yield tables of whole chunks from a Parquet file: its row groups, or all rows sorted if they have another order.

    The columns episode_id, t and is_last are read first.
    """
    keys = ["episode_id", "t", "is_last"]
    with as_unreadable_data(str(file)):
        are_whole = all(are_whole_chunks(table) for table in groups_of(file, keys))
    if are_whole:
        yield from groups_of(file)
        return
    with as_unreadable_data(str(file)):
        table = pyarrow().concat_tables(groups_of(file))
    yield _sorted_whole(table, str(file))


def _sorted_whole(table: pa.Table, source: str) -> Any:
    """Return a table with the rows of each chunk together and in order. Raise `UnreadableData` if rows are missing."""
    with as_unreadable_data(source):
        if not are_whole_chunks(table):
            table = table.sort_by([("episode_id", "ascending"), ("t", "ascending")])
        is_complete = are_whole_chunks(table)
    if not is_complete:
        raise UnreadableData(f"{source}: rows are missing or repeated, by the columns episode_id, t, is_last")
    return table


def to_pandas(episodes: Given, *, strict: bool = False) -> tuple[Any, LossReport]:
    """Convert episodes to a `DataFrame` with one row per step and the columns of `to_parquet`.

    Returns it with a report of what was lost.

    Args:
        episodes: the episodes.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: pandas or pyarrow is not installed.
        InvalidArgument: no episode has a step.
        LostInConversion: with `strict`, something would be lost.
    """
    with needing("pandas", "a DataFrame needs pandas"):
        import pandas  # noqa: F401
    report = LossReport()
    return _whole(episodes, report, strict, "to_pandas").to_pandas(), report


def to_huggingface(episodes: Given, *, strict: bool = False) -> tuple[Any, LossReport]:
    """Convert episodes to a `datasets.Dataset` with one row per step and the columns of `to_parquet`.

    Returns it with a report of what was lost.

    The data set is held in memory. For larger data use `to_parquet` and `datasets.load_dataset("parquet",
    data_dir=PATH)`.

    Args:
        episodes: the episodes.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: datasets is not installed.
        InvalidArgument: no episode has a step.
        LostInConversion: with `strict`, something would be lost.
    """
    with needing("huggingface", "a Dataset of Hugging Face needs datasets"):
        from datasets import Dataset
        from datasets.table import InMemoryTable
    report = LossReport()
    table = _whole(episodes, report, strict, "to_huggingface").replace_schema_metadata(None)
    return Dataset(InMemoryTable(table)), report


def _whole(episodes: Given, report: LossReport, strict: bool, name: str) -> Any:
    """Return all episodes as one Arrow table. Raise `InvalidArgument` if there is no step.

    Args:
        name: name of the calling function, for the error.
    """
    tables = list(_tables(episodes, report, strict))
    if not tables:
        raise InvalidArgument(f"{name}: no episodes with a step were given")
    return pyarrow().concat_tables(tables, promote_options="permissive")


def _recognize(contents: Contents) -> Recognition:
    schema = contents.schema
    if schema is None:
        return OTHER_KIND
    return YES if has_description(schema) else Recognition(False, "not written by to_parquet")


def _count(contents: Contents) -> int:
    return sum(
        int(table["is_last"].to_numpy().sum()) for f in files_of(contents.path) for table in groups_of(f, ["is_last"])
    )


FORMAT = Format("parquet", "tables of this library", _recognize, parquet_episodes, to_parquet, count=_count)
