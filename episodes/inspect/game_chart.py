"""SVG charts of a game: a timeline of each agent, and tracks that agents share, all by env step on one axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from episodes.inspect.colours import DEFECT, colour
from episodes.inspect.formatting import clipped, counted, endings, number
from episodes.inspect.scales import Scale, end_ticks
from episodes.inspect.series import Series
from episodes.inspect.timeline_bar import ENDS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from episodes.data_types import AgentID
    from episodes.multi_agent.timeline import Timeline

WIDTH = 640
MOST_TICKS = 800  # in the timelines of all agents
MOST_LABELS = 128  # texts of one env step each, in the timelines of all agents; somewhat fewer of many agents
MOST_TRACK_LABELS = 72  # texts of one env step each, in the rows of all shared tracks
WIDEST_LABEL = 16  # pixels around a mark that show its text
REWARDS_TOP, REWARDS_HEIGHT = 9, 26  # of a lane
TRACK_HEIGHT, LETTERED_TRACK_HEIGHT = 30, 40  # of a row of a shared track, without and with its numbers as text
MOST_LETTERED = 60  # items of the shared tracks with their numbers as text
NARROWEST, LETTER = 300, 6  # pixels of the narrowest chart, and of a digit of its numbers
MOST_POINTS = 240  # of the shared tracks of all agents
MOST_TRACK_ROWS, MOST_TRACKS = 8, 3  # of the shared tracks
REWARDS_PLACE = "at the env step of the action: the sum from there to the agent's next observation"
_HUES = ("actions", "observations", "infos", "extra")  # of shared tracks, the first is drawn first


@dataclass(frozen=True)
class _Steps:
    """Axis of env steps from `begin` to `end`."""

    begin: int
    end: int

    @property
    def span(self) -> int:
        """Number of env steps, at least 1."""
        return max(self.end - self.begin, 1)

    def at(self, steps: ArrayLike) -> np.ndarray:
        """Return the x coordinates of env steps [k], from 0 to `WIDTH`."""
        return (np.asarray(steps, np.float64) - self.begin) * (WIDTH / self.span)

    def ticks(self) -> list[int]:
        """Return the first and the last env step, and round numbers between them."""
        return end_ticks(self.begin, self.end)

    def percent(self, step: float) -> str:
        """Return the x coordinate of an env step as a percentage of the width."""
        return f"{100 * (step - self.begin) / self.span:.4g}%"


def pending_reward(line: Timeline) -> float:
    """Return the sum of an agent's rewards since its newest observation, 0 if there are none."""
    return 0.0 if line.reward is None else float(line.reward)


def pending_text(line: Timeline) -> str:
    """Return the env step of an agent's unfinished step and what it has so far as text, empty if there is nothing."""
    words = ", ".join(_pending_words(line))
    return f"env step {_pending_step(line):,}: {words}" if words else ""


def timelines(
    lines: Sequence[tuple[Any, Timeline]], begin: int, end: int, results: Mapping[Any, str] | None = None
) -> Markup | None:
    """Return an SVG chart with one timeline per agent: observations, rewards as bars on one scale for all agents,
    actions, and its ending.

    The action and the reward of an agent's unfinished step are outlined, at the env step of the action. If the agent
    has not acted yet, its reward is at its newest observation. Each mark has a text with its env step, action and
    reward. If there are many, a text is of several env steps.

    Args:
        lines: pairs of agent and its `Timeline`.
        begin, end: the first and the last env step of the episode and its lookback.
        results: a text for each agent, such as its return.

    Returns:
        The SVG, or None without agents.
    """
    if not lines:
        return None
    axis = _Steps(begin, end)
    max_steps = max(MOST_TICKS // (3 * len(lines)), 20)
    has_room = max(len(line.observation_times) for _, line in lines) <= max_steps
    gap = 0.0 if has_room else max(1.0, axis.span / max_steps)  # the same for all, which are compared
    rewards = np.concatenate([_rewarded(line)[1] for _, line in lines])
    waiting = [pending_reward(line) for _, line in lines if pending_reward(line)]
    rewards = np.append(rewards, waiting)
    finite = rewards[np.isfinite(rewards)]
    scale = Scale(
        float(finite.min(initial=0)), float(finite.max(initial=0)), REWARDS_TOP, REWARDS_HEIGHT if len(rewards) else -4
    )
    most = max(MOST_LABELS // len(lines) - len(lines) // 2, 8)
    lanes = "".join(_lane(agent, line, axis, gap, scale, most, (results or {}).get(agent, "")) for agent, line in lines)
    kinds = {"observations": "observes (above)", "rewards": "gets a reward (bar from 0)", "actions": "acts (below)"}
    if not len(rewards):
        del kinds["rewards"]
    is_waiting = any(line.phase == "waits" for _, line in lines)
    if is_waiting or waiting:
        kinds["pending"] = "□ pending, of an unfinished step"
    if is_waiting:
        kinds["waits"] = "┄ waits for an observation"
    endings = {line.episode.ending for _, line in lines if line.episode.ending.is_done}
    marks = {"terminated": ("■", any(each.is_terminated for each in endings))}
    marks["truncated"] = ("‖", any(each.is_truncated for each in endings))
    kinds |= {ending: f"{mark} {ending}" for ending, (mark, is_there) in marks.items() if is_there}
    titles = {"rewards": f' title="{REWARDS_PLACE}"'}
    legend = " · ".join(f'<b class="ep-{hue}"{titles.get(hue, "")}>{words}</b>' for hue, words in kinds.items())
    if gap:
        legend += f" · marks within {counted(int(gap), 'env step')} are joined; bars: lowest to highest reward"
    return Markup(f'<div class="ep-lanes">{lanes}{_axis(axis)}<div class="ep-legend ep-kinds">{legend}</div></div>')


def shared_tracks(tracks: Sequence[tuple[Any, Timeline, Iterable[Series]]], begin: int, end: int) -> Markup | None:
    """Return an SVG chart of the tracks with one number for each item that most agents share, by env step: a row for
    each agent, and one scale for all agents. Choices, such as discrete actions, are dots. Rewards are left out.

    Args:
        tracks: agent, its timeline, and the series of its episode's tracks.
        begin, end: the first and the last env step of the axis.

    Returns:
        The SVG, or None if no such track has different numbers.
    """
    axis = _Steps(begin, end)
    found: dict[str, list[tuple[Any, Timeline, Series]]] = {}
    for agent, line, all_series in tracks:
        for series in all_series:
            is_single = series.is_numeric and not series.is_image and series.sampled_values.shape[1] == 1
            if is_single and series.hue in _HUES and not np.isnan(series.range[0]):
                found.setdefault(series.label, []).append((agent, line, series))
    ranges = {
        label: (min(ends), max(ends))
        for label, rows in found.items()
        for ends in [[end for row in rows for end in _ends(*row[1:])]]
    }
    labels = [label for label, (low, high) in ranges.items() if low < high]
    labels.sort(key=lambda label: (-len(found[label]), _HUES.index(found[label][0][2].hue)))
    labels = labels[: max(min(MOST_TRACKS, MOST_TRACK_ROWS // max(len(tracks), 1)), 1)]
    num_rows = max(sum(len(found[label]) for label in labels), 1)
    groups, room = "", MOST_LETTERED
    for label in labels:
        is_dots = any(series.is_choice or series.counts.missing for *_, series in found[label])
        num_items = sum(len(series.items) for *_, series in found[label])
        is_lettered = is_dots and num_items <= room and all(_fits(*row[1:], axis) for row in found[label])
        room -= num_items * is_lettered
        scale = Scale(*ranges[label], *((14, LETTERED_TRACK_HEIGHT - 18) if is_lettered else (4, TRACK_HEIGHT - 8)))
        most = max(MOST_POINTS // num_rows, 24), max(MOST_TRACK_LABELS // num_rows, 8)
        groups += "".join(_track(row, axis, scale, *most, is_dots, is_lettered) for row in found[label])
    return Markup(f'<div class="ep-lanes">{groups}{_axis(axis)}</div>') if groups else None


def _axis(axis: _Steps) -> str:
    """Return the row with the numbers of the env steps."""
    words = ""
    for step in axis.ticks():
        words += f'<text x="{axis.percent(step)}" y="11" text-anchor="middle">{step:,}</text>'
    svg = f'<svg class="ep-ticks" width="{WIDTH}" height="14" overflow="visible" role="img">'
    svg += f"<title>env steps</title>{words}</svg>"
    return f'<div class="ep-lane"><span>env step</span> {svg}</div>'


def _row(agent: AgentID, axis: _Steps, height: int, title: str, inner: str, beside: str, more: str) -> str:
    """Return a row of a chart: the agent with a text below it, and a picture with a grid of env steps.

    Args:
        inner: SVG whose x coordinates are stretched to the width of the row.
        beside: SVG that is not stretched.
        more: HTML below the agent.
    """
    grid = "".join(f"M{x:.0f}-4V{height + 4}" for x in axis.at(axis.ticks()).tolist())
    return (
        f'<div class="ep-lane"><span title="{escape(clipped(agent, 200))}">{escape(clipped(agent, 24))} {more}</span> '
        f'<svg width="{WIDTH}" height="{height}" role="img"><title>{escape(title)}</title>'
        f'<svg class="ep-dots" viewBox="0 0 {WIDTH} {height}" fill="none" '
        f'preserveAspectRatio="none"><path class="ep-ticks" stroke="#8884" d="{grid}"/>{inner}</svg>'
        f"{beside}</svg></div>"
    )


def _lane(agent: AgentID, line: Timeline, axis: _Steps, gap: float, scale: Scale, most: int, result: str) -> str:
    """Return the SVG timeline of one agent: observations, rewards, actions, and marks of its ending and pending step.

    Args:
        line: timeline of the agent.
        gap: env steps at most this far apart are joined to one stripe.
        scale: scale of the rewards of all agents.
        most: most texts.
        result: text below the agent.
    """
    height = round(scale.top + scale.height) + 9 + 6 * (scale.height < 0)
    bottom = height - 3
    mark = ""
    if line.episode.ending.is_done:
        shape = f'<g transform="translate(0 {bottom - 12:g})">{ENDS[line.episode.ending]}</g>'
        mark = f'<svg x="{axis.percent(_last_step(line))}" overflow="visible" pointer-events="none">{shape}</svg>'
    mark += _pending_marks(line, axis, scale, bottom)
    acts = line.action_times[: len(line.action_times) - (line.phase == "waits")]
    bars = _bars(line, axis, gap, scale) if scale.height > 0 else '<path class="ep-rewards" d=""/>'
    seen, acted = (_stripes(clock, axis, gap) for clock in (line.observation_times, acts))
    dashes = ""
    if line.phase == "waits":
        start = axis.at(_pending_step(line)) + 5
        dashes = f'<path class="ep-waits ep-actions" stroke="{colour("actions")}" stroke-dasharray="2 3" '
        dashes += f'd="M{min(start, WIDTH):.0f} {bottom}H{WIDTH}"/>'
    inner = (
        f'<path class="ep-observations" stroke-width="6" d="{_path(seen, 3)}" stroke="{colour("observations")}"/>{bars}'
        f'<path class="ep-actions" stroke-width="6" d="{_path(acted, bottom)}" stroke="{colour("actions")}"/>{dashes}'
        f"{_labels(line, axis, most, height)}"
    )
    beside = (scale.labels() if scale.height > 0 else "") + mark
    result = f"<small>{escape(result)}</small>" if result else ""
    return _row(agent, axis, height, _counts(line), inner, beside, result)


def _counts(line: Timeline) -> str:
    """Return how often an agent observes and acts, what it does at the end, and its rewards, as text."""
    waits, pending = line.phase == "waits", pending_reward(line)
    _, rewards = _rewarded(line)
    last = {
        "waits": "waits for an observation",
        "rests": "has not acted on its newest observation",
        "ended": " and ".join(endings(line.episode.ending)),
    }
    words = f"{counted(len(line.observation_times), 'observation')} (above), "
    words += f"{counted(len(line.action_times) - waits, 'action')}{' and a pending one' * waits} (below), "
    words += f"{last[line.phase]}, {counted(len(rewards), 'reward')} other than 0"
    if (rewards == rewards).any():
        low, high = number(np.nanmin(rewards)), number(np.nanmax(rewards))
        words += f" ({low})" if low == high else f" (from {low} to {high})"
    return words + (f" and a pending one of {number(pending)}" if pending else "")


def _last_step(line: Timeline) -> int:
    """Return the env step at which an agent ended, or of its newest observation if it has not ended."""
    return int(line.observation_times[-1] if line.ended_at is None else line.ended_at)


def _pending_step(line: Timeline) -> int:
    """Return the env step of an agent's pending action, or of its newest observation if it has not acted on it."""
    return int((line.action_times if line.phase == "waits" else line.observation_times)[-1])


def _pending_marks(line: Timeline, axis: _Steps, scale: Scale, bottom: float) -> str:
    """Return SVG with outlines of an agent's pending action and reward.

    Args:
        bottom: y coordinate of the actions.
    """
    place, svg, reward = axis.percent(_pending_step(line)), "", pending_reward(line)
    if line.phase == "waits":
        svg += _outline("actions", bottom - 3, bottom + 3)
    if np.isfinite(reward) and reward:
        top, low = sorted(scale.heights(np.array([reward, 0.0])).tolist())
        svg += _outline("rewards", top, low)
    elif reward:
        svg += _outline("odd", scale.top, scale.top + scale.height)
    if not svg:
        return ""
    return f'<svg x="{place}" overflow="visible" pointer-events="none">{svg}</svg>'


def _outline(hue: str, top: float, low: float) -> str:
    """Return SVG with the outline of a mark around x = 0, for the colour of a kind of track or "odd" for a defect."""
    line_colour = DEFECT if hue == "odd" else colour(hue)
    return (
        f'<path class="ep-pending ep-{hue}" fill="{line_colour}" fill-opacity=".15" stroke="{line_colour}" '
        f'stroke-width="1.5" d="M-3 {top:.1f}H3V{low:.1f}H-3z"/>'
    )


def _rewarded(line: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """Return the env steps [k] of the agent's actions whose rewards are not 0, and the rewards [k]."""
    rewards = np.asarray(line.episode.tracks.rewards.data, np.float64)
    times = np.asarray(line.action_times)[: len(rewards)]
    rewards = rewards[: len(times)]
    return times[rewards != 0], rewards[rewards != 0]


def _bars(line: Timeline, axis: _Steps, gap: float, scale: Scale) -> str:
    """Return SVG with the rewards of an agent as bars from a line at 0, from its first observation to its end. Rewards
    of one stretch of `gap` env steps are one bar, from the lowest to the highest. Those that are not finite are red.
    """
    times, rewards = _rewarded(line)
    zero = float(scale.heights(np.zeros(1))[0])
    begin, end = axis.at([int(line.observation_times[0]), _last_step(line)]).tolist()
    end = end if line.episode.ending.is_done else WIDTH
    svg = f'<path class="ep-zero" stroke="#8889" d="M{begin:.0f} {zero:.1f}H{end:.0f}"/>'
    is_finite = np.isfinite(rewards)
    cells = np.floor((times - axis.begin) / max(gap, 1))
    middles = cells * max(gap, 1) + axis.begin + (max(gap, 1) - 1) / 2
    firsts = np.flatnonzero(np.diff(cells[is_finite], prepend=-1))
    path = ""
    if len(firsts):
        numbers = rewards[is_finite]
        ends = [
            np.maximum(np.maximum.reduceat(numbers, firsts), 0),
            np.minimum(np.minimum.reduceat(numbers, firsts), 0),
        ]
        tops, bottoms = (scale.heights(each).tolist() for each in ends)
        xs = axis.at(middles[is_finite][firsts]).tolist()
        path = "".join(f"M{x:.0f} {top:.1f}V{low:.1f}" for x, top, low in zip(xs, tops, bottoms, strict=True))
    svg += f'<path class="ep-rewards" stroke-width="4" d="{path}" stroke="{colour("rewards")}"/>'
    odd = np.unique(middles[~is_finite])
    if len(odd):
        ticks = "".join(f"M{x:.0f} {scale.top}v{scale.height}" for x in axis.at(odd).tolist())
        svg += f'<path class="ep-odd" stroke-width="2" d="{ticks}" stroke="{DEFECT}"/>'
    return svg


def _labels(line: Timeline, axis: _Steps, most: int, height: int) -> str:
    """Return SVG without colour that shows a text where the pointer is: env step, action, reward and ending."""
    observed, acted = (np.asarray(clock, np.int64) for clock in (line.observation_times, line.action_times))
    is_done = line.episode.ending.is_done
    rewards = np.asarray(line.episode.tracks.rewards.data, np.float64)

    def words(begin: int, end: int) -> str:
        seen, done = (slice(*np.searchsorted(clock, (begin, end)).tolist()) for clock in (observed, acted))
        numbers = rewards[done]
        if end - begin == 1:
            parts = [*["observes"] * (seen.stop > seen.start), *_act(line, done.start, numbers)]
        else:
            parts = [counted(seen.stop - seen.start, "observation"), counted(len(numbers), "action")]
            if len(numbers):
                with np.errstate(over="ignore", invalid="ignore"):
                    low, high, total = (number(each) for each in (numbers.min(), numbers.max(), numbers.sum()))
                parts += [f"rewards {low}" if low == high else f"rewards {low} to {high}", f"sum {total}"]
        parts += _pending_words(line) if begin <= _pending_step(line) < end else []
        parts += endings(line.episode.ending) if is_done and begin <= _last_step(line) < end else []
        return ", ".join(parts)

    steps = np.union1d(observed, np.append(acted, [_last_step(line)] * is_done))
    return _texts(steps, axis, most, height, words)


def _texts(steps: np.ndarray, axis: _Steps, most: int, height: int, words: Callable[[int, int], str]) -> str:
    """Return SVG without colour that shows a text where the pointer is, close to env steps.

    Args:
        steps: ascending env steps [k] that have a text.
        most: most texts of one env step each. If there are more, each of half as many is of several env steps.
        height: height of the row.
        words: function that returns the text of a range of env steps, from its begin and end.
    """
    every = 1 if len(steps) <= most else -(-(axis.span + 1) // (most // 2))
    cells = np.unique((steps - axis.begin) // every)
    xs = axis.at(axis.begin + cells * every + (every - 1) / 2)
    reach = max(WIDEST_LABEL, WIDTH * every / axis.span) / 2
    edges = (xs[1:] + xs[:-1]) / 2
    lefts = np.maximum(np.append(-np.inf, edges), xs - reach)
    rights = np.minimum(np.append(edges, np.inf), xs + reach)
    svg = ""
    for cell, left, right in zip(cells.tolist(), lefts.tolist(), rights.tolist(), strict=True):
        begin = int(axis.begin + cell * every)
        place = f"env step {begin:,}" if every == 1 else f"env steps {begin:,} to {min(begin + every - 1, axis.end):,}"
        title = escape(f"{place}: {words(begin, begin + every)}")
        svg += f'<path d="M{left:.0f} {height / 2:g}H{right:.0f}"><title>{title}</title></path>'
    return f'<g class="ep-texts" stroke-width="{height}">{svg}</g>' if svg else ""


def _act(line: Timeline, index: int, rewards: np.ndarray) -> list[str]:
    """Return texts about the action of an agent at one env step, none if it did not act or its step is unfinished.

    Args:
        index: the index of the action among those of the agent.
        rewards: its reward [1], or none [0].
    """
    if not len(rewards):
        return []
    actions = line.episode.tracks.actions.data
    value = _single(actions[index] if isinstance(actions, list | np.ndarray) else None)
    return ["acts" if value is None else f"action {number(value)}", f"reward {number(rewards[0])}"]


def _pending_words(line: Timeline) -> list[str]:
    """Return texts about the unfinished step of an agent: its action and its rewards so far."""
    words, value = [], _single(line.action)
    if line.phase == "waits":
        words = ["pending action" + ("" if value is None else f" {number(value)}"), "waits for an observation"]
    return words + [f"pending reward {number(pending_reward(line))}"] * bool(pending_reward(line))


def _single(action: Any) -> float | None:
    """Return an action that is a single number, None for other actions."""
    is_single = isinstance(action, int | float) or (isinstance(action, np.ndarray | np.generic) and action.ndim == 0)
    return float(action) if is_single and np.asarray(action).dtype.kind in "biuf" else None


def _pending_item(line: Timeline, series: Series) -> list[tuple[int, float]]:
    """Return env step and number of an agent's pending action if it belongs to the track, as a list of 0 or 1 items."""
    value = _single(line.action) if line.phase == "waits" and series.hue == "actions" else None
    return [(_pending_step(line), value)] if value is not None and np.isfinite(value) else []


def _ends(line: Timeline, series: Series) -> list[float]:
    """Return the lowest and the highest number of an agent's track, and that of its pending action."""
    return [series.range[0], series.range[2], *(value for _, value in _pending_item(line, series))]


def _fits(line: Timeline, series: Series, axis: _Steps) -> bool:
    """Return whether the numbers of an agent's track can be written at their env steps."""
    clock = np.asarray(line.observation_times if series.more else line.action_times)
    pending = _pending_item(line, series)
    numbers = {*series.finite[:, 0].tolist(), *(value for _, value in pending)}
    longest = max((len(number(value)) for value in numbers), default=0)
    steps = np.append(clock[series.items], [step for step, _ in pending])
    apart = np.diff(steps).min(initial=axis.span) * NARROWEST / axis.span
    return bool(apart >= LETTER * longest + 3)


def _track(
    row: tuple[Any, Timeline, Series],
    axis: _Steps,
    scale: Scale,
    most: int,
    most_texts: int,
    is_dots: bool,
    is_lettered: bool,
) -> str:
    """Return the row of one agent's track, with a line through its numbers or a dot for each of them.

    Args:
        row: agent, its timeline, and the track.
        most: most points of the line.
        most_texts: most texts of one env step each.
        is_lettered: whether each dot has its number above.
    """
    agent, line, series = row
    clock = np.asarray(line.observation_times if series.more else line.action_times)
    if is_dots:
        at, numbers = np.arange(len(series.finite)), series.finite[:, 0].astype(np.float64)
    else:
        at, numbers = series.cells(len(series.items) if len(series.items) <= most else most // 2).line(0)
    xs, ys = axis.at(clock[series.items[at]]), scale.heights(np.asarray(numbers, np.float64))
    if is_dots:
        path = _dots(xs, ys, most)
    else:
        path, before = "", False
        for x, y, is_there in zip(np.rint(xs).tolist(), ys.tolist(), (~np.isnan(ys)).tolist(), strict=True):
            path += f"{'L' if before else 'M'}{x:.0f} {y:.0f}" if is_there else ""
            before = is_there
    low, mean, high = map(number, series.range)
    words = (
        f"{series.label} of {clipped(agent, 40)}: min {low}, {'' if series.is_choice else f'mean {mean}, '}max {high}"
    )
    width = 'stroke-width="4" stroke-linecap="round"' if is_dots else 'stroke-width="1.5"'
    inner = f'<g class="ep-{series.hue}" stroke="{colour(series.hue)}" {width}><path d="{path}"/></g>'
    pending = _pending_item(line, series)
    words += "".join(f", pending {number(value)}" for _, value in pending)
    beside, height = "" if is_lettered else scale.labels(), LETTERED_TRACK_HEIGHT if is_lettered else TRACK_HEIGHT
    inner += _track_labels(clock[series.items], series, pending, axis, most_texts, height)
    for step, value in pending:
        ring = f'r="2.5" fill="none" stroke="{colour(series.hue)}" stroke-width="1.5" pointer-events="none"'
        y = float(scale.heights(np.array([value]))[0])
        beside += f'<circle class="ep-pending ep-{series.hue}" cx="{axis.percent(step)}" cy="{y:.0f}" {ring}/>'
    if is_lettered:
        places = [*zip(clock[series.items[at]].tolist(), numbers.tolist(), strict=True), *pending]
        beside += '<g text-anchor="middle" pointer-events="none">'
        for (step, value), y in zip(places, scale.heights(np.array([value for _, value in places])), strict=True):
            text = f'<text x="{axis.percent(step)}" y="{y - 5:.0f}">{number(value)}</text>'
            beside += "" if np.isnan(value) else text
        beside += "</g>"
    name = f'<small class="ep-label ep-{series.hue}">{escape(clipped(series.label, 40))}</small>'
    return _row(agent, axis, height, words, inner, beside, name)


def _track_labels(
    clock: np.ndarray, series: Series, pending: Sequence[tuple[int, float]], axis: _Steps, most: int, height: int
) -> str:
    """Return SVG without colour that shows the numbers of an agent's track where the pointer is. It is empty for a
    track of which only a part was read.

    Args:
        clock: env steps of the items of the track.
        pending: env step and number of a pending item, if there is one.
    """
    if not series.is_exact:
        return ""
    numbers = series.finite[:, 0].astype(np.float64)
    steps, numbers = clock[~np.isnan(numbers)], numbers[~np.isnan(numbers)]

    def words(begin: int, end: int) -> str:
        own = numbers[slice(*np.searchsorted(steps, (begin, end)).tolist())]
        ends = [number(own.min()), number(own.max())] if len(own) else []
        parts = [" to ".join(dict.fromkeys(ends))] * bool(ends)
        return ", ".join([*parts, *(f"pending {number(value)}" for step, value in pending if begin <= step < end)])

    return _texts(np.append(steps, [step for step, _ in pending]).astype(np.int64), axis, most, height, words)


def _dots(xs: np.ndarray, ys: np.ndarray, most: int) -> str:
    """Return an SVG path with a dot for each point (xs [k], ys [k]). Of more than `most`, close ones are one stripe."""
    places = np.rint(np.stack([ys, xs], 1)[~np.isnan(ys)])
    width = 0.0
    if len(places) > most:
        width = 2 * WIDTH / most
        places = np.unique(places // [1, width] * [1, width], axis=0)
    ends = np.append(places[1:] - places[:-1], [[1.0, 0.0]], 0)[: len(places)]
    is_last = (ends[:, 0] != 0) | (ends[:, 1] > 1.01 * width) if width else np.ones(len(places), bool)
    path, start = "", 0
    for last in np.flatnonzero(is_last).tolist():
        (y, x), end = places[start].tolist(), places[last][1]
        path += f"M{x:.0f} {y:.0f}h{end - x:.0f}"
        start = last + 1
    return path


def _stripes(clock: ArrayLike, axis: _Steps, gap: float) -> np.ndarray:
    """Join env steps that are at most `gap` apart to stripes. Return their left and right x coordinates, [k, 2]."""
    steps = np.asarray(clock, np.float64)
    starts = np.flatnonzero(np.diff(steps, prepend=-np.inf) > gap)
    ends = np.append(starts[1:], len(steps))[: len(starts)] - 1
    return axis.at(np.stack([steps[starts], steps[ends]], 1)) + np.array([-1.5, 1.5])


def _path(stripes: np.ndarray, y: int) -> str:
    return "".join(f"M{start:.0f} {y}H{end:.0f}" for start, end in stripes.tolist())
