"""Table of episode metadata (ids, lengths, returns, ...), for filters and data frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import UnknownKey
from episodes.storage.arrow import pyarrow
from episodes.storage.search.frames import as_pandas, as_polars

if TYPE_CHECKING:
    import pyarrow as pa

CUSTOM = "custom_data/"
ENDING_WORDS = np.array(["cut", "terminated", "truncated", "terminated and truncated"], object)
"""Endings of chunks in words, by their codes."""


class EpisodeTable(Mapping[str, np.ndarray]):
    """Table of episode metadata: a mapping from column name to numpy array [n].
    Columns are computed when they are first read.

    `pyarrow.table(table)`, `polars.DataFrame(table)` and DuckDB take it as it is, and numpy's masks work on its
    columns: `table["return"] > 100`. Values of `custom_data` are columns `custom_data/KEY`, if all values of the key
    are bools, all are numbers, or all are strings; episodes without the key have NaN (numbers) or None.

    Args:
        columns: columns that are known.
        later: functions that compute further columns, by name.
    """

    def __init__(self, columns: Mapping[str, np.ndarray], later: Mapping[str, Callable[[], np.ndarray]]) -> None:
        self._columns = dict(columns)
        self._later = dict(later)
        self._custom: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> np.ndarray:
        column = self._columns.get(name)
        if column is None:
            if isinstance(name, str) and name.startswith(CUSTOM) and name in self._custom_columns:
                column = _to_numpy(self._custom_columns[name])
            elif name in self._later and name != CUSTOM:
                column = self._later[name]()
            else:
                raise UnknownKey(f"no column {name!r}; there are {', '.join(self)}")
            self._columns[name] = column
        return column

    def __iter__(self) -> Iterator[str]:
        yield from self.plain_names
        yield from self._custom_columns

    def __len__(self) -> int:
        return len(self.plain_names) + len(self._custom_columns)

    @property
    def plain_names(self) -> list[str]:
        """Names of the columns that the table has in every data set. Columns of `custom_data` are not among them."""
        names = dict.fromkeys((*self._columns, *self._later))
        return [name for name in names if not name.startswith(CUSTOM)]

    @property
    def num_rows(self) -> int:
        """Number of rows: one per stored chunk, so an episode stored in several chunks has several rows."""
        return len(next(iter(self._columns.values())))

    def to_arrow(self, names: Iterable[str] | None = None) -> Any:
        """Return the columns `names` (default: all) as a `pyarrow.Table`.

        Episodes without a value of `custom_data` have a null. An id that is no string is converted to a string.
        """
        wanted_names = [*self] if names is None else [*names]
        arrays = {}
        for name in wanted_names:
            arrays[name] = self._custom_columns[name] if name.startswith(CUSTOM) else _arrow(self[name])
        return pyarrow().table(arrays)

    def to_pandas(self) -> Any:
        """Return the table as a `pandas.DataFrame`. Raise `MissingExtra` if pandas is not installed."""
        return as_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """Return the table as a `polars.DataFrame`. Raise `MissingExtra` if polars is not installed."""
        return as_polars(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    @property
    def _custom_columns(self) -> dict[str, Any]:
        """Return the columns of custom data, as Arrow arrays by name, such as "custom_data/seed"."""
        if self._custom is None:
            self._custom = _custom_data_columns(self._later[CUSTOM]() if CUSTOM in self._later else ())
        return self._custom

    def __repr__(self) -> str:
        return f"EpisodeTable({self.num_rows} episodes: {', '.join(self)})"


def _to_numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Convert an Arrow column to a numpy array [n]. Missing numbers become NaN, other missing values None."""
    if column.null_count and pyarrow().types.is_integer(column.type):
        values = column.fill_null(0).to_numpy()
        if (np.abs(values.astype(np.float64)) >= _EXACT).any():
            return np.array([*column.to_pylist(), None], object)[:-1]
    return column.to_numpy(zero_copy_only=False)


_EXACT = 2.0**53  # floats hold all integers below


def _arrow(column: np.ndarray) -> Any:
    """Return a column of the table as an Arrow array. Objects other than None become text."""
    if column.dtype != object:
        return pyarrow().array(column)
    return pyarrow().array([value if value is None else str(value) for value in column], pyarrow().string())


def _custom_data_columns(facts: Iterable[dict[str, Any] | None]) -> dict[str, Any]:
    """Return Arrow columns of the `custom_data` of all episodes: one for each key whose values are all bools, all
    strings, or all numbers of at most 64 bits."""
    facts = [fact or {} for fact in facts]
    columns = {}
    for key in dict.fromkeys(key for fact in facts for key in fact if isinstance(key, str)):
        values = [_to_plain(fact.get(key)) for fact in facts]
        kinds = {type(value) for value in values if value is not None}
        if kinds in ({bool}, {str}, {float}, {int, float}, {int}):
            try:
                values = [float(value) for value in values] if kinds == {int, float} and None not in values else values
                columns[CUSTOM + key] = pyarrow().array(values)
            except (OverflowError, pyarrow().ArrowException):  # numbers of more than 64 bits
                continue
    return columns


def _to_plain(value: object) -> Any:
    """Return a bool, number, string or None as a Python value. Wrap any other value in a list,
    which marks it as not plain."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if value is None or isinstance(value, (bool, int, float, str)) else [value]
