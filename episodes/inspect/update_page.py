"""Page that explains one update of a training run, with what stands out in the run and links to other updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from math import isfinite
from pathlib import Path
from urllib.parse import quote, urlencode

from episodes.inspect.conversation import Decode
from episodes.inspect.formatting import brief_id, clipped, counted, number
from episodes.inspect.run_findings import RunFinding
from episodes.inspect.run_findings_page import course_html
from episodes.inspect.training_page import CSVFile
from episodes.inspect.update_explanation import chunks_by_id, explain_update, stored_episodes
from episodes.inspect.update_measures import AGREES, FAR
from episodes.inspect.update_tables import Address, body_of, link_to, page_of
from episodes.storage.ledger import LedgerReader
from episodes.storage.runs import is_run, read_run

__all__ = ["update_page"]

MOST_STEPS = 200  # of an update on its page
MOST_LINKS = 8  # to stored episodes, above the steps
WEAK = 0.25  # of the largest value of a finding, below which an update does not show it


def update_page(
    run: Path,
    update: int,
    module: str | None,
    address: Address,
    back: str,
    findings: Sequence[RunFinding] = (),
    decode: Decode | None = None,
) -> str:
    """Return the page that explains one update of a run, with links to its neighbours.

    Args:
        run: folder of the run.
        update: number of the update.
        module: its module, if several learn.
        address: function that returns the address of a data set's page, given its name.
        back: address of the page of the run.
        findings: what stands out in the run. Those of the update's module are repeated.
        decode: function from a list of token ids to text.

    Raises:
        UnreadableData: there is no ledger, or it is damaged.
        StepOutOfRange: the ledger does not have the update.
        InvalidArgument: several modules learned in the update, and none is given; or its rows were not measured.
    """
    data = stored_episodes(run)
    sets = {str(id_): name for name, dataset in data.items() for id_ in dataset.metadata["id"].tolist()}
    reader = LedgerReader(run)
    explanation = explain_update(reader, update, module=module, episodes=())
    explanation = replace(explanation, episodes=chunks_by_id(data.values(), explanation.columns["episode"]))
    query = f"?{urlencode({'module': explanation.module}, quote_via=quote)}" if explanation.module else ""
    numbers = sorted(number for number, name in reader.updates if name == explanation.module)
    here = [
        one
        for one in [*findings, *getattr(findings, "notes", ())]
        if one.update is not None and one.module == explanation.module
    ]
    found = "".join(_finding(one, explanation.update, query) for one in here) or (
        "<p class=note>Nothing stands out in the updates of this run.</p>"
    )
    ids = set(explanation.columns["episode"].tolist()) - {None}
    stored = sorted(ids & set(sets))

    def page(id_: str) -> str:
        return address(sets[id_]) if id_ in sets else ""

    if stored:
        links = ", ".join(
            f'<a href="{escape(str(link_to(explanation, page, id_)))}" title="{escape(clipped(id_))}">'
            f"{escape(brief_id(id_))}</a>"
            for id_ in stored[:MOST_LINKS]
        )
        more = ", ..." * (len(stored) > MOST_LINKS)
        note = f"The run stored {len(stored)} of the {counted(len(ids), 'episode')} of this update: {links}{more}."
    else:
        advice = "" if sets else "; train with --keep-episodes 5/h"
        note = f"The run stored none of the episodes of this update, so no row is a link{advice}."
    marks = [mark for one in here if (mark := one.mark_in(explanation.update)) is not None]
    body = body_of(
        explanation,
        page,
        MOST_STEPS,
        marks,
        found=f'<div id="found">{found}</div>',
        note=note,
        settings=_settings(run, explanation.module),
        decode=decode,
        unfolded=[one.table for one in here if shows(one, explanation.update)],
    )
    about = f"run {run.name}" + _when(run, explanation.update)
    return page_of(explanation.title, body, about, _nav(numbers, explanation.update, query, back))


def _nav(numbers: Sequence[int], update: int, query: str, back: str) -> str:
    """Return links to the run and to other updates as HTML."""
    place = numbers.index(update)
    places = {"first": 0, "previous": place - 1, "next": place + 1, "last": len(numbers) - 1}
    links = "".join(
        f'<a href="{numbers[at]}{escape(query)}">{words}</a>'
        if 0 <= at < len(numbers) and at != place
        else f'<span aria-disabled="true">{words}</span>'
        for words, at in places.items()
    )
    return (
        f'<nav aria-label="updates"><a href="{escape(back)}">← the run</a>{links}'
        f'<form id="go" data-query="{escape(query)}"><label>update <input type="number" min="{numbers[0]}" '
        f'max="{numbers[-1]}" value="{update}" required></label> of {numbers[-1]} <button>go</button></form></nav>'
    )


def _when(run: Path, update: int) -> str:
    """Return at which step and time an update was made, as text, or "" if the run did not log it."""
    file = CSVFile(run / "update.csv")
    file.read()
    columns = file.columns
    rows = [i for i, n in enumerate(columns.get("num_updates", ())) if n == update]
    if not rows:
        return ""
    words = [f"step {columns['step'][rows[-1]]:,.0f}"] if "step" in columns else []
    if "run_seconds" in columns and isfinite(columns["run_seconds"][rows[-1]]):
        words.append(f"{number(columns['run_seconds'][rows[-1]], 3)} s after the start")
    return "".join(f", {word}" for word in words)


def _settings(run: Path, module: str) -> dict[str, float]:
    """Return the numbers among the algorithm's settings of a run, by name."""
    settings = read_run(run).settings if is_run(run) else {}
    result = {}
    for key, value in settings.items():
        name, _, owner = key.removeprefix("algorithm.").partition("/")
        if key.startswith("algorithm.") and owner in ("", module):
            try:
                result[name] = float(value)
            except (TypeError, ValueError):
                continue
    return result


def shows(one: RunFinding, update: int) -> bool:
    """Return True if an update shows a finding: what was measured in it is as large as in runs with the defect."""
    row, strongest = one.row_in(update), one.row_in(one.update)
    if row is None or strongest is None:
        return update == one.update
    if one.kind in ("acting_differs", "old_policy"):
        return row.value > FAR
    if one.kind == "advantage_sign":
        return row.value < AGREES
    return row.value * strongest.value > 0 and abs(row.value) >= WEAK * abs(strongest.value)


def _finding(one: RunFinding, update: int, query: str) -> str:
    """Return a finding with its number in an update as HTML."""
    here, strongest, is_here = one.shown_in(update), one.shown_in(one.update), shows(one, update)
    words = "In this update" if is_here else "Not in this update"
    if here:
        words += f': <a href="#{one.table}">{escape(here)}</a>'
    elif one.course:
        words += ": none of its rows shows it"
    if one.update != update:
        size = f": {escape(strongest)}" * bool(strongest)
        link = f'<a href="{one.update}{escape(query)}#{one.table}">update {one.update}{size}</a>'
        words += f". {'Strongest' if one.course else 'See'} in {link}"
    elif len(one.course) > 1:
        words += ", the strongest one of the updates"
    if not one.course and is_here:
        words += f'; <a href="#{one.table}">see the table</a>'
    return (
        f'<div class="finding{"" if is_here else " weak"}" data-table="{one.table}" data-kind="{one.kind}">'
        f"<p><b>{escape(one.kind.replace('_', ' '))}</b> {escape(clipped(one.text, 500))}.</p>"
        f"<p><strong>{words}.</strong></p>"
        f"{course_html(replace(one, update=update), lambda n: f'{n}{query}#{one.table}')}"
        f"<small>To do: {escape(one.advice)}.</small></div>"
    )
