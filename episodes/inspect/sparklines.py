"""Small pictures of arrays over time for tables (lines, colour bands, image strips), as SVG and PNG.

All pictures of one episode share an axis. Positions are indices of observations, with the lookback; a step is between
two of them:

    position   0        1        2        3
               o0 ------ o1 ------ o2 ------ o3         observations
                   a0        a1        a2              steps: at 0.5, 1.5, 2.5
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from markupsafe import Markup, escape

from episodes.inspect.colours import DEFECT, HUES, colour
from episodes.inspect.downsampling import Cells, stacked_items
from episodes.inspect.formatting import number
from episodes.inspect.frames import viewable
from episodes.inspect.png import data_uri, png
from episodes.inspect.scales import are_whole, width_of_whole_bins
from episodes.inspect.series import Series
from episodes.tracks.space_kinds import bounds_of

WIDTH = 480  # pixels of a picture, unless CSS sets another width
UNITS = 2  # coordinates per pixel: they are whole numbers, which take few bytes
LANE, MOST_LANES = 22, 8  # height of a line of numbers, and most lines of a picture
THIN = 0.2  # of the range: neighbouring items that differ less on average are drawn as a line
FEWEST_POINTS, MOST_POINTS = 24, 240  # of a line
MOST_BANDS = 24  # rows of colours
MOST_SEQUENCE_ROWS = 48  # rows of colours of sequences
LEVELS = 40  # of a colour; level 0 is transparent
MOST_MARKS = 48  # of numbers that are not finite
MOST_BORDERS = 40  # between episodes of a pack
MOST_DOTS = 240  # of a picture of choices at their own places
DOT = 4  # pixels of a cell of more choices
MOST_BIN_LABELS = 8  # of a histogram
MOST_BIN_TEXTS = 16  # bins of a histogram whose bars have tooltips
BINS = 48  # of a histogram
WIDEST_BAR = 40  # of a histogram
HISTOGRAM_LANE = 16  # height of each histogram of several components
ROW = 4  # height of one of many rows of colours
BAND = 16  # height of a row of colours of single whole numbers
FRAMES = 8
FRAME_SIDE = 72  # pixels
_POSITION = re.compile(r"^(episode|game) (?=\d)")


@dataclass(frozen=True)
class Axis:
    """Time axis of small pictures: `span` = L + T steps, of which the first L are lookback.

    The episodes of a pack follow each other. Each has one observation more than steps, so a gap follows its last step,
    and all tracks of an episode have the same place.

    Args:
        borders: position of the first observation of each further episode of a pack, int64 [episodes - 1].
    """

    span: int
    lookback: int = 0
    borders: np.ndarray | None = None

    def places(self, items: np.ndarray, num_extra: int) -> np.ndarray:
        """Return the x coordinates [k] of the items with the indices `items` [k]."""
        return self.at(items + (0.0 if num_extra else 0.5))

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Return the x coordinates [k] of positions [k]."""
        return positions * (UNITS * WIDTH / max(self.span, 1))

    def aligned(self, series: Series) -> Series:
        """Return a series with an item for each position of the axis.

        In a pack, a missing item follows the last step of each episode.
        """
        if self.borders is None or series.more or not series.is_exact:
            return series
        lasts = self.borders - 1  # positions of the last observations, which have no step
        array = np.insert(series.array, lasts - np.arange(len(lasts)), 0, axis=0)
        present = np.ones(len(array), bool)
        present[lasts] = False
        return replace(series, array=array, total=len(array), places=None, present=present)

    def xs(self, series: Series, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the x coordinates [k] of the sampled items of a series, of all or of those with the indices `rows`."""
        items = series.items[rows]
        if series.more or self.borders is None:
            return self.places(items, series.more)
        return self.at(items + 0.5 + np.searchsorted(_first_items(self.borders, series.more), items, "right"))

    def runs(self, series: Series) -> list[tuple[int, int]]:
        """Return begin and end of the sampled items of each episode."""
        num = len(series.items)
        if self.borders is None:
            return [(0, num)]
        edges = np.searchsorted(series.items, _first_items(self.borders, series.more)).tolist()
        return [(begin, end) for begin, end in pairwise([0, *edges, num]) if begin < end]


def _first_items(borders: np.ndarray, more: int) -> np.ndarray:
    """Return the index of the first item of each further episode of a pack, int64 [episodes - 1]."""
    return borders if more else borders - np.arange(1, len(borders) + 1)


def picture(
    series: Series,
    axis: Axis | None,
    points: int = MOST_POINTS,
    room: int = 24_000,
    label: Callable[[int], str] | None = None,
) -> Markup:
    """Return a small picture of an array as HTML: lines, colour bands or images over time, or a histogram. Empty
    without numbers.

    Args:
        axis: time axis of the items, or None if they have no order in time: a histogram is drawn.
        points: most points of one line.
        room: most bytes of a strip of frames.
        label: function that names the place of an item, below a frame. By default, it is the index.
    """
    if not series.is_numeric:
        return Markup("")
    if series.num_steps:
        return sequences(series, points)
    if series.is_image:
        return frame_strip(series, room, label or str)
    if axis is None:
        return histogram(series)
    if series.is_band:
        return band(axis.aligned(series), axis, MOST_POINTS)
    if series.sampled_values.shape[1] > MOST_LANES:
        return heat(axis.aligned(series), axis, points)
    if _is_sparse(series):
        return bars(series, axis)
    return dots(series, axis) if series.is_choice else lines(series, axis, points)


def rows_note(series: Series, axis: Axis | None) -> str:
    """Return which components the rows of colours of a picture show, "" for lines and other pictures."""
    count = series.sampled_values.shape[1]
    if not series.is_numeric or series.num_steps or series.is_image or count <= MOST_LANES:
        return ""
    names = series.part_names
    num_rows = len(_bands(series, axis is not None))
    rows = f"rows {names[0]} (top) to {names[-1]}"
    return rows if num_rows == count else f"{num_rows} of {count:,} {rows}"


def _has_one_scale(series: Series) -> bool:
    """Return whether the numbers of an item have one scale: a space with equal bounds, or whole numbers without one."""
    bounds = bounds_of(series.space)
    if bounds is None:
        return series.space is None and series.array.dtype.kind in "biu"
    return all(np.isfinite(each).all() and (each == each.flat[0]).all() for each in map(np.asarray, bounds))


# --- lines ------------------------------------------------------------------------------------------------------------


def lines(series: Series, axis: Axis, points: int) -> Markup:
    """Return an SVG picture with one line per component of the items, each on its own scale.

    Each episode of a pack has its own line, from its first to its last item. A line of more items than `points` goes
    through the lowest and the highest number of neighbouring items. If these differ much, it is the mean, in a band
    from the lowest to the highest number. A pack of very many episodes has one such band for all of them.
    """
    count, total = series.sampled_values.shape[1], len(series.sampled_values)
    height = LANE if count > 1 else 2 * LANE
    runs = axis.runs(series)
    if len(runs) > MOST_BORDERS and total > points:
        runs = [(0, total)]
    parts = []
    for begin, end in runs:
        num_cells = -(-points * (end - begin) // (2 * total))  # a cell is two points
        part = series.part(begin, end)
        cells = part.cells(end - begin if end - begin <= 2 * num_cells else num_cells)
        parts.append((begin, part, cells))
    is_line = _are_thin([cells for *_, cells in parts], series)
    areas, strokes, marks = [""] * count, [""] * count, [""] * count
    for begin, part, cells in parts:
        means = np.empty((0, 0)) if is_line or cells.is_exact else part.means(cells.every)
        starts = cells.starts()
        middles = np.minimum(starts + cells.every // 2, len(part.items) - 1)
        at_starts = axis.xs(series, begin + starts)
        for k in range(count):
            top = k * UNITS * height
            scale = _Scale.of(series, k, top, UNITS * height)
            areas[k] += (
                "" if is_line else _area([(axis.xs(series, begin + at), scale.heights(n)) for at, n in cells.edges(k)])
            )
            at, numbers = cells.line(k) if is_line or cells.is_exact else (middles, means[:, k])
            strokes[k] += _path(axis.xs(series, begin + at), scale.heights(numbers))
            marks[k] += _odd_marks(part, cells, at_starts, k, top, top + UNITS * height)
    inner = ""
    for area, stroke, mark in zip(areas, strokes, marks, strict=True):
        inner += f'<path class="ep-range" d="{area}"/>' if area else ""
        inner += f'<path d="{stroke}"/>{mark}'
    return _svg(series, max(cells.every for *_, cells in parts), inner, count * height, axis)


def _are_thin(cells: list[Cells], series: Series) -> bool:
    """Return whether the cells of a series are thin on average, as a share of the range of each component."""
    low, _, high = series.ranges.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        ranges = np.where(high > low, high / 2 - low / 2, 1)
        widths = np.concatenate([each.high / 2 - each.low / 2 for each in cells]) / ranges
    known = widths[~np.isnan(widths)]
    return not len(known) or float(known.mean()) <= THIN


def _area(edges: list[tuple[np.ndarray, np.ndarray]]) -> str:
    """Return the SVG path of the area between two lines, each of which is x and y coordinates [k]."""
    upper, lower = (np.stack(line, 1) for line in edges)
    ends = np.flatnonzero(np.diff(~np.isnan(upper[:, 1]), prepend=False, append=False)).reshape(-1, 2).tolist()
    return "".join(f"{_stroke(np.concatenate([upper[a:b], lower[a:b][::-1]]))}z" for a, b in ends)


def _is_sparse(series: Series) -> bool:
    """Return whether a series has rewards most of which are 0, of which a line would draw ramps."""
    numbers = series.finite
    return series.hue == "rewards" and numbers.shape[1] == 1 and bool(2 * (numbers == 0).sum() > len(numbers))


def bars(series: Series, axis: Axis) -> Markup:
    """Return an SVG picture of rewards as bars from 0. Bars at one pixel are drawn as one, from lowest to highest."""
    low, _, high = series.range
    scale, height = _Scale(min(low, 0.0), max(high, 0.0), 0, UNITS * 2 * LANE), 2 * LANE
    numbers = series.finite[:, 0]
    chosen = np.flatnonzero(np.isfinite(numbers) & (numbers != 0))
    xs = (axis.xs(series, chosen) + 0.5).astype(np.int64)
    firsts = np.flatnonzero(np.diff(xs, prepend=-9))
    zero = int(scale.heights(np.zeros(1))[0] + 0.5)
    path = f'<path class="ep-zero" stroke-opacity=".4" stroke-width="1" d="M0 {zero}H{UNITS * WIDTH}"/>'
    if len(firsts):
        ends = np.stack([np.maximum.reduceat(numbers[chosen], firsts), np.minimum.reduceat(numbers[chosen], firsts)], 1)
        ends = np.where(ends * [1, -1] > 0, ends, 0.0)
        ys = (scale.heights(ends.reshape(-1)).reshape(-1, 2) + 0.5).astype(np.int64)
        tops = zip(xs[firsts].tolist(), ys.tolist(), strict=True)
        path += f'<path stroke-width="2" d="{"".join(f"M{x} {top}l0 {bottom - top}" for x, (top, bottom) in tops)}"/>'
    cells = series.cells(MOST_POINTS)
    marks = _odd_marks(series, cells, axis.xs(series, cells.starts()), 0, 0, UNITS * height)
    return _svg(series, 1, path + marks, height, axis)


def dots(series: Series, axis: Axis) -> Markup:
    """Return an SVG picture of choices without an order as dots. Of many items, close dots are drawn as one."""
    count = series.sampled_values.shape[1]
    height = LANE if count > 1 else 2 * LANE
    xs, paths = axis.xs(series), ""
    cells = series.cells(MOST_POINTS)
    for k in range(count):
        top = k * UNITS * height
        ys = _Scale.of(series, k, top, UNITS * height).heights(series.finite[:, k].astype(np.float64))
        is_drawn = ~np.isnan(ys)
        places = np.stack([xs[is_drawn], ys[is_drawn]], 1)
        if len(places) > MOST_DOTS:
            places = np.unique(places // (UNITS * DOT), axis=0) * UNITS * DOT + UNITS * DOT / 2
        at = (places + 0.5).astype(np.int64).tolist()
        paths += f'<path stroke-width="4" d="{"".join(f"M{x} {y}l0 0" for x, y in at)}"/>'
        paths += _odd_marks(series, cells, xs[cells.starts()], k, top, top + UNITS * height)
    return _svg(series, 1, paths, count * height, axis)


@dataclass(frozen=True)
class _Scale:
    """Scale from the numbers `low` to `high` to the y coordinates of a lane of height `height` that begins at `top`."""

    low: float
    high: float
    top: int
    height: int

    @classmethod
    def of(cls, series: Series, column: int, top: int, height: int) -> _Scale:
        """Return the scale of one component of a series."""
        low, _, high = series.ranges[:, column].tolist()
        return cls(low, high, top, height)

    def heights(self, numbers: np.ndarray) -> np.ndarray:
        """Convert numbers [k] to y coordinates [k]."""
        return _heights(numbers, self.low, self.high, self.height) + self.top


def _heights(numbers: np.ndarray, low: float, high: float, height: int) -> np.ndarray:
    """Convert numbers [k] between `low` and `high` to y coordinates [k]. Equal numbers are placed in the middle."""
    margin = 2 * UNITS
    with np.errstate(over="ignore"):
        scale = (height - 2 * margin) / (high - low) if high > low else 0.0
    if not 0.0 < scale < np.inf:
        return np.where(np.isnan(numbers), np.nan, height / 2)
    return margin + (high - numbers) * scale


def _path(xs: np.ndarray, ys: np.ndarray) -> str:
    """Return the SVG path through the points (xs, ys), with a gap at each NaN. A single point becomes a dash."""
    is_drawn = ~np.isnan(ys)
    points = np.stack([xs, ys], 1)
    if is_drawn.all() and len(points):
        return _stroke(points)
    edges = np.flatnonzero(np.diff(is_drawn, prepend=False, append=False))
    return "".join(_stroke(points[start:stop]) for start, stop in edges.reshape(-1, 2).tolist())


def _stroke(points: np.ndarray) -> str:
    """Return a short SVG path for a line through the points [k, 2]."""
    whole = (points + 0.5).astype(np.int32)
    x, y = whole[0].tolist()
    if len(whole) == 1:
        return f"M{x - 4} {y}h8"  # a short line, because a dot is hard to see
    return f"M{x} {y}l{' '.join(map(str, np.diff(whole, axis=0).ravel().tolist()))}"


def _odd_marks(series: Series, cells: Cells, xs: np.ndarray, column: int | None, top: int, bottom: int) -> str:
    """Return SVG ticks above cells with infinite values, and below cells with NaN or minus infinity. `xs` [k] are the x
    coordinates of the cells.
    """
    if not (series.counts.nan or series.counts.infinite):
        return ""
    chosen = slice(None) if column is None else [column]
    above = cells.num_above[:, chosen].any(1)
    below = (cells.num_nan + cells.num_below)[:, chosen].any(1)
    if not (above.any() or below.any()):
        return ""
    return _ticks(xs[above], xs[below], top, bottom)


def _ticks(above: np.ndarray, below: np.ndarray, top: int, bottom: int) -> str:
    """Return SVG ticks at the x coordinates `above` [k] near the top, and at `below` [m] near the bottom."""
    width = max(UNITS * WIDTH / MOST_MARKS, 1)
    marks = []
    for places, y in ((above, top), (below, bottom - 12)):
        if len(places) > MOST_MARKS:  # one mark for each part of the axis
            places = np.unique(places // width) * width
        marks += [f"M{x} {y}v12" for x in places.astype(int).tolist()]
    return f'<path class="ep-odd" fill="none" stroke="{DEFECT}" stroke-width="1.5" d="{"".join(marks)}"/>'


def _words(series: Series, every: int) -> str:
    """Return the tooltip of a picture: lowest, mean and highest number, and the number of items per point."""
    return _range(series) + ("" if every == 1 else f"; min and max of {every:,} items each")


def _range(series: Series) -> str:
    """Return a text with the lowest and highest number of a series, and its mean if all numbers mean the same."""
    low, mean, high = map(number, series.range)
    return f"min {low}, {f'mean {mean}, ' if series.has_common_mean and not series.is_id else ''}max {high}"


def _svg(series: Series, every: int, inner: str, height: int, axis: Axis) -> Markup:
    """Return the SVG around the shapes `inner`, with a title, lines between episodes, and the lookback shaded."""
    before = 100 * axis.lookback / max(axis.span, 1)
    borders = ""
    if axis.borders is not None and len(axis.borders) <= MOST_BORDERS:
        xs = axis.places(axis.borders - 0.5, 1).astype(int).tolist()
        lines = "".join(f"M{x} 0V{UNITS * height}" for x in xs)
        borders = f'<path class="ep-border" fill="none" stroke="#888" stroke-opacity=".4" d="{lines}"/>'
    shade = f'<rect class="ep-before" width="{before:.2f}%" height="100%" fill="#888" fill-opacity=".12"/>'
    return Markup(
        f'<svg class="ep-pic" width="{WIDTH}" height="{height}" viewBox="0 0 {UNITS * WIDTH} {UNITS * height}" '
        f'preserveAspectRatio="none" role="img"><title>{_words(series, every)}</title>{shade if before else ""}'
        f'{borders}<g class="ep-{series.hue}" fill="none" stroke="{colour(series.hue)}" stroke-width="1.5">{inner}'
        f"</g></svg>"
    )


# --- bands ------------------------------------------------------------------------------------------------------------


def band(series: Series, axis: Axis, points: int) -> Markup:
    """Return an SVG picture of whole numbers as one row of colours. Higher numbers have stronger colours.

    If a cell has several items, its column has their numbers in order, the highest above: the share of each colour is
    the share of its number. The lowest and the highest are always visible.
    """
    cells = series.cells(points)
    low, _, high = (0, 0, 1) if series.array.dtype == bool else series.range
    if cells.is_exact:
        return _strip(series, axis, cells, np.array([low]), np.array([high]), 0.18, BAND)
    levels = (stacked_items(series.finite[:, 0], cells.every, BAND) - low) / max(high - low, 1)
    text = f"{_range(series)}; each column is the shares of the numbers of {cells.every:,} items, pale to strong"
    marks = _odd_marks(series, cells, _starts(series, cells, axis), None, 0, BAND)
    return _colours(series.hue, levels[:, None], 0.18, text, _extent(series, axis), BAND, marks)


def heat(series: Series, axis: Axis, points: int) -> Markup:
    """Return an SVG picture with a row of colours for each component of an array.

    Each row has its own scale, unless the components have one space.
    """
    count = series.sampled_values.shape[1]
    lows, _, highs = series.ranges.astype(np.float64)
    chosen = _bands(series, True)
    if _has_one_scale(series):
        lows, highs = (np.full(count, series.range[end]) for end in (0, 2))
    palest, height = 0.06, ROW * max(len(chosen), 8)
    strip = _strip(series, axis, series.cells(points, chosen), lows[chosen], highs[chosen], palest, height)
    return strip + key_of_colours(series.hue, palest, *_ends_of_rows(series))


def _bands(series: Series, has_extremes: bool) -> list[int]:
    """Return the components that rows of colours show: evenly spaced ones if there are many.

    Args:
        has_extremes: whether the components with the lowest and the highest number are among them.
    """
    count = series.sampled_values.shape[1]
    columns = set(np.linspace(0, count - 1, min(count, MOST_BANDS)).astype(np.intp).tolist())
    lows, _, highs = series.ranges.astype(np.float64)
    if has_extremes and count > MOST_BANDS and np.isfinite(lows).any():
        columns |= {int(np.nanargmin(lows)), int(np.nanargmax(highs))}
    return sorted(columns)


def sequences(series: Series, points: int) -> Markup:
    """Return an SVG picture of sequences [B, T, ...] as rows of colours, with time from left to right.

    There is a row for each number of each sequence. If that makes too many rows, a row has the highest and the lowest
    numbers of one or several whole sequences. Each number of a step has its own scale, which all sequences share.
    """
    numbers = series.finite.reshape(len(series.sampled_values), series.num_steps, -1)  # [B, T, d]
    count, num_steps, width = numbers.shape
    low, high = (pick.reduce(numbers, (0, 1)).astype(np.float64) for pick in (np.fmin, np.fmax))  # [d]
    spread = np.where(high > low, high / 2 - low / 2, 1)
    is_merged = count * width > MOST_SEQUENCE_ROWS
    every, wide = -(-count // MOST_SEQUENCE_ROWS), -(-num_steps // points)  # sequences and steps of a cell
    is_exact = not is_merged and wide == 1
    rows = []
    for begin in range(0, count, every):
        with np.errstate(invalid="ignore"):
            levels = (numbers[begin : begin + every] / 2 - low / 2) / spread
        for pick in (np.fmax,) if is_exact else (np.fmax, np.fmin):
            cells = pick.reduceat(levels, np.arange(0, num_steps, wide), 1)  # [every, k, d]
            rows.append(pick.reduce(cells, (0, 2))[None] if is_merged else cells[0].T)
    halves = 1 if is_exact else 2
    stacked = np.stack(rows).reshape(-1, halves, *rows[0].shape).swapaxes(1, 2).reshape(-1, halves, rows[0].shape[1])
    merged = f"; highest and lowest of {wide:,} steps of {every:,} sequences each"
    text = f"{_range(series)}{'' if is_exact else merged}; a row for each sequence, pale to strong"
    height, marks = ROW * max(len(stacked), 8), ""
    if series.counts.nan or series.counts.infinite:
        raw = series.sampled_values.reshape(numbers.shape)
        xs = (np.arange(num_steps) + 0.5) * (UNITS * WIDTH / num_steps)
        below = (np.isnan(raw) | (raw == -np.inf)).any((0, 2))
        marks = _ticks(xs[(raw == np.inf).any((0, 2))], xs[below], 0, height)
    ends = tuple(map(number, series.range[::2])) if width == 1 else ("min of each number", "max of each number")
    picture = _colours(series.hue, stacked, 0.06, text, (0.0, float(UNITS * WIDTH)), height, marks)
    return picture + key_of_colours(series.hue, 0.06, *ends)


def _strip(
    series: Series, axis: Axis, cells: Cells, low: np.ndarray, high: np.ndarray, palest: float, height: int
) -> Markup:
    """Return an SVG picture with a row of colours for each component of the downsampled array `cells`.

    Args:
        low, high: [d], the palest and the strongest number of each row.
    """
    halves = [cells.high, cells.low] if not cells.is_exact else [cells.high]
    spread = np.where(high > low, high / 2 - low / 2, 1)
    with np.errstate(invalid="ignore"):
        levels = np.stack([(half / 2 - low / 2) / spread for half in halves], 1)  # [k, halves, d]
    is_common = (low == low[0]).all() and (high == high[0]).all()
    scaled = "pale to strong" if is_common else "each row from its lowest (pale) to its highest (strong)"
    marks = _odd_marks(series, cells, _starts(series, cells, axis), None, 0, height)
    text = f"{_words(series, cells.every)}; {scaled}"
    return _colours(series.hue, levels.transpose(2, 1, 0), palest, text, _extent(series, axis), height, marks)


def _starts(series: Series, cells: Cells, axis: Axis) -> np.ndarray:
    """Return the x coordinate of the first item of each cell, [k]."""
    return axis.places(series.items[cells.starts()], series.more)


def _extent(series: Series, axis: Axis) -> tuple[float, float]:
    """Return the x coordinates at which a row of colours begins and ends."""
    if series.more:  # an item for each observation is as wide as a step, around its position
        return 0.0, float(UNITS * WIDTH)
    begin, end = axis.places(np.array([0, series.total]), 1).tolist()
    return begin, end


def histogram(series: Series) -> Markup:
    """Return an SVG picture with a histogram for each component of the items, each on its own scale.

    The heights of the bars are square roots of the counts, so that rare numbers are visible beside a frequent one. The
    tooltip has the highest count of each histogram.

    Whole numbers have a bin each, or bins of several numbers if there are too many. Histograms of many components are
    rows of colours. The bars of few bins have a tooltip each, such as "2 … 3: 31".
    """
    count = series.sampled_values.shape[1]
    if count > MOST_LANES:
        return _histogram_rows(series)
    low, _, high = series.range
    if count == 1 and low == high and not any(series.counts):
        return Markup(f'<span class="ep-constant">constant {_value(series, low)}</span>')
    height = HISTOGRAM_LANE if count > 1 else 2 * LANE
    paths, words = [], []
    scale = _scale(series, histogram_bins(series, 0)) if count == 1 else _key_of_lanes(series)
    for k in range(count):
        bins = histogram_bins(series, k)
        most = max(int(bins.counts.max()), 1)
        bottom, unit = (k + 1) * UNITS * height - UNITS, UNITS * (height - 2) / np.sqrt(most)
        bars = []
        edges = (UNITS * WIDTH * bins.edges).tolist()
        for i, (n, (left, right)) in enumerate(zip(bins.counts.tolist(), pairwise(edges), strict=True)):
            wide = min(max(right - left - 2, 1), UNITS * WIDEST_BAR)
            if n:
                x = (left + right - wide) / 2
                bars.append((i, n, f"M{x:.0f} {bottom}v-{max(np.sqrt(n) * unit, 2):.1f}h{wide:.0f}V{bottom}z"))
        if count * len(bins.counts) <= MOST_BIN_TEXTS:
            paths += [f'<path d="{bar}"><title>{bins.name(i)}: {n:,}</title></path>' for i, n, bar in bars]
        else:
            paths.append(f'<path d="{"".join(bar for _, _, bar in bars)}"/>')
        words.append(f"from {number(bins.low)} to {number(bins.high)} in {bins.text}, at most {most:,} in a bin")
    return Markup(
        f'<svg class="ep-pic" width="{WIDTH}" height="{count * height}" '
        f'viewBox="0 0 {UNITS * WIDTH} {UNITS * count * height}" preserveAspectRatio="none" role="img">'
        f'<title>histogram {"; ".join(words)}</title><g class="ep-hist ep-{series.hue}" stroke="none" '
        f'fill="{colour(series.hue)}">{"".join(paths)}</g></svg>{scale}'
    )


def _histogram_rows(series: Series) -> Markup:
    """Return an SVG picture with a row of colours for the histogram of each component, or of evenly spaced ones.

    Colours go from the lowest to the highest count, of all rows if they have the same bins, else of each row. Bins
    without numbers are transparent.
    """
    chosen = _bands(series, False)
    bins = [histogram_bins(series, k) for k in chosen]
    width = max(len(each.counts) for each in bins)
    counts = np.array([each.counts[np.arange(width) * len(each.counts) // width] for each in bins], float)
    roots = np.sqrt(np.where(counts > 0, counts, np.nan))  # [rows, width]
    is_common = len({(each.low, each.high, each.width) for each in bins}) == 1
    axis = None if is_common else 1
    low, high = (pick.reduce(roots, axis, keepdims=True) for pick in (np.fmin, np.fmax))
    with np.errstate(invalid="ignore"):
        levels = np.where(high > low, (roots - low) / np.where(high > low, high - low, 1), roots / roots)
    text = f"{_range(series)}; a histogram for each row, from its lowest to its highest number, pale to strong"
    ends, height = (0.0, float(UNITS * WIDTH)), ROW * max(len(chosen), 8)
    if is_common and bins[0].width == 1 and width <= MOST_BIN_LABELS:
        values = (bins[0].low + np.arange(width)).tolist()
        names = "".join(f"<span><b>{_value(series, value)}</b></span>" for value in values)
        below = f'<div class="ep-bins">{names}</div>'
    else:
        below = _key_of_lanes(series)
    found = counts[counts > 0] if counts.any() else np.zeros(1)
    key = key_of_colours(
        series.hue,
        0.18,
        f"{found.min():,.0f}" if is_common else "least of each row",
        f"{found.max():,.0f}" if is_common else f"most of each row (up to {found.max():,.0f})",
    )
    return _colours(series.hue, levels[:, None], 0.18, text, ends, height, "") + Markup(below) + key


def _ends_of_rows(series: Series) -> tuple[str, str]:
    """Return the numbers of the palest and the strongest colour of rows of components, as texts."""
    low, _, high = series.range
    return (number(low), number(high)) if _has_one_scale(series) else ("min of each row", "max of each row")


def key_of_colours(hue: str, palest: float, low: str, high: str) -> Markup:
    """Return HTML with a scale of colours, and the texts of its palest and its strongest colour."""
    rgb = ",".join(map(str, HUES[hue]))
    return Markup(
        '<div class="ep-ends"><span>{}<i class="ep-key" style="background:linear-gradient(90deg,rgba({},{}),rgb({}))">'
        "</i>{}</span></div>"
    ).format(low, rgb, palest, rgb, high)


def _key_of_lanes(series: Series) -> str:
    """Return HTML below the histograms of several components: the two ends, which they share or not."""
    lows, _, highs = series.ranges
    low = number(lows[0]) if (lows == lows[0]).all() else "min of each"
    high = number(highs[0]) if (highs == highs[0]).all() else "max of each"
    return f'<div class="ep-ends"><span>{low}</span><span>{high}</span></div>'


def _value(series: Series, value: float) -> str:
    """Return a number of a series as text: "no" and "yes" of flags."""
    return ("no", "yes")[int(value)] if series.array.dtype == bool else number(value)


def _scale(series: Series, bins: Bins) -> str:
    """Return HTML below a histogram: number and count of each bin of few whole numbers, or the two ends."""
    if bins.width != 1 or len(bins.counts) > MOST_BIN_LABELS:
        return f'<div class="ep-ends"><span>{number(bins.low)}</span><span>{number(bins.high)}</span></div>'
    values = (bins.low + np.arange(len(bins.counts))).tolist()
    names = (f"<b>{_value(series, value)}</b> {n:,}" for value, n in zip(values, bins.counts.tolist(), strict=True))
    return f'<div class="ep-bins">{"".join(f"<span>{name}</span>" for name in names)}</div>'


class Bins(NamedTuple):
    """Histogram of numbers from `low` to `high`.

    Attributes:
        counts: numbers in each bin, int64 [n].
        low, high: the lowest and the highest number.
        width: how many whole numbers a bin has. The last bin may have fewer. It is 0 for other numbers.
    """

    counts: np.ndarray
    low: float
    high: float
    width: int = 0

    @property
    def edges(self) -> np.ndarray:
        """Begin and end of the bins as shares of the whole width, float64 [n + 1].

        Of whole numbers, each number takes an equal share, so a last bin of fewer numbers is narrower.
        """
        begins = np.arange(len(self.counts) + 1)
        if not self.width:
            return begins / len(self.counts)
        num = self.high - self.low + 1
        return np.minimum(begins * self.width, num) / num

    def name(self, index: int) -> str:
        """Return the numbers of a bin as text, such as "3" or "0.2 … 0.3"."""
        if self.width:
            low = self.low + index * self.width
            high = min(low + self.width - 1, self.high)
        else:
            share = (self.high / 2 - self.low / 2) / len(self.counts)
            low, high = self.low + 2 * share * index, self.low + 2 * share * (index + 1)
        return number(low) if low == high else f"{number(low)} … {number(high)}"

    @property
    def text(self) -> str:
        """Number and width of the bins as text, such as "30 bins of 2 numbers"."""
        own = f" of {self.width:,} number{'s' * (self.width > 1)}" if self.width else ""
        return f"{len(self.counts)} bin{'s' * (len(self.counts) != 1)}{own}"


def histogram_bins(series: Series, column: int, num_bins: int = BINS) -> Bins:
    """Return the histogram of the finite numbers of a component.

    Whole numbers have a bin each if there are at most 64 from the lowest to the highest, or else bins of equally many
    of them. Other numbers have `num_bins` equally wide bins.
    """
    numbers = series.finite[:, column]
    numbers = numbers[np.isfinite(numbers)].astype(np.float64)
    if not len(numbers):
        return Bins(np.zeros(1, np.int64), 0.0, 0.0)
    low, high = float(numbers.min()), float(numbers.max())
    if are_whole(numbers):
        width = width_of_whole_bins(low, high)
        return Bins(np.bincount(((numbers - low) // width).astype(np.intp)), low, high, width)
    with np.errstate(over="ignore"):
        places = (numbers / 2 - low / 2) / (high / 2 - low / 2) if high > low else np.zeros(len(numbers))
    counts = np.bincount(np.minimum((places * num_bins).astype(np.intp), num_bins - 1), minlength=num_bins)
    return Bins(counts, low, high)


def _colours(
    hue: str, levels: np.ndarray, palest: float, text: str, ends: tuple[float, float], height: int, marks: str
) -> Markup:
    """Return an SVG picture of the numbers `levels` from 0 to 1 as rows of colours. NaN is transparent.

    Args:
        levels: [rows, halves, k] for k cells. The upper half of a row is the highest number of a cell, the lower half
            the lowest. There is one half if each cell has one number.
        palest: strength of level 0.
        ends: x coordinates of the begin and the end.
    """
    strengths = palest + (1 - palest) * levels.reshape(-1, levels.shape[2])
    strongest = LEVELS - 1
    shades = np.nan_to_num(1 + strengths * (strongest - 1), nan=0.0).clip(0, strongest).astype(np.uint8)
    palette = np.empty((LEVELS, 4), np.uint8)
    palette[:, :3], palette[:, 3] = HUES[hue], np.linspace(0, 255, LEVELS)
    begin, end = ends
    return Markup(
        f'<svg class="ep-pic" width="{WIDTH}" height="{height}" viewBox="0 0 {UNITS * WIDTH} {height}" '
        f'preserveAspectRatio="none" role="img"><title>{text}</title>'
        f'<image x="{begin:g}" width="{max(end - begin, 1):g}" height="{height}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="{data_uri(png(shades, palette))}"/>{marks}</svg>'
    )


# --- frames -----------------------------------------------------------------------------------------------------------


def frame_strip(series: Series, room: int, label: Callable[[int], str]) -> Markup:
    """Return HTML with a few evenly spaced images of a series, each with its place as `label` names it."""
    places = np.unique(np.linspace(0, series.total - 1, min(FRAMES, series.total)).astype(np.intp))
    images = viewable(series.at(places))
    images = images[:, :: -(-images.shape[1] // FRAME_SIDE), :: -(-images.shape[2] // FRAME_SIDE)]
    file = png(images[len(images) // 2])
    excess = len(file) * len(images) * 4 / 3 / room
    if excess > 1:  # noise, or colours that hardly repeat: fewer pixels
        stride = int(np.ceil(np.sqrt(excess)))
        images = images[:, ::stride, ::stride]
    figures = (_figure(image, label(place)) for image, place in zip(images, places.tolist(), strict=True))
    return Markup(f'<div class="ep-frames">{"".join(figures)}</div>')


def _figure(image: np.ndarray, place: str) -> str:
    """Return an image as an HTML figure with its place as caption, such as "#3" and "t=37" of "episode 3, t=37"."""
    words, source = escape(place), data_uri(png(image))
    caption = escape(_POSITION.sub("#", place)).replace(", ", Markup("<br>"))
    return (
        f'<figure title="{words}"><img alt="observation at {words}" width="64" src="{source}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
