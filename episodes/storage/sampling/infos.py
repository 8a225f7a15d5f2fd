"""Reading of the info dicts of sampled observations, as dicts or as columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from episodes.storage.sampling.step_index import CHUNK_END
from episodes.storage.sampling.stored_tracks import StoredTracks
from episodes.tracks.infos.dicts import as_object_array
from episodes.tracks.infos.info_column import Column, TypedColumn
from episodes.tracks.infos.infos import Infos


class StoredInfos:
    """All infos of a data set, loaded into memory, from which the infos of sampled steps are selected."""

    def __init__(self, tracks: StoredTracks) -> None:
        packs = [batch.whole for batch in tracks.batches]
        sizes = [int(pack.observation_offsets[-1]) for pack in packs]
        self._infos = [pack.infos for pack in packs]
        self._ends = np.cumsum(sizes)
        bases = self._ends - sizes
        firsts = [base + p.observation_offsets[:-1] + p.lookbacks for base, p in zip(bases, packs, strict=True)]
        self._table = tracks.table
        begins = self._table.known[CHUNK_END] - self._table.lengths
        self._firsts = np.concatenate(firsts)[tracks.numbers] - begins  # row of position 0
        self._kinds = _kinds(self._infos)

    @staticmethod
    def of(tracks: StoredTracks) -> StoredInfos:
        """Return the infos of the data set of `tracks`. They are loaded at the first call."""
        if tracks.infos is None:
            tracks.infos = StoredInfos(tracks)
        return tracks.infos

    def dicts(self, numbers: np.ndarray, episodes: np.ndarray) -> list[dict[str, Any]]:
        """Return the info dicts of n observations, given by their positions `numbers` [n] and
        their chunks `episodes` [n]."""
        result: list[dict[str, Any]] = [{} for _ in range(len(numbers))]
        for infos, indices, rows in self._by_batch(numbers, episodes):
            for place, info in zip(indices.tolist(), infos.take(rows).dicts(), strict=True):
                result[place] = info
        return result

    def columns(self, numbers: np.ndarray, episodes: np.ndarray) -> dict[str, np.ndarray]:
        """Return the infos of n observations as columns: for each key path the values [n, ...], and under "_<path>"
        whether there is a value, bool [n].

        A missing value is 0 or None.
        """
        num = len(numbers)
        present = {path: np.zeros(num, bool) for path in self._kinds}
        values: dict[str, np.ndarray] = {
            path: np.full(num, None) if kind is None else np.zeros((num, *kind[1]), kind[0])
            for path, kind in self._kinds.items()
        }
        for infos, indices, rows in self._by_batch(numbers, episodes):
            for path, column in infos.columns.items():
                is_present = column.present[rows]
                present[path][indices] = is_present
                values[path][indices[is_present]] = _values(column, rows[is_present], self._kinds[path] is None)
        return {f"_{path}": mask for path, mask in present.items()} | values

    def _by_batch(self, numbers: np.ndarray, episodes: np.ndarray) -> Iterator[tuple[Infos, np.ndarray, np.ndarray]]:
        """Group n observations by record batch: yield each batch's infos, the indices [k] of its observations,
        and the rows [k] of their infos."""
        owners = self._table.owners(numbers - 1, episodes)  # the info after a step is of the step's chunk
        rows = self._firsts[owners] + numbers
        of = self._ends.searchsorted(rows, side="right")
        for batch in np.unique(of).tolist():
            infos = self._infos[batch]
            if infos.columns:
                indices = np.flatnonzero(of == batch)
                yield infos, indices, rows[indices] - (self._ends[batch] - len(infos))


Kind = tuple[np.dtype, tuple[int, ...]] | None  # None: objects


def _kinds(parts: list[Any]) -> dict[str, Kind]:
    """Return a dict from each info key path to the dtype and shape of its values, or to None if these
    differ between record batches.

    Text has the width of the longest.
    """
    kinds: dict[str, Kind] = {}
    for infos in parts:
        for path, column in infos.columns.items():
            kind, known_kind = _kind(column), kinds.get(path, ())
            if kind and known_kind and kind[0].kind == known_kind[0].kind == "U":
                kind = max(kind, known_kind, key=lambda candidate: candidate[0].itemsize)
            elif known_kind != () and known_kind != kind:
                kind = None
            kinds[path] = kind
    return kinds


def _kind(column: Column) -> Kind:
    """Return dtype and item shape of a column's values, or None if they are Python objects."""
    if isinstance(column, TypedColumn):
        return None if column.holds_objects else (column.values.dtype, column.values.shape[1:])
    dtype = column.text_dtype()
    return None if dtype is None else (dtype, ())


def _values(column: Column, rows: np.ndarray, as_objects: bool) -> np.ndarray:
    """Return the values of a column at `rows`."""
    if isinstance(column, TypedColumn) and not as_objects:
        return column.values[rows]
    values = column.list(rows)
    return as_object_array(values) if as_objects else np.array(values)
