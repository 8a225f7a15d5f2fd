"""Steps for Ray Data: blocks of Arrow whose rows are complete, since rows are shuffled there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from episodes.converters.action_mapping import exported
from episodes.converters.bounded_packs import Given, packs_of
from episodes.converters.columns import NUMBERS, column_of
from episodes.converters.info_columns import InfoColumns
from episodes.converters.loss_report import LossReport
from episodes.converters.step_tables import checked_columns, fact_columns, owners, tell_of_chunks
from episodes.errors import InvalidArgument, needing
from episodes.pack import EpisodePack
from episodes.storage import EpisodeDataset
from episodes.storage.arrow import pyarrow
from episodes.storage.track_schema import is_observed
from episodes.tracks.indexing import ranges
from episodes.tracks.policy_box import has_policy_actions

PART_BYTES = 1 << 25  # of tracks that one task reads; a single episode may be larger


def to_ray_data(episodes: Given, *, strict: bool = False) -> tuple[Any, LossReport]:
    """A `ray.data.Dataset` with a row for each step, and what was lost.

    Columns are those of `to_parquet`, but for `next_observations` and `next_infos/KEY` on every row; items with a shape
    are Arrow's tensors, arrays [rows, ...] in batches of numpy. An `EpisodeDataset` is read by Ray's tasks while it is
    consumed, about 32 MB by each, where its path leads to the same files; of the tracks, nothing goes through this
    process. Other episodes are put into Ray's object store.

    Raises:
        MissingExtra: without Ray or pyarrow.
        InvalidArgument: no episodes with a step.
        WrongType: a track of complex numbers or the like.
        LostInConversion: with `strict`, when something would be lost.
    """
    with needing("ray,arrow", "Ray Data needs Ray"):
        import ray.data
    report = LossReport()
    if not isinstance(episodes, EpisodeDataset):
        tables = [table for pack in packs_of(episodes) if (table := complete_table(pack, report)) is not None]
        report.check(strict)
        return ray.data.from_arrow(_some(tables)), report
    rows = episodes.metadata
    tell_of_chunks(rows["length"], rows["lookback"], rows["id"], report)
    if has_policy_actions(episodes.action_space):
        report.add("the policy's own actions", "the environment's actions are written in their place", rows["id"][0])
    report.check(strict)
    episodes = episodes.select(rows["length"] > 0)
    parts = [{"start": start, "stop": stop} for start, stop in _some(parts_of(episodes, PART_BYTES))]
    waiting = ray.data.from_items(parts, override_num_blocks=len(parts))
    return waiting.map_batches(partial(_read, episodes), batch_size=1), report


def _some(found: list[Any]) -> list[Any]:
    if not found:
        raise InvalidArgument("to_ray_data: no episodes with a step were given")
    return found


def parts_of(dataset: EpisodeDataset, part_bytes: int) -> list[tuple[int, int]]:
    """The first of the episodes of each part, and the one after its last: parts of about so many bytes of tracks."""
    tracks = dataset.stored_header.tracks.values()
    step_bytes = sum(np.dtype(field.dtype).itemsize * math.prod(field.shape) for field in tracks)
    starts = np.cumsum(dataset.lengths) - dataset.lengths
    firsts = np.flatnonzero(np.diff(starts * step_bytes // part_bytes, prepend=-1)).tolist()
    return list(pairwise([*firsts, len(dataset)]))


def _read(dataset: EpisodeDataset, part: Any) -> Iterator[Any]:
    """The tables of a part of a data set: what one of Ray's tasks does. It opens the data set once."""
    for pack in dataset[int(part["start"][0]) : int(part["stop"][0])].packs():
        yield complete_table(pack, LossReport())


def complete_table(pack: EpisodePack, report: LossReport) -> Any | None:
    """The table of the pack's steps, each with what was observed after it too; None where there is none.

    Raises:
        WrongType: a track of complex numbers, objects or the like.
    """
    pack = exported(pack, report)
    ids = [pack.facts.at(i).id_ for i in range(len(pack))]
    tell_of_chunks(pack.lengths, pack.lookbacks, ids, report)
    pack = pack if pack.lengths.all() else pack.select(pack.lengths > 0)
    if not len(pack):
        return None
    starts = pack.offsets[:-1] + pack.lookbacks
    steps, seen = ranges(starts, pack.lengths), ranges(starts + np.arange(len(pack)), pack.lengths)
    columns = fact_columns(pack, report)
    for path, array in checked_columns(pack):
        columns[path] = _tensors(array[seen if is_observed(path) else steps])
        if is_observed(path):
            columns[f"next_{path}"] = _tensors(array[seen + 1])
    infos = InfoColumns.of(pack.infos, [pack.facts.at(i).id_ for i in owners(pack)], report)
    return pyarrow().table(columns | infos.columns("infos/", seen, None) | infos.columns("next_infos/", seen + 1, None))


def _tensors(array: np.ndarray) -> Any:
    """The column of an array [n, ...]: Arrow's tensors of a fixed shape where items have one."""
    pa, column = pyarrow(), column_of(array)
    if array.ndim == 1 or not pa.types.is_fixed_size_list(column.type) or array.dtype.kind not in NUMBERS:
        return column
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(column.type.value_type, array.shape[1:]), column)
