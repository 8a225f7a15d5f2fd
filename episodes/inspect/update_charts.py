"""SVG charts of a training update: histograms, values against returns, and shares of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

import numpy as np
from markupsafe import Markup, escape

from episodes.inspect.formatting import counted, number
from episodes.inspect.scales import ticks
from episodes.inspect.update_measures import name_of, with_few_digits

LEFT, RIGHT, TOP, BOTTOM = 40, 250, 16, 136  # of the plot in the chart
NUM_CELLS = 26  # of a chart of two columns, along each axis
MOST_POINTS = 100  # of a curve


def bars(
    title: str,
    counts: np.ndarray,
    edges: np.ndarray,
    marked: np.ndarray | None = None,
    limits: Sequence[float] = (),
    note: str = "",
    whose: str = "",
    column: str = "",
    num_rows: int | None = None,
) -> Markup:
    """Return a histogram as a chart.

    Args:
        title: name of the values.
        counts: number of rows in each bin, int [n].
        edges: of the bins, [n + 1]. Bins at the ends that are wider than the others are drawn as wide as these.
        marked: how many of the rows in each bin are drawn in another colour, int [n].
        limits: values with a dashed line.
        note: text below the chart.
        whose: what the marked rows are, as text.
        column: name of the values for the filters that the bars stand for; "" if they stand for none.
        num_rows: number of all rows, if some of them are in no bin.
    """
    if not len(counts):
        return Markup("")
    inner = edges.copy()
    if len(edges) > 4:
        width = edges[2] - edges[1]
        inner[0], inner[-1] = max(edges[0], edges[1] - width), min(edges[-1], edges[-2] + width)
    low, high = float(inner[0]), float(inner[-1])
    xs, most = _places(inner, low, high), int(counts.max()) or 1
    parts = []
    for i, count in enumerate(counts.tolist()):
        words = f"{number(edges[i])} to {number(edges[i + 1])}: {counted(count, 'row')}"
        part = int(marked[i]) if marked is not None else 0
        words += f", {part:,} of them marked" * bool(part)
        shapes = ""
        for name, size in (("bar", count), ("bar marked", part)):
            if size:
                bottom, top = BOTTOM, min(BOTTOM - (BOTTOM - TOP) * size / most, BOTTOM - 1)
                wide = max(xs[i + 1] - xs[i] - 0.6, 0.6)
                place = f'x="{xs[i]:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{bottom - top:.1f}"'
                shapes += f'<rect class="{name}" {place}/>'
        test = _between(column, edges, i) if column and count else ""
        parts.append(f'<g data-count="{count}" data-marked="{part}"{test}><title>{words}</title>{shapes}</g>')
    outside = []
    for value in limits:
        if low <= value <= high:
            x = _places(np.array([value]), low, high)[0]
            parts.append(f'<path class="limit" d="M{x:.1f} {TOP}V{BOTTOM}"><title>{number(value)}</title></path>')
        else:
            outside.append(number(value))
    if low < 0 < high:
        parts.append(f'<path class="zero" d="M{_places(np.zeros(1), low, high)[0]:.1f} {TOP}V{BOTTOM}"/>')
    inside = [number(value) for value in limits if low <= value <= high]
    notes = [note]
    if inside:
        notes.append(f"Dashed: the clip {'limits' if len(inside) > 1 else 'limit'} {' and '.join(inside)}")
    if outside:
        words = "limits are" if len(outside) > 1 else "limit is"
        notes.append(f"Outside of the chart, the clip {words} {' and '.join(outside)}")
    far = []
    if inner[0] > edges[0]:
        far.append(f"the first bar reaches to {number(edges[0])}")
    if inner[-1] < edges[-1]:
        far.append(f"the last bar reaches to {number(edges[-1])}")
    notes.append(" and ".join(far).capitalize())
    total = int(counts.sum())
    key = whose if marked is not None and marked.any() else ""
    note = ". ".join(filter(None, notes))
    extent, axes = _of_rows(total, num_rows or total), (name_of(column) if column else title, "rows")
    return _chart(title, extent, "".join(parts), (low, high), (0.0, float(most)), note, key, axes)


def _between(column: str, edges: np.ndarray, i: int) -> str:
    """Return the attribute with the filter of the rows in a bin of a column. Only the last bin has its upper edge."""
    low, high = map(float, edges[i : i + 2])
    low, high = _outward(low, -1) if i == 0 else low, _outward(high, 1) if i + 2 == len(edges) else high
    sign = "&lt;=" if i + 2 == len(edges) else "&lt;"
    return f' data-test="{column} &gt;= {low!r} and {column} {sign} {high!r}"'


def _outward(value: float, way: int) -> float:
    """Return a number of 6 digits that is not less than a value if `way` is 1, and not greater if it is -1."""
    result = float(f"{value:.6g}")
    if way * (result - value) < 0:
        result = float(f"{value + way * abs(value) * 1e-5:.6g}")
    return result if isfinite(result) else value


def cells(
    title: str,
    x_name: str,
    y_name: str,
    x: np.ndarray,
    y: np.ndarray,
    note: str = "",
    marked: np.ndarray | None = None,
    whose: str = "",
    columns: tuple[str, str] | None = None,
) -> Markup:
    """Return a chart of two columns [n] with the same unit, as rectangles whose areas are numbers of rows, and a line
    where both are equal. Rows without finite values are left out.

    Args:
        title: name of the chart.
        x_name: name of the first column.
        y_name: name of the second column.
        x: values of the first column.
        y: values of the second column.
        note: beginning of the text below the chart.
        marked: whether a row is drawn in another colour, bool [n].
        whose: what the marked rows are, as text.
        columns: names of both columns for the filters that the rectangles stand for.
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known].astype(np.float64), y[known].astype(np.float64)
    if not len(x):
        return Markup("")
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = with_few_digits(np.linspace(low, high, NUM_CELLS + 1))
    counts = np.histogram2d(x, y, [edges, edges])[0].astype(np.int64)
    of_marked = np.zeros_like(counts)
    if marked is not None:
        is_in = marked[known]
        of_marked = np.histogram2d(x[is_in], y[is_in], [edges, edges])[0].astype(np.int64)
    most = counts.max()
    wide, tall = (RIGHT - LEFT) / NUM_CELLS, (BOTTOM - TOP) / NUM_CELLS
    parts = [f'<path class="zero" d="M{LEFT} {BOTTOM}L{RIGHT} {TOP}"/>']
    for i, j in np.argwhere(counts).tolist():
        words = (
            f"{x_name} {number(edges[i])} to {number(edges[i + 1])}, {y_name} {number(edges[j])} to "
            f"{number(edges[j + 1])}: {counted(int(counts[i, j]), 'row')}"
        )
        words += f", {of_marked[i, j]:,} of them marked" * bool(of_marked[i, j])
        shapes = ""
        for name, count in (("bar", counts[i, j]), ("bar marked", of_marked[i, j])):
            if count:
                size = np.sqrt(count / most)
                w, h = max(wide * size, 2.0), max(tall * size, 2.0)
                shapes += (
                    f'<rect class="{name}" x="{LEFT + (i + 0.5) * wide - w / 2:.1f}" '
                    f'y="{BOTTOM - (j + 0.5) * tall - h / 2:.1f}" width="{w:.1f}" height="{h:.1f}"/>'
                )
        test = ""
        if columns is not None:
            test = f"{_between(columns[0], edges, i)[:-1]} and {_between(columns[1], edges, j)[12:]}"
        parts.append(
            f'<g data-count="{counts[i, j]}" data-marked="{of_marked[i, j]}"{test}><title>{escape(words)}</title>'
            f"{shapes}</g>"
        )
    notes = [note, "The line is where both are equal"]
    notes.append(f"The largest area is {counted(int(most), 'row')}")
    note = ". ".join(filter(None, notes))
    key = whose if of_marked.any() else ""
    extent, axes = _of_rows(len(x), len(known)), (x_name, y_name)
    return _chart(title, extent, "".join(parts), (low, high), (low, high), note, key, axes)


def means(
    title: str,
    numbers: np.ndarray,
    values: np.ndarray,
    column: str,
    note: str = "",
    limit: float | None = None,
    axes: tuple[str, str] = ("", "mean"),
) -> Markup:
    """Return a chart with the mean of the values that are not negative, [n], of each whole number in another column,
    [n], or "" if there is one number or none. Rows without finite values are left out. With a limit of the mean of the
    lowest number, a line is drawn there if the axis reaches it.

    Args:
        title: name of the chart.
        numbers: the whole numbers.
        values: the values.
        column: name of the whole numbers for the filters that the bars stand for.
        note: text below the chart.
        limit: the limit, or None.
        axes: names of the axes.
    """
    known = np.isfinite(numbers) & np.isfinite(values)
    places, of_row = np.unique(numbers[known].astype(np.int64), return_inverse=True)
    if len(places) < 2:
        return Markup("")
    counts = np.bincount(of_row)
    sizes = np.bincount(of_row, values[known]) / counts
    low, high, most = float(places[0]) - 0.5, float(places[-1]) + 0.5, float(sizes.max()) or 1.0
    xs = _places(places - 0.5, low, high)
    wide = max((RIGHT - LEFT) / (high - low) - 1, 0.6)
    parts = []
    for x, place, size, count in zip(xs, places.tolist(), sizes.tolist(), counts.tolist(), strict=True):
        tall = (BOTTOM - TOP) * size / most
        parts.append(
            f'<g data-count="{count}" data-mean="{size!r}" data-test="{column} == {place}">'
            f"<title>{place}: mean {number(size)} of {counted(count, 'row')}</title>"
            f'<rect class="bar" x="{x:.1f}" y="{BOTTOM - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}"/></g>'
        )
    if limit is not None:
        note += f"{'. ' * bool(note)}At {places[0]}, a mean above {number(limit)} stands out"
        if limit <= most:
            y = BOTTOM - (BOTTOM - TOP) * limit / most
            parts.append(f'<path class="limit" d="M{LEFT} {y:.1f}H{xs[0] + wide:.1f}"/>')
            note += ": the dashed line"
    extent = _of_rows(int(counts.sum()), len(known))
    return _chart(title, extent, "".join(parts), (low, high), (0.0, most), note, axes=axes)


def _of_rows(count: int, num: int) -> str:
    """Return how many of the rows a chart has, as text, such as "128 of 256 rows"."""
    return f"{count:,} of {counted(num, 'row')}" if count < num else counted(num, "row")


def shares(title: str, values: np.ndarray) -> Markup:
    """Return a chart of how much of the loss the first rows have together.

    Args:
        title: name of the chart.
        values: shares of the loss [n], the largest ones first.
    """
    total = float(values.sum())
    if not total > 0:
        return Markup("")
    parts = np.concatenate([[0.0], np.cumsum(values) / total])
    n = len(values)
    rows = np.unique(np.linspace(0, n, min(n, MOST_POINTS) + 1).astype(np.int64))
    xs, ys = _places(rows, 0, n), BOTTOM - (BOTTOM - TOP) * np.minimum(parts[rows], 1)
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys.tolist(), strict=True))
    half = int(np.searchsorted(parts, 0.5))
    drawn = (
        f'<path class="zero" d="M{LEFT} {BOTTOM}L{RIGHT} {TOP}"/><path class="line" data-half="{half}" d="M{line}"/>'
    )
    edges = [xs[0], *(((a + b) / 2) for a, b in pairwise(xs)), xs[-1]]
    for i, row in enumerate(rows.tolist()):
        words = f"{counted(row, 'row')} with the largest shares: {100 * min(float(parts[row]), 1.0):.2f} % of the loss"
        place = f'x="{edges[i]:.1f}" y="{TOP}" width="{edges[i + 1] - edges[i]:.1f}" height="{BOTTOM - TOP}"'
        drawn += f'<g><title>{words}</title><rect class="reading" {place}/></g>'
    note, axes = (
        f"Half of the loss is in {counted(half, 'row')} of {n:,}",
        ("rows, largest share first", "% of the loss"),
    )
    return _chart(title, counted(n, "row"), drawn, (0.0, float(n)), (0.0, 100.0), note, axes=axes)


def _places(values: np.ndarray, low: float, high: float) -> list[float]:
    """Convert values [n] between `low` and `high` to x coordinates."""
    span = high / 2 - low / 2
    return (LEFT + (RIGHT - LEFT) * ((np.asarray(values, np.float64) / 2 - low / 2) / (span or 1.0))).tolist()


def tick_texts(values: Sequence[float]) -> list[str]:
    """Return numbers in order as texts, with 4 digits, or more if they are close to each other.

    >>> tick_texts([1.0, 1.0005, 1.001])
    ['1', '1.0005', '1.001']
    """
    near = min((b - a for a, b in pairwise(values)), default=float("inf")) / 100
    for digits in range(4, 17):
        texts = [number(value, digits) for value in values]
        if all(abs(float(text) - value) <= near for text, value in zip(texts, values, strict=True)):
            return texts
    return [repr(float(value)) for value in values]


def _chart(
    title: str,
    extent: str,
    drawn: str,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    note: str,
    key: str = "",
    axes: tuple[str, str] = ("", ""),
) -> Markup:
    """Return a chart with axes as HTML, given its content as SVG. `key` tells what the second colour is. `axes` has the
    names of the horizontal and of the vertical axis.
    """
    lines = [f'<path class="axis" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>']
    values = ticks(*x_range)
    for value, text in zip(values, tick_texts(values), strict=True):
        x = _places(np.array([value]), *x_range)[0]
        lines.append(f'<path class="axis" d="M{x:.1f} {BOTTOM}v4"/><text x="{x:.1f}" y="{BOTTOM + 16}">{text}</text>')
    lines.append(f'<text x="{(LEFT + RIGHT) / 2:.0f}" y="{BOTTOM + 27}">{escape(axes[0])}</text>')
    lines.append(f'<text class="name" x="2" y="{TOP - 8}">{escape(axes[1])}</text>')
    low, high = y_range
    values = ticks(low, high, 3)
    for value, text in zip(values, tick_texts(values), strict=True):
        y = BOTTOM - (BOTTOM - TOP) * (value / 2 - low / 2) / (high / 2 - low / 2)
        lines.append(
            f'<path class="axis" d="M{LEFT} {y:.1f}h-4"/><text class="up" x="{LEFT - 7}" y="{y + 4:.1f}">{text}</text>'
        )
    words = f"{title}: {extent}. Right: {axes[0]}. Up: {axes[1]}. {note}"
    is_set = 'tabindex="0" role="group"' if "<rect" in drawn else 'role="img"'
    marked = f'<p class="key"><i></i>{escape(key)}</p>' if key else ""
    return Markup(
        f'<figure class="chart"><h2>{escape(title)} <span>{escape(extent)}</span></h2>'
        f'<svg viewBox="0 0 260 168" {is_set} aria-label="{escape(words)}">{"".join(lines)}{drawn}</svg>'
        f"<output></output>{marked}<figcaption>{escape(note)}{'.' * bool(note)}</figcaption></figure>"
    )
