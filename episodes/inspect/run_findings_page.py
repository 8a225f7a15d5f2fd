"""HTML of what stands out in training runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from episodes.errors import EpisodeError
from episodes.inspect.formatting import clipped, number, page_id
from episodes.inspect.html import templates
from episodes.inspect.learned_tracks import LearnedTracks
from episodes.inspect.run_findings import RunFinding, RunFindings, examine_run, has_ledger
from episodes.inspect.training_page import file_sizes
from episodes.inspect.update_explanation import explain_update
from episodes.inspect.update_tables import body_of, page_of
from episodes.storage.ledger.difference import Difference, difference

Links = Callable[[RunFinding], list[tuple[str, str]]]
TABLES = {
    "steps": "the steps with the largest losses",
    "by-episode": "the episodes",
    "by-agent": "the agents",
    "by-time": "the loss by time in the episode",
    "by-turn": "the turns",
    "by-worker": "the workers",
}


def stands_out_html(
    findings: RunFindings,
    links: Links,
    name: str = "",
    last: str = "",
    address: Callable[[int, str], str] | None = None,
) -> Markup:
    """Return the list of what stands out in a run as HTML.

    Args:
        findings: what stands out.
        links: function that returns the addresses and names of the views that show a finding.
        name: name of the run, if there are several.
        last: address of the explanation of the newest update, or "".
        address: function that returns the address of an update, given its number and its module.
    """

    def course(one: RunFinding) -> str:
        at = address
        return course_html(one, None if at is None else lambda update: f"{at(update, one.module)}#{one.table}")

    found, notes = (
        [
            {
                "kind": one.kind.replace("_", " "),
                "text": clipped(one.text.rstrip("."), 500),
                "advice": one.advice.rstrip("."),
                "links": links(one),
                "course": Markup(course(one)),
            }
            for one in group
        ]
        for group in (findings, findings.notes)
    )
    lines = [
        (line.ending, f"{line.num_steps:,}", *(number(x, 3) for x in (line.value, line.bootstrapped, line.last_value)))
        for line in findings.calibration
    ]
    template = templates().get_template("stands_out.html")
    parts = {"name": clipped(name, 60), "extent": findings.extent, "missing": findings.missing, "last": last}
    parts |= {"calibrated": findings.calibrated, "checked": findings.checked}
    return Markup(template.render(found=found, notes=notes, calibration=lines, **parts))


def _name_of_table(one: RunFinding) -> str:
    """Return the words of the link to the update that shows a finding."""
    return f"See update {one.update}: {TABLES[one.table]}"


def divergence_html(first: Difference | None, names: tuple[str, str]) -> Markup:
    """Return the first difference of two runs as a bar with its cause, as HTML."""
    a, b = (clipped(name, 40) for name in names)
    if first is None:
        return Markup(f"<p class=same>{escape(a)} and {escape(b)} learned the same in all updates.</p>")
    equal = max(first.update - 1, 0)
    share = 100 * equal / max(first.num_updates, first.update, 1)
    words = first.bar().split("] ", 1)[1]
    return Markup(
        f'<figure class="divergence" data-update="{first.update}" data-cause="{first.cause}"><figcaption>'
        f"<b>{escape(a)}</b> and <b>{escape(b)}</b>: {escape(words)}</figcaption>"
        f'<div class="parting" role="img" aria-label="{escape(words)}"><i style="width:{share:.2f}%"></i></div>'
        f"<small>{escape(str(first)).replace(chr(10), '<br>')}</small></figure>"
    )


def course_html(one: RunFinding, address: Callable[[int], str] | None = None) -> str:
    """Return what a finding measured in each update as an SVG chart, or "" if it measured one update or none.

    Args:
        one: the finding.
        address: function that returns the address of an update, given its number.
    """
    if len(one.course) < 2:
        return ""
    numbers, values = zip(*one.course, strict=True)
    low, high = min(0.0, *values), max(0.0, *values)
    width, tall = 480 / len(values), 48 / (high - low or 1.0)
    bars = []
    for i, (update, value) in enumerate(one.course):
        top, length = (high - max(value, 0.0)) * tall, max(abs(value) * tall, 1.0)
        shape = f'<rect x="{i * width:.1f}" y="{top:.1f}" width="{max(width - 1, 0.5):.1f}" height="{length:.1f}"/>'
        title = f"<title>update {update}: {number(value, 3)}</title>"
        link = f'<a href="{escape(address(update))}">' if address is not None else "<g>"
        mark = "" if update == one.update else ' opacity=".6"'
        bars.append(f"{link}<g{mark}>{title}{shape}</g>{'</a>' if address is not None else '</g>'}")
    words = (
        f"{one.measure}, updates {numbers[0]} to {numbers[-1]}: {number(values[0], 2)} at first, "
        f"{number(values[-1], 2)} at last, between {number(min(values), 2)} and {number(max(values), 2)}"
    )
    return (
        f'<svg class="course" width="480" height="50" viewBox="0 0 480 50" preserveAspectRatio="none" '
        f'role="img" fill="#f59e0b" style="max-width:100%;display:block">'
        f"<title>{escape(words)}</title>{''.join(bars)}</svg><small>{escape(words)}.</small>"
    )


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
        """Return what stands out in a run, as `html` found it last."""
        if not self._html:
            self.html()
        return self._found.get(number, ())

    def learned(self, number: int) -> LearnedTracks:
        """Return what the updates of a run measured at its episodes, as `html` found it last."""
        found = self.of_run(number)
        return found.learned if isinstance(found, RunFindings) else LearnedTracks(())

    def html(self) -> str:
        """Return the lists of what stands out in each run, and where it first differs from the first run, as HTML."""
        with self._lock:
            files = [_sizes(run) for run in self._runs]
            begun = monotonic()
            if self._html and (files == self._files or begun < self._due):
                return self._html
            parts = list(map(self._of_run, range(len(self._runs))))
            parts += map(self._divergence, range(1, len(self._runs)))
            self._files, self._html = files, "".join(parts)
            self._due = monotonic() + 100 * (monotonic() - begun)
            return self._html

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

        def links(one: RunFinding) -> list[tuple[str, str]]:
            found = []
            if one.update is not None:
                found.append((f"{update_link(one.update, one.module)}#{one.table}", _name_of_table(one)))
            if one.data:
                step = {} if one.episode is None else {"id": page_id(one.episode), "t": one.t or 0}
                address = f"episodes/{number}/{quote(one.data)}/" + f"#{urlencode(step, quote_via=quote)}" * bool(step)
                words = "" if one.episode is None else f": episode {clipped(one.episode, 16)}"
                found.append((address, f"See {one.data}{words}" + f", t={one.t}" * (one.t is not None)))
            return found

        last = update_link(*findings.updates[-1]) if findings.updates else ""
        return stands_out_html(findings, links, name, last, update_link)

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
        at = [one.t for one in findings if one.t is not None and (one.update, one.module) == (update, module)]
        tables = body_of(explanation, at=at, prefix=f"{anchor(update, module)}-")
        parts.append(f'<h1 id="{anchor(update, module)}">{escape(explanation.title)}</h1>{tables}')

    def links(one: RunFinding) -> list[tuple[str, str]]:
        return [] if one.update is None else [(f"#{anchor(one.update, one.module)}-{one.table}", _name_of_table(one))]

    last = f"#{anchor(*findings.updates[-1])}" if findings.updates else ""
    return page_of(f"Run {run.name}", stands_out_html(findings, links, last=last) + Markup("".join(parts)))
