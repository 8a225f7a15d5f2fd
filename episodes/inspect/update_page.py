"""Page that explains one update of a training run, with what stands out in the run and links to other updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from math import isfinite
from pathlib import Path
from urllib.parse import quote, urlencode

import numpy as np

from episodes.inspect.conversation import Decode
from episodes.inspect.formatting import brief_id, clipped, counted, number
from episodes.inspect.run_findings import RunFinding
from episodes.inspect.run_findings_page import course_html
from episodes.inspect.training_page import CSVFile, with_updates
from episodes.inspect.update_explanation import UpdateExplanation, chunks_by_id, explain_update, stored_episodes
from episodes.inspect.update_measures import AGREES, FAR, STEP_MEASURES, Limit, name_of, step_measures, words_of_step
from episodes.inspect.update_tables import Address, body_of, link_to, page_of, rows_beyond
from episodes.storage.ledger import LedgerReader
from episodes.storage.runs import is_run, read_run

__all__ = ["update_page"]

MOST_STEPS = 5000  # of an update on its page, beside those of episodes that are stored or show a finding
MOST_LINKS = 8  # to stored episodes, above the steps; others are folded
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
    ids = set(explanation.columns["episode"].tolist()) - {None}
    stored = sorted(ids & set(sets))

    def page(id_: str) -> str:
        return address(sets[id_]) if id_ in sets else ""

    if stored:
        links = [
            f'<a href="{escape(str(link_to(explanation, page, id_)))}" title="{escape(clipped(id_))}">'
            f"{escape(brief_id(id_))}</a>"
            for id_ in stored
        ]
        note = f"The run stored {len(stored)} of the {counted(len(ids), 'episode')} of this update: {_folded(links)}"
    else:
        advice = "" if sets else "; train with --keep-episodes 5/h"
        note = f"The run stored none of the episodes of this update, so no row is a link{advice}."
    shown = [one for one in here if shows(one, explanation.update)]
    limits = [limit for one in shown if (limit := limit_of(one)) is not None]
    found = "".join(_finding(one, explanation, query, page) for one in here) or (
        "<p class=verdict><b>Nothing stands out</b> in the updates of this run.</p>"
    )
    body = body_of(
        explanation,
        page,
        MOST_STEPS,
        [mark for one in here if (mark := one.mark_in(explanation.update)) is not None],
        found=f'<div id="found">{found}</div>',
        note=note,
        settings=_settings(run, explanation.module),
        logged=_logged(run, explanation.update, explanation.module),
        decode=decode,
        unfolded=[one.table for one in shown],
        limits=limits,
    )
    about = f"run {run.name}" + _when(run, explanation.update)
    return page_of(explanation.title, body, about, _nav(numbers, explanation.update, query, back))


def _nav(numbers: Sequence[int], update: int, query: str, back: str) -> str:
    """Return links to the run and to other updates as HTML."""
    place = numbers.index(update)
    places = {"first": 0, "previous": place - 1, "next": place + 1, "last": len(numbers) - 1}
    keys = {"previous": " aria-keyshortcuts=ArrowLeft", "next": " aria-keyshortcuts=ArrowRight"}
    links = "".join(
        f'<a href="{numbers[at]}{escape(query)}" data-page{keys.get(words, "")}>{words}</a>'
        if 0 <= at < len(numbers) and at != place
        else f'<span aria-disabled="true">{words}</span>'
        for words, at in places.items()
    )
    return (
        f'<nav aria-label="updates"><a href="{escape(back)}">← the run</a>{links}'
        f'<form id="go"><label>update <input type="number" min="{numbers[0]}" '
        f'max="{numbers[-1]}" value="{update}" required></label> of {numbers[-1]} <button>go</button></form></nav>'
    )


def _folded(links: Sequence[str]) -> str:
    """Return links as HTML, of which all but the first `MOST_LINKS` are folded."""
    more = links[MOST_LINKS:]
    rest = f", <details><summary>{len(more)} more</summary>{', '.join(more)}</details>" if more else ""
    return f"{', '.join(links[:MOST_LINKS])}{rest or '.'}"


def _row_of_csv(run: Path, update: int) -> dict[str, float]:
    """Return the finite numbers that a run logged for an update, by name; none if it did not log them."""
    file = CSVFile(run / "update.csv")
    file.read()
    columns = with_updates(run, file.columns)
    rows = [i for i, n in enumerate(columns.get("num_updates", ())) if n == update]
    numbers = {name: column[rows[-1]] for name, column in columns.items()} if rows else {}
    return {name: value for name, value in numbers.items() if isfinite(value)}


def _when(run: Path, update: int) -> str:
    """Return at which step and time an update was made, as text, or "" if the run did not log it."""
    row = _row_of_csv(run, update)
    words = [f"step {row['step']:,.0f}"] if "step" in row else []
    if "run_seconds" in row:
        words.append(f"{number(row['run_seconds'], 3)} s after the start")
    return "".join(f", {word}" for word in words)


_PLACES = ("step", "num_updates", "run_seconds")  # columns that are no metrics


def _logged(run: Path, update: int, module: str) -> dict[str, float]:
    """Return the metrics that a run logged for an update of a module, by name without the module."""
    row = _row_of_csv(run, update)
    mine = {name: value for name, value in row.items() if "/" not in name}
    if module:
        for end in (f"/{module}", f"/module/{module}"):
            mine |= {name.removesuffix(end): value for name, value in row.items() if name.endswith(end)}
    return {name: value for name, value in mine.items() if "/" not in name and name not in _PLACES}


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
    row, limit = one.row_in(update), limit_of(one)
    return update == one.update if row is None or limit is None else limit.passed_by(row.value)


def limit_of(one: RunFinding) -> Limit | None:
    """Return the limit beyond which rows of tables show a finding, or None if it has no numbers."""
    strongest = one.row_in(one.update)
    if strongest is None:
        return None
    if one.kind in ("acting_differs", "old_policy"):
        return Limit(one.measure, FAR)
    if one.kind == "advantage_sign":
        return Limit(one.measure, AGREES, True)
    tables = (one.table,) if one.measure == "share" else ()
    meaning = " (a quarter of the largest)"
    return Limit(one.measure, WEAK * strongest.value, strongest.value < 0, meaning, tables)


def _finding(one: RunFinding, explanation: UpdateExplanation, query: str, page: Address) -> str:
    """Return a finding with its number in an update as HTML."""
    update = explanation.update
    here, strongest, is_here = one.shown_in(update), one.shown_in(one.update), shows(one, update)
    words = "In this update" if is_here else "Not in this update"
    if here:
        words += f': <a href="#{one.table}">{escape(here)}</a>'
    elif one.course:
        words += ": none of its rows shows it"
    if one.update != update:
        size = f": {escape(strongest)}" * bool(strongest)
        link = f'<a href="{one.update}{escape(query)}#{one.table}">update {one.update}{size}</a>'
        words += f". {'Shown best' if one.course else 'See'} in {link}"
    elif len(one.course) > 1:
        words += ", the update that shows it best"
    if not one.course and is_here:
        words += f'; <a href="#{one.table}">see the table</a>'
    name, by = STEP_MEASURES.get(one.measure, ""), ""
    if is_here and name in step_measures(explanation.columns):
        way = "ascending" if (limit := limit_of(one)) is not None and limit.is_least else "descending"
        order = urlencode({"steps.sort": f"{name} {way}"}, quote_via=quote)
        by = f' See the <a href="{escape(query + "&" if query else "?")}{order}#steps">steps by {name_of(name)}</a>.'
    return (
        f'<div class="finding{"" if is_here else " weak"}" data-table="{one.table}" data-kind="{one.kind}">'
        f"<p><b>{escape(one.title)}</b>: {escape(clipped(one.text, 500))}.</p>"
        f"<p><strong>{words}.</strong>{_stored_step(one, explanation, page) * is_here}{by}</p>"
        f"<p class=todo>To do: {escape(one.advice)}.</p>"
        f"{course_html(replace(one, update=update), lambda n: f'{n}{query}#{one.table}')}</div>"
    )


def _stored_step(one: RunFinding, explanation: UpdateExplanation, page: Address) -> str:
    """Return a link to the stored step of an update that shows a finding best as HTML, "" if none is stored."""
    limit, columns = limit_of(one), explanation.columns
    measures = {"share": columns["share"]} | step_measures(columns)
    sizes = measures.get(STEP_MEASURES.get(one.measure, one.measure))
    if limit is None or sizes is None:
        return ""
    is_stored = np.array([id_ is not None and bool(page(id_)) for id_ in columns["episode"].tolist()], bool)
    rows = np.flatnonzero(is_stored & np.isfinite(sizes) & rows_beyond(explanation, one.table, limit))
    if not len(rows):
        return " No row that shows it is of a stored episode."
    row = int(rows[(sizes[rows] * (-1 if limit.is_least else 1)).argmax()])
    step = explanation[row]
    link = link_to(explanation, page, step.id_, step.agent_id, step.t, step.token)
    words = (
        f"{brief_id(step.id_)}, {'turn' if step.token is not None else 't='}{'' if step.token is None else ' '}{step.t}"
    )
    return (
        f' Strongest stored step of this update: <a href="{escape(str(link))}">episode {escape(words)}: '
        f"{escape(words_of_step(one.measure, columns, row))}</a>."
    )
