"""Charts of many episodes or many agents, as SVG: returns, clocks, how full a buffer is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from episodes.inspect.colours import ENDINGS, colour
from episodes.inspect.rail import ENDS
from episodes.inspect.words import clipped, number

WIDTH, HEIGHT = 640, 90
MOST_DOTS = 300  # of a chart of returns
MOST_TICKS = 800  # of all agents' clocks


def returns(values: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> Markup | None:
    """A dot for each episode's return [n], in the colour of its ending; of many, evenly chosen ones."""
    values = np.asarray(values, np.float64)
    chosen = (
        np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_DOTS)).astype(np.intp)) if len(values) else []
    )
    there = [i for i in chosen if np.isfinite(values[i])]
    if not there:
        return None
    low, high = float(values[there].min()), float(values[there].max())
    dots: dict[str, list[str]] = {name: [] for name in ENDINGS}
    for i in there:
        kind = "terminated" if terminated[i] else "truncated" if truncated[i] else "cut"
        x = 4 + (WIDTH - 8) * int(i) / max(len(values) - 1, 1)
        y = HEIGHT / 2 if high <= low else 6 + (HEIGHT - 12) * ((high / 2 - values[i] / 2) / (high / 2 - low / 2))
        dots[kind].append(f"M{x:.0f} {y:.0f}h0")
    paths = "".join(
        f'<path class="ep-{kind}" stroke="{ENDINGS[kind]}" d="{"".join(found)}"/>'
        for kind, found in dots.items()
        if found
    )
    words = f"returns of {len(values):,} episodes, from {number(low)} to {number(high)}"
    return Markup(
        f'<div class="ep-chart"><div class="ep-scale"><span>{number(high)}</span><span>return</span>'
        f'<span>{number(low)}</span></div><svg class="ep-dots" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img"><title>{words}</title>'
        f'<g fill="none" stroke-width="5" stroke-linecap="round">{paths}</g></svg></div>'
    )


def bar(part: float) -> Markup:
    """A thin bar of a part, 0 to 1, of 120 pixels."""
    return Markup(
        f'<svg class="ep-thin" width="120" height="8" role="img"><rect class="ep-fill" width="{100 * part:.1f}%" '
        f'height="8" rx="2" fill="{colour("observations")}"/></svg>'
    )


def filled(size: int, capacity: int) -> Markup:
    """A bar that is as full as a buffer."""
    part = 100 * min(size / max(capacity, 1), 1)
    return Markup(
        f'<svg class="ep-bar" width="{WIDTH}" height="10" role="img"><title>{part:.1f} % full</title>'
        f'<rect width="100%" height="10" rx="5" fill="#888" fill-opacity=".2"/>'
        f'<rect class="ep-fill" width="{part:.2f}%" height="10" rx="5" fill="{colour("observations")}"/></svg>'
    )


def timelines(lines: Sequence[tuple[Any, Any]], begin: int, end: int) -> Markup | None:
    """A lane for each agent: where it was observed, where it acted, and where it ended or waits.

    Args:
        lines: pairs of agent and its `Timeline`.
        begin, end: the first and the last env step within reach.
    """
    if not lines:
        return None
    most, span = max(MOST_TICKS // (2 * len(lines)), 20), max(end - begin, 1)
    has_room = max(len(line.seen) for _, line in lines) <= most
    gap = 0.0 if has_room else max(1.0, span / most)  # the same for all, which are compared
    lanes = "".join(_lane(agent, line, begin, span, gap) for agent, line in lines)
    return Markup(f'<div class="ep-lanes">{lanes}</div>')


def _lane(agent: Any, line: Any, begin: int, span: int, gap: float) -> str:
    """Observations above, actions below; a mark where it ended, or waits for what comes of its action."""
    seen, acted = (_stripes(clock, begin, span, gap) for clock in (line.seen, line.acted))
    mark = ""
    if line.episode.ending.is_done:
        place = 100 * (int(line.seen[-1]) - begin) / span
        mark = f'<svg x="{max(place, 2):.1f}%" overflow="visible">{ENDS[line.episode.ending]}</svg>'
    elif line.phase == "waits":
        mark = f'<circle cx="100%" cy="10" r="4" fill="none" stroke="{colour("rewards")}" stroke-width="2"/>'
    words = f"{len(line.seen):,} observations (above), {len(line.acted):,} actions (below), {line.phase}"
    return (
        f'<div class="ep-lane"><span>{escape(clipped(agent, 24))}</span> <svg width="{WIDTH}" height="20" role="img" '
        f'overflow="visible"><title>{words}</title><svg class="ep-dots" width="100%" height="20" '
        f'viewBox="0 0 {WIDTH} 20" preserveAspectRatio="none" overflow="visible"><g fill="none" stroke-width="6">'
        f'<path class="ep-observations" d="{_path(seen, 6)}" stroke="{colour("observations")}"/>'
        f'<path class="ep-actions" d="{_path(acted, 14)}" stroke="{colour("actions")}"/></g></svg>{mark}</svg></div>'
    )


def _stripes(clock: Any, begin: int, span: int, gap: float) -> np.ndarray:
    """Where something happened, [k, 2] from and to: runs of env steps that are no further apart than the gap."""
    steps = np.asarray(clock, np.float64)
    starts = np.flatnonzero(np.diff(steps, prepend=-np.inf) > gap)
    ends = np.append(starts[1:], len(steps))[: len(starts)] - 1
    return (np.stack([steps[starts], steps[ends]], 1) - begin) * (WIDTH / span) + (-1.0, 1.0)


def _path(stripes: np.ndarray, y: int) -> str:
    return "".join(f"M{start:.0f} {y}H{end:.0f}" for start, end in stripes.tolist())
