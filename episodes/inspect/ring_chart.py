"""Chart of the steps in a replay buffer by age: whose they are, and numbers of them such as priorities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
from markupsafe import Markup, escape

from episodes.inspect.charts import MOST_CELLS, ending_masks, ending_shares
from episodes.inspect.colours import ENDINGS, colour
from episodes.inspect.formatting import counted, number
from episodes.inspect.scales import end_ticks
from episodes.inspect.sparklines import key_of_colours

HEIGHT, STRIP_HEIGHT = 14, 8
MOST_SEGMENTS = 64
CELLS = 32  # of a strip
PALEST = 0.18  # strength of the lowest number of a strip
FEW = 0.55  # share of the capacity: labels of fewer steps have no room at both ends
ENOUGH = 0.75  # share of the capacity: behind fewer steps, the size of the free part is told
MANY = 0.6  # share of the capacity: the axis of more steps has inner numbers


def ring_chart(
    capacity: int,
    size: int,
    owners: np.ndarray | None = None,
    flags: tuple[np.ndarray, np.ndarray] | None = None,
    tooltip: Callable[[int], str] = str,
    strips: Mapping[str, np.ndarray] | None = None,
    share: int = 1,
) -> Markup:
    """Return a chart of the stored steps of a replay buffer, from the oldest at the left to the newest, and of the free
    part behind them.

    A segment is a run of steps of one episode, in the colour of the episode's ending. Of many runs, it shows the shares
    of endings of neighbouring steps.

    Args:
        capacity: most steps of the buffer.
        size: number k of stored steps.
        owners: index of the episode of each step, the oldest first, int [k]. If it is None, there are no segments.
        flags: whether each of the n episodes has terminated and was truncated, bool [n] each; None if `owners` is.
        tooltip: function from the index of an episode to the text of its segments.
        strips: numbers of each step by name, [k] each, NaN for none. Each is a row of colours below the segments.
        share: number of charts of this kind in one view.
    """
    if owners is None or flags is None or not size:
        inner, words = f'<rect class="ep-fill" width="{size}" height="{HEIGHT}" fill="{colour("observations")}"/>', ""
    else:
        inner, words = _stored(owners, ending_masks(*flags), tooltip, max(MOST_SEGMENTS // share, 1))
    words = f"stored steps from the oldest to the newest{words}; grey: free" if size else "no steps"
    rows = [
        f'<small>steps</small><svg class="ep-bar" width="640" height="44" role="img"><title>{words}</title>'
        f"{_axis(capacity, size)}{_scaled(capacity, HEIGHT, inner, 15)}</svg>"
    ]
    rows += [_strip(capacity, name, values) for name, values in (strips or {}).items()]
    return Markup(f'<div class="ep-chart ep-ring">{"".join(rows)}</div>')


def _scaled(capacity: int, height: int, inner: str, top: int = 0) -> str:
    """Return an SVG picture of shapes whose x coordinates are steps, on a grey ground."""
    return (
        f'<svg y="{top}" width="100%" height="{height}" viewBox="0 0 {capacity} {height}" preserveAspectRatio="none">'
        f'<path d="M0 0H{capacity}V{height}H0z" fill="#888" fill-opacity=".2"/>{inner}</svg>'
    )


def _stored(
    owners: np.ndarray, masks: Mapping[str, np.ndarray], tooltip: Callable[[int], str], most: int
) -> tuple[str, str]:
    """Return SVG of the stored steps, and what it shows as text: up to `most` runs of steps of one episode, or shares
    of endings.
    """
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    if len(begins) > most:
        every = -(-len(owners) // MOST_CELLS)
        edges = [*range(0, len(owners), every), len(owners)]
        own = {ending: mask[owners] for ending, mask in masks.items()}
        shares = ending_shares(own, edges, [float(edge) for edge in edges], 0, HEIGHT)
        return shares, f"; shares of the endings of {counted(every, 'step')} each"
    groups = dict.fromkeys(masks, "")
    for begin, end in pairwise([*begins.tolist(), len(owners)]):
        i = int(owners[begin])
        ending = next(name for name, mask in masks.items() if mask[i])
        text = escape(tooltip(i))
        groups[ending] += f'<rect x="{begin}" width="{end - begin}" height="{HEIGHT}"><title>{text}</title></rect>'
    shapes = (
        f'<g class="ep-share ep-{ending}" fill="{ENDINGS[ending]}">{inner}</g>'
        for ending, inner in groups.items()
        if inner
    )
    return "".join(shapes), "; a segment: steps of one episode, in the colour of its ending"


def _axis(capacity: int, size: int) -> str:
    """Return SVG with the ages of the oldest and the newest step and of some between them, and where steps are written
    and evicted.
    """
    part, texts = size / capacity, []

    def text(at: float, y: int, anchor: str, words: str) -> None:
        texts.append(f'<text x="{100 * at:.4g}%" y="{y}" text-anchor="{anchor}">{words}</text>')

    if not size:
        text(0, 10, "start", f"empty, with room for {counted(capacity, 'step')}")
        return "".join(texts)
    if part < FEW:
        text(0, 41, "start", f"{size:,} ago … now")
        text(part, 10, "start", "▾ newest, writes here")
    else:
        text(0, 10, "start", "▾ oldest, evicted next" if size == capacity else "▾ oldest")
        text(part, 10, "end", "newest, writes here ▾")
        text(0, 41, "start", f"{size:,} ago")
        text(part, 41, "end", "now")
        if part > MANY:
            for age in end_ticks(0, size)[1:-1]:
                at = (size - age) / capacity
                if 0.2 < at < part - 0.1:
                    text(at, 41, "middle", f"{age:,}")
    if part < ENOUGH:
        text(1, 41, "end", f"{capacity - size:,} free")
    return "".join(texts)


def _strip(capacity: int, name: str, values: np.ndarray) -> str:
    """Return a row of colours of the means of the numbers of neighbouring steps, pale to strong, with its scale."""
    every = -(-len(values) // CELLS)
    begins = np.arange(0, len(values), every)
    found = np.isfinite(values)
    with np.errstate(invalid="ignore", over="ignore"):
        means = np.add.reduceat(np.where(found, values, 0.0), begins) / np.add.reduceat(found, begins, dtype=np.int64)
    known = means[np.isfinite(means)]
    if not len(known):
        return ""
    low, high = float(known.min()), float(known.max())
    if found.all() and (values == values[0]).all():
        return f'<small>{name}</small><span class="ep-legend">{number(low)} of all</span>'
    span = high / 2 - low / 2
    strengths = PALEST + (1 - PALEST) * ((means / 2 - low / 2) / span if span else np.ones(len(means)))
    cells = ""
    for begin, mean, strength in zip(begins.tolist(), means.tolist(), strengths.tolist(), strict=True):
        if np.isfinite(mean):
            width = min(every, len(values) - begin)
            text = f"<title>{'mean ' * (every > 1)}{number(mean)}</title>"
            box = f'x="{begin}" width="{width}" height="{STRIP_HEIGHT}" opacity="{strength:.2f}"'
            cells += f"<rect {box}>{text}</rect>"
    picture = _scaled(
        capacity, STRIP_HEIGHT, f'<g class="ep-strip" shape-rendering="crispEdges" fill="{colour("extra")}">{cells}</g>'
    )
    key = key_of_colours("extra", PALEST, number(low), f"{number(high)}{f', means of {every:,} steps' * (every > 1)}")
    words = f"{name} of the steps above, pale to strong"
    return (
        f'<small>{name}</small><div><svg class="ep-bar" width="640" height="{STRIP_HEIGHT}" role="img">'
        f"<title>{words}</title>{picture}</svg>{key}</div>"
    )
