"""SVG charts: returns and lengths of many episodes, and their endings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup, escape

from episodes.inspect.colours import ENDINGS, colour
from episodes.inspect.formatting import clipped, counted, number
from episodes.inspect.scales import Scale

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Names = Sequence[object] | np.ndarray

WIDTH, HEIGHT = 640, 98
ENDINGS_HEIGHT = 12  # of the shares of endings, below the returns
MOST_DOTS = 100  # of a chart of returns
MOST_CELLS = 50  # of a chart of more returns
MOST_OF_TOOLTIP = 100  # characters of an id


def returns(
    values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    noun: str = "episode",
    ids: Names | None = None,
    lengths: np.ndarray | None = None,
    ends: tuple[str, str] | None = None,
) -> Markup | None:
    """Return an SVG chart of the returns `values` [n], with a dot per episode in the colour of its ending.

    Of many episodes, it draws the lowest and highest return, the quartiles and the median of neighbouring episodes, and
    below them the shares of their endings. If all returns are equal, the result is a line of text. It is None if no
    return is finite.

    Args:
        noun: what has a return, such as "game".
        ids, lengths: of the episodes [n], for the tooltips of the dots.
        ends: names of the first and the last episode. By default, these are their indices.
    """
    return _chart({"return": values, "length": lengths}, terminated, truncated, noun, ids, ends)


def _chart(
    facts: Mapping[str, ArrayLike | None],
    terminated: np.ndarray,
    truncated: np.ndarray,
    noun: str,
    ids: Names | None,
    ends: tuple[str, str] | None = None,
) -> Markup | None:
    """Return the chart of returns or lengths. Endings are counted in the legend of returns only.

    Args:
        facts: numbers of the episodes [n] by name. The first are drawn, and the tooltips of the dots have all.
    """
    what, values = next(iter(facts.items()))
    values, terminated, truncated = np.asarray(values, np.float64), np.asarray(terminated), np.asarray(truncated)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    low, high = float(finite.min()), float(finite.max())
    masks = ending_masks(terminated, truncated)
    if low == high:
        return _equal(len(values), len(finite), low, what, _endings_text(masks))
    is_dense = len(values) > MOST_DOTS
    if is_dense:
        paths = _spread(values, masks, low, high, noun)
    else:
        paths = _dots(values, masks, low, high, _tooltips(facts, noun, ids, len(values)))
    words = f"{what}s of {counted(len(values), noun)}, from {number(low)} to {number(high)}"
    if len(finite) < len(values):
        words += f"; {len(values) - len(finite):,} not finite"
    every = -(-len(values) // MOST_CELLS)
    if is_dense:
        words += f"; range, quartiles and median of {counted(every, noun)} each; below, their endings"
    scale = f"<span>{number(high)}</span><span>{what}</span><span>{number(low)}</span>"
    strip = '<div class="ep-aside">endings</div>' if is_dense else ""
    ends = ends or (f"{noun} 0", f"{max(len(values) - 1, 0):,}")
    legend = _legend(masks, noun, every if is_dense else 1, what, ends)
    return Markup(
        f'<div class="ep-chart"><div><div class="ep-scale">{scale}</div>{strip}</div><div>'
        f'<svg class="ep-dots" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'preserveAspectRatio="none" role="img"><title>{words}</title>{paths}</svg>'
        f'<div class="ep-legend">{legend}</div></div></div>'
    )


def lengths(
    values: np.ndarray,
    returns: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    noun: str = "episode",
    ids: Names | None = None,
) -> Markup:
    """Return an SVG chart of the lengths `values` [n] of episodes, such as that of their `returns` [n].

    It is empty if it would show nothing new: all lengths are equal, or the returns are a multiple of them.
    """
    values, sums = np.asarray(values, np.float64), np.asarray(returns, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        is_known = len(values) and sums[0] != 0 and np.allclose(sums * values[0], values * sums[0])
    if is_known or not len(values) or (values == values[0]).all():
        return Markup("")
    return _chart({"length": values, "return": returns}, terminated, truncated, noun, ids) or Markup("")


def _equal(num: int, num_finite: int, value: float, what: str, endings: str) -> Markup:
    """Return a line of text in place of a chart of equal returns."""
    words = f"{what} {number(value)}" if num == 1 else f"all {num:,} {what}s are {number(value)}"
    if num_finite < num:
        words = f"{num_finite:,} of {counted(num, what)}: {number(value)}; {num - num_finite:,} not finite"
    return Markup(f'<div class="ep-legend"><span>{words}{" · " if endings else ""}{endings}</span></div>')


def _tooltips(facts: Mapping[str, ArrayLike | None], noun: str, ids: Names | None, num: int) -> list[Markup]:
    """Return the tooltip of each dot of a chart: id or index, and what is known of the episode."""
    names = [f"{noun} {i}" for i in range(num)] if ids is None else [clipped(each, MOST_OF_TOOLTIP) for each in ids]
    known = {name: np.asarray(values).tolist() for name, values in facts.items() if values is not None}
    return [
        escape(", ".join([name, *(f"{fact} {number(values[i])}" for fact, values in known.items())]))
        for i, name in enumerate(names)
    ]


def ending_masks(terminated: np.ndarray, truncated: np.ndarray) -> dict[str, np.ndarray]:
    """Return which episodes have each kind of ending, bool [n] by its name. A terminated one counts as that alone."""
    return {"terminated": terminated, "truncated": truncated & ~terminated, "cut": ~(terminated | truncated)}


def endings(terminated: np.ndarray, truncated: np.ndarray) -> Markup:
    """Return the number of episodes of each ending that there is, with its colour, as in the legend of a chart."""
    return Markup(f'<div class="ep-legend ep-kinds">{_endings_text(ending_masks(terminated, truncated))}</div>')


def _endings_text(masks: dict[str, np.ndarray]) -> str:
    """Return the number of episodes of each ending that there is, with its colour."""
    return " · ".join(
        f'<b class="ep-{ending}">■</b> {int(mask.sum()):,} {ending}' for ending, mask in masks.items() if mask.any()
    )


def _legend(masks: dict[str, np.ndarray], noun: str, every: int, what: str, ends: tuple[str, str]) -> str:
    """Return the legend of a chart of returns: a colour and the number of episodes of each ending that there is.

    Args:
        every: number of neighbouring episodes of one cell.
        ends: names of the first and the last episode.
    """
    endings = _endings_text(masks) if what == "return" else ""
    cells = f" · bands: range and quartiles, line: median of {every:,} {noun}s each" if every > 1 else ""
    return f"<span>{ends[0]}</span><span>{endings}{cells}</span><span>{ends[1]}</span>"


def _dots(values: np.ndarray, masks: dict[str, np.ndarray], low: float, high: float, tooltips: list[Markup]) -> str:
    """Return SVG with a dot for each finite return, in the colour of the episode's ending, with a tooltip."""
    episodes = np.flatnonzero(np.isfinite(values))
    xs = 4 + (WIDTH - 8) * episodes / max(len(values) - 1, 1)
    places = [f"M{x:.0f} {y:.0f}h0" for x, y in zip(xs, _heights(values[episodes], low, high), strict=True)]
    dots = ""
    for ending, mask in masks.items():
        if path := "".join(place for i, place in zip(episodes.tolist(), places, strict=True) if mask[i]):
            dots += f'<path class="ep-{ending}" stroke="{ENDINGS[ending]}" d="{path}"/>'
    titles = "".join(
        f'<path d="{place}"><title>{tooltips[i]}</title></path>'
        for i, place in zip(episodes.tolist(), places, strict=True)
    )
    reach = min(max(int(WIDTH / len(values)), 8), 24)  # of the pointer
    return (
        f'<g fill="none" stroke-width="5" stroke-linecap="round">{dots}'
        f'<g stroke="transparent" stroke-width="{reach}">{titles}</g></g>'
    )


def _spread(values: np.ndarray, masks: dict[str, np.ndarray], low: float, high: float, noun: str) -> str:
    """Return SVG with range, quartiles and median of the returns of neighbouring episodes, and below them the shares of
    their endings. Each cell has a tooltip with the range and the median.
    """
    every = -(-len(values) // MOST_CELLS)
    edges = [*range(0, len(values), every), len(values)]
    ranges, quartiles, medians, tooltips = "", "", "", ""
    for begin, end in pairwise(edges):
        left, right = (WIDTH * at / len(values) for at in (begin, end))
        finite = values[begin:end][np.isfinite(values[begin:end])]
        words = "no finite number"
        if len(finite):
            numbers = _quartiles(finite)
            highest, _, median, _, lowest = map(number, numbers)
            words = f"{lowest} … {highest}, median {median}"
            ys = _heights(numbers, low, high).tolist()
            ranges += _box(left, right, ys[0] - 1, ys[4] + 1)
            quartiles += _box(left, right, ys[1] - 0.5, ys[3] + 0.5)
            medians += f"M{left:.0f} {ys[2]:.0f}H{right:.0f}"
        name = f"{noun}s {begin:,} to {end - 1:,}" if end > begin + 1 else f"{noun} {begin:,}"
        tooltips += f'<path d="M{left:.0f} 0H{right:.0f}V{HEIGHT}H{left:.0f}"><title>{name}: {words}</title></path>'
    soft = ENDINGS["cut"]
    places = [WIDTH * at / len(values) for at in edges]
    endings = ending_shares(masks, edges, places, HEIGHT - ENDINGS_HEIGHT, ENDINGS_HEIGHT)
    return (
        f'<path class="ep-band" fill="{soft}" fill-opacity=".25" d="{ranges}"/>'
        f'<path class="ep-band" fill="{soft}" fill-opacity=".45" d="{quartiles}"/>'
        f'<path class="ep-middle" fill="none" stroke="{soft}" stroke-width="1.5" d="{medians}"/>{endings}'
        f'<g fill="none" pointer-events="all">{tooltips}</g>'
    )


def _quartiles(values: np.ndarray) -> np.ndarray:
    """Return the highest, the quartiles from high to low, and the lowest of finite numbers [n], float64 [5]."""
    quartiles = 2 * np.quantile(values / 2, [1, 0.75, 0.5, 0.25, 0])  # halves, whose differences are finite
    return np.clip(quartiles, values.min(), values.max())


def ending_shares(
    masks: dict[str, np.ndarray], edges: Sequence[int], places: Sequence[float], top: float, height: float
) -> str:
    """Return SVG with a box for each cell of neighbouring items, which is divided into the shares of their endings.

    Args:
        masks: which of the items have each kind of ending, bool [n] by its name. Each item has one.
        edges: indices of the first item of each cell, and n.
        places: x coordinates of the edges.
        top: y coordinate of the boxes.
    """
    shares = dict.fromkeys(masks, "")
    for (begin, end), (left, right) in zip(pairwise(edges), pairwise(places), strict=True):
        y = float(top)
        for ending, mask in masks.items():
            tall = height * float(mask[begin:end].mean())
            if tall:
                shares[ending] += _box(left, right, y, y + tall)
            y += tall
    return "".join(
        f'<path class="ep-share ep-{ending}" fill="{ENDINGS[ending]}" d="{d}"/>' for ending, d in shares.items() if d
    )


def _box(left: float, right: float, top: float, bottom: float) -> str:
    """Return the SVG path of a box."""
    return f"M{left:.0f} {top:.1f}H{right:.0f}V{bottom:.1f}H{left:.0f}z"


def _heights(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Convert returns [k] between `low` and a higher `high` to y coordinates of the chart [k]."""
    return Scale(low, high, 6, HEIGHT - ENDINGS_HEIGHT - 12).heights(values)


def bar(part: float) -> Markup:
    """Return an SVG bar that is filled to the share `part`, from 0 to 1."""
    return Markup(
        f'<svg class="ep-thin" width="120" height="8" role="img"><rect class="ep-fill" width="{100 * part:.1f}%" '
        f'height="8" rx="2" fill="{colour("observations")}"/></svg>'
    )
