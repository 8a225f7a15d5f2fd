"""Export of episodes to Ray Data, as complete transitions (with next observations), because Ray shuffles rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from episodes.converters.bounded_packs import Given, packs_of
from episodes.converters.columns import NUMBERS, column_of
from episodes.converters.loss_report import LossReport
from episodes.converters.step_tables import checked_columns, export_pack, fact_columns, report_chunk_losses
from episodes.converters.table_infos import info_columns, storable_infos
from episodes.errors import InvalidArgument, needing
from episodes.pack import EpisodePack
from episodes.storage import EpisodeDataset
from episodes.storage.arrow import pyarrow
from episodes.storage.track_schema import is_observed
from episodes.tracks.policy_box import has_policy_actions

PART_BYTES = 1 << 25  # bytes of tracks that one task reads; a single episode may be larger


def to_ray_data(episodes: Given, *, strict: bool = False) -> tuple[Any, LossReport]:
    """Convert episodes to a `ray.data.Dataset` with one transition per row. Return it with a report of losses.

    Columns are those of `to_parquet`, but with `next_observations` and `next_infos/KEY` on every row instead of
    `last_observations` and `last_infos/KEY`. Items with a shape are Arrow tensors, so numpy batches have arrays
    [rows, ...]. Ray's tasks read an `EpisodeDataset` while the result is consumed, about 32 MB per task; its path must
    lead to the same files on all machines, and its tracks do not pass through this process.
    Other episodes are put into Ray's object store.

    Args:
        episodes: the episodes.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: Ray or pyarrow is not installed.
        InvalidArgument: no episode has a step.
        WrongType: a track of complex numbers or another unsupported dtype.
        LostInConversion: with `strict`, something would be lost.
    """
    with needing("ray,arrow", "Ray Data needs Ray"):
        import ray.data
    report = LossReport()
    if not isinstance(episodes, EpisodeDataset):
        tables = [table for pack in packs_of(episodes) if (table := complete_table(pack, report)) is not None]
        report.check(strict)
        return ray.data.from_arrow(_some(tables)), report
    rows = episodes.metadata
    report_chunk_losses(rows["length"], rows["lookback"], rows["id"], report)
    if has_policy_actions(episodes.action_space):
        report.add("the policy's own actions", "the environment's actions are written in their place", rows["id"][0])
    report.check(strict)
    episodes = episodes.select(rows["length"] > 0)
    parts = [{"start": start, "stop": stop} for start, stop in _some(parts_of(episodes, PART_BYTES))]
    waiting = ray.data.from_items(parts, override_num_blocks=len(parts))
    return waiting.map_batches(partial(_read, episodes), batch_size=1), report


def _some(items: list[Any]) -> list[Any]:
    """Return `items` unchanged. Raise `InvalidArgument` if they are empty."""
    if not items:
        raise InvalidArgument("to_ray_data: no episodes with a step were given")
    return items


def parts_of(dataset: EpisodeDataset, part_bytes: int) -> list[tuple[int, int]]:
    """Divide the episodes of a data set into index ranges (start, stop) of about `part_bytes` bytes each."""
    tracks = dataset.stored_header.tracks.values()
    step_bytes = sum(np.dtype(field.dtype).itemsize * math.prod(field.shape) for field in tracks)
    starts = np.cumsum(dataset.lengths) - dataset.lengths
    firsts = np.flatnonzero(np.diff(starts * step_bytes // part_bytes, prepend=-1)).tolist()
    return list(pairwise([*firsts, len(dataset)]))


def _read(dataset: EpisodeDataset, part: Any) -> Iterator[Any]:
    """Yield Arrow tables with the transitions of one range of episodes. This runs in a Ray task."""
    for pack in dataset[int(part["start"][0]) : int(part["stop"][0])].packs():
        yield complete_table(pack, LossReport())


def complete_table(pack: EpisodePack, report: LossReport) -> Any | None:
    """Convert a pack to an Arrow table with one transition per row, next observation included.

    Returns None if the pack has no steps.

    Raises:
        WrongType: a track of complex numbers, objects or another unsupported dtype.
    """
    pack = export_pack(pack, report)
    if not len(pack):
        return None
    steps, observed, following = pack.step_rows(), pack.observation_rows(), pack.observation_rows(1)
    columns = fact_columns(pack, report)
    for path, array in checked_columns(pack):
        columns[path] = _tensors(array[observed if is_observed(path) else steps])
        if is_observed(path):
            columns[f"next_{path}"] = _tensors(array[following])
    infos = storable_infos(pack, report)
    columns |= info_columns(infos, "infos/", observed) | info_columns(infos, "next_infos/", following)
    return pyarrow().table(columns)


def _tensors(array: np.ndarray) -> Any:
    """Convert an array [n, ...] to an Arrow column of numbers, or of fixed-shape tensors if items have a shape."""
    pa, column = pyarrow(), column_of(array)
    if array.ndim == 1 or not pa.types.is_fixed_size_list(column.type) or array.dtype.kind not in NUMBERS:
        return column
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(column.type.value_type, array.shape[1:]), column)
