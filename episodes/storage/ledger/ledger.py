"""Ledger: a log of the data that each update of a training run learned from, by which two runs can be compared.

    update | module | weights | settings | named        | episode [n] | t [n] | content [n]
    1      |        | 9a3f..  | 77c1..   | ["5f0c", ..] | 0 0 1 ..    | 0 1 0 | hashes of the rows

A batch row takes 16 bytes: the number of its episode (`named` has the ids of episodes that are new in the shard, which
get the next numbers), its time, and a hash of its columns. Measurements of rows, such as their losses, are optional
(`explain_update` shows them), and so are ids of agents. A ledger is a directory of shards like a data set, with the
same checksums. One object at a time writes it.

Updates are only ever appended. An update whose number occurred before shows that the run was resumed from a checkpoint:
it replaces that update and all later ones.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from episodes.batch import Batch
from episodes.batch.origin import Origin
from episodes.closeable import Closeable
from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, WrongType
from episodes.format_versions import LEDGER
from episodes.storage.arrow import list_column, pyarrow
from episodes.storage.files import local_path
from episodes.storage.handing_on import Queued
from episodes.storage.ledger.row_hashes import hash_of_arrays, hash_of_values, row_hashes
from episodes.storage.ownership import Owner
from episodes.storage.shards import ShardWriter, writer_name

if TYPE_CHECKING:
    import pyarrow as pa

UNKNOWN = -1  # episode of a row without a known origin
KEY = b"rl-episodes.ledger"  # of the metadata of the schema
_MOST_NAMES = 1 << 16  # number of episodes at which a new shard starts, since their numbers are kept in memory


def schema(version: int = LEDGER) -> Any:
    """Return the Arrow schema of ledger files of a format version. They have one row per training update and module."""
    pa = pyarrow()
    numbers = {"update": pa.int64(), "module": pa.string(), "weights": pa.uint64(), "settings": pa.uint64()}
    lists = {"named": pa.string(), "episode": pa.int32(), "t": pa.uint32(), "content": pa.uint64()}
    if version > 1:
        lists |= {"agents": pa.string(), "agent": pa.int16(), "measured": pa.string(), "measurements": pa.float32()}
    columns = numbers | {name: pa.large_list(type_) for name, type_ in lists.items()}
    return pa.schema(columns, metadata={KEY: b"%d" % version})


class _Note(NamedTuple):
    """Record of one training update.

    Attributes:
        ids: ids of the episodes in its batch, in the order of their first rows, not yet escaped.
        episode: index in `ids` of each row's episode, or `UNKNOWN`, int32 [B].
        agents: distinct agent ids of the rows, as texts. Empty if the episodes have no agent ids.
        agent: index in `agents` of each row's agent, or `UNKNOWN`, int16 [B]; or empty.
        measured: names of the measurements of rows.
        measurements: of all rows, one measurement after another, float32 [len(measured) * B * W], with W values for a
            row of W steps.
    """

    update: int
    module: str
    weights: int
    settings: int
    ids: list[str]
    episode: np.ndarray
    t: np.ndarray
    content: np.ndarray
    agents: list[str]
    agent: np.ndarray
    measured: list[str]
    measurements: np.ndarray


class Ledger(Closeable):
    """Log, on disk, of the batches that each update of a training run learned from. Threads may share it.

    The directory is created with the first note. From that note until `close`, no other ledger writes to it. `flush`
    makes notes survive a killed process. A ledger that is dropped without `close` loses only notes that were not
    flushed, with a `ResourceWarning`.

    Args:
        path: the directory. An existing ledger is continued.
        every: number of updates that are written at once.
        measures_rows: whether trainers measure each row, such as its loss, for `explain_update`. This takes 4 bytes per
            row and measurement.

    Attributes:
        path: the directory.
        measures_rows: as given.

    Raises:
        MissingExtra: pyarrow or xxhash is not installed.
        InvalidArgument: `every` is below 1.

    >>> import tempfile
    >>> from episodes.batch import Batch
    >>> from episodes.storage.ledger import LedgerReader
    >>> folder = tempfile.mkdtemp()
    >>> with Ledger(folder) as ledger:
    ...     ledger.note(1, Batch(obs=np.zeros((4, 3)), actions=np.arange(4)), weights=[np.ones(5)])
    >>> [(update.update, len(update.content)) for update in LedgerReader(folder)]
    [(1, 4)]
    """

    def __init__(self, path: str | Path, *, every: int = 16, measures_rows: bool = False) -> None:
        if every < 1:
            raise InvalidArgument(f"every={every}: give at least 1")
        self.path, self._every, self.measures_rows = local_path(path), every, measures_rows
        self._schema = schema()
        self._numbers: dict[str, int] = {}  # numbers of the shard's episodes, by id
        self._queued: Queued[list[_Note]] = Queued([])
        self._shard: ShardWriter | None = None
        self._owner = Owner(  # from the first note until `close`
            f"Ledger({str(path)!r})",
            self.path / ".lock",
            refusal=f"Ledger({str(path)!r}): another ledger writes there; close() it, or give another path",
            remedy="make a Ledger of another path there",
        )
        self._lock = RLock()
        hash_of_values(None)  # raise MissingExtra now

    def note(
        self,
        update: int,
        batch: Batch | Mapping[str, Any],
        *,
        weights: Iterable[np.ndarray] = (),
        settings: Mapping[str, Any] | int | None = None,
        module: str = "",
        measured: Mapping[str, np.ndarray] | None = None,
        workers: Mapping[str, int] | None = None,
    ) -> None:
        """Record one training update: a hash of each row of its batch, the rows' episodes and times,
        and a hash of the new weights.

        Args:
            update: its number. A number that is not higher than the last one's shows that the run was resumed.
            batch: columns [B, ...] of arrays or tensors. If it has an `origin`, its episodes and times are recorded;
                for a row of several steps, the first one.
            weights: all weights after the update.
            settings: values that JSON can hold, or their hash by `hash_of_values`.
            module: name of the module, if several learn.
            measured: measurements of the rows by name, such as "loss", numbers [B], or [B, W] of sequences.
            workers: by id of an episode, the number of the worker that sampled it. With measurements, it is recorded as
                one of them, "worker".

        Raises:
            ShapeMismatch: measurements do not have one item per row, or have different shapes.
            WrongType: the number is not an integer of 64 bits, the module is not text, the batch is neither a `Batch`
                nor a dict of columns, or the settings are neither a dict nor a hash.
            InvalidArgument: another ledger, of this or another process, writes to the directory, or `settings` is a
                number that is not a hash of 64 bits.
            EpisodeStateError: this is a process that was forked from the ledger's.
        """
        if not isinstance(update, (int, np.integer)) or not -(2**63) <= update < 2**63 or not isinstance(module, str):
            raise WrongType(f"update {update!r} of module {module!r}: give an integer of 64 bits, and text")
        if not isinstance(batch, (Batch, Mapping)):
            raise WrongType(f"a batch that is a {type(batch).__name__}: give columns")
        content = row_hashes(batch)
        measurements = _checked_measurements(measured or {}, len(content))
        hashes = hash_of_arrays(weights), hash_of_values(settings)
        self._owner.check()
        with self._lock:
            if not self._owner.is_active:
                self.path.mkdir(parents=True, exist_ok=True)
                self._owner.claim()
            origins = _row_origins(batch, len(content))
            if measurements:
                measurements = {name: _from_first_step(column, batch) for name, column in measurements.items()}
            if measurements and workers:
                measurements["worker"] = _workers_of(origins[0], origins[1], workers, measurements)
            flat = np.concatenate([np.zeros(0, np.float32), *(column.ravel() for column in measurements.values())])
            ids, episode, t, agents, agent = origins
            note = _Note(
                *(int(update), _utf8_text(module), *hashes),
                *(ids, episode, t, content, agents, agent, list(measurements), flat),
            )
            self._queued.state.append(note)
            if len(self._queued.state) >= self._every:
                self.flush()

    def flush(self, *, fsync: bool = False) -> None:
        """Write all queued records to disk. They then survive a killed process, and with
        `fsync` a crash of the machine.

        Raises:
            OSError: for example a full disk. The records stay queued.
            EpisodeStateError: this is a process that was forked from the ledger's.
        """
        self._owner.check()
        with self._lock:
            if self._queued.state:
                self._write(self._queued.state)
            if fsync and self._shard is not None:
                self._shard.sync()
            if len(self._numbers) > _MOST_NAMES:
                self._seal()

    def _write(self, notes: list[_Note]) -> None:
        """Write records as one batch of the current file, or of a new one. After an error, the next batch starts
        another file, which numbers its episodes anew."""
        if self._shard is None:
            self.path.mkdir(parents=True, exist_ok=True)  # it may have been removed
            self._numbers = {}
            self._shard = ShardWriter(self.path, writer_name(self.path), self._schema)
        shard, number, numbers = self._shard, self._shard.num_batches, self._numbers
        batch, new_numbers = _record_batch(notes, numbers, self._schema)

        def write() -> None:
            shard.write(batch)
            numbers.update(new_numbers)

        def is_written() -> bool:
            self._shard = None
            shard.recount()
            return shard.num_batches > number

        self._queued.hand_on([], write, is_written)

    def _seal(self) -> None:
        """Finish the current file. If that is interrupted, the file stays readable as an unfinished file."""
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.seal()

    def close(self) -> None:
        """Write all queued records and finish the ledger's file. Later records begin a new file.

        Raises:
            OSError: for example a full disk. The records stay queued.
            EpisodeStateError: this is a process that was forked from the ledger's.
        """
        self._owner.check()
        with self._lock:
            self.flush()
            self._seal()
            self._owner.release()

    def __del__(self) -> None:
        queued, owner = getattr(self, "_queued", None), getattr(self, "_owner", None)
        if queued is not None and owner is not None and owner.is_active and (queued.state or self._shard is not None):
            num = len(queued.state)
            lost = f": the notes of {num} updates are lost" if num else ""
            warnings.warn(
                f"Ledger({str(self.path)!r}) was not closed{lost}", ResourceWarning, stacklevel=2, source=self
            )

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"


def _utf8_text(value: object) -> str:
    """Convert a value to a string that UTF-8 can encode. Lone surrogates are escaped."""
    return str(value).encode(errors="backslashreplace").decode()


def _first_steps(numbers: np.ndarray) -> np.ndarray:
    """Return the step index of each batch row, int [B]. For a row that is a sequence, this is the first
    step that is not padding."""
    if numbers.ndim == 1 or not numbers.size:
        return numbers if numbers.ndim == 1 else np.full(len(numbers), UNKNOWN)
    return numbers[np.arange(len(numbers)), (numbers >= 0).argmax(1)]


def _checked_measurements(measured: Mapping[str, Any], num_rows: int) -> dict[str, np.ndarray]:
    """Return measurements as arrays float32 of one shape, [B] or [B, W]. Raise `ShapeMismatch` if they are not."""
    columns = {name: np.asarray(column, np.float32) for name, column in measured.items()}
    shapes = {name: column.shape for name, column in columns.items()}
    for name, shape in shapes.items():
        if shape[:1] != (num_rows,) or len(shape) > 2:
            raise ShapeMismatch(
                f"Ledger.note: measured[{name!r}] has shape {list(shape)}, and the batch {num_rows} rows; give an "
                "array of one number, or of one number per step, for each row"
            )
    width = max((math.prod(shape[1:]) for shape in shapes.values()), default=1)
    filled = {name: np.full((num_rows, width), np.nan, np.float32) for name in columns}
    for name, column in columns.items():
        column = column.reshape(num_rows, math.prod(column.shape[1:]))
        if column.shape[1] not in (1, width):
            raise ShapeMismatch(f"Ledger.note: measured has columns of the shapes {shapes}; give equal shapes")
        filled[name][:] = column
    return filled


def _from_first_step(column: np.ndarray, batch: Any) -> np.ndarray:
    """Return measurements [B, W] of sequences, moved so that each row begins with its first real step."""
    try:
        numbers = batch.origin.numbers
    except (AttributeError, EpisodeStateError):
        return column
    if numbers.shape != column.shape or numbers.ndim != 2 or not numbers.size:
        return column
    steps = (numbers >= 0).argmax(1)[:, None] + np.arange(column.shape[1])
    moved = np.take_along_axis(column, np.minimum(steps, column.shape[1] - 1), 1)
    return np.where(steps < column.shape[1], moved, np.float32(np.nan))


def _workers_of(
    ids: list[str], episode: np.ndarray, workers: Mapping[str, int], measurements: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return the worker of each row in the shape of its measurements, float32 [B, W], with NaN if it is unknown.

    Args:
        ids: ids of episodes.
        episode: index in `ids` of each row's episode, or `UNKNOWN`, [B].
        workers: number of the worker by id.
        measurements: the other measurements, [B, W] each.
    """
    numbers = np.array([*(workers.get(id_, np.nan) for id_ in ids), np.nan], np.float32)  # the last one is of UNKNOWN
    shape = next(iter(measurements.values())).shape
    return np.broadcast_to(numbers[episode][:, None], shape)


def _row_origins(batch: Any, num_rows: int) -> tuple[list[str], np.ndarray, np.ndarray, list[str], np.ndarray]:
    """Return the ids of a batch's episodes, the index of each row's episode in them, int32 [B], its time [B], the
    ids of agents, and the index of each row's agent in them, int16 [B] (empty if there are no agents).
    """
    ids: dict[str, int] = {}
    no_agent = np.zeros(0, np.int16)
    episode, t = np.full(num_rows, UNKNOWN, np.int32), np.zeros(num_rows, np.uint32)
    try:
        origin: Origin = batch.origin
    except (AttributeError, EpisodeStateError):
        return [], episode, t, [], no_agent
    steps = _first_steps(origin.numbers)
    if len(steps) != num_rows:
        return [], episode, t, [], no_agent
    real = np.flatnonzero(steps >= 0)
    keys, owners, times = origin.source.places(steps[real])
    agents: dict[str, int] = {}
    of_keys = np.full((len(keys), 2), UNKNOWN, np.int32)  # episode and agent
    for i in dict.fromkeys(owners.tolist()):  # in the order of the rows
        key = keys[i]
        if key is not None:
            of_keys[i, 0] = ids.setdefault(key.id_, len(ids))
            if key.agent_id is not None:
                of_keys[i, 1] = agents.setdefault(_utf8_text(key.agent_id), len(agents))
    episode[real], t[real] = of_keys[owners, 0], times
    if not agents:
        return list(ids), episode, t, [], no_agent
    agent = np.full(num_rows, UNKNOWN, np.int16)
    agent[real] = of_keys[owners, 1]
    return list(ids), episode, t, list(agents), agent


def _record_batch(notes: Sequence[_Note], numbers: Mapping[str, int], schema: pa.Schema) -> tuple[Any, dict[str, int]]:
    """Return the notes of several updates as an Arrow record batch, one row per update, and the numbers of the episodes
    that are new in it.

    Args:
        notes: at least one.
        numbers: numbers of the episodes that the file names already, by id.
        schema: Arrow schema of the batch.
    """
    new: dict[str, int] = {}
    named: list[list[str]] = []
    episodes = []
    for note in notes:
        new_ids = [id_ for id_ in note.ids if id_ not in numbers and id_ not in new]
        new |= zip(new_ids, count(len(numbers) + len(new)))
        of_ids = [numbers[id_] if id_ in numbers else new[id_] for id_ in note.ids]
        named.append(list(map(_utf8_text, new_ids)))
        episodes.append(np.array([*of_ids, UNKNOWN], np.int32)[note.episode])  # the last one is that of UNKNOWN, -1
    columns = dict(zip(_Note._fields, zip(*notes, strict=True), strict=True))
    columns |= {"named": named, "episode": episodes}
    arrays = [_column(columns[field.name], field.type) for field in schema]
    return pyarrow().record_batch(arrays, schema=schema), new


def _column(values: Sequence[Any], type_: pa.DataType) -> Any:
    """Return one field of several notes as an Arrow column. Fields that are arrays become lists."""
    if not isinstance(values[0], np.ndarray):
        return pyarrow().array(values, type_)
    offsets = np.cumsum([0, *map(len, values)])
    return list_column(np.concatenate(values), offsets, copies=False)
