"""Rows of a notebook view: name, statistics, remarks and a small picture of each array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from markupsafe import Markup

from episodes.inspect import formatting, sparklines
from episodes.inspect.cards.card import Row, Table
from episodes.inspect.cards.tables import first_and_last, left_out, note_on_rows, with_gap, without_columns
from episodes.inspect.series import Series
from episodes.inspect.sparklines import Axis
from episodes.storage.search.statistics import without_rounding
from episodes.tracks import nested

BYTES_OF_LINES = 9_000  # of all lines of a card together
BYTES_OF_FRAMES = 15_000  # of all strips of frames
BYTES_OF_POINT = 8  # with its part of the line through the means
MOST_ROWS = 24  # with a picture; two or more further rows are only named
MOST_PARTS = 8  # numbers of an item in the table of a row
FIRST_PARTS = 6  # of an item with more of them
MOST_CARDS_WITH_TABLES = 2  # of one view
MOST_TEXTS = 8  # of a track that a table lists
MOST_OF_TEXT = 400  # characters
Where = Callable[[Series, int], str]  # place of an item of a series, as text
COLUMN_HUES = {
    "obs": "observations",
    "new_obs": "observations",
    "actions": "actions",
    "rewards": "rewards",
    "infos": "infos",
    "loss_mask": "infos",
    "terminateds": "infos",
    "truncateds": "infos",
}


def rows_of(
    series: Sequence[Series], axis: Axis | None, share: int = 1, where: Where | None = None
) -> tuple[list[Row], list[str]]:
    """Return a table row of a notebook view for each of the first arrays in `series`, and remarks on arrays left out
    for lack of space. Further arrays with defects have a row without a picture.

    Args:
        axis: time axis of the pictures. None if the items have no common order in time, such as the rows of a batch.
        share: number of cards of this kind in one view.
        where: function that names the place of an item. By default, it is the index of the item.
    """
    most = max(MOST_ROWS // share, 4)
    shown = series if len(series) == most + 1 else series[:most]
    lanes = sum(
        2 * sparklines.MOST_LANES
        if track_series.num_steps
        else min(track_series.sampled_values.shape[1], sparklines.MOST_LANES)
        for track_series in shown
        if track_series.is_numeric and not track_series.is_image and not track_series.is_band
    )
    points = BYTES_OF_LINES // (BYTES_OF_POINT * max(lanes, 1) * share)
    points = min(max(points, sparklines.FEWEST_POINTS), sparklines.MOST_POINTS)
    room = BYTES_OF_FRAMES // (
        share * max(sum(track_series.is_image and track_series.is_numeric for track_series in shown), 1)
    )
    has_tables = share <= MOST_CARDS_WITH_TABLES
    rows = [_row(track_series, axis, points, room, has_tables, where or _item) for track_series in shown]
    rows += [_defects_row(each, where or _item) for each in series[len(shown) :]]
    rows = [replace(row, index=i) for i, row in enumerate(rows)]
    is_left_out = [i >= len(shown) and not row.defects for i, row in enumerate(rows)]
    notes = left_out([each.label for each, is_out in zip(series, is_left_out, strict=True) if is_out])
    return [row for row, is_out in zip(rows, is_left_out, strict=True) if not is_out], notes


def _item(series: Series, index: int) -> str:
    """Return the place of an item as text, without further knowledge."""
    return f"item {index:,}"


def _row(series: Series, axis: Axis | None, points: int, room: int, has_table: bool, where: Where) -> Row:
    """Return the table row of a series: name, dtype and shape, range, remarks and a small picture.

    Args:
        points: most points of one line of the picture.
        room: most bytes of a strip of frames.
        has_table: whether a numeric series gets a table of its components. Text always gets one.
        where: function that names the place of an item.
    """
    meta = " · ".join(filter(None, (f"{series.shape_text} {series.dtype}", series.space_text)))
    if series.nbytes is not None:
        meta += f" · {formatting.size(series.nbytes)}"
    label = formatting.clipped(nested.unescape(series.label))
    remarks = series.remarks
    if not series.is_numeric:
        first, texts = _texts(series)
        return Row(label, series.hue, meta, (), formatting.clipped(", ".join(remarks)), first, texts)
    if note := sparklines.rows_note(series, axis):
        remarks.append(note)
    picture = sparklines.picture(series, axis, points, room, lambda item: where(series, item))
    is_told = axis is None and not series.num_steps and len(series.part_names) <= sparklines.MOST_LANES
    table = parts_table(series, axis is not None) if has_table and not is_told else None
    is_histogram = axis is None and not series.num_steps
    return replace(
        _defects_row(series, where),
        meta=meta,
        stats=_stats(series, is_histogram),
        note=", ".join(remarks),
        picture=picture,
        table=table,
        lane=sparklines.HISTOGRAM_LANE if is_histogram else sparklines.LANE,
    )


def _defects_row(series: Series, where: Where) -> Row:
    """Return the row of a series without a picture: its name, and its defects."""
    label = formatting.clipped(nested.unescape(series.label))
    row = Row(label, series.hue, f"{series.shape_text} {series.dtype}", (), "", Markup(""))
    if not series.is_numeric:
        return row
    defects = series.defects_text(lambda item: where(series, item))
    return replace(row, defects=defects, defect_counts=series.defect_counts if defects else ())


def _stats(series: Series, has_deviations: bool) -> list[tuple[str, str, str, str]]:
    """Return name, min, mean and max of each line of a series' picture, as texts.

    A picture of many components has one entry for all of them, without a mean. Ids have no mean.

    Args:
        has_deviations: whether the standard deviation follows the mean, as in "0.5 ± 0.2". Images and choices have
            none.
    """
    has_deviations = has_deviations and series.has_deviation
    if series.num_steps or series.has_common_mean or len(series.part_names) > sparklines.MOST_LANES:
        low, mean, high = map(formatting.number, series.range)
        has_deviations = has_deviations and not series.is_image and series.has_common_mean
        mean += _deviations(series)[0] if has_deviations else ""
        return [("", low, mean if series.has_common_mean and not series.is_id else "", high)]
    lows, means, highs = (list(map(formatting.number, row)) for row in series.ranges.tolist())
    means = [f"{mean}{std}" for mean, std in zip(means, _deviations(series), strict=True)] if has_deviations else means
    means = [""] * len(means) if series.is_id else means
    return list(zip(series.component_names, lows, means, highs, strict=True))


def _deviations(series: Series) -> list[str]:
    """Return the standard deviation of each number of an item as text, such as " ± 0.2", or "" if it is 0."""
    return [f" ± {formatting.number(std, 3)}" if std > 0 else "" for std in _std(series, len(series.part_names))]


def _texts(series: Series) -> tuple[Markup, Table | None]:
    """Return the beginning of the first text in an array of texts, and a table of its first and last texts.

    Blank texts are left out. A text that repeats is listed once, with its first item and how many items have it.
    """
    if series.array.dtype.kind not in "US" or series.array.ndim != 1 or not len(series.array):
        return Markup(""), None
    items: dict[str, list[int]] = {}
    for i, text in enumerate(series.array.tolist()):
        if text.strip() and (series.present is None or series.present[i]):
            items.setdefault(text, []).append(i)
    if not items:
        return Markup(""), None
    texts = [*items]
    chosen = first_and_last(len(texts), MOST_TEXTS)
    cells = [(texts[k], items[texts[k]]) for k in chosen]
    rows = [(str(own[0]), f"{len(own):,}", formatting.clipped(text, MOST_OF_TEXT)) for text, own in cells]
    note = note_on_rows(len(texts), MOST_TEXTS, "text")
    table = Table(("item", "times", "text"), with_gap(rows, chosen), note, is_words=True)
    return Markup("<span>{}</span>").format(formatting.clipped(texts[0], 160)), without_columns(table, times="1")


def parts_table(series: Series, is_in_time: bool = True) -> Table | None:
    """Return a table of statistics of each component of an array's items: min, mean and max, of items in time the first
    and the last, and of others the standard deviation. Choices have no deviation, and of more than two values no mean.

    None is returned for images, flags and other small whole numbers, and arrays without items. Of infos, first and
    last are those that have the key.
    """
    if series.num_steps and len(series.array):
        steps = series.array.reshape(-1, *series.array.shape[2:])
        steps = replace(series, array=steps, total=len(steps), num_steps=0)
        return parts_table(steps, is_in_time) if series.places is None else None
    count = series.sampled_values.shape[1]
    items = series.array if series.present is None else series.array[series.present]
    if series.is_image or series.is_band or len(items) == 0:
        return None
    most = count if count <= MOST_PARTS else FIRST_PARTS
    low, mean, high = series.ranges[:, :most]
    if is_in_time:
        columns, more = ("", "min", "mean", "max", "first", "last"), items[[0, -1]].reshape(2, -1)[:, :most]
        cells = np.stack([low, mean, high, *more], 1).tolist()
    else:
        columns, cells = ("", "min", "mean", "std", "max"), np.stack([low, mean, _std(series, most), high], 1).tolist()
    missing = ["mean"] * series.is_id + ["std"] * (not series.has_deviation)
    if missing:
        kept = [i for i, name in enumerate(columns[1:]) if name not in missing]
        columns, cells = ("", *(columns[i + 1] for i in kept)), [[row[i] for i in kept] for row in cells]
    rows = [(name, *map(formatting.number, row)) for name, row in zip(series.component_names, cells, strict=False)]
    rows += [("⋮", f"{count - most:,} more", *[""] * (len(columns) - 2))] * (count > most)
    return Table(columns, rows)


def _std(series: Series, most: int) -> np.ndarray:
    """Return the standard deviation of the finite values of the first `most` numbers of an item, float64 [most]."""
    numbers = series.finite[:, :most]
    with np.errstate(over="ignore", invalid="ignore"):
        if not any(series.counts):
            return without_rounding(numbers.std(0, dtype=np.float64), *series.ranges[::2, :most])
        found = ~np.isnan(numbers)
        squares = np.where(found, np.square(numbers - series.ranges[1, :most], dtype=np.float64), 0).sum(0)
        std = without_rounding(np.sqrt(squares / np.maximum(found.sum(0), 1)), *series.ranges[::2, :most])
        return np.where(found.any(0), std, np.nan)
