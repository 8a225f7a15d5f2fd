"""`ReadingPlan`: where the columns of a file's record batches are, and how they become tracks. Derived once per layout.

Files of one layout have the same columns, except for metadata that older files lack:

    column     0    1      ...    20              21        22
    name       id   t_started     observations    actions   rewards
               metadata           tracks, lengths of ragged items, infos
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from episodes.errors import UnreadableData
from episodes.storage.arrow import ListColumn
from episodes.storage.header import Header
from episodes.storage.track_schema import Fields, Structure, TrackField, check_same, is_observed

LENGTHS_OF = "lengths/"  # first part of the names of columns with the lengths of ragged items
LENGTHS = np.dtype(np.uint32)


class TrackPlan(NamedTuple):
    """How one array of a layout is read.

    Attributes:
        path: of the array.
        column: of its items, or if these are ragged, of their values.
        is_observed: whether there is an item per observation, not per step.
        is_compressed: whether the column has compressed blocks.
        lengths: column of the lengths of ragged items, perhaps that of another array. None for items of one shape.
    """

    path: str
    field: TrackField
    column: ListColumn
    is_observed: bool
    is_compressed: bool
    lengths: ListColumn | None


class ReadingPlan:
    """Plan by which record batches of a layout are read.

    Args:
        tracks: fields of the layout, by path.
        structure: how the tracks are nested.
        row_names: names of the columns of metadata in the files.
        names: names of the columns that follow.

    Attributes:
        rows: index and name of each column of metadata.
        places: index of each column by name.
        tracks: plan of each array.
        compressed: those of `tracks` that are compressed.

    Raises:
        UnreadableData: a track refers to the lengths of one that is not ragged.
    """

    def __init__(self, tracks: Fields, structure: Structure, row_names: Sequence[str], names: Sequence[str]) -> None:
        self.rows = list(enumerate(row_names))
        self.places = {name: place for place, name in enumerate((*row_names, *names))}
        self._fields, self._structure = tracks, structure
        self.tracks = [self._plan(path, field) for path, field in tracks.items()]
        self.compressed = [track for track in self.tracks if track.is_compressed]
        self._fitting: tuple[Header, Fields, Any] | None = None  # the newest header that was found to fit

    def _plan(self, path: str, field: TrackField) -> TrackPlan:
        """Return how the array at `path` is read."""
        column = ListColumn.of(path, self.places[path], np.dtype(field.dtype), field.value_shape)
        lengths = None
        if field.is_ragged:
            owner = path if field.bounds is None else field.bounds
            if not self._fields[owner].is_ragged or self._fields[owner].bounds is not None:
                raise UnreadableData(f"track {path!r} has the bounds of {owner!r}, which is not ragged")
            lengths = ListColumn.of(LENGTHS_OF + owner, self.places[LENGTHS_OF + owner], LENGTHS, ())
        return TrackPlan(path, field, column, is_observed(path), field.compression == "zstd", lengths)

    def fitting(self, header: Header, source: str) -> tuple[Mapping[str, TrackField], Any]:
        """Return the fields of the tracks that were added to a data set after these files were written, and the
        structure of its tracks.

        Raises:
            TrackMismatch: the files have other tracks than the data set. The message names `source`.
        """
        known = self._fitting  # one read, since several threads may use a plan
        if known is None or known[0] is not header:
            fields = header.tracks
            added = {
                path: field for path, field in fields.items() if field.fill is not None and path not in self._fields
            }
            check_same({path: fields[path] for path in fields if path not in added}, self._fields, source)
            known = self._fitting = header, added, header.structure if added else self._structure
        return known[1], known[2]
