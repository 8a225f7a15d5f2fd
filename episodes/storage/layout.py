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
from typing import Any

import numpy as np

from episodes.errors import UnreadableData, WrongType
from episodes.pack import EpisodePack
from episodes.pack.pack import parts_of_episode
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import episode_rows as rows
from episodes.storage import info_schema
from episodes.storage.arrow import (
    array_of,
    as_unreadable_data,
    check_offsets,
    list_column,
    pyarrow,
    value_type,
    values_per_item,
)
from episodes.storage.compressed_tracks import (
    CompressedRaggedTrack,
    CompressedTrack,
    compressed_column,
    rows_per_block,
)
from episodes.storage.header import Header
from episodes.storage.info_schema import InfoField, InfoFields
from episodes.storage.track_schema import Fields, TrackField, assemble, check_same, is_observed
from episodes.tracks import Tracks
from episodes.tracks.indexing import offsets_of
from episodes.tracks.infos.column_infos import Column
from episodes.tracks.ragged import Ragged

_KEY = b"rl-episodes"  # key in the Arrow schema's metadata
LENGTHS_OF = "lengths/"  # first part of the names of columns with the lengths of ragged items
LENGTHS = np.dtype(np.uint32)


@dataclass(frozen=True, slots=True)
class Layout:
    """Column layout of an Arrow file of episodes: dtype and shape of each array and info, and how arrays are nested.

    Attributes:
        structure: how tracks are nested, see `structure_of`.
        tracks: fields by path.
        infos: info fields by path.
    """

    structure: Any  # see `structure_of`
    tracks: Fields
    infos: InfoFields

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
    def from_schema(schema: Any) -> Layout:
        """Read the layout from the metadata of an Arrow schema. Raise `UnreadableData` if the file
        does not contain episodes.

        Raises:
            UnreadableData: the schema is not one of an episode file.
        """
        try:
            document = (schema.metadata or {})[_KEY]
            layout = _layout_of(document)
            missing = rows.optional_names().difference(schema.names)
            as_told = _schema_of(document, _row_names(without=missing)).equals(schema)
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
        return _schema_of(json.dumps(value).encode(), _row_names())

    def batch(self, schema: Any, pack: EpisodePack, infos: dict[str, Column], copies: bool) -> Any:
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
def _layout_of(document: bytes) -> Layout:
    """Decode the layout in a file's schema metadata."""
    value = json.loads(document)
    tracks = {path: TrackField.from_json(field) for path, field in value["tracks"].items()}
    infos = {path: InfoField.from_json(field) for path, field in value["infos"].items()}
    return Layout(value["structure"], tracks, infos)


def _row_names(without: Collection[str] = ()) -> tuple[str, ...]:
    return tuple(field.name for field in rows.row_fields() if field.name not in without)


@lru_cache(maxsize=16)
def _schema_of(document: bytes, row_names: tuple[str, ...]) -> Any:
    """Return the (cached) Arrow schema for a layout, which is given as JSON, with the metadata columns `row_names`.

    Building it takes 0.1 ms.
    """
    arrow, layout = pyarrow(), _layout_of(document)
    blocks = arrow.large_list(arrow.large_binary())
    types = {
        path: blocks if field.compression == "zstd" else arrow.large_list(value_type(np.dtype(field.dtype)))
        for path, field in layout.tracks.items()
    }
    types |= {LENGTHS_OF + path: arrow.large_list(value_type(LENGTHS)) for path in layout.with_lengths}
    for path, field in layout.infos.items():
        types |= field.column_types(path)
    row_fields = (field for field in rows.row_fields() if field.name in row_names)
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

    def __init__(self, batch: Any, layout: Layout, header: Header, source: str, place: bytes) -> None:
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
        return rows.EpisodeRows.of(self.batch)

    @cached_property
    def compressed(self) -> dict[str, Any]:
        """Compressed arrays of this batch, by path. Their items are decompressed when they are read."""
        result: dict[str, Any] = {}
        for path, field in self._layout.tracks.items():
            if field.compression != "zstd":
                continue
            column, num_rows, offsets = (
                self.batch.column(path),
                rows_per_block(field),
                self._episode_offsets(is_observed(path)),
            )
            if field.is_ragged:
                items = self._item_offsets(path)
                values = CompressedTrack.of(column, field.of_values, items[offsets], num_rows, path)
                result[path] = CompressedRaggedTrack(values, items)
            else:
                result[path] = CompressedTrack.of(column, field, offsets, num_rows, path)
        return result

    def _item_offsets(self, path: str) -> np.ndarray:
        """Return the bounds of the items of a ragged array in the array of all values, int64 [num_rows + 1].

        Raises:
            UnreadableData: the stored lengths are inconsistent, or the track refers to one that is not ragged.
        """
        bounds = self._layout.tracks[path].bounds
        if bounds is not None:
            if self._layout.tracks[bounds].bounds is not None or not self._layout.tracks[bounds].is_ragged:
                raise UnreadableData(f"track {path!r} has the bounds of {bounds!r}, which is not ragged")
            return self._item_offsets(bounds)
        known = self._known_item_offsets.get(path)
        if known is None:
            column, expected = self.batch.column(LENGTHS_OF + path), self._episode_offsets(is_observed(path))
            check_offsets(column, expected, LENGTHS_OF + path)
            lengths = array_of(column, LENGTHS, (), int(expected[-1]), LENGTHS_OF + path)
            known = self._known_item_offsets[path] = offsets_of(lengths)
        return known

    @cached_property
    def _known_item_offsets(self) -> dict[str, np.ndarray]:
        return {}

    def _episode_offsets(self, observed: bool) -> np.ndarray:
        """Return the bounds of the n episodes in arrays with one item per observation, or if not
        `observed` per step, int64 [n + 1]."""
        return self._observed_offsets if observed else self._stepped_offsets

    @cached_property
    def _stepped_offsets(self) -> np.ndarray:
        """Row at which each of the n episodes begins in tracks with one item per step (lookback included), then the
        total number of rows, int64 [n + 1]."""
        return offsets_of(self._rows.lengths + self._rows.lookbacks)

    @cached_property
    def _observed_offsets(self) -> np.ndarray:
        return self._stepped_offsets + np.arange(len(self) + 1)

    @cached_property
    def whole(self) -> EpisodePack:
        """All episodes as a pack without copies. In place of compressed arrays it contains
        the indices of their items."""
        with as_unreadable_data(self.source):
            return self._make_pack()

    def _columns(self, num_steps: int) -> dict[str, Any]:
        """Return the observations, actions, rewards and other arrays of this batch as a dict of nested arrays.

        They share the memory of the batch. A compressed array is replaced by the indices of its items, and a track that
        was added to the data set later has its fill value.

        Args:
            num_steps: steps of all episodes, lookback included.
        """
        header, structure = self._header, self._layout.structure
        tracks: dict[str, Any] = {}
        stored = self._layout.tracks
        added = {path: field for path, field in header.tracks.items() if field.fill is not None and path not in stored}
        if num_steps and header.knows_steps:
            check_same({path: header.tracks[path] for path in header.tracks if path not in added}, stored, self.source)
            tracks = {path: field.filled(num_steps) for path, field in added.items()}
            structure = header.structure if added else structure
        for path, field in self._layout.tracks.items():
            num_rows = num_steps + len(self) * is_observed(path)
            if path in self.compressed:
                tracks[path] = np.arange(num_rows)
            else:
                column, dtype, shape = self.batch.column(path), np.dtype(field.dtype), field.value_shape
                offsets, items = self._episode_offsets(is_observed(path)), None
                if field.is_ragged:
                    items = self._item_offsets(path)
                    offsets, num_rows = items[offsets], int(items[-1])
                check_offsets(column, offsets * values_per_item(dtype, shape), path)
                values = array_of(column, dtype, shape, num_rows, path)
                tracks[path] = values if items is None else Ragged.of(values, items)
        if not num_steps and header.knows_steps:  # the batch was written before the first step
            tracks |= {path: field.empty() for path, field in header.tracks.items() if not is_observed(path)}
            structure = header.structure
        return assemble(structure, tracks)

    def _make_pack(self) -> EpisodePack:
        """Return the pack of this batch. Its arrays share memory with the batch."""
        known, header = self._rows, self._header
        num_steps = int((known.lengths + known.lookbacks).sum())
        infos = info_schema.stored_infos(self._layout.infos, self.batch, self._episode_offsets(True))
        stored = self._columns(num_steps)
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

    def decoded(self, path: str, array: Any) -> Any:
        """Decompress items of the array at `path`, given their indices as `array`.
        If the array is not compressed, return `array`."""
        if path not in self.compressed or type(array) is Ragged:  # no step was stored, so nothing is compressed
            return array
        with as_unreadable_data(self.source):
            return self.compressed[path].take(array)
