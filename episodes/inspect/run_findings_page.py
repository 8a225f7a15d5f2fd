"""HTML of what stands out in training runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import isfinite
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from episodes.errors import EpisodeError
from episodes.inspect.calibration import CalibrationBin
from episodes.inspect.formatting import brief_id, clipped, number, page_id
from episodes.inspect.html import templates
from episodes.inspect.learned_tracks import LearnedTracks
from episodes.inspect.run_findings import RunFinding, RunFindings, examine_run, has_ledger
from episodes.inspect.training_page import file_sizes
from episodes.inspect.update_explanation import explain_update
from episodes.inspect.update_measures import FAR, text_of
from episodes.inspect.update_tables import MEANINGS, body_of, page_of
from episodes.storage.ledger.difference import Difference, difference

_RANDOM_ID = re.compile(r"\b[0-9a-f]{32}(?![0-9a-f])")
Links = Callable[[RunFinding], list[tuple[str, str, str]]]
CHART_WIDTH, CHART_HEIGHT = 420, 120  # of the numbers of a finding
LEFT, RIGHT, TOP, BOTTOM = 64, 4, 10, 20  # from its edges to its axes
BAR, MARKED_BAR = "#c2650a", "#3b82f6"
LEAST_HEIGHT = 1.5  # of the tallest hollow bar; lower ones look like parts of the axis
SHARE_OF_BAR = 0.6  # of the width of an update, beside that of other steps
COLUMNS = {
    "acting_differs": "log_ratio",
    "old_policy": "worker",
    "advantage_sign": "advantage",
}  # of episodes, by finding
FEWEST_STEPS, CLOSE = 30, 0.1  # of a calibration with a verdict, and its largest difference, as a fraction


def stands_out_html(
    findings: RunFindings,
    links: Links,
    name: str = "",
    last: str = "",
    address: Callable[[int, str], str] | None = None,
    run: int | None = None,
) -> Markup:
    """Return the list of what stands out in a run as HTML.

    Args:
        findings: what stands out.
        links: function that returns the addresses, names and full names of the views that show a finding.
        name: name of the run, if there are several.
        last: address of the explanation of the newest update, or "".
        address: function that returns the address of an update, given its number and its module.
        run: number of the run on a live page, whose curves mark the updates of findings and lead to their pages.
    """

    def course(one: RunFinding) -> str:
        at = address
        return course_html(one, None if at is None else lambda update: f"{at(update, one.module)}#{one.table}")

    found, notes = (
        [
            {
                "title": one.title,
                "found_in": one.update,
                "text": clipped(_sentence(one.text), 500),
                "advice": _sentence(one.advice),
                "links": links(one),
                "course": Markup(course(one)),
            }
            for one in group
        ]
        for group in (findings, findings.notes)
    )
    lines = [
        (
            line.ending,
            f"{line.num_steps:,}",
            *(number(x, 3) for x in (line.value, line.bootstrapped)),
            calibration_verdict(line),
            number(line.last_value, 3),
        )
        for line in findings.calibration
    ]
    template = templates().get_template("stands_out.html")
    parts = {"name": clipped(name, 60), "extent": findings.extent, "missing": findings.missing, "last": last}
    parts |= {"calibrated": findings.calibrated, "checked": findings.checked, "run": run}
    parts["updates"] = json.dumps(list(findings.updates)) if run is not None else ""
    return Markup(template.render(found=found, notes=notes, calibration=lines, **parts))


def _sentence(text: str) -> str:
    """Return a text with a capital and without a full stop."""
    return text[:1].upper() + text[1:].rstrip(".")


def calibration_verdict(line: CalibrationBin) -> str:
    """Return how the mean value differs from the mean return that followed, as text."""
    if line.num_steps < FEWEST_STEPS:
        return "too few steps to compare"
    gap = line.value - line.bootstrapped
    size = max(abs(line.value), abs(line.bootstrapped))
    if abs(gap) <= CLOSE * size:
        return "values are close to the returns that followed"
    way = "higher" if gap > 0 else "lower"
    words = f"values are {way} by {number(abs(gap), 3)} ({abs(gap) / size:.0%}) than the returns that followed"
    return f"{words}: above {CLOSE:.0%}, which alone is no finding"


def _name_of_update(one: RunFinding) -> str:
    """Return the words of the link to the update that shows a finding, with the number that shows it there."""
    shown = one.shown_in(one.update)
    return f"Update {one.update}" + f": {shown}" * bool(shown)


def _name_of_step(one: RunFinding) -> str:
    """Return the words of the link to the episode that shows a finding, with what was measured there."""
    if one.episode is None:
        return f"Episodes in {one.data}"
    at = "" if one.t is None else f", {'turn ' if one.table == 'by-turn' else 't='}{one.t}"
    at += "" if one.learned_in is None else f", learned in update {one.learned_in}"
    return f"Episode {brief_id(one.episode)}{at}" + f": {one.step}" * bool(one.step)


def divergence_html(first: Difference | None, names: tuple[str, str]) -> Markup:
    """Return the first difference of two runs as a bar with its cause, as HTML."""
    a, b = (clipped(name, 40) for name in names)
    if first is None:
        return Markup(f"<p class=same>{escape(a)} and {escape(b)} learned the same in all updates.</p>")
    equal = max(first.update - 1, 0)
    share = 100 * equal / max(first.num_updates, first.update, 1)
    words = first.bar().split("] ", 1)[1]
    title, text = "", _RANDOM_ID.sub(lambda id_: f"{id_[0][:8]}…", str(first))
    if first.what in ("settings", "weights"):  # both sides are hashes
        title = f' title="{escape(text.split(chr(10), 1)[1])}"'
        text = text.split(chr(10), 1)[0] + (": the settings below tell which" if first.what == "settings" else "")
    return Markup(
        f'<figure class="divergence" data-update="{first.update}" data-cause="{first.cause}"><figcaption>'
        f"<b>{escape(a)}</b> and <b>{escape(b)}</b>: {escape(words)}</figcaption>"
        f'<div class="parting" role="img" aria-label="{escape(words)}"><i style="width:{share:.2f}%"></i></div>'
        f"<small{title}>{escape(text).replace(chr(10), '<br>')}</small></figure>"
    )


def course_html(one: RunFinding, address: Callable[[int], str] | None = None) -> str:
    """Return the numbers of a finding in each update as an SVG chart, or "" if there is one number or none.

    Args:
        one: the finding.
        address: function that returns the address of an update, given its number.
    """
    if len(one.course) < 2:
        return ""
    others = [row.others for row in one.course] if one.others else []
    has_others = any(map(isfinite, others))
    values = [row.value for row in one.course] + [value for value in others if isfinite(value)]
    low, high = min(0.0, *values), max(0.0, *values)
    if low == high:
        high = 1.0
    width = (CHART_WIDTH - LEFT - RIGHT) / len(one.course)
    wide = max((width - 1) * (SHARE_OF_BAR if has_others else 1), 0.5)
    tall = (CHART_HEIGHT - TOP - BOTTOM) / (high - low)
    zero = TOP + high * tall
    bars, numbers = [], []
    most = max(filter(isfinite, others), key=abs, default=0.0)
    are_seen = abs(most) * tall >= LEAST_HEIGHT

    def box(x: float, value: float, wide: float, fill: str) -> str:
        length = max(abs(value) * tall, 1.0)
        top = zero - length if value >= 0 else zero
        return f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{length:.1f}" {fill}/>'

    for i, row in enumerate(one.course):
        colour = MARKED_BAR if row.update == one.update else BAR
        shape = box(LEFT + i * width, row.value, wide, f'fill="{colour}"')
        words = f"update {row.update}: {one.shown_in(row.update)}"
        if has_others and isfinite(row.others):
            if are_seen:
                shape += box(LEFT + i * width + wide, row.others, 0.9 * width - wide, 'class="others" fill="none"')
            words += f"; {one.others} {text_of(one.measure, row.others)}"
        shape += f'<rect x="{LEFT + i * width:.1f}" y="0" width="{width:.1f}" height="100%" fill="transparent"/>'
        words = escape(words)
        numbers.append(f"<li>{words}</li>")
        bar = f"<title>{words}</title>{shape}"
        if address is not None:
            bar = f'<a href="{escape(address(row.update))}" aria-label="{words}">{bar}</a>'
        bars.append(f"<g>{bar}</g>")
    room = 12  # heights of a text
    marks = {high: min(TOP, zero - room), 0.0: zero, low: max(CHART_HEIGHT - BOTTOM, zero + room)}
    axis = "".join(
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text_of(one.measure, value)}</text>'
        for value, y in {**marks, 0.0: zero}.items()
    )
    first, last = one.course[0].update, one.course[-1].update
    ends = (
        f'<text x="{LEFT}" y="{CHART_HEIGHT - 5}">update {first}</text>'
        f'<text x="{CHART_WIDTH - RIGHT}" y="{CHART_HEIGHT - 5}" text-anchor="end">{last}</text>'
    )
    line = (
        f'<line x1="{LEFT}" x2="{CHART_WIDTH}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="currentColor" '
        'pointer-events="none"/>'
    )
    rows = {row.words for row in one.course}
    words = f"{one.column} {rows.pop()}" if len(rows) == 1 else f"largest {one.column} of one {_kind_of_rows(one)}"
    marked = f"; update {one.update} is marked" if one.row_in(one.update) is not None else ""
    if has_others:
        size = f"; too small to draw: {one.others}, {text_of(one.measure, most)} or nearer to 0"
        marked += f"; hollow: {one.others}" if are_seen else size
    marked += f"; above {FAR} stands out" * (one.measure == "ratio_distance")
    meaning = MEANINGS.get(one.measure, "")
    return (
        f'<svg class="course" width="{CHART_WIDTH}" viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="group" '
        f'aria-label="{escape(words)}" font-size="11" fill="currentColor" '
        f'style="max-width:100%;height:auto;display:block">{"".join(bars)}{line}{axis}{ends}</svg>'
        f"<small>{escape(f'{words}, by update{marked}')}.{f' {_sentence(meaning)}.' * bool(meaning)}</small>"
        f"<details class=bars><summary>Numbers</summary><ul>{''.join(numbers)}</ul></details>"
    )


def _row_of(one: RunFinding) -> Mapping[str, str]:
    """Return the cells of the row that shows a finding best, by column."""
    row = one.row_in(one.update)
    return {} if row is None else row.row


def _kind_of_rows(one: RunFinding) -> str:
    """Return what a row of the table that shows a finding is, such as "episode"."""
    return {"by-time": "range of times"}.get(one.table, one.table.removeprefix("by-"))


class LiveFindings:
    """What stands out in the runs of a live page, which is examined again when their files have changed.

    Examining takes at most 1 % of the time: after it took `t` seconds, the next one waits 100 t.

    Args:
        runs: folders of the runs.
    """

    def __init__(self, runs: Sequence[Path]) -> None:
        self._runs = runs
        self._lock = Lock()
        self._files: Any = None
        self._due = 0.0
        self._html = ""
        self._found: dict[int, RunFindings] = {}  # by number of the run

    def of_run(self, number: int) -> Sequence[RunFinding]:
        """Return what stands out in a run, as `html` states it."""
        self.html()
        return self._found.get(number, ())

    def learned(self, number: int) -> LearnedTracks:
        """Return what the updates of a run measured at its episodes, as far as `html` has read them."""
        found = self.of_run(number)
        return found.learned if isinstance(found, RunFindings) else LearnedTracks({})

    def html(self) -> str:
        """Return the lists of what stands out in each run, and where it first differs from the first run, as HTML."""
        with self._lock:
            files = [_sizes(run) for run in self._runs]
            begun = monotonic()
            if self._html and (files == self._files or begun < self._due):
                return self._html
            lists = list(map(self._of_run, range(len(self._runs))))
            parts = [lists[i] for i in sorted(range(len(lists)), key=self._is_sound)]
            parts += map(self._divergence, range(1, len(self._runs)))
            self._files, self._html = files, "".join(parts)
            self._due = monotonic() + 100 * (monotonic() - begun)
            return self._html

    def _is_sound(self, number: int) -> bool:
        """Return True if a run was examined and nothing stands out."""
        return number in self._found and not len(self._found[number])

    def _of_run(self, number: int) -> str:
        """Return the list of a run as HTML, or an error in its files."""
        run = self._runs[number]
        name = run.name if len(self._runs) > 1 else ""
        try:
            findings = examine_run(run)
        except (OSError, EpisodeError) as error:  # a file was removed meanwhile, or is damaged
            return f"<p class=problem>{escape(clipped(f'{run.name}: {error}', 500))}</p>"
        self._found[number] = findings

        def update_link(update: int, module: str) -> str:
            query = f"?{urlencode({'module': module}, quote_via=quote)}" if module else ""
            return f"updates/{number}/{update}{query}"

        def links(one: RunFinding) -> list[tuple[str, str, str]]:
            found = []
            if one.update is not None:
                place = f"{update_link(one.update, one.module)}#{one.table}"
                found.append((place, _name_of_update(one), ", ".join(_row_of(one).values())))
            if one.data:
                step = {} if one.episode is None else {"id": page_id(one.episode), "t": one.t or 0}
                step |= {} if one.agent is None else {"agent": page_id(one.agent)}
                step |= {"keep": COLUMNS[one.kind]} if step and one.kind in COLUMNS else {}
                address = f"episodes/{number}/{quote(one.data)}/" + f"#{urlencode(step, quote_via=quote)}" * bool(step)
                found.append((address, _name_of_step(one), page_id(one.episode)))
            return found

        last = update_link(*findings.updates[-1]) if findings.updates else ""
        return stands_out_html(findings, links, name, last, update_link, number)

    def _divergence(self, number: int) -> str:
        """Return where a run first differs from the first one as HTML, or how to record it."""
        runs = self._runs[0], self._runs[number]
        without = [run.name for run in runs if not has_ledger(run)]
        if without:
            names = escape(clipped(" and ".join(without), 100))
            return f"<small class=missing>Not recorded: what {names} learned from; train with --ledger.</small>"
        try:
            return divergence_html(difference(*runs), (runs[0].name, runs[1].name))
        except (OSError, EpisodeError):  # the list of the run has the error
            return ""


def _sizes(run: Path) -> list[Any]:
    """Return the names and sizes of the files of a run's ledger and data sets."""
    folders = [folder for folder in sorted(run.iterdir()) if folder.is_dir()] if run.is_dir() else []
    return [(folder.name, file_sizes(folder)) for folder in folders]


def run_report(run: Path) -> str:
    """Return a page of what stands out in a run, with the explanation of each update that shows a finding and of the
    newest one. It works without a server.

    Raises:
        UnreadableData: the ledger is damaged.
    """
    findings = examine_run(run)
    newest = {module: update for update, module in findings.updates}
    shown = {(one.update, one.module) for one in findings if one.update is not None}
    shown |= {(update, module) for module, update in newest.items()}

    def anchor(update: int, module: str) -> str:
        return f"update-{update}-{quote(module)}"

    parts = []
    for update, module in sorted(shown):
        explanation = explain_update(run, update, module=module, episodes=())
        marks = [mark for one in findings if one.module == module and (mark := one.mark_in(update)) is not None]
        tables = body_of(explanation, marks=marks, prefix=f"{anchor(update, module)}-")
        parts.append(f'<h1 id="{anchor(update, module)}">{escape(explanation.title)}</h1>{tables}')

    def links(one: RunFinding) -> list[tuple[str, str, str]]:
        if one.update is None:
            return []
        return [(f"#{anchor(one.update, one.module)}-{one.table}", _name_of_update(one), "")]

    last = f"#{anchor(*findings.updates[-1])}" if findings.updates else ""
    return page_of(f"Run {run.name}", stands_out_html(findings, links, last=last) + Markup("".join(parts)))
