"""What a data set knows of each episode beside its tracks: one row of plain columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, overload

import numpy as np

from episodes.pack import EpisodePack
from episodes.storage.arrow import pyarrow
from episodes.tracks.infos import documents as encoding

UNKNOWN_SEED = -1
"""Stands in the table where an episode's seed is not known."""

SEED = "seed"  # of `custom_data`
_IDS = {  # column -> attribute of a pack
    "id": "ids",
    "agent_id": "agent_ids",
    "module_id": "module_ids",
    "multi_agent_episode_id": "multi_agent_episode_ids",
}
_OTHER_IDS = "other_ids"


@cache
def row_fields() -> list[Any]:
    """The Arrow fields of the columns, in order."""
    pa = pyarrow()
    integers = [(name, pa.int64()) for name in ("t_started", "length", "lookback")]
    named = [
        *((name, pa.string()) for name in _IDS),
        *integers,
        ("return", pa.float64()),
        ("terminated", pa.bool_()),
        ("truncated", pa.bool_()),
        (SEED, pa.int64()),
        (_OTHER_IDS, pa.large_binary()),
        ("custom_data", pa.large_binary()),
    ]
    return [pa.field(name, type_) for name, type_ in named]


def row_columns(pack: EpisodePack) -> list[Any]:
    """The columns of a pack. `WrongType` names the key of custom data (or the id) that msgpack cannot hold."""
    pa = pyarrow()
    other: dict[int, dict[str, Any]] = {}
    ids = [_id_column(name, getattr(pack, attribute), len(pack), other) for name, attribute in _IDS.items()]
    custom = pack.custom_data
    seeds = _nulls(len(pack), pa.int64()) if custom is None else pa.array([_seed(data) for data in custom], pa.int64())
    return [
        *ids,
        *(pa.array(values) for values in (pack.t_started, pack.lengths, pack.lookbacks, pack.returns())),
        *(pa.array(flags) for flags in (pack.terminated, pack.truncated)),
        seeds,
        _documents(((i, _encoded(value, "ids")) for i, value in other.items()), len(pack)),
        _documents(((i, _encoded(data, "custom_data")) for i, data in enumerate(custom or ()) if data), len(pack)),
    ]


def _id_column(name: str, ids: Any, num: int, other: dict[int, dict[str, Any]]) -> Any:
    """Ids that are strings (or None) as a column; others go into `other` by row."""
    pa = pyarrow()
    if ids is None:
        return _nulls(num, pa.string())
    if ids.dtype.kind != "U" and not set(map(type, ids)) <= {str, type(None)}:
        strange = {i: id_ for i, id_ in enumerate(ids.tolist()) if id_ is not None and type(id_) is not str}
        for i, id_ in strange.items():
            other.setdefault(i, {})[name] = id_
        ids = [None if i in strange else id_ for i, id_ in enumerate(ids.tolist())]
    return pa.array(ids, pa.string())


@lru_cache(maxsize=16)
def _nulls(num: int, type_: Any) -> Any:
    return pyarrow().nulls(num, type_)


def _seed(data: dict[str, Any] | None) -> int | None:
    seed = (data or {}).get(SEED)
    return int(seed) if isinstance(seed, (int, np.integer)) and 0 <= seed < 2**63 else None


def _encoded(value: Any, name: str) -> bytes:
    return encoding.encode(value, name)


def _documents(documents: Iterable[tuple[int, bytes]], num: int) -> Any:
    """A column of bytes, null in the rows that have none."""
    pa = pyarrow()
    found = dict(documents)
    if not found:
        return _nulls(num, pa.large_binary())
    return pa.array([found.get(i) for i in range(num)], pa.large_binary())


@dataclass(frozen=True, slots=True)
class Rows:
    """The columns of so many episodes, as arrays [n]; ids are objects, None where there is none."""

    id: np.ndarray
    agent_id: np.ndarray
    module_id: np.ndarray
    multi_agent_episode_id: np.ndarray
    t_started: np.ndarray
    length: np.ndarray
    lookback: np.ndarray
    returned: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    seed: np.ndarray
    custom_data: Sequence[dict[str, Any] | None] | None

    @staticmethod
    def of(batch: Any) -> Rows:
        """The rows of a record batch or a table."""
        numpy = lambda name: batch.column(name).to_numpy(zero_copy_only=False)  # noqa: E731
        ids = {name: numpy(name) for name in _IDS}
        if batch.column(_OTHER_IDS).null_count < batch.num_rows:
            _put_other(ids, batch.column(_OTHER_IDS).to_pylist())
        seeds = batch.column(SEED)
        unknown = seeds.null_count == len(seeds)
        custom = batch.column("custom_data")
        return Rows(
            **ids,
            **{name: numpy(name) for name in ("t_started", "length", "lookback", "terminated", "truncated")},
            returned=numpy("return"),
            seed=np.full(len(seeds), UNKNOWN_SEED) if unknown else seeds.fill_null(UNKNOWN_SEED).to_numpy(),
            custom_data=None if custom.null_count == len(custom) else CustomData(custom),
        )

    @staticmethod
    def joined(batches: Sequence[Any]) -> Rows:
        """The rows of all record batches."""
        pa, fields = pyarrow(), row_fields()
        names = [field.name for field in fields]
        return Rows.of(pa.Table.from_batches([batch.select(names) for batch in batches], pa.schema(fields)))

    def table(self, which: Any) -> dict[str, np.ndarray]:
        """The table that users see, of the rows that an index picks."""
        columns = {name: getattr(self, name)[which] for name in (*_IDS, "t_started", "length")}
        columns |= {"return": self.returned[which]}
        return columns | {name: getattr(self, name)[which] for name in ("terminated", "truncated", SEED)}


def _put_other(ids: dict[str, np.ndarray], documents: list[bytes | None]) -> None:
    for name, column in ids.items():
        ids[name] = column.copy()
    for i, document in enumerate(documents):
        for name, id_ in encoding.decode(document).items() if document else ():
            ids[name][i] = id_


class CustomData(Sequence[dict[str, Any] | None]):
    """Custom data of a record batch's episodes, decoded when read."""

    __slots__ = ("column",)

    def __init__(self, column: Any) -> None:
        self.column = column

    def __reduce__(self) -> Any:
        return list, (list(self),)

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any] | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any] | None]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        document = self.column[int(index)].as_py()
        return None if document is None else encoding.decode(document)
