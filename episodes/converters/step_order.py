"""Tables with one row per step, read so that the rows of an episode are together and in the order of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.parquet_files import groups_of, schema_of
from episodes.errors import UnreadableData
from episodes.storage.arrow import as_unreadable_data, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa


def tables_in_order(files: Sequence[Path], columns: Sequence[str], id_: str, time: str | None) -> Iterator[Any]:
    """Yield Arrow tables of whole episodes from Parquet files with one row per step.

    The columns `id_` and `time` are read first. If the rows of each episode are together and in the order of time, one
    row group is in memory at a time, with the earlier rows of its first episode. Otherwise all rows are read, and
    sorted.

    Args:
        files: the files, all with these columns.
        columns: names of the columns to read.
        id_: name of the column with the episode of each row.
        time: name of the column with the time of each row in its episode. None: rows are in the order of time.

    Raises:
        UnreadableData: a row has no id or time, or an episode has two rows of one time.
    """
    yield from groups_in_order(lambda names: _groups(files, names), columns, id_, time, files[0].parent)


def groups_in_order(
    groups: Callable[[list[str]], Iterator[Any]],
    columns: Sequence[str],
    id_: str,
    time: str | None,
    where: object,
    remedy: str = "give each step one row, and each episode an id of its own",
) -> Iterator[Any]:
    """Yield Arrow tables of whole episodes from parts of a table, as `tables_in_order` does from files.

    Args:
        groups: function from names of columns to parts of the table, which is called twice.
        columns, id_, time: as in `tables_in_order`.
        where: name of the source, for errors.
        remedy: what to do about two rows of one time, for errors.
    """
    pa = pyarrow()
    if not is_in_order(groups, id_, time, where):
        with as_unreadable_data(str(where)):
            keys = pa.concat_tables(groups([id_] if time is None else [id_, time]), promote_options="permissive")
        order = _order_of(keys, id_, time, where, remedy)
        with as_unreadable_data(str(where)):
            whole = pa.concat_tables(groups(list(columns)), promote_options="permissive").take(pa.array(order))
        yield whole.combine_chunks()
        return
    waiting: list[Any] = []  # parts of the last episode, which may continue

    def joined(parts: list[Any]) -> Any:
        with as_unreadable_data(str(where)):
            return pa.concat_tables(parts, promote_options="permissive")

    for group in groups(list(columns)):
        if not len(group):
            continue
        codes = codes_of(group[id_])
        stop = int(np.argmax(codes == codes[-1]))
        if waiting and (stop or waiting[-1][id_][-1].as_py() != group[id_][0].as_py()):
            yield joined([*waiting, group.slice(0, stop)])
            waiting = []
        elif stop:
            yield group.slice(0, stop)
        waiting.append(group.slice(stop))
    if waiting:
        yield joined(waiting)


def is_in_order(groups: Callable[[list[str]], Iterator[Any]], id_: str, time: str | None, where: object) -> bool:
    """Return True if the rows of each episode are together, and their times increase.

    Args:
        groups, id_, time, where: as in `groups_in_order`. `groups` is called once.
    """
    known: set[Any] = set()
    last_id = last_time = None
    for group in groups([id_] if time is None else [id_, time]):
        if not len(group):
            continue
        if group[id_].null_count:
            return False
        with as_unreadable_data(f"{where}: column {id_!r}"):
            codes = codes_of(group[id_])
        begins = np.flatnonzero(np.diff(codes, prepend=-1))
        ids = group[id_].take(begins).to_pylist()
        goes_on = last_id is not None and ids[0] == last_id
        fresh = ids[goes_on:]
        known_before = len(known)
        known.update(fresh)
        if len(known) != known_before + len(fresh):
            return False
        last_id = ids[-1]
        if time is None:
            continue
        times = np.asarray(group[time].to_numpy())
        if group[time].null_count or times.dtype.kind not in "iufM":
            return False
        increases = np.diff(times) > np.zeros(1, np.diff(times).dtype)
        increases[begins[1:] - 1] = True
        if not increases.all() or (goes_on and not times[0] > last_time):
            return False
        last_time = times[-1]
    return True


def _groups(files: Sequence[Path], columns: Sequence[str]) -> Iterator[Any]:
    """Yield the row groups of all files as Arrow tables with these columns."""
    for file in files:
        if missing := set(columns) - set(schema_of(file).names):
            raise UnreadableData(f"{file}: it has no columns {sorted(missing)}, which other files have")
        yield from groups_of(file, list(columns))


def _order_of(keys: pa.Table, id_: str, time: str | None, where: object, remedy: str) -> np.ndarray:
    """Return the rows sorted by episode and time, int [N].

    Episodes are in the order of their first rows.
    """
    for name in keys.column_names:
        if keys[name].null_count:
            raise UnreadableData(f"{where}: {keys[name].null_count} rows have no {name!r}; give all rows one")
    codes = codes_of(keys[id_])
    times = None if time is None else np.asarray(keys[time].to_numpy())
    if times is not None and times.dtype.kind not in "iufM":
        raise UnreadableData(f"{where}: {time!r} holds {keys[time].type} values; times are numbers or dates")
    order = np.argsort(codes, kind="stable") if times is None else np.lexsort((times, codes))
    if times is not None:
        twice = np.flatnonzero((np.diff(codes[order]) == 0) & (np.diff(times[order]) == 0))
        if len(twice):
            row = int(order[twice[0]])
            raise UnreadableData(f"{where}: episode {keys[id_][row]} has two rows with {time!r} {times[row]}; {remedy}")
    return order


def codes_of(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a number for each value of an Arrow column, int [N]. Equal values have equal numbers, in first order."""
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    return column.dictionary_encode().indices.to_numpy(zero_copy_only=False)


def times_of(column: pa.Array | pa.ChunkedArray, name: str, where: object) -> np.ndarray:
    """Return a column of times as int64 [N]. Raise `UnreadableData` if they are not whole numbers."""
    times = np.asarray(column.to_numpy())
    if times.dtype.kind not in "iuf" or not np.array_equal(times, whole := times.astype(np.int64)):
        raise UnreadableData(f"{where}: {name!r} holds {times.dtype} values; times of steps are whole numbers")
    return whole
