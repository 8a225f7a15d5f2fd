"""Small pictures of a series: lines, bands of colour and strips of frames, as SVG and PNG inside of HTML.

All pictures of one episode share an axis, so that what happened together stands below each other. Positions are numbers
of observations, the lookback's included; a step lies between two of them:

    position   0        1        2        3
               o0 ------ o1 ------ o2 ------ o3         observed
                   a0        a1        a2              stepped: at 0.5, 1.5, 2.5
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from episodes.inspect.colours import HUES, colour
from episodes.inspect.frames import viewable
from episodes.inspect.png import data_uri, png
from episodes.inspect.series import Series
from episodes.inspect.words import number

WIDTH = 480  # pixels of a picture where nothing says how wide it may be
UNITS = 2  # of a picture's coordinates in a pixel: they are whole numbers, which take fewer bytes
LANE, MOST_LANES = 22, 6  # the height of a line of numbers, and how many lie above each other
FEWEST_POINTS, MOST_POINTS = 24, 240  # of a line
MOST_BANDS = 24  # rows of colours
LEVELS = 40  # of a colour, the first of which is nothing
MOST_MARKS = 40  # of numbers that are not finite
FRAMES = 8
FRAME_SIDE = 72  # pixels


@dataclass(frozen=True)
class Axis:
    """Where the items of an episode lie: `span` = L + T steps, of which the first L are lookback."""

    span: int
    lookback: int = 0

    def places(self, items: np.ndarray, more: int) -> np.ndarray:
        """The x [k] of the items with these numbers."""
        return (items + (0.0 if more else 0.5)) * (UNITS * WIDTH / max(self.span, 1))


def picture(series: Series, axis: Axis, points: int = MOST_POINTS, room: int = 24_000) -> Markup:
    """The series drawn as suits it; empty where there are no numbers.

    Args:
        points: of one line, at most.
        room: the bytes that a strip of frames may take.
    """
    if not series.is_numeric:
        return Markup("")
    if series.is_image:
        return frame_strip(series, axis, room)
    if series.is_band:
        return band(series, axis, points)
    return lines(series, axis, points) if series.sample.shape[1] <= MOST_LANES else heat(series, axis, points)


# --- lines ------------------------------------------------------------------------------------------------------------


def lines(series: Series, axis: Axis, points: int) -> Markup:
    """A line for each number of an item, each from its own lowest to its own highest."""
    items, numbers = _drawn(series, points)
    xs = axis.places(items, series.more)
    count = numbers.shape[1]
    height = LANE if count > 1 else 2 * LANE
    ranges = series.ranges.tolist()
    paths = []
    for k in range(count):
        ys = _heights(numbers[:, k], ranges[0][k], ranges[2][k], UNITS * height) + k * UNITS * height
        paths.append(f'<path d="{_path(xs, ys)}"/>{_odd_marks(series, axis, k, UNITS * height)}')
    return _svg(series, "".join(paths), count * height, axis)


def _drawn(series: Series, points: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of items [k] and their numbers [k, d]: all, or of each bucket the lowest and the highest."""
    numbers = series.finite
    items = _items(series)
    if len(numbers) <= points:
        return items, numbers
    edges = np.linspace(0, len(numbers), points // 2 + 1).astype(np.intp)[:-1]
    low, high = np.fmin.reduceat(numbers, edges), np.fmax.reduceat(numbers, edges)
    return np.repeat(items[edges], 2), np.stack([low, high], 1).reshape(-1, numbers.shape[1])


def _items(series: Series) -> np.ndarray:
    """Which items the sample's rows are, [m]."""
    step = -(-len(series.array) // max(len(series.sample), 1))
    places = np.arange(series.total) if series.places is None else series.places
    return places[:: max(step, 1)]


def _heights(numbers: np.ndarray, low: float, high: float, height: int) -> np.ndarray:
    """The y [k] of numbers [k], with a margin; in the middle where all are the same."""
    margin = 2 * UNITS
    scale = (height - 2 * margin) / (high - low) if high > low else 0.0
    if not 0.0 < scale < np.inf:
        return np.where(np.isnan(numbers), np.nan, height / 2)
    return margin + (high - numbers) * scale


def _path(xs: np.ndarray, ys: np.ndarray) -> str:
    """The `d` of a path through the points, interrupted where y is NaN; a lonely point is a dash."""
    there = ~np.isnan(ys)
    points = np.stack([xs, ys], 1)
    if there.all():
        return _stroke(points)
    edges = np.flatnonzero(np.diff(there, prepend=False, append=False))
    return "".join(_stroke(points[start:stop]) for start, stop in edges.reshape(-1, 2).tolist())


def _stroke(points: np.ndarray) -> str:
    """A line through the points [k, 2], each told by its distance from the one before, in few bytes."""
    whole = (points + 0.5).astype(np.int32)
    x, y = whole[0].tolist()
    if len(whole) == 1:
        return f"M{x - 4} {y}h8"  # a short line: a dot would hardly be seen
    return f"M{x} {y}l{' '.join(map(str, np.diff(whole, axis=0).ravel().tolist()))}"


def _odd_marks(series: Series, axis: Axis, k: int, height: int) -> str:
    """Ticks where numbers are NaN (below), infinite (above) or minus infinity (below)."""
    if not any(series.oddities):
        return ""
    numbers = series.sample[:, k]
    odd = np.flatnonzero(~np.isfinite(numbers))[:MOST_MARKS]
    xs = axis.places(_items(series)[odd], series.more).astype(int).tolist()
    top = (numbers[odd] == np.inf).tolist()
    base = k * height
    marks = (f"M{x} {base if above else base + height - 12}v12" for x, above in zip(xs, top, strict=True))
    return f'<path class="ep-odd" stroke="#dc2626" d="{"".join(marks)}"/>'


def _svg(series: Series, inner: str, height: int, axis: Axis) -> Markup:
    low, mean, high = map(number, series.range)
    words = f"lowest {low}, mean {mean}, highest {high}"
    before = 100 * axis.lookback / max(axis.span, 1)
    shade = f'<rect class="ep-before" width="{before:.2f}%" height="100%" fill="#888" fill-opacity=".12"/>'
    return Markup(
        f'<svg class="ep-pic" width="{WIDTH}" height="{height}" viewBox="0 0 {UNITS * WIDTH} {UNITS * height}" '
        f'preserveAspectRatio="none" role="img"><title>{words}</title>{shade if before else ""}'
        f'<g class="ep-{series.hue}" fill="none" stroke="{colour(series.hue)}" stroke-width="1.5">{inner}</g></svg>'
    )


# --- bands ------------------------------------------------------------------------------------------------------------


def band(series: Series, axis: Axis, points: int) -> Markup:
    """Whole numbers as one row of colours: the higher, the stronger."""
    low, _, high = series.range
    levels = (series.sample[:, 0].astype(np.float64) - low) / max(high - low, 1)
    return _strip(series, axis, 0.18 + 0.82 * levels[None], points, 16)


def heat(series: Series, axis: Axis, points: int) -> Markup:
    """Many numbers as rows of colours, each from its own lowest to its own highest."""
    numbers, ranges = series.finite, series.ranges
    if numbers.shape[1] > MOST_BANDS:
        chosen = np.linspace(0, numbers.shape[1] - 1, MOST_BANDS).astype(np.intp)
        numbers, ranges = numbers[:, chosen], ranges[:, chosen]
    low, high = ranges[0].astype(np.float64), ranges[2].astype(np.float64)
    spread = np.where(high > low, high - low, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        levels = (numbers - low) / spread
    return _strip(series, axis, 0.06 + 0.94 * levels.T, points, 4 * max(len(levels.T), 8))


def _strip(series: Series, axis: Axis, strengths: np.ndarray, points: int, height: int) -> Markup:
    """Strengths [d, m] in 0..1 as cells of the series' colour, transparent where there is nothing."""
    cells = max(min(strengths.shape[1], points), 1)
    chosen = ((np.arange(cells) + 0.5) * (strengths.shape[1] / cells)).astype(np.intp)
    strongest = LEVELS - 1
    shades = np.nan_to_num(1 + strengths[:, chosen] * (strongest - 1), nan=0.0).clip(0, strongest).astype(np.uint8)
    palette = np.empty((LEVELS, 4), np.uint8)
    palette[:, :3], palette[:, 3] = HUES[series.hue], np.linspace(0, 255, LEVELS)
    begin, end = axis.places(np.array([0, series.total]), 1)
    if series.more:  # an item for each observation is as wide as a step, around its place
        begin, end = 0.0, float(UNITS * WIDTH)
    low, _, high = map(number, series.range)
    picture = data_uri(png(shades, palette))
    return Markup(
        f'<svg class="ep-pic" width="{WIDTH}" height="{height}" viewBox="0 0 {UNITS * WIDTH} {height}" '
        f'preserveAspectRatio="none" role="img"><title>from {low} (pale) to {high} (strong)</title>'
        f'<image x="{begin:g}" width="{max(end - begin, 1):g}" height="{height}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="{picture}"/></svg>'
    )


# --- frames -----------------------------------------------------------------------------------------------------------


def frame_strip(series: Series, axis: Axis, room: int) -> Markup:
    """Some of the images, evenly spaced over the episode, each with its step."""
    places = np.unique(np.linspace(0, series.total - 1, min(FRAMES, series.total)).astype(np.intp))
    images = viewable(series.at(places))
    images = images[:, :: -(-images.shape[1] // FRAME_SIDE), :: -(-images.shape[2] // FRAME_SIDE)]
    file = png(images[len(images) // 2])
    excess = len(file) * len(images) * 4 / 3 / room
    if excess > 1:  # noise, or colours that hardly repeat: fewer pixels
        stride = int(np.ceil(np.sqrt(excess)))
        images = images[:, ::stride, ::stride]
    figures = (_figure(image, int(place) - axis.lookback) for image, place in zip(images, places, strict=True))
    return Markup(f'<div class="ep-frames">{"".join(figures)}</div>')


def _figure(image: np.ndarray, step: int) -> str:
    label = f"{step}" if step >= 0 else f"\N{MINUS SIGN}{-step}"
    source = data_uri(png(image))
    return f'<figure><img alt="observation {label}" width="64" src="{source}"><figcaption>{label}</figcaption></figure>'
