"""`EpisodeTable`: a row for each episode of a data set, as numpy columns, and as a table of Arrow, pandas or polars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from episodes.errors import UnknownKey
from episodes.storage.arrow import pyarrow
from episodes.storage.search.frames import as_pandas, as_polars

CUSTOM = "custom_data/"
ENDING_WORDS = np.array(["cut", "terminated", "truncated", "terminated and truncated"], object)
"""How a chunk stops, in words, by its code."""


class EpisodeTable(Mapping[str, np.ndarray]):
    """What is known of each episode, as columns [n] by name; a column is made when it is first asked for.

    `pyarrow.table(table)`, `polars.DataFrame(table)` and DuckDB take it as it is, and numpy's masks work on its
    columns: `table["return"] > 100`.
    """

    def __init__(self, columns: Mapping[str, np.ndarray], later: Mapping[str, Callable[[], np.ndarray]]) -> None:
        self._columns = dict(columns)
        self._later = dict(later)
        self._custom: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> np.ndarray:
        found = self._columns.get(name)
        if found is None:
            if name not in self._later:
                raise UnknownKey(f"no column {name!r}; there are {', '.join(self)}")
            found = self._columns[name] = self._later[name]()
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self._names

    def __len__(self) -> int:
        return len(self._names)

    @property
    def _names(self) -> list[str]:
        return [name for name in dict.fromkeys((*self._columns, *self._later)) if name != CUSTOM]

    @property
    def num_rows(self) -> int:
        """How many episodes there are."""
        return len(next(iter(self._columns.values())))

    def to_arrow(self, names: Any = None) -> Any:
        """The table, or the columns of some names, as a `pyarrow.Table`.

        Facts of `custom_data` are columns `custom_data/KEY`, where all values of a key are bools, numbers or strings;
        null where an episode has none. An id that is no string is written as one.
        """
        wanted = [*self, *self._custom_columns] if names is None else [*names]
        arrays = {}
        for name in wanted:
            arrays[name] = self._custom_columns[name] if name.startswith(CUSTOM) else _arrow(self[name])
        return pyarrow().table(arrays)

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`. `MissingExtra` without pandas."""
        return as_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """The table as a `polars.DataFrame`. `MissingExtra` without polars."""
        return as_polars(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    @property
    def custom_names(self) -> list[str]:
        """The columns of facts in `custom_data`."""
        return [*self._custom_columns]

    @property
    def _custom_columns(self) -> dict[str, Any]:
        if self._custom is None:
            self._custom = _of_facts(self._later[CUSTOM]() if CUSTOM in self._later else ())
        return self._custom

    def __repr__(self) -> str:
        return f"EpisodeTable({self.num_rows} episodes: {', '.join(self)})"


def _arrow(column: np.ndarray) -> Any:
    if column.dtype != object:
        return pyarrow().array(column)
    return pyarrow().array([value if value is None else str(value) for value in column], pyarrow().string())


def _of_facts(facts: Any) -> dict[str, Any]:
    """Arrow columns of those keys of dicts (or None) whose values are all of one plain kind."""
    facts = [one or {} for one in facts]
    columns = {}
    for key in dict.fromkeys(key for one in facts for key in one if isinstance(key, str)):
        values = [_plain(one.get(key)) for one in facts]
        kinds = {type(value) for value in values if value is not None}
        if kinds in ({bool}, {str}, {float}, {int, float}, {int}):
            try:
                values = [float(value) for value in values] if kinds == {int, float} and None not in values else values
                columns[CUSTOM + key] = pyarrow().array(values)
            except (OverflowError, pyarrow().ArrowException):  # numbers of more than 64 bits
                continue
    return columns


def _plain(value: Any) -> Any:
    """Numpy's scalars as Python's; what is neither is no fact of a table."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if value is None or isinstance(value, (bool, int, float, str)) else [value]
