"""Reader of the training updates in a ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from episodes.errors import UnreadableData
from episodes.format_versions import LEDGER, check_version
from episodes.storage.arrow import as_unreadable_data
from episodes.storage.catalog import SEALED, UNFINISHED, ShardFile
from episodes.storage.files import local_path
from episodes.storage.ledger.ledger import KEY, UNKNOWN, schema
from episodes.storage.shards import read_shard

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_LISTINGS = 100  # of the files of a ledger that is written


class LedgerUpdate(NamedTuple):
    """Training update read from a ledger: hashes of weights, settings and batch rows, and each row's episode and time.

    Attributes:
        update: its number.
        module: name of the module that learned, or "".
        weights, settings: hashes.
        episode: number of each row's episode, int64 [n], in the order in which episodes occur in the ledger; -1:
            unknown.
        t: time of each row in its episode, modulo 2**32, [n].
        content: hash of each row, uint64 [n].
        agents: agent id of each row as text, an object array [n], with None if unknown; or None without agents.
        measured: measurements of the rows by name, float32 [n, W]. The value at [i, j] is that of the step at time
            `t[i] + j`, unless "turn" is measured: then rows are tokens, and their times are in "turn". It is NaN if the
            step was not measured.
    """

    update: int
    module: str
    weights: int
    settings: int
    episode: np.ndarray
    t: np.ndarray
    content: np.ndarray
    agents: np.ndarray | None
    measured: dict[str, np.ndarray]


class _Place(NamedTuple):
    """Location of one training update in a ledger: the update's number, and its file, record batch and row."""

    update: int
    shard: int
    batch: int
    row: int


class LedgerReader(Sequence[LedgerUpdate]):
    """Read-only sequence of the training updates in a ledger, as of the time when it was opened.

    If updates were repeated after a checkpoint was resumed, the last ones are read.

    Args:
        path: of the ledger, or of a run's folder with a ledger in it.

    Attributes:
        path: of the ledger.
        ids: ids of the episodes in the updates read so far, by number.

    Raises:
        UnreadableData: there is no ledger, or it is damaged. An unfinished shard is read up to its last complete batch.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _folder(local_path(path))
        self._shards = _shards(self.path)
        if not self._shards:
            raise UnreadableData(f"{path} holds no ledger")
        self._names = [_episode_ids(batches) for batches in self._shards]
        self._places = self._valid_places()
        self.ids: list[str] = []
        """By number, the ids of the episodes in the updates that were read so far."""
        self._numbers: dict[str, int] = {}
        self._in_shard = [np.full(len(names) + 1, UNKNOWN, np.int64) for names in self._names]

    def _valid_places(self) -> list[_Place]:
        """Return the locations of all updates, except updates that were repeated after the run was
        resumed from a checkpoint."""
        standing: dict[str, list[_Place]] = {}
        for shard, batches in enumerate(self._shards):
            for number, batch in enumerate(batches):
                keys = zip(batch["update"].to_pylist(), batch["module"].to_pylist(), strict=True)
                for row, (update, module) in enumerate(keys):
                    places = standing.setdefault(module, [])
                    while places and places[-1].update >= update:
                        places.pop()
                    places.append(_Place(update, shard, number, row))
        return sorted((place for places in standing.values() for place in places), key=lambda place: place[1:])

    @property
    def updates(self) -> list[tuple[int, str]]:
        """Number and module of each update, without reading its rows."""
        modules = [self._shards[place.shard][place.batch]["module"][place.row].as_py() for place in self._places]
        return [(place.update, module) for place, module in zip(self._places, modules, strict=True)]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._at(place) for place in self._places[index]]
        return self._at(self._places[index])

    def __iter__(self) -> Iterator[LedgerUpdate]:
        return map(self._at, self._places)

    def _at(self, place: _Place) -> LedgerUpdate:
        """Read one training update, given its location `place` in the ledger."""
        batch = self._shards[place.shard][place.batch]
        weights, settings = (batch[name][place.row].as_py() for name in ("weights", "settings"))
        episode, t, content = (batch[name][place.row].values.to_numpy() for name in ("episode", "t", "content"))
        return LedgerUpdate(
            place.update,
            batch["module"][place.row].as_py(),
            weights,
            settings,
            self._unique_numbers(place.shard, episode),
            t,
            content,
            *_agents_and_measurements(batch, place.row, len(content)),
        )

    def _unique_numbers(self, shard: int, episode: np.ndarray) -> np.ndarray:
        """Convert episode numbers, which begin at 0 in each ledger file, to numbers that are unique in
        the whole ledger, int64 [n]."""
        numbers = self._in_shard[shard]
        for i in np.unique(episode[numbers[episode] == UNKNOWN]).tolist():
            if i != UNKNOWN:
                id_ = self._names[shard][i]
                numbers[i] = self._numbers.setdefault(id_, len(self._numbers))
                if numbers[i] == len(self.ids):
                    self.ids.append(id_)
        return numbers[episode]

    def __repr__(self) -> str:
        return f"LedgerReader({str(self.path)!r}: {len(self)} updates)"


def _agents_and_measurements(
    batch: pa.RecordBatch, row: int, num_rows: int
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """Return the agents of an update's rows, or None, and the measurements [n, W] by name. Format 1 has neither."""
    if "agent" not in batch.schema.names:
        return None, {}
    names, agents = batch["measured"][row].as_py(), batch["agents"][row].as_py()
    values = batch["measurements"][row].values.to_numpy()
    by_name = values.reshape(len(names), num_rows, -1) if names and num_rows else []
    ids = None
    if agents:
        ids = np.array([*agents, None], object)[batch["agent"][row].values.to_numpy()]  # the last one is of UNKNOWN
    return ids, dict(zip(names, by_name, strict=False))


def _folder(path: Path) -> Path:
    """Return the ledger's directory: `path` itself, or its subdirectory "ledger" if `path` is the folder of a run."""
    return path / "ledger" if (path / "ledger").is_dir() else path


def _files(path: Path) -> list[ShardFile]:
    """Return the ledger's Arrow files in `path`, finished or not, in the order of their names."""
    paths = [(file, end) for end in (UNFINISHED, SEALED) for file in path.glob(f"*{end}")]
    files = [ShardFile(file.name.removesuffix(end), file.name, file) for file, end in paths]
    return sorted(files, key=lambda file: file.name)


def _shards(path: Path) -> list[list[Any]]:
    """Read the record batches of the ledger's files in `path`. They are listed again if one is finished, and so
    renamed, meanwhile.

    Raises:
        UnreadableData: a file is damaged, or files disappear again and again.
    """
    for _ in range(_MOST_LISTINGS):
        with suppress(FileNotFoundError):
            return [_batches(file) for file in _files(path)]
    raise UnreadableData(f"{path}: files disappear while they are read; read it again when they are complete")


def _batches(file: ShardFile) -> list[Any]:
    """Read all record batches of one ledger file. Raise `UnreadableData` if the file is damaged."""
    shard = read_shard(file, layout_of=partial(_check_schema, file))
    damaged = shard.damaged()
    if shard.damage or damaged:
        words = shard.damage or ", ".join(f"batch {number}: {columns}" for number, columns in damaged.items())
        raise UnreadableData(f"{file.path} is damaged: {words}")
    with as_unreadable_data(str(file.path)):
        return [read.batch for read in shard.batches]


def _check_schema(file: ShardFile, column_types: pa.Schema) -> None:
    """Raise `UnreadableData` unless a file has the columns of a ledger of this version."""
    number = (column_types.metadata or {}).get(KEY)
    if number is None:
        raise UnreadableData(f"{file.path.name} is not of a ledger")
    version = int(number) if number.isdigit() else number
    check_version(version, LEDGER, file.path.name, "compare the runs with the version that wrote them")
    if not column_types.equals(schema(version)):
        raise UnreadableData(f"{file.path.name} does not have the columns of a ledger of format {version}")


def _episode_ids(batches: list[Any]) -> list[str]:
    """Return the list of episode ids in one ledger file. An id's index is its episode's number in this file."""
    return [id_ for batch in batches for id_ in batch["named"].values.to_pylist()]
