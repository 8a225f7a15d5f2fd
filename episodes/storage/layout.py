"""How a pack lies in a record batch, and how a record batch is read as a pack.

The columns are those of `episode_rows`, one list column for each track, and those of the infos. What is needed to read
them is in the metadata of the shard's Arrow schema, so that a shard says by itself what it holds.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from episodes.errors import UnreadableData
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import episode_rows as rows
from episodes.storage import info_schema
from episodes.storage.arrow import array_of, check_offsets, list_column, pyarrow, reading, value_type, values_per_item
from episodes.storage.compressed_tracks import CompressedTrack, compressed_column, rows_per_block
from episodes.storage.header import Header
from episodes.storage.info_schema import InfoField, InfoFields
from episodes.storage.track_schema import Fields, TrackField, assembled, check_same, is_observed
from episodes.tracks import Tracks
from episodes.tracks.infos.info_columns import Column

_KEY = b"rl-episodes"  # of the Arrow schema's metadata


@dataclass(frozen=True, slots=True)
class Layout:
    """What the columns of a shard are."""

    structure: Any  # see `structure_of`
    tracks: Fields
    infos: InfoFields

    @property
    def is_flat(self) -> bool:
        """Whether no column is nested."""
        parts = dict(self.structure["dict"]) if self.structure else {}
        extra = [part for _, part in parts.pop("extra_model_outputs", {"dict": []})["dict"]]
        return all(isinstance(part, str) for part in (*parts.values(), *extra))

    @staticmethod
    def from_schema(schema: Any) -> Layout:
        """The layout that an Arrow schema tells of; `UnreadableData` for a file of something else."""
        try:
            told = (schema.metadata or {})[_KEY]
            layout = _layout_of(told)
            lacking = rows.optional_names().difference(schema.names)
            as_told = _schema_of(told, _row_names(without=lacking)).equals(schema)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableData(f"an Arrow file that is not of episodes: {error!r}") from None
        if not as_told:
            raise UnreadableData("an Arrow file whose columns are not those that its metadata tells of")
        return layout

    def schema(self) -> Any:
        """The Arrow schema."""
        told = {
            "structure": self.structure,
            "tracks": {path: field.to_json() for path, field in self.tracks.items()},
            "infos": {path: field.to_json() for path, field in self.infos.items()},
        }
        return _schema_of(json.dumps(told).encode(), _row_names())

    def batch(self, schema: Any, pack: EpisodePack, infos: dict[str, Column], own: bool) -> Any:
        """The pack as a record batch, of its arrays' own memory unless `own`."""
        columns = rows.row_columns(pack)
        for path, field in self.tracks.items():
            array = pack.tracks[path]
            offsets = pack.observation_offsets if is_observed(path) else pack.offsets
            if field.compression == "zstd":
                columns.append(compressed_column(array, offsets, rows_per_block(field)))
            else:
                columns.append(list_column(array, offsets, own))
        columns += info_schema.arrow_columns(self.infos, infos, pack.observation_offsets, own)
        return pyarrow().RecordBatch.from_arrays(columns, schema=schema)


@lru_cache(maxsize=16)  # the shards of a data set have one, or a few
def _layout_of(told: bytes) -> Layout:
    found = json.loads(told)
    tracks = {path: TrackField.from_json(field) for path, field in found["tracks"].items()}
    infos = {path: InfoField.from_json(field) for path, field in found["infos"].items()}
    return Layout(found["structure"], tracks, infos)


def _row_names(without: Collection[str] = ()) -> tuple[str, ...]:
    return tuple(field.name for field in rows.row_fields() if field.name not in without)


@lru_cache(maxsize=16)
def _schema_of(told: bytes, row_names: tuple[str, ...]) -> Any:
    """The Arrow schema of a layout as JSON, with these columns of rows. Making one takes 0.1 ms."""
    arrow, layout = pyarrow(), _layout_of(told)
    blocks = arrow.large_list(arrow.large_binary())
    types = {
        path: blocks if field.compression == "zstd" else arrow.large_list(value_type(np.dtype(field.dtype)))
        for path, field in layout.tracks.items()
    }
    for path, field in layout.infos.items():
        types |= field.column_types(path)
    own = (field for field in rows.row_fields() if field.name in row_names)
    fields = [*own, *(arrow.field(name, type_) for name, type_ in types.items())]
    return arrow.schema(fields, {_KEY: told})


class StoredBatch:
    """A record batch, read as a pack.

    Compressed tracks stand in the pack as their row numbers. Whatever picks rows (an index, a slice, a selection)
    picks numbers, and what was picked is decompressed at the end.
    """

    def __init__(self, batch: Any, layout: Layout, header: Header, source: str, place: bytes) -> None:
        self.batch = batch
        self.place = place  # the shard's name and the batch's number, which no other batch ever has
        self._layout = layout
        self._header = header
        self.source = source  # the shard's file

    def __len__(self) -> int:
        return self.batch.num_rows

    @property
    def here(self) -> StoredBatch:
        """The batch with its tracks, where they come later."""
        return self

    @property
    def nbytes(self) -> int:
        """The bytes of its columns."""
        return self.batch.nbytes

    @property
    def fields(self) -> Fields:
        """What the tracks in its shard are, by path."""
        return self._layout.tracks

    @property
    def info_paths(self) -> Collection[str]:
        """The paths of its infos."""
        return self._layout.infos.keys()

    @property
    def lengths(self) -> np.ndarray:
        """The steps of each episode [n]."""
        return self._rows.lengths

    @property
    def written(self) -> Collection[str]:
        """The paths of the tracks that its shard has; others stand in for those that were added later."""
        return self._layout.tracks.keys()

    @cached_property
    def _rows(self) -> rows.EpisodeRows:
        return rows.EpisodeRows.of(self.batch)

    @cached_property
    def compressed(self) -> dict[str, CompressedTrack]:
        """The tracks that are compressed, by path."""
        found = {}
        for path, field in self._layout.tracks.items():
            if field.compression == "zstd":
                column, num_rows = self.batch.column(path), rows_per_block(field)
                found[path] = CompressedTrack.of(column, field, self._offsets(is_observed(path)), num_rows, path)
        return found

    def _offsets(self, observed: bool) -> np.ndarray:
        """Where the items of each episode begin and end [n + 1]."""
        return self._observed_offsets if observed else self._stepped_offsets

    @cached_property
    def _stepped_offsets(self) -> np.ndarray:
        offsets = np.zeros(len(self) + 1, np.int64)
        (self._rows.lengths + self._rows.lookbacks).cumsum(out=offsets[1:])
        return offsets

    @cached_property
    def _observed_offsets(self) -> np.ndarray:
        return self._stepped_offsets + np.arange(len(self) + 1)

    @cached_property
    def whole(self) -> EpisodePack:
        """All episodes as one pack: views of the batch, and of compressed tracks the numbers of their rows."""
        with reading(self.source):
            return self._make_pack()

    def _columns(self, num_steps: int) -> dict[str, Any]:
        header, structure, tracks = self._header, self._layout.structure, {}
        there = self._layout.tracks
        added = {path: field for path, field in header.tracks.items() if field.fill is not None and path not in there}
        if num_steps and header.knows_steps:
            check_same({path: header.tracks[path] for path in header.tracks if path not in added}, there, self.source)
            tracks = {path: field.filled(num_steps) for path, field in added.items()}
            structure = header.structure if added else structure
        for path, field in self._layout.tracks.items():
            num_rows = num_steps + len(self) * is_observed(path)
            if path in self.compressed:
                tracks[path] = np.arange(num_rows)
            else:
                column, dtype = self.batch.column(path), np.dtype(field.dtype)
                check_offsets(column, self._offsets(is_observed(path)) * values_per_item(dtype, field.shape), path)
                tracks[path] = array_of(column, dtype, field.shape, num_rows, path)
        if not num_steps and header.knows_steps:  # written before anybody knew what steps would be like
            tracks |= {path: field.empty() for path, field in header.tracks.items() if not is_observed(path)}
            structure = header.structure
        return assembled(structure, tracks)

    def _make_pack(self) -> EpisodePack:
        known, header = self._rows, self._header
        num_steps = int((known.lengths + known.lookbacks).sum())
        infos = info_schema.infos_of(self._layout.infos, self.batch, self._offsets(True))
        stored = self._columns(num_steps)
        steps = stored["actions"], stored["rewards"], stored.get("extra_model_outputs", {})
        columns = Tracks.finished(stored["observations"], infos, *steps)
        facts = known.facts(header.observation_space, header.action_space)
        pack = EpisodePack.of(columns, facts, known.lengths, known.lookbacks)
        pack.check()
        return pack

    def episode(self, i: int, steps: slice | None = None) -> SingleAgentEpisode:
        """Episode i, or a slice of its steps: views of the batch, but for compressed tracks."""
        episode = self.whole[i]
        if steps is not None:
            episode = episode[steps]
        if self.compressed:
            episode.tracks = episode.tracks.map_arrays(self.decoded)
        return episode

    def pack(self, which: np.ndarray) -> EpisodePack:
        """The episodes with these numbers [k]: views where they follow each other, but for compressed tracks."""
        first, last = int(which[0]), int(which[-1])
        in_a_row = last - first == len(which) - 1 and bool((np.diff(which) == 1).all())
        picked = self.whole
        if not in_a_row:
            picked = picked.select(which)
        elif len(which) < len(self):
            picked = picked[first : last + 1]
        if not self.compressed:
            return picked
        return EpisodePack.of(picked.columns.map_arrays(self.decoded), picked.facts, picked.lengths, picked.lookbacks)

    def decoded(self, path: str, array: np.ndarray) -> np.ndarray:
        """The rows of a compressed track in place of their numbers; other arrays as they are."""
        if path not in self.compressed:
            return array
        with reading(self.source):
            return self.compressed[path].take(array)
