"""Conversion of packs of episodes to Arrow record batches, and of record batches to packs.

The columns are those of `episode_rows`, one list column per track, and those of the infos. The metadata of the shard's
Arrow schema describes them, so a shard can be read without other files.

A record batch with two episodes, of 3 and 2 steps. Arrow stores a list column as offsets and one array of values, which
is the layout of a pack, so reading makes views:

    id    length   observations     actions
    a     3        [0 1 2 3]        [0 1 2]           values of actions   0 1 2 3 4
    b     2        [4 5 6]          [3 4]             offsets             0     3   5
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import UnreadableData, WrongType
from episodes.pack import EpisodePack
from episodes.pack.pack import parts_of_episode
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import episode_rows as rows
from episodes.storage import info_schema
from episodes.storage.arrow import (
    ListColumn,
    as_unreadable_data,
    list_column,
    pyarrow,
    value_type,
)
from episodes.storage.compressed_tracks import (
    CompressedRaggedTrack,
    CompressedTrack,
    compressed_column,
    rows_per_block,
)
from episodes.storage.header import Header
from episodes.storage.info_schema import InfoField, InfoFields
from episodes.storage.reading_plan import LENGTHS, LENGTHS_OF, ReadingPlan
from episodes.storage.track_schema import Fields, TrackField, assemble, is_observed
from episodes.tracks import Tracks
from episodes.tracks.indexing import offsets_of
from episodes.tracks.infos.info_column import Column
from episodes.tracks.ragged import Ragged

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = b"rl-episodes"  # key in the Arrow schema's metadata


@dataclass(frozen=True)
class Layout:
    """Column layout of an Arrow file of episodes: dtype and shape of each array and info, and how arrays are nested.

    Attributes:
        structure: how tracks are nested, see `structure_of`.
        tracks: fields by path.
        infos: info fields by path.
        missing: metadata columns that the files lack, since they are of an older version.
    """

    structure: Any  # see `structure_of`
    tracks: Fields
    infos: InfoFields
    missing: frozenset[str] = frozenset()

    @cached_property
    def plan(self) -> ReadingPlan:
        """Where the columns of the files are, and how they become tracks."""
        return ReadingPlan(self.tracks, self.structure, _row_names(without=self.missing), list(_column_types(self)))

    @cached_property
    def info_columns(self) -> list[info_schema.InfoReader]:
        """How each info key is read."""
        return info_schema.readers_of(self.infos, self.plan.places)

    @property
    def is_flat(self) -> bool:
        """Whether observations, actions and each extra output are plain arrays, without nesting."""
        parts = dict(self.structure["dict"]) if self.structure else {}
        extra = [part for _, part in parts.pop("extra_model_outputs", {"dict": []})["dict"]]
        return all(isinstance(part, str) for part in (*parts.values(), *extra))

    @property
    def with_lengths(self) -> list[str]:
        """Paths of the ragged arrays for which the file has an additional column, with the lengths of their items."""
        return [path for path, field in self.tracks.items() if field.is_ragged and field.bounds is None]

    @staticmethod
    def from_schema(schema: pa.Schema) -> Layout:
        """Read the layout from the metadata of an Arrow schema. Raise `UnreadableData` if the file
        does not contain episodes.

        Raises:
            UnreadableData: the schema is not one of an episode file.
        """
        try:
            document = (schema.metadata or {})[_KEY]
            layout = _layout_of(document, rows.optional_names().difference(schema.names))
            as_told = _schema_of(document, layout.missing, _row_names(layout.missing)).equals(schema)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableData(f"an Arrow file that is not of episodes: {error!r}") from None
        if not as_told:
            raise UnreadableData("the columns of the Arrow file differ from the columns in its metadata")
        return layout

    def schema(self) -> Any:
        """Return the Arrow schema (column names and types) for files of this layout."""
        value = {
            "structure": self.structure,
            "tracks": {path: field.to_json() for path, field in self.tracks.items()},
            "infos": {path: field.to_json() for path, field in self.infos.items()},
        }
        return _schema_of(json.dumps(value).encode(), self.missing, _row_names(self.missing))

    def batch(self, schema: pa.Schema, pack: EpisodePack, infos: dict[str, Column], copies: bool) -> Any:
        """Convert a pack of episodes and its infos to an Arrow record batch. It shares memory with the
        pack unless `copies` is True.

        Raises:
            WrongType: an item of a ragged track is too long.
        """
        columns = rows.row_columns(pack)
        for path, field in self.tracks.items():
            array: Any = pack.tracks[path]
            offsets = pack.observation_offsets if is_observed(path) else pack.offsets
            if field.is_ragged:
                array, offsets = array.flat, array.bounds[offsets]
            if field.compression == "zstd":
                columns.append(compressed_column(array, offsets, rows_per_block(field)))
            else:
                columns.append(list_column(array, offsets, copies))
        for path in self.with_lengths:
            offsets = pack.observation_offsets if is_observed(path) else pack.offsets
            items: Any = pack.tracks[path]
            lengths = items.lengths
            if lengths.max(initial=0) > np.iinfo(LENGTHS).max:
                raise WrongType(f"track {path!r} has an item of {lengths.max()} values; items have less than 2**32")
            columns.append(list_column(lengths.astype(LENGTHS), offsets, False))
        columns += info_schema.arrow_columns(self.infos, infos, pack.observation_offsets, copies)
        return pyarrow().RecordBatch.from_arrays(columns, schema=schema)


@lru_cache(maxsize=16)  # the shards of a data set have one layout, or a few
def _layout_of(document: bytes, missing: frozenset[str]) -> Layout:
    """Decode the layout in a file's schema metadata. The file lacks the metadata columns `missing`."""
    value = json.loads(document)
    tracks = {path: TrackField.from_json(field) for path, field in value["tracks"].items()}
    infos = {path: InfoField.from_json(field) for path, field in value["infos"].items()}
    return Layout(value["structure"], tracks, infos, missing)


def _row_names(without: Collection[str]) -> tuple[str, ...]:
    return tuple(field.name for field in rows.row_fields() if field.name not in without)


def _column_types(layout: Layout) -> dict[str, Any]:
    """Return the Arrow types of the columns of tracks and infos, by name in stored order."""
    arrow = pyarrow()
    blocks = arrow.large_list(arrow.large_binary())
    types = {
        path: blocks if field.compression == "zstd" else arrow.large_list(value_type(np.dtype(field.dtype)))
        for path, field in layout.tracks.items()
    }
    types |= {LENGTHS_OF + path: arrow.large_list(value_type(LENGTHS)) for path in layout.with_lengths}
    for path, field in layout.infos.items():
        types |= field.column_types(path)
    return types


@lru_cache(maxsize=16)
def _schema_of(document: bytes, missing: frozenset[str], row_names: tuple[str, ...]) -> Any:
    """Return the (cached) Arrow schema for a layout, which is given as JSON, with the metadata columns `row_names`.

    Building it takes 0.1 ms.
    """
    arrow = pyarrow()
    row_fields = (field for field in rows.row_fields() if field.name in row_names)
    types = _column_types(_layout_of(document, missing))
    fields = [*row_fields, *(arrow.field(name, type_) for name, type_ in types.items())]
    return arrow.schema(fields, {_KEY: document})


class StoredBatch:
    """Arrow record batch of episodes from a file, which can be read as a pack or episode by episode.

    In its pack, a compressed track is replaced by row numbers. So an index, slice or selection selects row numbers, and
    only the selected rows are decompressed in the end.

    Attributes:
        batch: the Arrow record batch.
        place: the shard's name and the batch's number, which no other batch ever has.
        source: file of the shard.
    """

    def __init__(self, batch: pa.RecordBatch, layout: Layout, header: Header, source: str, place: bytes) -> None:
        self.batch = batch
        self.place = place
        self._layout = layout
        self._header = header
        self.source = source

    def __len__(self) -> int:
        return self.batch.num_rows

    @property
    def here(self) -> StoredBatch:
        """This record batch with all its data on this machine. A remote batch is downloaded."""
        return self

    @property
    def nbytes(self) -> int:
        """Size in bytes of the record batch."""
        return self.batch.nbytes

    @property
    def fields(self) -> Fields:
        """Dtype, shape and compression of each array stored in this batch, by path."""
        return self._layout.tracks

    @property
    def info_paths(self) -> Collection[str]:
        """Keys of the infos in this batch, with "/" between nested keys, such as "episode/r"."""
        return self._layout.infos.keys()

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each episode, int64 [n]."""
        return self._rows.lengths

    @property
    def written(self) -> Collection[str]:
        """Paths of the arrays that this file contains. An array that was added to the data
        set later is missing here."""
        return self._layout.tracks.keys()

    @cached_property
    def _rows(self) -> rows.EpisodeRows:
        batch = self.batch
        return rows.EpisodeRows({name: batch.column(i) for i, name in self._layout.plan.rows}, batch.num_rows)

    @cached_property
    def compressed(self) -> dict[str, Any]:
        """Compressed arrays of this batch, by path. Their items are decompressed when they are read."""
        result: dict[str, Any] = {}
        for track in self._layout.plan.compressed:
            path, field = track.path, track.field
            offsets = self._observed_offsets if track.is_observed else self._stepped_offsets
            column, num_rows = self.batch.column(track.column.place), rows_per_block(field)
            if track.lengths is not None:
                items = self._item_offsets(track.lengths, offsets)
                values = CompressedTrack.of(column, field.of_values, items[offsets], num_rows, path)
                result[path] = CompressedRaggedTrack(values, items)
            else:
                result[path] = CompressedTrack.of(column, field, offsets, num_rows, path)
        return result

    def _item_offsets(self, lengths: ListColumn, offsets: np.ndarray) -> np.ndarray:
        """Return the bounds of the items of a ragged array in the array of all values, int64 [num_rows + 1].

        Args:
            lengths: column of the items' lengths.
            offsets: bounds of the episodes in the items.

        Raises:
            UnreadableData: the stored lengths are inconsistent.
        """
        known = self._known_item_offsets.get(lengths.name)
        if known is None:
            known = self._known_item_offsets[lengths.name] = offsets_of(lengths.read(self.batch, offsets))
        return known

    @cached_property
    def _known_item_offsets(self) -> dict[str, np.ndarray]:
        return {}

    @cached_property
    def _stepped_offsets(self) -> np.ndarray:
        """Row at which each of the n episodes begins in tracks with one item per step (lookback included), then the
        total number of rows, int64 [n + 1]."""
        return offsets_of(self._rows.lengths + self._rows.lookbacks)

    @cached_property
    def _observed_offsets(self) -> np.ndarray:
        return self._stepped_offsets + np.arange(len(self._stepped_offsets))

    @cached_property
    def whole(self) -> EpisodePack:
        """All episodes as a pack without copies. In place of compressed arrays it contains
        the indices of their items."""
        with as_unreadable_data(self.source):
            return self._make_pack()

    def _columns(self) -> dict[str, Any]:
        """Return the observations, actions, rewards and other arrays of this batch as a dict of nested arrays.

        They share the memory of the batch. A compressed array is replaced by the indices of its items, and a track that
        was added to the data set later has its fill value.
        """
        header, plan, compressed, structure = self._header, self._layout.plan, self.compressed, self._layout.structure
        stepped, observed = self._stepped_offsets, self._observed_offsets
        num_steps = stepped.item(-1)
        tracks: dict[str, Any] = {}
        if num_steps and header.knows_steps:
            added, structure = plan.fitting(header, self.source)
            tracks = {path: field.filled(num_steps) for path, field in added.items()}
        for path, _, column, has_last, _, lengths in plan.tracks:
            offsets = observed if has_last else stepped
            if path in compressed:
                tracks[path] = np.arange(offsets[-1])
            elif lengths is None:
                tracks[path] = column.read(self.batch, offsets)
            else:
                items = self._item_offsets(lengths, offsets)
                tracks[path] = Ragged.of(column.read(self.batch, items[offsets]), items)
        if not num_steps and header.knows_steps:  # the batch was written before the first step
            tracks |= {path: field.empty() for path, field in header.tracks.items() if not is_observed(path)}
            structure = header.structure
        return assemble(structure, tracks)

    def _make_pack(self) -> EpisodePack:
        """Return the pack of this batch. Its arrays share memory with the batch."""
        known, header = self._rows, self._header
        stored = self._columns()
        infos = info_schema.stored_infos(self._layout.info_columns, self.batch, self._observed_offsets)
        steps = stored["actions"], stored["rewards"], stored.get("extra_model_outputs", {})
        columns = Tracks.finished(stored["observations"], infos, *steps)
        facts = known.facts(header.observation_space, header.action_space)
        pack = EpisodePack.of(columns, facts, known.lengths, known.lookbacks)
        pack.check()
        return pack

    def episode(self, i: int, steps: slice | None = None) -> SingleAgentEpisode:
        """Return episode `i` of the batch, or only its steps in the slice `steps`.
        Only compressed arrays are copied."""
        episode = SingleAgentEpisode.of(*parts_of_episode(self.whole, i))  # not `whole[i]`: its setters may be used
        if steps is not None:
            episode = episode[steps]
        if self.compressed:
            episode.tracks = episode.tracks.map_arrays(self.decoded)
        return episode

    def pack(self, numbers: np.ndarray) -> EpisodePack:
        """Return the episodes with the indices `numbers` [k] as a pack. If these are consecutive,
        only compressed arrays are copied."""
        first, last = int(numbers[0]), int(numbers[-1])
        in_a_row = last - first == len(numbers) - 1 and bool((np.diff(numbers) == 1).all())
        picked = self.whole
        if not in_a_row:
            picked = picked.select(numbers)
        elif len(numbers) < len(self):
            picked = picked[first : last + 1]
        if not self.compressed:
            return picked
        return EpisodePack.of(picked.columns.map_arrays(self.decoded), picked.facts, picked.lengths, picked.lookbacks)

    def decoded(self, path: str, array: np.ndarray | Ragged) -> Any:
        """Decompress items of the array at `path`, given their indices as `array`.
        If the array is not compressed, return `array`."""
        if path not in self.compressed or type(array) is Ragged:  # no step was stored, so nothing is compressed
            return array
        with as_unreadable_data(self.source):
            return self.compressed[path].take(array)
