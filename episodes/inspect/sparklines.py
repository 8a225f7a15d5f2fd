"""Small pictures of arrays over time for tables (lines, colour bands, image strips), as SVG and PNG.

All pictures of one episode share an axis. Positions are indices of observations, with the lookback; a step is between
two of them:

    position   0        1        2        3
               o0 ------ o1 ------ o2 ------ o3         observations
                   a0        a1        a2              steps: at 0.5, 1.5, 2.5
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from episodes.inspect.colours import DEFECT, HUES, colour
from episodes.inspect.downsampling import Cells, stacked_items
from episodes.inspect.formatting import number
from episodes.inspect.frames import viewable
from episodes.inspect.png import data_uri, png
from episodes.inspect.series import MOST_VALUES, Series

WIDTH = 480  # pixels of a picture, unless CSS sets another width
UNITS = 2  # coordinates per pixel: they are whole numbers, which take few bytes
LANE, MOST_LANES = 22, 6  # height of a line of numbers, and most lines of a picture
FEWEST_POINTS, MOST_POINTS = 24, 240  # of a line
MOST_BANDS = 24  # rows of colours
MOST_SEQUENCE_ROWS = 48  # rows of colours of sequences
LEVELS = 40  # of a colour; level 0 is transparent
MOST_MARKS = 48  # of numbers that are not finite
MOST_BORDERS = 40  # between episodes of a pack
BINS = 48  # of a histogram
WIDEST_BAR = 40  # of a histogram
BAND = 16  # height of a row of colours of single whole numbers
FRAMES = 8
FRAME_SIDE = 72  # pixels


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
        return (items + (0.0 if num_extra else 0.5)) * (UNITS * WIDTH / max(self.span, 1))

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

    def joins(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return whether the positions `a` [k] and `b` [k] are in the same episode, bool [k]."""
        if self.borders is None:
            return np.ones(len(a), bool)
        return np.searchsorted(self.borders, a, "right") == np.searchsorted(self.borders, b, "right")


def picture(series: Series, axis: Axis | None, points: int = MOST_POINTS, room: int = 24_000) -> Markup:
    """Return a small picture of an array as HTML: lines, colour bands or images over time, or a histogram. Empty
    without numbers.

    Args:
        axis: time axis of the items, or None if they have no order in time: a histogram is drawn.
        points: most points of one line.
        room: most bytes of a strip of frames.
    """
    if not series.is_numeric:
        return Markup("")
    if series.num_steps:
        return sequences(series, points)
    if series.is_image:
        return frame_strip(series, 0 if axis is None else axis.lookback, room)
    if axis is None:
        return histogram(series)
    if series.is_band:
        return band(axis.aligned(series), axis, MOST_POINTS)
    has_lines, series = series.sampled_values.shape[1] <= MOST_LANES, axis.aligned(series)
    return lines(series, axis, points) if has_lines else heat(series, axis, points)


# --- lines ------------------------------------------------------------------------------------------------------------


def lines(series: Series, axis: Axis, points: int) -> Markup:
    """Return an SVG picture with one line per component of the items, each on its own scale.

    A line joins only steps of the same episode. In a downsampled pack, a cell with steps of several episodes is a
    vertical line of its own from its lowest to its highest number.
    """
    cells = series.cells(points if len(series.sampled_values) <= points else points // 2)  # a cell is two points
    count = series.sampled_values.shape[1]
    height = LANE if count > 1 else 2 * LANE
    ranges = series.ranges.tolist()
    paths = []
    for k in range(count):
        top = k * UNITS * height
        at, numbers = cells.line(k)
        first = at // cells.every * cells.every  # and last item of the cell of each point
        last = np.minimum(first + cells.every, len(series.items)) - 1
        first, last, positions = series.items[first], series.items[last], series.items[at]
        positions = np.where(axis.joins(first, last), positions, (first + last) / 2)
        xs = axis.places(positions, series.more)
        ys = _heights(numbers, ranges[0][k], ranges[2][k], UNITS * height) + top
        is_joined = (first[:-1] == first[1:]) | axis.joins(first[:-1], last[1:])
        breaks = np.flatnonzero(~is_joined) + 1
        xs, ys = np.insert(xs, breaks, np.nan), np.insert(ys, breaks, np.nan)
        paths.append(f'<path d="{_path(xs, ys)}"/>{_odd_marks(series, cells, axis, k, top, top + UNITS * height)}')
    return _svg(series, cells, "".join(paths), count * height, axis)


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


def _odd_marks(series: Series, cells: Cells, axis: Axis, column: int | None, top: int, bottom: int) -> str:
    """Return SVG ticks above cells with infinite values, and below cells with NaN or minus infinity."""
    if not (series.counts.nan or series.counts.infinite):
        return ""
    chosen = slice(None) if column is None else [column]
    above = cells.num_above[:, chosen].any(1)
    below = (cells.num_nan + cells.num_below)[:, chosen].any(1)
    xs = axis.places(series.items[cells.starts()], series.more)
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


def _words(series: Series, cells: Cells) -> str:
    """Return the tooltip of a picture: lowest, mean and highest number, and the number of items per point."""
    return _range(series) + ("" if cells.is_exact else f"; lowest and highest of {cells.every:,} items each")


def _range(series: Series) -> str:
    """Return a text with the lowest and highest number of a series, and its mean if all numbers mean the same."""
    low, mean, high = map(number, series.range)
    return f"lowest {low}, {f'mean {mean}, ' if series.has_common_mean else ''}highest {high}"


def _svg(series: Series, cells: Cells, inner: str, height: int, axis: Axis) -> Markup:
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
        f'preserveAspectRatio="none" role="img"><title>{_words(series, cells)}</title>{shade if before else ""}'
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
    marks = _odd_marks(series, cells, axis, None, 0, BAND)
    return _colours(series.hue, levels[:, None], 0.18, text, _extent(series, axis), BAND, marks)


def heat(series: Series, axis: Axis, points: int) -> Markup:
    """Return an SVG picture with a row of colours for each component of an array, each on its own scale."""
    count = series.sampled_values.shape[1]
    columns = set(np.linspace(0, count - 1, min(count, MOST_BANDS)).astype(np.intp).tolist())
    lows, _, highs = series.ranges.astype(np.float64)
    if count > MOST_BANDS and np.isfinite(lows).any():  # the rows of the lowest and the highest number are drawn
        columns |= {int(np.nanargmin(lows)), int(np.nanargmax(highs))}
    chosen = sorted(columns)
    return _strip(
        series, axis, series.cells(points, chosen), lows[chosen], highs[chosen], 0.06, 4 * max(len(chosen), 8)
    )


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
    height, marks = 4 * max(len(stacked), 8), ""
    if series.counts.nan or series.counts.infinite:
        raw = series.sampled_values.reshape(numbers.shape)
        xs = (np.arange(num_steps) + 0.5) * (UNITS * WIDTH / num_steps)
        below = (np.isnan(raw) | (raw == -np.inf)).any((0, 2))
        marks = _ticks(xs[(raw == np.inf).any((0, 2))], xs[below], 0, height)
    return _colours(series.hue, stacked, 0.06, text, (0.0, float(UNITS * WIDTH)), height, marks)


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
    scaled = "each row from its lowest (pale) to its highest (strong)" if len(low) > 1 else "pale to strong"
    marks = _odd_marks(series, cells, axis, None, 0, height)
    text = f"{_words(series, cells)}; {scaled}"
    return _colours(series.hue, levels.transpose(2, 1, 0), palest, text, _extent(series, axis), height, marks)


def _extent(series: Series, axis: Axis) -> tuple[float, float]:
    """Return the x coordinates at which a row of colours begins and ends."""
    if series.more:  # an item for each observation is as wide as a step, around its position
        return 0.0, float(UNITS * WIDTH)
    begin, end = axis.places(np.array([0, series.total]), 1).tolist()
    return begin, end


def histogram(series: Series) -> Markup:
    """Return an SVG picture with a histogram for each component of the items, each on its own scale.

    Whole numbers of a small range have a bin each. Histograms of many components are rows of colours.
    """
    count = series.sampled_values.shape[1]
    if count > MOST_LANES:
        chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_BANDS)).astype(np.intp)).tolist()
        counts = np.array([histogram_counts(series, k)[0] for k in chosen], float)  # [rows, bins]
        levels = np.where(counts > 0, counts / np.maximum(counts.max(1, keepdims=True), 1), np.nan)
        text = f"{_range(series)}; a histogram for each row, from its lowest to its highest number, pale to strong"
        return _colours(
            series.hue, levels[:, None], 0.18, text, (0.0, float(UNITS * WIDTH)), 4 * max(len(chosen), 8), ""
        )
    height = LANE if count > 1 else 2 * LANE
    paths, words = [], []
    for k in range(count):
        counts, low, high = histogram_counts(series, k)
        most, width = max(int(counts.max()), 1), UNITS * WIDTH / len(counts)
        wide = min(max(width - 2, 1), UNITS * WIDEST_BAR)
        bottom, unit = (k + 1) * UNITS * height - UNITS, UNITS * (height - 2) / most
        bars = [
            f"M{(i + 0.5) * width - wide / 2:.0f} {bottom}v-{max(n * unit, 2):.1f}h{wide:.0f}V{bottom}z"
            for i, n in enumerate(counts.tolist())
            if n
        ]
        paths.append(f'<path d="{"".join(bars)}"/>')
        words.append(f"from {number(low)} to {number(high)} in {len(counts)} bins, at most {most:,} in a bin")
    return Markup(
        f'<svg class="ep-pic" width="{WIDTH}" height="{count * height}" '
        f'viewBox="0 0 {UNITS * WIDTH} {UNITS * count * height}" preserveAspectRatio="none" role="img">'
        f'<title>histogram {"; ".join(words)}</title><g class="ep-hist ep-{series.hue}" stroke="none" '
        f'fill="{colour(series.hue)}">{"".join(paths)}</g></svg>'
    )


def histogram_counts(series: Series, column: int, num_bins: int = BINS) -> tuple[np.ndarray, float, float]:
    """Return how many finite numbers of a component are in each of the equally wide bins, int64 [bins], and the begin
    of the first and the end of the last bin.

    Whole numbers of a small range have one bin each, around the number.
    """
    numbers = series.finite[:, column]
    numbers = numbers[np.isfinite(numbers)].astype(np.float64)
    if not len(numbers):
        return np.zeros(1, np.int64), 0.0, 0.0
    low, high = float(numbers.min()), float(numbers.max())
    if high - low < MOST_VALUES and (series.array.dtype.kind != "f" or bool((numbers == numbers.round()).all())):
        counts = np.bincount((numbers - low).round().astype(np.intp), minlength=int(high - low) + 1)
        return counts, low - 0.5, high + 0.5
    with np.errstate(over="ignore"):
        places = (numbers / 2 - low / 2) / (high / 2 - low / 2) if high > low else np.zeros(len(numbers))
    return np.bincount(np.minimum((places * num_bins).astype(np.intp), num_bins - 1), minlength=num_bins), low, high


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


def frame_strip(series: Series, lookback: int, room: int) -> Markup:
    """Return HTML with a few evenly spaced images of a series, each labelled with its step."""
    places = np.unique(np.linspace(0, series.total - 1, min(FRAMES, series.total)).astype(np.intp))
    images = viewable(series.at(places))
    images = images[:, :: -(-images.shape[1] // FRAME_SIDE), :: -(-images.shape[2] // FRAME_SIDE)]
    file = png(images[len(images) // 2])
    excess = len(file) * len(images) * 4 / 3 / room
    if excess > 1:  # noise, or colours that hardly repeat: fewer pixels
        stride = int(np.ceil(np.sqrt(excess)))
        images = images[:, ::stride, ::stride]
    figures = (_figure(image, int(place) - lookback) for image, place in zip(images, places, strict=True))
    return Markup(f'<div class="ep-frames">{"".join(figures)}</div>')


def _figure(image: np.ndarray, step: int) -> str:
    """Return an image as an HTML figure with its step as caption. Steps of the lookback are negative."""
    label = f"{step}" if step >= 0 else f"\N{MINUS SIGN}{-step}"
    source = data_uri(png(image))
    return f'<figure><img alt="observation {label}" width="64" src="{source}"><figcaption>{label}</figcaption></figure>'
