"""Notebook view of a batch: a row for each column, and where batch rows came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from episodes.batch import Batch
from episodes.batch import leaves as batch_leaves
from episodes.batch.train_batch import TrainBatch
from episodes.columns import Columns
from episodes.errors import EpisodeError
from episodes.inspect import formatting
from episodes.inspect.cards.card import HISTOGRAMS, Card, Table, known
from episodes.inspect.cards.rows import COLUMN_HUES, rows_of
from episodes.inspect.cards.tables import shown_id, without_columns
from episodes.inspect.lineage import BatchLinks, row_steps
from episodes.inspect.series import Series
from episodes.tracks import nested

MOST_ORIGINS = 12  # rows of a batch whose episodes are listed


def batch_card(batch: Mapping[str, Any] | Batch, kind: str = "Batch", links: BatchLinks | None = None) -> Card:
    """Return the notebook card of a `Batch` or another mapping of columns, with a row for each array.

    With `links`, the listed batch rows link to their steps on the HTML page of the data set.

    The first and the last rows of the batch are listed with their episodes and steps, if they are known.
    """
    leaves = {
        path: leaf
        for path, leaf in nested.flatten(batch.to_dict() if isinstance(batch, Batch) else dict(batch)).items()
        if path
    }
    lengths = {leaf.shape[0] if leaf.ndim else 1 for leaf in leaves.values()}
    many = formatting.counted(lengths.pop(), "row") if len(lengths) == 1 else "no common length"
    num_steps = _sequence_length(leaves)
    series = [_column(path, leaf) for path, leaf in leaves.items()]
    series = [_with_steps(time_series, num_steps) for time_series in series]
    alike = {each.note for each in series}  # a note that all columns have is a fact of the batch
    if len(alike) == 1:
        series = [replace(each, note="") for each in series]
    rows, notes = rows_of(series, None, where=lambda _, index: f"row {index:,}")
    nbytes = sum(time_series.nbytes or 0 for time_series in series)
    headline = [many, formatting.counted(len(series), "column"), formatting.size(nbytes)]
    with_gradient = [path for path, leaf in leaves.items() if getattr(leaf, "requires_grad", False)]
    return Card(
        kind,
        "",
        headline,
        facts=known(
            columns=alike.pop() if len(alike) == 1 and alike != {""} else None,
            requires_grad=", ".join(with_gradient) or None,
        ),
        caption=HISTOGRAMS if not num_steps else "",
        rows=rows,
        table=_origins(batch, links, series),
        notes=notes,
    )


def _origins(batch: object, links: BatchLinks | None, series: Sequence[Series]) -> Table | None:
    """Return a table of the episodes and steps from which evenly spaced batch rows came, with their actions and rewards
    if these are single numbers, or None if the episodes are unknown.
    """
    try:
        origin = batch.origin if isinstance(batch, (Batch, TrainBatch)) else None
        if origin is None or not origin.numbers.ndim:
            return None
        spaced = np.linspace(0, len(origin) - 1, min(len(origin), MOST_ORIGINS))
        chosen = [] if not len(origin) else np.unique(spaced.astype(np.intp)).tolist()
        steps = row_steps(origin[np.array(chosen, np.intp)])
        num_episodes = len({id_ for id_ in origin.ids.ravel().tolist() if id_ is not None})
    except EpisodeError:
        return None
    rows = []
    shown = [each for each in series if each.label in ("actions", "rewards") and each.array.shape == (len(origin),)]
    shown = [each for each in shown if each.is_numeric]
    for row, step in zip(chosen, steps, strict=True):
        if step is not None:
            id_ = shown_id(step.id_)
            name = id_ if links is None else Markup('<a href="{}">{}</a>').format(links.link(step), id_)
            agent = "" if step.agent_id is None else formatting.clipped(step.agent_id, 20)
            numbers = (formatting.number(each.array[row].item()) for each in shown)
            rows.append((str(row), name, step.times, *numbers, agent))
    note = f"{len(chosen)} of {len(origin):,} rows, " if len(chosen) < len(origin) else ""
    note += f"which are of {formatting.counted(num_episodes, 'episode')}" if note else ""
    columns = ("row", "episode", "t", *(each.label.removesuffix("s") for each in shown), "agent")
    return without_columns(Table(columns, rows, note, has_names=True), agent="") if rows else None


def _with_steps(series: Series, num_steps: int) -> Series:
    """Return the array marked as sequences if its shape is [B, `num_steps`, ...]. Other arrays are unchanged."""
    is_state = series.label.split("/")[0] in (Columns.STATE_IN, Columns.STATE_OUT)
    return series if is_state or series.shape[1:2] != (num_steps,) else replace(series, num_steps=num_steps)


def _sequence_length(leaves: Mapping[str, Any]) -> int:
    """Return the length T of the sequences in a batch [B, T, ...], or 0 for a batch of single steps [B, ...]."""
    for name in (Columns.LOSS_MASK, Columns.REWARDS, Columns.TERMINATEDS, Columns.ADVANTAGES, Columns.ACTION_LOGP):
        if name in leaves and leaves[name].ndim == 2:
            return leaves[name].shape[1]
    return 0


def _column(path: str, leaf: Any) -> Series:
    """Return a batch column with its statistics for display. Tensors on a GPU have none, to avoid a copy."""
    hue = COLUMN_HUES.get(path.split("/")[0], "extra")
    if batch_leaves.torch_of(leaf) is None:
        array = np.atleast_1d(leaf)
        return Series(path, hue, array, len(array), None, 1, array.nbytes)
    shape, nbytes = tuple(leaf.shape) or (1,), leaf.numel() * leaf.element_size()
    if leaf.device.type == "cpu" and not leaf.is_sparse:
        array = batch_leaves.as_numpy(leaf.float() if str(leaf.dtype).endswith("bfloat16") else leaf)
        return Series(path, hue, array.reshape(shape), shape[0], None, 1, nbytes, f"tensor on {leaf.device}")
    empty = np.empty((0, *shape[1:]), batch_leaves.numpy_dtype(leaf))
    return Series(path, hue, empty, shape[0], None, 1, nbytes, f"tensor on {leaf.device}, whose numbers are not read")
