"""Import of tables with one row per step and columns of any names: frames in memory, CSV, lines of JSON, Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.accounting import check_numbers
from episodes.converters.columns import array_of
from episodes.converters.contents import TABLES, Contents
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.loss_report import LossReport
from episodes.converters.parquet import episodes_of_table
from episodes.converters.source_ids import prefix_of_files, prefix_of_values
from episodes.converters.step_order import codes_of, groups_in_order, is_in_order
from episodes.converters.step_tables import has_description
from episodes.converters.table_columns import (
    BOTH_ENDINGS,
    OPTIONS,
    Choice,
    Named,
    TableColumns,
    choose_columns,
    names_in,
)
from episodes.converters.table_files import Groups, table_of_file, without_views
from episodes.converters.transitions import find_links, without_next
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument, UnreadableData, WrongType
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.arrow import as_unreadable_data, pyarrow
from episodes.tracks import nested

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBER = "__number__"  # column of numbers of episodes, for tables without a column of episodes


def from_table(
    frame: Any,
    *,
    episode: str | None = None,
    t: str | None = None,
    observation: Choice | None = None,
    action: Choice | None = None,
    reward: str | None = None,
    terminated: str | None = None,
    truncated: str | None = None,
    next_observation: Choice | None = None,
    prefix: str | None = None,
    strict: bool = False,
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Return the episodes of a table with one row per step, and a report of what was lost or assumed.

    A table that `to_parquet`, `to_pandas` or `to_huggingface` made is restored if no column is named. Otherwise,
    columns that are not named are recognized by usual names, such as "obs" or "done". All other columns become infos of
    the observation of their row. Rows are sorted by `episode` and `t`.

    A row has an observation and the action that follows it. If the last row of an episode has no action, its
    observation is the last one of the episode. Otherwise, and without `next_observation`, the last observation is
    unknown: a terminated episode repeats its last observation, and any other episode loses its last step.

    If `t` counts steps, a missing time cuts an episode. Other times, such as seconds, become infos, and the report says
    if they are irregular. Missing observations and rewards become NaN, and the report counts them.

    Args:
        frame: a frame of pandas or polars, a table of Arrow, a relation of DuckDB, a `datasets.Dataset`, or any object
            with `__arrow_c_stream__`; or a dict of columns.
        episode: the column with the episode of each row. Without one, an episode ends at each flag.
        t: the column with the time of each row in its episode. Without one, rows are in order.
        observation: a column, or several that are stacked: "x,y", "obs_*", a list; or a dict of these.
        action: the same for actions.
        reward: the column of rewards. Without one, they are 0.
        terminated: the column of flags of terminations.
        truncated: the column of flags of truncations.
        next_observation: the observation after the step, like `observation`.
        prefix: first part of the ids, "PREFIX/EPISODE"; by default "table-DIGEST".
        strict: raise if something would be lost.

    Raises:
        MissingExtra: pyarrow is not installed.
        InvalidArgument: a column does not exist.
        UnreadableData: there is no column of observations or actions, a column is not numbers, an action is missing, or
            two rows of one episode have one time.
        LostInConversion: with `strict`, something would be lost.

    >>> from_table({"run": [1, 1, 2], "obs": [0, 1, 5], "a": [0, 1, 0], "done": [False, True, True]}, action="a")[0]
    ... # doctest: +ELLIPSIS
    [SingleAgentEpisode(table-.../1: 2 steps, return 0, terminated), SingleAgentEpisode(table-.../2: 1 step, ...)]
    """
    report, table = LossReport(), _as_arrow(frame)
    given = {"episode": episode, "t": t, "observation": observation, "action": action, "reward": reward}
    given |= {"terminated": terminated, "truncated": truncated, "next_observation": next_observation}
    if has_description(table.schema) and all(value is None for value in given.values()):
        return episodes_of_table(table, report, prefix), report.check(strict)
    columns = choose_columns(table.column_names, "table", given)
    first = prefix if prefix is not None else prefix_of_values("table", table.slice(0, 1000).to_pydict(), prefix)
    source = _Source(columns, table.column_names, lambda names: iter([table.select(names)]), "table")
    return list(source.episodes(first, report)), report.check(strict)


def columns_of_file(path: str | Path, **given: Choice | None) -> TableColumns:
    """Return which columns of a file with a table are used, for `from_table`'s arguments `given`."""
    contents = Contents(path)
    return choose_columns(contents.names, str(contents.path), given)


def table_episodes(
    path: str | Path, report: LossReport, prefix: str | None = None, **given: Choice | None
) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of a file with a table: Parquet, Arrow, CSV or lines of JSON, in parts.

    Args:
        path: the file.
        report: gets what is lost or assumed.
        prefix: first part of the ids.
        given: columns, as in `from_table`.

    Raises:
        UnreadableData: the file is damaged, or as in `from_table`.
    """
    contents = Contents(path)
    names, groups = table_of_file(contents)
    columns = choose_columns(names, str(contents.path), given)
    first = prefix_of_files("table", [contents.path], prefix)
    yield from _Source(columns, names, groups, str(contents.path)).episodes(first, report)


class _Source:
    """Table with one row per step, in parts.

    Args:
        columns: the meaning of the columns.
        names: all columns.
        groups: function from names of columns to parts of the table with these columns.
        where: name of the table, for errors.
    """

    def __init__(self, columns: TableColumns, names: Sequence[str], groups: Groups, where: str) -> None:
        self._columns, self._groups, self._where = columns, groups, where
        self._names = [name for name in names if not name.startswith("__index_level_")]
        used = {*columns.used()} - {columns.t}
        self._infos = [name for name in self._names if name not in used]
        self._parts: Counter[Any] = Counter()
        self._number = 0
        self._with_nan = self._columns_with_nan()

    def _columns_with_nan(self) -> set[str]:
        """Return the columns of integers and bools that get NaN in a row, so that they are floats in all rows."""
        columns, types = self._columns, pyarrow().types
        observed = list(names_in(columns.observation))
        names = [*observed, *names_in(columns.reward), *names_in(columns.next_observation)]
        with_nan: set[str] = set()
        for table in self._groups(list(dict.fromkeys([*names, *names_in(columns.action)]))):
            has_action = self._rows_with_actions(table)
            for name in names:
                column = table[name]
                if column.null_count and not types.is_floating(column.type):
                    is_missing = np.asarray(column.is_null().to_numpy())
                    if (is_missing if name in observed else is_missing & has_action).any():
                        with_nan.add(name)
        return with_nan

    def episodes(self, prefix: str, report: LossReport) -> Iterator[SingleAgentEpisode]:
        """Yield the episodes, with the ids "PREFIX/EPISODE", or "PREFIX/0", "PREFIX/1" and so on."""
        columns = self._columns
        self._report_missing_columns(report)
        groups, id_, names, remedy = self._groups, columns.episode, self._names, "give each step one row"
        if id_ is None:
            remedy = "no column tells the episodes apart; name it (episode=, --episode)"
            id_, names, groups = _NUMBER, [*names, _NUMBER], self._numbered
            if columns.t is not None and not is_in_order(groups, id_, columns.t, self._where):
                groups = self._as_one
        first = 0
        for table in groups_in_order(groups, names, id_, columns.t, self._where, remedy):
            yield from self._of_rows(table, id_, prefix, first, report)
            first += len(table)

    def _numbered(self, names: list[str]) -> Iterator[Any]:
        """Yield the parts of the table with a column of the numbers of episodes, which flags and missing actions end.

        A row without an action after a flag is the last observation of the same episode.
        """
        columns, pa, number, is_over = self._columns, pyarrow(), 0, False
        own = [name for name in names if name != _NUMBER]
        flags = [name for name in (columns.terminated, columns.truncated) if name is not None]
        for table in self._groups(list(dict.fromkeys([*own, *flags, *names_in(columns.action)]))):
            has_action = self._rows_with_actions(table)
            over = ~has_action | self._flags(table, columns.terminated) | self._flags(table, columns.truncated)
            numbers = number + np.cumsum(has_action & np.concatenate([[is_over], over])[:-1])
            if len(numbers):
                number, is_over = int(numbers[-1]), bool(over[-1])
            yield table.select(own).append_column(_NUMBER, pa.array(numbers.astype(np.int64)))

    def _as_one(self, names: list[str]) -> Iterator[Any]:
        """Yield the parts of the table with the number 0 for all rows, which are sorted by time."""
        pa = pyarrow()
        for table in self._groups([name for name in names if name != _NUMBER]):
            yield table.append_column(_NUMBER, pa.array(np.zeros(len(table), np.int64)))

    def _report_missing_columns(self, report: LossReport) -> None:
        columns = self._columns
        if columns.reward is None:
            report.add("rewards", "no column has them; they are 0", self._where)
        if columns.terminated is None and columns.truncated is None:
            report.add("endings", "no column has them; all episodes are left open, as if they went on", self._where)
        elif (columns.terminated or "").lower() in BOTH_ENDINGS and columns.truncated is None:
            reason = f"{columns.terminated!r} does not tell a time limit from a termination; all are terminations"
            report.add("truncations", reason, self._where)

    def _of_rows(
        self, table: pa.Table, id_: str, prefix: str, first: int, report: LossReport
    ) -> Iterator[SingleAgentEpisode]:
        """Yield the episodes of a table of whole episodes, of which the first row is row `first` of the source."""
        columns = self._columns
        has_action = self._rows_with_actions(table)
        observations = self._array(table, columns.observation, report)
        actions = self._array(table, columns.action, report, ~has_action)
        rewards = np.zeros(len(table))
        if columns.reward is not None:
            rewards = self._array(table, columns.reward, report, ~has_action)
        flags = [self._flags(table, columns.terminated), self._flags(table, columns.truncated)]
        after, loose = None, np.zeros(len(table), bool)
        if columns.next_observation is not None:
            after = self._array(table, columns.next_observation, report, ~has_action)
            self._check_alike(observations, after)
            loose[:-1] = has_action[:-1] & ~find_links(observations, after)
        names, codes = table[id_].to_pylist(), codes_of(table[id_])
        starts = np.flatnonzero(np.diff(codes, prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(table)], strict=True):
            times = self._times(table, start, stop, report, names[start])
            cuts = self._cuts(start, stop, flags, has_action, loose, times, report, first)
            for a, b in zip([start, *cuts], [*cuts, stop], strict=True):
                num = b - a - (not has_action[b - 1])
                if not has_action[a : a + num].all():
                    row = first + a + int(np.argmin(has_action[a : a + num]))
                    raise UnreadableData(
                        f"{self._where}: row {row} has no action, and it is not the last row of its episode; fill in "
                        "the action, or drop the row"
                    )
                name = names[start] if columns.episode else self._number
                part = self._parts[name]
                self._parts[name] += 1
                self._number += 1
                episode_id = f"{prefix}/{name}" + (f"/{part}" if part else "")
                infos = self._infos_of(table.slice(a, b - a), times is None)
                made = self._arrays(a, b, num, observations, after, actions, rewards, flags, infos, report, episode_id)
                if made is not None:
                    t_started = 0 if times is None else int(times[a - start])
                    if t_started and not part:
                        report.add("the first steps", "the times of its rows begin later than 0", episode_id)
                    yield SingleAgentEpisode.from_arrays(**made, id_=episode_id, t_started=t_started)

    def _arrays(
        self,
        a: int,
        b: int,
        num: int,
        observations: NestedArrays,
        after: NestedArrays | None,
        actions: NestedArrays,
        rewards: np.ndarray,
        flags: list[np.ndarray],
        infos: list[dict[str, Any]] | None,
        report: LossReport,
        id_: str,
    ) -> dict[str, Any] | None:
        """Return arguments of `from_arrays` for the rows a to b, which have `num` steps, or None if no step is left."""
        if not num:
            report.add("the episode", "it has an observation and no step", id_)
            return None
        seen = nested.map_leaves(lambda leaf: leaf[a:b], observations)
        if after is not None and num == b - a:
            seen = nested.map_leaves(lambda x, y: np.concatenate([x, y[b - 1 : b]]), seen, after)
        ends = [bool(column[a:b].any()) for column in flags]
        actions = nested.map_leaves(lambda leaf: leaf[a : a + num], actions)
        rewards = rewards[a : a + num]
        made = without_next(seen, actions, rewards, ends[0], ends[1], {}, report, id_)
        if made is not None and infos is not None:
            made["infos"] = ([*infos, {}])[: len(made["rewards"]) + 1]
        return made

    def _cuts(
        self,
        start: int,
        stop: int,
        flags: list[np.ndarray],
        has_action: np.ndarray,
        loose: np.ndarray,
        times: np.ndarray | None,
        report: LossReport,
        first: int,
    ) -> list[int]:
        """Return the rows between `start` and `stop` at which a new episode or chunk begins.

        Args:
            loose: bool [N]: rows whose next observation is not the observation of the following row.
        """
        ends = flags[0][start:stop] | flags[1][start:stop]
        cuts = {start + row + 1 for row in np.flatnonzero(ends).tolist()}
        if self._columns.episode is None:
            cuts |= {start + row + 1 for row in np.flatnonzero(~has_action[start:stop]).tolist()}
        # a row without an action after a flag is the last observation of the same episode
        cuts = {row + 1 if row < stop and not has_action[row] else row for row in cuts}
        for row in np.flatnonzero(loose[start : stop - 1]).tolist():
            if start + row + 1 not in cuts and has_action[start + row + 1]:
                reason = "the next observation is another one; cut here"
                report.add("what lies between two steps", reason, f"row {first + start + row}")
                cuts.add(start + row + 1)
        if times is not None:
            for row in np.flatnonzero(np.diff(times) != 1).tolist():
                if start + row + 1 not in cuts:
                    reason = f"times {times[row] + 1} to {times[row + 1] - 1} are missing; cut here"
                    report.add("what lies between two steps", reason, f"row {first + start + row}")
                    cuts.add(start + row + 1)
        return sorted(row for row in cuts if row < stop)

    def _times(self, table: pa.Table, start: int, stop: int, report: LossReport, name: object) -> np.ndarray | None:
        """Return the times of the rows if they count steps, int [n], otherwise None. Irregular times are reported."""
        column = self._columns.t
        if column is None or stop - start < 2:
            return None
        times = table[column].slice(start, stop - start).to_numpy()
        gaps = np.diff(times)
        is_whole = times.dtype.kind in "iuf" and bool((times == np.floor(times)).all())
        if is_whole and times[0] >= 0 and (gaps == 1).mean() >= 0.5:
            return times.astype(np.int64)
        seconds = gaps / np.timedelta64(1, "s") if gaps.dtype.kind == "m" else gaps.astype(float)
        if seconds.max() - seconds.min() > 1e-3 * abs(seconds).max():
            reason = "times between steps differ; the times are infos, and steps are counted from 0"
            report.add(f"{column!r} is irregular", reason, name)
        return None

    def _rows_with_actions(self, table: pa.Table) -> np.ndarray:
        """Return which rows have an action, bool [N]."""
        present = np.ones(len(table), bool)
        for name in names_in(self._columns.action):
            if table[name].null_count:
                present &= ~np.asarray(table[name].is_null().to_numpy())
        return present

    def _array(self, table: pa.Table, named: Named, report: LossReport, absent: np.ndarray | None = None) -> Any:
        """Return the values of columns as arrays [N, ...]. Columns in a list are stacked.

        Args:
            absent: bool [N]: True for rows whose missing values are filled with 0 and not reported.
        """
        if isinstance(named, Mapping):
            return {key: self._array(table, part, report, absent) for key, part in named.items()}
        if isinstance(named, str):
            return self._column(table, named, report, absent)
        return np.stack([self._column(table, name, report, absent) for name in named], axis=1)

    def _column(self, table: pa.Table, name: str, report: LossReport, absent: np.ndarray | None) -> np.ndarray:
        column = table[name]
        where = f"{self._where}: column {name!r}"
        pa = pyarrow()
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_null(column.type):
            column = column.cast(pa.float64())
        parts = column.combine_chunks()
        while pa.types.is_nested(parts.type) and hasattr(parts, "flatten") and not pa.types.is_struct(parts.type):
            parts = parts.flatten()
            if parts.null_count:
                raise UnreadableData(f"{where} has lists with missing values; fill them in, or drop these rows")
        is_missing = np.asarray(column.is_null().to_numpy())
        with as_unreadable_data(where):
            present = array_of(column)  # without nulls
        check_numbers(self._where, {name: present})
        if name in self._with_nan:
            present = present.astype(np.result_type(present.dtype, np.float32))
        if not is_missing.any():
            return present
        num_unknown = int((is_missing & (~absent if absent is not None else True)).sum())
        array = np.zeros((len(column), *present.shape[1:]), present.dtype)
        array[~is_missing] = present
        if num_unknown:
            array[is_missing] = np.nan
            report.add(f"values of {name!r}", "they are missing, and NaN now", self._where)
        return array

    def _flags(self, table: pa.Table, name: str | None) -> np.ndarray:
        """Return a column of flags, bool [N]. Missing ones are False."""
        if name is None:
            return np.zeros(len(table), bool)
        column = table[name]
        pa = pyarrow()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            words = {str(value).strip().lower() for value in column.unique().to_pylist() if value is not None}
            raise UnreadableData(
                f"{self._where}: {name!r} holds the words {sorted(words)[:5]}, flags are needed; write true and false"
            )
        if pa.types.is_null(column.type):
            return np.zeros(len(table), bool)
        values = array_of(column.fill_null(False) if pa.types.is_boolean(column.type) else column.fill_null(0))
        if not np.isin(values, (0, 1)).all():
            raise UnreadableData(f"{self._where}: {name!r} holds other numbers than 0 and 1; flags are needed")
        return values.reshape(-1).astype(bool)

    def _check_alike(self, observations: NestedArrays, after: NestedArrays) -> None:
        """Raise `InvalidArgument` unless observations and next observations have the same keys and shapes."""
        kinds = [{key: leaf.shape for key, leaf in nested.flatten(data).items()} for data in (observations, after)]
        if kinds[0] != kinds[1]:
            raise InvalidArgument(
                f"{self._where}: observations have the shapes {kinds[0]}, next observations {kinds[1]}; name columns "
                "of the same number (observation=, next_observation=)"
            )

    def _infos_of(self, table: pa.Table, with_time: bool) -> list[dict[str, Any]] | None:
        """Return an info dict per row with the columns that have no other meaning. Missing values are left out.

        Args:
            table: the rows.
            with_time: whether the column of times is an info.
        """
        names = [name for name in self._infos if with_time or name != self._columns.t]
        if not names:
            return None
        infos: list[dict[str, Any]] = [{} for _ in range(len(table))]
        for name in names:
            for info, value in zip(infos, table[name].to_pylist(), strict=True):
                if value is not None:
                    info[name] = value if isinstance(value, (bool, int, float, str)) else _plain(value)
        return infos


def _plain(value: Any) -> Any:
    """Return a value of an Arrow table as a value that infos hold: times are text in ISO format."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, list):
        array = np.array(value) if all(isinstance(part, (bool, int, float)) for part in value) else None
        return [_plain(part) for part in value] if array is None else array
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value if isinstance(value, (bool, int, float, str, bytes)) else str(value)


def _as_arrow(frame: Any) -> Any:
    """Return a frame of another library, or a dict of columns, as an Arrow table."""
    pa = pyarrow()
    if isinstance(frame, Mapping):
        try:
            return pa.table({str(key): pa.array(list(map(_item, column))) for key, column in frame.items()})
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise InvalidArgument(
                f"from_table: columns of a dict have one length and one type each; {error}"
            ) from error
    if hasattr(frame, "__arrow_c_stream__"):
        return without_views(pa.table(frame))
    if hasattr(frame, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(frame)])
    if hasattr(frame, "data") and isinstance(getattr(frame.data, "table", None), pa.Table):
        return frame.with_format("arrow")[:]  # a `datasets.Dataset`, whose rows may be selected
    if isinstance(frame, pa.RecordBatchReader):
        return frame.read_all()
    raise WrongType(
        f"from_table: a {type(frame).__name__} is no table; give a frame of pandas or polars, a table of Arrow, a "
        "relation of DuckDB, or a dict of columns (a path: read)"
    )


def _item(value: object) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _recognize(contents: Contents) -> Recognition:
    if contents.kind not in TABLES:
        return OTHER_KIND
    try:
        choose_columns(contents.names, "", {})
    except UnreadableData as error:
        return Recognition(False, str(error).partition("none has a ")[2].partition(";")[0].join(["no ", ""]))
    return YES


FORMAT = Format(
    "table", "tables of steps (CSV, lines of JSON, Parquet, Arrow)", _recognize, table_episodes, options=OPTIONS
)
