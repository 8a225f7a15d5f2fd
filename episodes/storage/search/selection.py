"""Result of a SQL query over a data set, from which the found episodes and steps can be read."""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from episodes.data_types import Indices
from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.catalog import Place
from episodes.storage.checksums import verify_json, with_checksum
from episodes.storage.files import local_path, put, read_file
from episodes.storage.search.frames import as_pandas, as_polars

Shards = list[tuple[str, int]]


class Searchable(Protocol):
    """Interface of the data sets whose episodes and steps a `Selection` can read."""

    @property
    def lengths(self) -> np.ndarray: ...
    def select(self, which: Indices) -> Self: ...
    def steps(self, index: int, start: int | None = None, stop: int | None = None) -> SingleAgentEpisode: ...
    def shard_locations(self) -> tuple[Shards, np.ndarray, np.ndarray]: ...


Data = TypeVar("Data", bound=Searchable)


@dataclass(frozen=True)
class Selection(Generic[Data]):
    """Result of a SQL query over a data set, from which the found episodes and steps can be read.

    The result's episodes and steps are known if the query selects `step`, or `episode`, or `episode` and `t`. A
    selection can be passed to `pyarrow.table`, `polars.DataFrame` and DuckDB.

    Attributes:
        dataset: the data set.
        query: the SQL.
        table: the result as a `pyarrow.Table`; None for a loaded selection.
        changes: differences of the data set since a loaded selection was saved, as texts.
    """

    dataset: Data
    query: str
    table: Any = None
    changes: Sequence[str] = ()
    _hits: tuple[np.ndarray, np.ndarray | None] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.numbers) if self.table is None else self.table.num_rows

    @property
    def numbers(self) -> np.ndarray:
        """Episode number (index in the data set) for each row of the query's result, int64 [k].

        Raises:
            InvalidArgument: the query selects neither steps nor episodes.
        """
        return self._found[0]

    @property
    def t(self) -> np.ndarray:
        """Time of the step in its chunk, for each row of the query's result, int64 [k].
        Raises `InvalidArgument` if the query selects no steps."""
        t = self._found[1]
        if t is None:
            raise InvalidArgument(f"{self.query!r} is of episodes: let it select step, or episode and t")
        return t

    @property
    def steps(self) -> np.ndarray:
        """Step index among all steps of the data set, for each row of the query's result, int64 [k]."""
        return (np.cumsum(self.dataset.lengths) - self.dataset.lengths)[self.numbers] + self.t

    @cached_property
    def episodes(self) -> Data:
        """Data set of the episodes that the query found, each once, in stored order."""
        return self.dataset.select(np.unique(self.numbers))

    def to_pandas(self) -> Any:
        """Return the query's result as a `pandas.DataFrame`.

        Raises:
            MissingExtra: pandas is not installed.
            EpisodeStateError: a loaded selection has no table.
        """
        return as_pandas(self._table)

    def to_polars(self) -> Any:
        """Return the query's result as a `polars.DataFrame`.

        Raises:
            MissingExtra: polars is not installed.
            EpisodeStateError: a loaded selection has no table.
        """
        return as_polars(self._table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)

    @property
    def _table(self) -> Any:
        if self.table is None:
            raise EpisodeStateError("a saved selection has no table: ask again, dataset.sql(selection.query)")
        return self.table

    def windows(self, before: int = 0, after: int = 0) -> list[SingleAgentEpisode]:
        """Return a list of episode parts, one for each found step: `before` steps, the step itself, and `after` steps.

        Args:
            before: number of steps before it, as far as the chunk has them.
            after: number of steps after it.

        Raises:
            InvalidArgument: a negative number, or the query selects no steps.
        """
        if before < 0 or after < 0:
            raise InvalidArgument(f"windows({before}, {after}): give numbers of steps, 0 or more")
        pairs = zip(self.numbers.tolist(), self.t.tolist(), strict=True)
        return [self.dataset.steps(number, max(t - before, 0), t + after + 1) for number, t in pairs]

    def save(self, path: str | Path) -> None:
        """Write the query, and which steps it found, to a file that `EpisodeDataset.load_selection` can load."""
        shards, shard_of, row_of = self.dataset.shard_locations()
        numbers, t = self._found
        value = {
            "query": self.query,
            "shards": [[name, num] for name, num in shards],
            "shard": _to_text(shard_of[numbers]),
            "row": _to_text(row_of[numbers]),
            "t": None if t is None else _to_text(t),
        }
        put(local_path(path), json.dumps(with_checksum(value)))

    @cached_property
    def _found(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Episode indices of the rows, and their steps within the episodes. The steps are `None` if the query selects
        episodes.

        Raises:
            InvalidArgument: the query has neither a column `step` nor `episode`, or has steps that do not exist.
        """
        if self._hits is not None:
            return self._hits
        ends = np.cumsum(self.dataset.lengths)
        if "step" in self.table.column_names:
            steps = self._integers("step", int(ends[-1]) if len(ends) else 0)
            numbers = np.searchsorted(ends, steps, side="right")
            return numbers, steps - (ends - self.dataset.lengths)[numbers]
        if "episode" not in self.table.column_names:
            raise InvalidArgument(f"{self.query!r} is of no steps or episodes: let it select step, or episode (and t)")
        numbers = self._integers("episode", len(ends))
        if "t" not in self.table.column_names:
            return numbers, None
        t = self._integers("t", int(self.dataset.lengths.max(initial=0)))
        if (t >= self.dataset.lengths[numbers]).any():
            raise InvalidArgument(f"{self.query!r}: its column t has steps that their episodes do not have")
        return numbers, t

    def _integers(self, name: str, limit: int) -> np.ndarray:
        column = self.table.column(name)
        numbers = np.asarray(column.to_pylist() if column.null_count else column.to_numpy())
        if len(numbers) and (numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= limit):
            raise InvalidArgument(f"{self.query!r}: its column {name!r} has not the numbers of {name}s")
        return numbers.astype(np.int64)


@dataclass(frozen=True, slots=True)
class SavedSelection:
    """Contents of a file that `Selection.save` wrote: the query, and the steps that it found."""

    query: str
    shards: Shards
    shard: np.ndarray  # [k], which of the shards
    row: np.ndarray  # [k], the episode in it
    t: np.ndarray | None  # [k]

    @staticmethod
    def read(path: str | Path) -> SavedSelection:
        """Read a file that `Selection.save` wrote. Raise `UnreadableData` if it is damaged."""
        value = verify_json(read_file(local_path(path)), str(path))
        shards = [(name, num) for name, num in value["shards"]]
        parts = (value["t"] and _from_text(value["t"]), _from_text(value["shard"]), _from_text(value["row"]))
        return SavedSelection(value["query"], shards, parts[1], parts[2], parts[0])

    def found_in(
        self, dataset: Searchable, place_of: Callable[[str], Place | None]
    ) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
        """Find the saved steps in a data set. Return their episode numbers and times, and texts on how the
        data set has changed since.

        Args:
            dataset: to search.
            place_of: returns where the rows of a shard are now, see `Catalog.place`.
        """
        shards, shard_of, row_of = dataset.shard_locations()
        at = {name: i for i, (name, _) in enumerate(shards)}
        places = [place_of(name) for name, _ in self.shards]
        shard_now = np.array([-1 if place is None else at.get(place[0], -1) for place in places], np.int64)
        first = np.array([0 if place is None else place[1] for place in places], np.int64)
        codes = shard_of * _ROWS + row_of
        wanted_codes = np.where(
            shard_now[self.shard] < 0, -1, shard_now[self.shard] * _ROWS + first[self.shard] + self.row
        )
        order = np.argsort(codes, kind="stable")
        hits = np.minimum(np.searchsorted(codes[order], wanted_codes), len(codes) - 1)
        numbers = order[hits] if len(codes) else np.zeros(len(wanted_codes), np.int64)
        is_present = codes[numbers] == wanted_codes if len(codes) else np.zeros(len(wanted_codes), bool)
        changes = _changes(self.shards, places, shards)
        if not is_present.all():
            num_missing = int((~is_present).sum())
            changes.append(
                f"{num_missing} of {len(is_present)} hits are in episodes that are gone, or not in this view"
            )
        return numbers[is_present], None if self.t is None else self.t[is_present], changes


_ROWS = 1 << 40  # more than any shard has


def _changes(earlier: Shards, places: Sequence[Place | None], shards: Shards) -> list[str]:
    """Return texts on the Arrow files that were removed, or have new episodes, since a selection was saved.

    Args:
        earlier: the files and their numbers of episodes when the selection was saved.
        places: where the episodes of each of these files are now, or None.
        shards: the files and their numbers of episodes now.
    """
    sizes, known, words = dict(shards), Counter[str](), []
    for (name, num), place in zip(earlier, places, strict=True):
        if place is None or place[0] not in sizes:
            words.append(f"shard {name} is gone, {num} episodes")
        else:
            known[place[0]] += num
    new = {name: num - known[name] for name, num in shards if num > known[name]}
    return [*words, *(f"shard {name} has {num} episodes that the query did not see" for name, num in new.items())]


def _to_text(numbers: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(numbers.astype("<i8").tobytes(), 1)).decode()


def _from_text(text: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8")
