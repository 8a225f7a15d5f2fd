"""Page of an update: what is drawn comes back from the drawing, and is what `explain_update` returns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes import SingleAgentEpisode
from episodes.inspect import examine_run, explain_update
from episodes.inspect import update_charts as charts
from episodes.inspect.formatting import number
from episodes.inspect.run_findings import RunFinding
from episodes.inspect.run_findings_page import LiveFindings
from episodes.inspect.scales import MOST_WHOLE_BINS
from episodes.inspect.update_explanation import UpdateExplanation
from episodes.inspect.update_measures import ROWS, STEP_MEASURES, Limit, name_of, row_measures, step_measures
from episodes.inspect.update_page import shows, update_page
from episodes.inspect.update_rows import UpdateRow
from episodes.inspect.update_tables import MEANINGS, TABLES, body_of, meaning_of, page_of, rows_beyond, table_html
from episodes.storage.ledger import Ledger
from tests.inspection.test_page import WITH_BROWSER, Tab, browser, tab
from tests.learners.test_run_findings import FAULTS, tokens

__all__ = ["browser", "tab"]  # fixtures

NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0, float("nan"), float("inf"), -float("inf")]),
    st.floats(-(2.0**99), 2.0**99, width=32),
    st.floats(-3, 3, width=32),
)
MEASURED = (
    "loss",
    "advantage",
    "ratio",
    "first_ratio",
    "first_gradient_step",
    "clipped",
    "first_value",
    "value_target",
)
IDS = [f"{i:08x}{'0' * 24}" for i in range(9)]


@st.composite
def explanations(draw: st.DrawFn, numbers: st.SearchStrategy[float] = NUMBERS) -> UpdateExplanation:
    """Updates of any numbers, some of which are missing, equal or not finite."""
    n = draw(st.integers(0, 12))
    shares = np.sort(np.array(draw(st.lists(st.floats(0, 1), min_size=n, max_size=n))))[::-1]
    total = shares.sum()
    columns: dict[str, np.ndarray] = {
        "share": shares / total if total else shares,
        "episode": np.array([draw(st.sampled_from([*IDS[:3], None])) for _ in range(n)], object),
        "agent": np.array([draw(st.sampled_from(["a", "<b>", None])) for _ in range(n)], object),
        "t": np.array(draw(st.lists(st.integers(0, 20), min_size=n, max_size=n)), np.int64),
        "times_learned": np.array(draw(st.lists(st.integers(1, 3), min_size=n, max_size=n)), np.int64),
    }
    for name in (*MEASURED, *draw(st.sets(st.sampled_from(["worker", "token", "n_step", "log_prob"])))):
        if name in ("worker", "token", "first_gradient_step"):
            values = st.sampled_from([0.0, 1.0, 2.0])
        else:
            values = draw(st.sampled_from([numbers, st.just(draw(numbers))]))
        columns[name] = np.array(draw(st.lists(values, min_size=n, max_size=n)), np.float64)
    return UpdateExplanation(1, "", columns)


class Reader(HTMLParser):
    """Reader of the tables of a page, by the id of their section, with the places and texts of their marked cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: dict[str, tuple[list[str], list[list[str]]]] = {}
        self.notes: dict[str, str] = {}
        self.marks: dict[str, list[tuple[int, str, str]]] = {}
        self.led: dict[str, list[int]] = {}
        self.hidden: dict[str, dict[str, list[Any]]] = {}  # columns that only filters know
        self._is_marked = self._is_plain = self._is_json = False
        self._section, self._text, self._in_note = "", "", False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "section":
            self._section = given["id"] or ""
        elif tag == "table":
            self.tables[self._section] = ([], [])
        elif tag == "th":
            self.tables[self._section][0].append(given["data-name"] or "")
        elif tag == "tbody":
            self.tables[self._section][1].clear()  # of the head
        elif tag == "tr":
            self.tables[self._section][1].append([])
            if given.get("class") == "led":
                self.led.setdefault(self._section, []).append(len(self.tables[self._section][1]) - 1)
        elif tag == "td":
            kind = (given.get("class") or "").split()
            self._is_plain = "data-v" not in given  # the text is the value
            if not self._is_plain:
                self.tables[self._section][1][-1].append(given["data-v"] or "")
            self._is_marked = "stands" in kind
        self._is_json = tag == "script" and given.get("type") == "application/json"
        self._in_note = tag == "p" and "below" in (given.get("class") or "")

    def handle_data(self, data: str) -> None:
        if self._in_note:
            self.notes[self._section] = data
        if self._is_json:
            self.hidden[self._section] = json.loads(data)["columns"]
            self._is_json = False
        if self._is_plain:
            self.tables[self._section][1][-1].append(data)
            self._is_plain = False
        if self._is_marked:
            names, rows = self.tables[self._section]
            place = len(rows) - 1, names[len(rows[-1]) - 1], data
            self.marks.setdefault(self._section, []).append(place)
            self._is_marked = False


def exact(value: Any) -> str:
    """Return a value as the page has it in `data-v`."""
    return "" if value is None or value != value else value if isinstance(value, str) else repr(float(value))


def reference_counts(values: np.ndarray, edges: np.ndarray) -> list[int]:
    """Count values in bins, one value at a time."""
    counts = [0] * (len(edges) - 1)
    for value in values.tolist():
        counts[max(min(int(np.searchsorted(edges, value, "right")) - 1, len(counts) - 1), 0)] += 1
    return counts


@given(explanations(), st.integers(0, 14))
def test_tables_have_the_rows_of_the_update_in_order(explanation: UpdateExplanation, limit: int) -> None:
    """Each column is drawn with its exact values, or filters know it and the text below the table says what it has."""
    reader = Reader(body_of(explanation, limit=limit))
    of_groups = {name: explanation.by(name) for name in ("time", "agent", "episode")}
    sources: dict[str, dict[str, list[Any]]] = {"steps": explanation.rows(limit)}
    for group in ("time", "agent"):
        if len(of_groups[group]) > 1:
            rows = of_groups[group][:limit]
            sources[f"by-{group}"] = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    for section, columns in sources.items():
        names, rows = reader.tables[section]
        note, is_of_tokens = reader.notes.get(section, ""), "token" in explanation.columns
        for name, values in columns.items():
            texts = [exact(value) for value in values]
            label = name_of(name, is_of_tokens)
            if name in names:
                assert [row[names.index(name)] for row in rows] == texts
                continue
            if any(texts):
                assert [exact(value) for value in reader.hidden[section][name]] == texts
            if not any(texts):
                assert f"{label}" in note.split("Not known for any row: ")[1]
            elif len({*texts}) == 1:
                assert f"{label} " in note.split("The same in all rows, to 4 digits: ")[1]
            else:
                assert re.search(
                    rf"{re.escape(label)} equals |The same in all rows, to 4 digits: .*{re.escape(label)} ", note
                )
    steps = [row["steps"] for row in of_groups["episode"]]
    assert sum(steps) == len(explanation)
    if limit >= len(steps) and steps:
        names, rows = reader.tables["by-episode"]
        assert sorted(float(row[names.index("steps")]) for row in rows) == sorted(steps)


@given(explanations())
def test_charts_have_each_row_once(explanation: UpdateExplanation) -> None:
    for name in ("ratio", "advantage"):
        values = explanation.columns[name]
        finite = values[np.isfinite(values)]
        counts, edges = explanation.histogram(name)
        assert counts.sum() == len(finite)
        if len(finite):
            assert counts.tolist() == reference_counts(finite, edges)
            assert edges[0] <= finite.min()
            assert finite.max() <= edges[-1]
            if (finite == finite.round()).all() and np.abs(finite).max() < 2**52:
                assert (edges % 1 == 0.5).all()  # between whole numbers
                widths = np.diff(edges)[1:-1]
                assert len({*widths.tolist()}) < 2
                assert np.ptp(finite) >= MOST_WHOLE_BINS or (np.diff(edges) == 1).all()
            else:
                assert finite.min() == finite.max() or (edges[0], edges[-1]) == (finite.min(), finite.max())
        drawn = charts.bars(name, counts, edges)
        assert [int(n) for n in re.findall(r'data-count="(\d+)"', drawn)] == counts.tolist()
    x, y = explanation.columns["first_value"], explanation.columns["value_target"]
    cells = [int(n) for n in re.findall(r'data-count="(\d+)"', charts.cells("", "x", "y", x, y))]
    assert sum(cells) == (np.isfinite(x) & np.isfinite(y)).sum()
    steps, sizes = explanation.columns["first_gradient_step"], np.abs(explanation.columns["advantage"])
    is_known = np.isfinite(sizes)
    drawn = charts.means("", steps, sizes, "first_gradient_step", "")
    bars = re.findall(r'data-mean="(.*?)" data-test="first_gradient_step == (\d+)"', drawn)
    assert len(bars) == (len({*steps[is_known]}) if len({*steps[is_known]}) > 1 else 0)
    for value, step in bars:
        assert float(value) == pytest.approx(sizes[is_known & (steps == float(step))].mean())
    drawn = charts.shares("", explanation.columns["share"])
    if explanation.columns["share"].sum() > 0:
        half = int(re.findall(r'data-half="(\d+)"', drawn)[0])
        assert np.cumsum(explanation.columns["share"])[half - 1] >= 0.5 - 1e-9
        assert half < 2 or np.cumsum(explanation.columns["share"])[half - 2] < 0.5 + 1e-9
    assert (
        "nan"
        not in body_of(explanation).split('<section id="steps">')[0].split('class="drawn"')[1].split("<section")[0]
    )


@given(explanations(st.floats(0.125, 8, width=32)))
def test_summary_equals_formulas_row_by_row(explanation: UpdateExplanation) -> None:
    if not len(explanation):
        return
    summary, columns = explanation.summary(), explanation.columns
    steps = list(explanation)
    assert summary["steps"] == len(steps)
    assert summary["episodes"] == len({step.id_ for step in steps} - {None})
    ratios = [step.measurements["ratio"] for step in steps]
    assert summary["kl"] == pytest.approx(np.mean([r - 1 - np.log(r) for r in ratios]), abs=1e-9)
    first = [abs(np.log(s.measurements["first_ratio"])) for s in steps if s.measurements["first_gradient_step"] == 0]
    assert summary["ratio_distance"] == pytest.approx(np.mean(first) if first else np.nan, nan_ok=True)
    targets = columns["value_target"]
    if targets.std() > 1e-3:
        expected = 1 - (targets - columns["first_value"]).var() / targets.var()
        assert summary["explained_variance"] == pytest.approx(expected)
    html = body_of(explanation)
    assert re.search(rf'data-name="steps"[^>]*>{len(steps)}<', html)


GROUPS = ("time", "agent", "worker", "turn", "episode")
MEANS = ("loss", "clipped", "ratio_distance", "logp_distance", "ratio", "advantage", "first_value")


@given(explanations(st.floats(0.125, 8, width=32) | st.just(float("nan"))), st.data())
def test_means_of_a_part_of_the_rows_tell_how_many(explanation: UpdateExplanation, data: st.DataObject) -> None:
    """In each place of a number, the page says of how many rows it is, and with them as weights the means agree."""
    columns, num = explanation.columns, len(explanation)
    group = data.draw(st.sampled_from([name for name in GROUPS if name in {"time", "turn", *columns}]))
    logp = data.draw(st.lists(st.floats(-2, 2) | st.just(float("nan")), min_size=num, max_size=num))
    explanation = replace(explanation, columns={**columns, "first_logp_difference": np.array(logp, np.float64)})
    known = {
        "ratio_distance": np.isfinite(columns["first_ratio"]) & (columns["first_gradient_step"] == 0),
        "logp_distance": np.isfinite(logp),
        "advantage_agreement": np.isfinite(columns["advantage"] + columns["first_value"] + columns["value_target"]),
        "explained_variance": np.isfinite(columns["first_value"] + columns["value_target"]),
        "kl": np.isfinite(columns["ratio"]),
        **{name: np.isfinite(columns[name]) for name in ("loss", "clipped", "ratio", "advantage", "first_value")},
    }
    rows, summary = explanation.by(group), explanation.summary()
    for name in MEANS:
        weights = [row.get(f"{name}{ROWS}", row["steps"]) for row in rows]
        assert sum(weights) == known[name].sum()
        values = [row[name] for row in rows]
        if name in summary and sum(weights):
            total = sum(w * value for w, value in zip(weights, values, strict=True) if w)
            assert total / sum(weights) == pytest.approx(summary[name])
    if num:
        html = body_of(explanation)
        section = html.split(f'<section id="by-{group}">')[-1].split("</section>")[0] if len(rows) > 1 else ""
        for name, is_known in known.items():
            told = f"{is_known.sum()} of {num} row{'s' * (num > 1)}"
            tile = re.search(rf'<dd data-name="{name}"[^>]*>[^<]*</dd>(<small>[\d, ]*of [^<]*</small>)?', html)
            if tile is not None:
                assert tile[1] == (None if is_known.all() else f"<small>{told}</small>")
            if section and name in rows[0]:
                assert (f"{name_of(name)}: {told}" in section) == (not is_known.all())
        for title, name in (
            ("Ratio", "ratio"),
            ("Advantage", "advantage"),
            ("Value against target", "explained_variance"),
        ):
            told = f"{known[name].sum()} of {num}" if not known[name].all() else f"{num}"
            assert not known[name].any() or f"<h2>{title} <span>{told} row" in html
    assert known.keys() <= row_measures(explanation.columns).keys()


@pytest.mark.parametrize("name", ["by-time", "by-agent", "by-worker", "by-turn", "by-episode", "steps"])
def test_each_column_has_a_meaning(name: str) -> None:
    rng = np.random.default_rng(0)
    names = (*MEASURED, "worker", "token", "n_step", "first_logp_difference")
    columns = {
        "share": np.full(8, 0.125),
        "episode": np.array(IDS[:2] * 4, object),
        "agent": np.array(["a", "b"] * 4, object),
        "t": np.arange(8),
        "times_learned": np.arange(8),
        **{
            key: rng.integers(0, 3, size=8).astype(np.float64) + rng.normal() * (key not in names[8:10])
            for key in names
        },
    }
    drawn = Reader(body_of(UpdateExplanation(1, "", columns))).tables[name][0]
    assert drawn
    assert all(map(meaning_of, set(drawn) - {"agent", "turn"}))
    meaningless = {"token", "first_gradient_step", "first_ratio", "first_logp_difference"}
    assert name == "steps" or not meaningless & set(drawn)
    assert "worker" in drawn


@pytest.mark.parametrize(
    ("kind", "course", "shown", "strongest"),
    [
        ("old_policy", [(1, 0.0), (2, 0.4), (3, 0.05)], {2, 3}, 2),
        ("acting_differs", [(1, 0.001), (2, 0.002), (3, 0.7)], {3}, 3),
        ("token_logp", [(1, 0.2), (2, 0.1)], {1, 2}, 1),
        ("advantage_sign", [(1, 0.9), (2, -0.5), (3, -0.9), (4, -0.1)], {2, 3}, 3),
        ("loss_at_start", [(1, 9.0), (2, 1.0)], {1}, 1),
        ("value_at_limit", [(1, -1.0), (2, 4.0), (3, 2.0)], {2, 3}, 2),
        ("equal_ends", [], {3}, 3),
    ],
)
def test_finding_is_named_with_its_value_here_or_the_strongest_update(
    kind: str, course: list[tuple[int, float]], shown: set[int], strongest: int, tmp_path: Path
) -> None:
    rows = [UpdateRow(update, {"time": "3"}, value) for update, value in course]
    finding = RunFinding(kind, "what <was> found", "what to do", strongest, measure="the_size", course=rows)
    with Ledger(tmp_path / "ledger") as ledger:
        for update in range(1, 7):
            ledger.note(update, {"obs": np.arange(4.0)}, measured={"loss": np.arange(4)})
    for update in range(1, 7):
        assert shows(finding, update) == (update in shown)
        page = update_page(tmp_path, update, None, str, "../../", [finding])
        found = page.split('<div id="found">')[1].split("<small>To do")[0]
        assert "what &lt;was&gt; found" in found
        assert ("Not in this update" in found) == (update not in shown)
        values = {n: f"the size {number(value)} at t=3" for n, value in course}
        here = re.findall(r'<a href="#steps">(the size .*?)</a>', found)
        assert here == [values[n] for n in (update,) if n in values]
        size = f": {values[strongest]}" if course else ""
        assert (f'<a href="{strongest}#steps">update {strongest}{size}</a>' in found) == (update != strongest)


@pytest.mark.parametrize(("kind", "run"), [fault for fault in FAULTS if fault[1] is not tokens])
def test_number_of_a_finding_is_that_at_the_top_and_in_the_marked_row(
    kind: str, run: Callable[[Path, bool], Path], tmp_path: Path
) -> None:
    folder = run(tmp_path, True)
    (finding,) = examine_run(folder)
    assert finding.course
    for row in finding.course:
        page = update_page(folder, row.update, None, str, "../../", [finding])
        shown = finding.shown_in(row.update)
        assert f'<a href="#{finding.table}">{shown}</a>' in page
        assert (shown in LiveFindings([folder]).html()) or row.update != finding.update
        reader = Reader(page)
        names, rows = reader.tables[finding.table]
        (place,) = [
            n
            for n, cells in enumerate(rows)
            if all(cells[names.index(name)].removesuffix(".0") == cell for name, cell in row.row.items())
        ]
        assert reader.led == {finding.table: [place]}
        assert place == 0 or "episode" not in row.row
        marked = {name: text for n, name, text in reader.marks[finding.table] if n == place}
        for name in finding.measure.split(" - "):
            assert f"{name_of(name)} {marked[name]}" in shown
        assert "<details open>" in page.split(f'id="{finding.table}"')[1][:20] or not shows(finding, row.update)


def test_tokens_have_turns_places_texts_and_siblings(tmp_path: Path) -> None:
    from tests.learners.test_run_findings import learned_tokens

    folder = learned_tokens(tmp_path / "run", False, is_stored=True)
    page = update_page(folder, 1, None, "../{}/".format, "../../", decode=lambda ids: f"word{ids[0]}")
    steps = explain_update(folder, 1)
    section = page.split('<section id="steps">')[1]
    assert ">turn</button>" in section
    assert ">place in turn</button>" in section
    names, rows = Reader(page).tables["steps"]
    assert [row[names.index("text")] for row in rows] == [f"word{step.token_id}" for step in steps[: len(rows)]]
    assert [float(row[names.index("token_id")]) for row in rows] == [step.token_id for step in steps[: len(rows)]]


def test_realised_returns_are_those_of_the_steps_of_terminated_episodes() -> None:
    rng = np.random.default_rng(0)
    episodes = [
        SingleAgentEpisode.from_arrays(
            np.zeros((6, 1), np.float32), np.zeros(5, int), rng.normal(size=5), id_=id_, terminated=is_terminated
        )
        for id_, is_terminated in zip(IDS[:2], (True, False), strict=True)
    ]
    columns: dict[str, np.ndarray] = {
        "share": np.full(15, 1 / 15),
        "episode": np.array([id_ for id_ in IDS[:3] for _ in range(5)], object),
        "agent": np.full(15, None, object),
        "t": np.tile(np.arange(5), 3),
        "times_learned": np.ones(15, int),
    }
    explanation = UpdateExplanation(1, "", columns, {episode.id_: [episode] for episode in episodes})
    expected = [explanation[row].realised_return(0.9) for row in range(5)] + [np.nan] * 10
    np.testing.assert_allclose(explanation.realised_returns(0.9), expected)


def example(n: int = 60) -> UpdateExplanation:
    """An update with numbers that differ, of which some are missing."""
    rng = np.random.default_rng(1)
    columns: dict[str, np.ndarray] = {
        "share": np.sort(rng.dirichlet(np.ones(n)))[::-1],
        "episode": np.array([IDS[i % 5] for i in range(n)], object),
        "agent": np.full(n, None, object),
        "t": rng.integers(0, 30, size=n),
        "times_learned": np.ones(n, int),
        "worker": rng.integers(0, 3, size=n).astype(np.float64),
        **{name: rng.normal(1, 0.2, size=n) for name in MEASURED},
    }
    columns["first_gradient_step"] = rng.integers(0, 2, size=n).astype(np.float64)
    columns["advantage"][::7] = np.nan
    return UpdateExplanation(1, "", columns)


@WITH_BROWSER
def test_rows_are_sorted_filtered_and_unfolded(tab: Tab, tmp_path: Path) -> None:
    explanation = example()
    path = tmp_path / "update.html"
    path.write_text(page_of("Update 1", body_of(explanation)), encoding="utf-8")
    page = tab.open(path.as_uri())
    rows = explanation.rows(60)
    visible = "#steps tbody tr:not([hidden])"

    def drawn(name: str) -> list[str]:
        return page.eval_on_selector_all(
            visible,
            """(rows, name) => rows.map((row) => row.cells[[...row.closest("table").tHead.rows[0].cells].findIndex(
            (head) => head.dataset.name === name)].dataset.v)""",
            name,
        )

    assert drawn("share") == [repr(x) for x in rows["share"][:20]]
    page.locator("#steps .more").click()
    assert drawn("share") == [repr(x) for x in rows["share"]]
    for name in ("advantage", "t", "episode"):
        head = page.locator(f"#steps th[data-name={name}] button")
        for _ in range(2):
            head.focus()
            page.keyboard.press("Enter")
            way = page.locator(f"#steps th[data-name={name}]").get_attribute("aria-sort")
            known = [x for x in rows[name] if x == x]
            known.sort(reverse=way == "descending")
            assert drawn(name) == [exact(x) for x in known] + [""] * (len(rows[name]) - len(known))
    for text, mask in {
        "t < 10 and ratio > 1": np.logical_and(np.array(rows["t"]) < 10, np.array(rows["ratio"]) > 1),
        IDS[2][:8]: np.array(rows["episode"]) == IDS[2],
        "worker == 1": np.array(rows["worker"]) == 1,
    }.items():
        page.locator("#steps input").fill(text)
        assert sorted(drawn("share")) == sorted(repr(x) for x, is_in in zip(rows["share"], mask, strict=True) if is_in)
        assert page.locator("#steps output").inner_text().startswith(f"{mask.sum()} of 60 rows")
    page.locator("#steps input").fill("colour > 1")
    error = page.locator("#steps output").inner_text()
    assert "unknown column 'colour'" in error
    assert error.endswith("; the table still shows worker == 1")
    assert len(drawn("share")) == (np.array(rows["worker"]) == 1).sum()
    page.locator("#steps input").fill("")
    page.locator("#steps input").fill("colour > 1")
    assert page.locator("#steps output").inner_text().endswith("; the table still shows all rows")
    assert len(drawn("share")) == 60
    assert not page.locator("#by-time table").is_visible()
    page.evaluate("location.hash = 'by-time'")
    page.locator("#by-time table").wait_for()


FINDINGS = (
    ("ratio_distance", "log_ratio", False),
    ("logp_distance", "logp_gap", False),
    ("first_value - value_target", "value_error", True),
    ("advantage_agreement", "advantage_error", True),
    ("share", "share", False),
)


@pytest.mark.parametrize(("measure", "column", "is_least"), FINDINGS)
def test_steps_begin_with_those_that_show_the_finding(measure: str, column: str, is_least: bool) -> None:
    columns = {**example().columns, "first_logp_difference": np.linspace(-1, 1, 60)}
    explanation = UpdateExplanation(1, "", columns)
    assert {name for _, name, _ in FINDINGS} == {*STEP_MEASURES.values(), "share"}
    html = body_of(explanation, limits=[Limit(measure, 0.0, is_least)])
    names, rows = Reader(html).tables["steps"]
    sizes = [float(row[names.index(column)] or "nan") for row in rows]
    known = sorted((x for x in sizes if x == x), reverse=not is_least)
    np.testing.assert_equal(sizes, known + [np.nan] * (60 - len(known)))
    words = f"Sorted by {name_of(column)}, {'smallest' if is_least else 'largest'} first"
    reason = ", since the finding is about it" * (column != "share")
    assert f"<span>{words}</span><span>{reason}</span>" in html.split('<section id="steps">')[1]
    numbers = [name for name in names if name not in ("episode", "worker", "t")]
    if column != "share":
        assert numbers[:3] == [column, "clipped", "advantage"]
        assert names.index("share") > 0
    by_episode = [
        Reader(body_of(explanation, limits=[Limit(measure, 0.0, is_least)], limit=limit)).tables["by-episode"]
        for limit in (1000, 2)
    ]
    (all_names, all_rows), (few_names, few) = by_episode
    assert len(all_rows) > len(few) == 2
    for name in ("share", measure) if measure in all_names else ():
        assert [row[few_names.index(name)] for row in few] == [row[all_names.index(name)] for row in all_rows[:2]]
    everything = {**columns, **step_measures(columns)}
    for row in rows:  # a row stays together
        at = columns["share"].tolist().index(float(row[names.index("share")]))
        assert [row[names.index(name)] for name in (column, "ratio")] == [
            exact(float(everything[name][at])) for name in (column, "ratio")
        ]


@WITH_BROWSER
@pytest.mark.parametrize("section", ["steps", "by-episode", "by-time"])
def test_text_above_a_table_tells_its_order(section: str, tab: Tab, tmp_path: Path) -> None:
    """After each click on a head or a button, and on the page of each address."""
    path = tmp_path / "update.html"
    limits = [Limit("ratio_distance", 0.0)]
    path.write_text(page_of("Update 1", body_of(example(), limits=limits, unfolded=TABLES)), encoding="utf-8")
    page = tab.open(path.as_uri())
    page.locator("body[data-ready]").wait_for()
    read = """const read = () => {
        const box = document.querySelector(`#${section}`), head = box.querySelector("th:not([aria-sort=none])");
        const buttons = [...box.querySelectorAll(".order button")].filter((one) => !one.hidden);
        const name = head &&
            [head.dataset.name, head.getAttribute("aria-sort"), head.textContent, head.matches(".text")];
        const told = [...box.querySelectorAll(".order > span")].filter((one) => !one.hidden);
        return [told.map((one) => one.textContent).join(""), name, buttons.map((one) => one.textContent)];
    };"""

    def check(told: str, found: Any, buttons: list[str]) -> str:
        if found is None:
            assert (told, buttons) == ("In the order of time", ["sort by share of loss"])
            return ""
        name, way, label, is_text = found
        ends = ("a to z", "z to a") if is_text else ("smallest first", "largest first")
        is_first = (section, name, way) == ("steps", "log_ratio", "descending")
        assert told == f"Sorted by {label}, {ends[way == 'descending']}{', since the finding is about it' * is_first}"
        assert ("sort by share of loss" in buttons) == ((name, way) != ("share", "descending"))
        return f"{name} {way}"

    first, *clicked = page.evaluate(
        f"""(section) => {{ {read}
            const heads = [...document.querySelectorAll(`#${{section}} th button`)];
            return [read(), ...heads.flatMap((head) => [0, 1].map(() => {{ head.click(); return read(); }}))];
        }}""",
        section,
    )
    orders = {check(*one) for one in clicked}
    assert len(orders) == 2 * page.locator(f"#{section} th").count()
    button = page.locator(f"#{section} .order button:visible").first
    expected = button.get_attribute("data-order")
    button.click()
    assert check(*page.evaluate(f"(section) => {{ {read} return read(); }}", section)) == expected
    check(*first)
    for order in sorted(orders)[:2]:
        page.goto(f"{path.as_uri()}?{section}.sort={quote(order)}")
        page.locator("body[data-ready]").wait_for()
        assert check(*page.evaluate(f"(section) => {{ {read} return read(); }}", section)) == order


UNKNOWN = {
    ("steps", "log_ratio"): ("first_gradient_step", 1.0, "the row came after the first gradient step"),
    ("steps", "ratio"): ("ratio", np.nan, "the update measured no number at the row"),
    ("steps", "value_error"): (
        "value_target",
        np.nan,
        "the update did not measure all numbers that it is computed from",
    ),
    ("steps", "logp_gap"): ("first_logp_difference", np.nan, "the update did not measure all numbers"),
    ("steps", "advantage_error"): ("advantage", np.nan, "the update did not measure all numbers"),
    ("steps", "log_ratio of none"): ("first_ratio", np.nan, "the update did not measure all numbers"),
    ("steps", "worker"): ("worker", np.nan, "the row was recorded without a worker"),
    ("steps", "episode"): ("episode", None, "the row was recorded without the id of an episode"),
    ("steps", "agent"): ("agent", None, "the row is of an episode of one agent"),
    ("by-episode", "ratio_distance"): ("first_gradient_step", 1.0, "the first gradient step had no row of the group"),
    ("by-episode", "advantage_agreement"): ("advantage", np.nan, "the group has no two rows whose advantages"),
    ("by-episode", "ratio"): ("ratio", np.nan, "no row of the group has a finite number"),
    ("by-episode", "worker"): ("worker", np.nan, "the row was recorded without a worker"),
    ("by-episode", "episode"): ("episode", None, "the row was recorded without the id of an episode"),
    ("by-agent", "agent"): ("agent", None, "the row is of an episode of one agent"),
    ("by-worker", "worker"): ("worker", np.nan, "the row was recorded without a worker"),
}
"""Place of a cell without a value: the column that a row lacks, and why the cell is empty."""


@pytest.mark.parametrize(("section", "column"), UNKNOWN)
def test_cells_without_a_value_tell_why(section: str, column: str) -> None:
    lacking, value, cause = UNKNOWN[section, column]
    column = column.removesuffix(" of none")
    columns = {**example().columns, "first_logp_difference": np.linspace(-1, 1, 60)}
    columns["agent"] = np.array(["a", "b", "c"] * 20, object)
    columns["advantage"], columns["first_gradient_step"] = np.linspace(-1, 1, 60), np.zeros(60)
    columns[lacking] = columns[lacking].copy()
    columns[lacking][columns["episode"] == IDS[1]] = value
    limits = [Limit(measure, 0.0) for measure in STEP_MEASURES]
    html = body_of(UpdateExplanation(1, "", columns), limits=limits)
    part = html.split(f'<section id="{section}">')[1].split("</section>")[0]
    titles = re.findall(r'<td[^>]* data-v=""([^>]*)>—', part)
    assert titles
    assert all('title="' in title for title in titles)
    assert any(f'title="{cause}' in title for title in titles)
    legend = re.findall(r"— in ([^:]*): ([^:]*?)\.(?= [—≈]|$)", unescape(Reader(html).notes[section]))
    assert {unescape(re.findall('title="(.*?)"', title)[0]) for title in titles} == {words for _, words in legend}
    assert next(words for names, words in legend if name_of(column) in names.split(", ")).startswith(cause)


@given(explanations(), st.sets(st.sampled_from(sorted(STEP_MEASURES))))
def test_each_cell_without_a_value_has_a_cause_that_is_told_below_the_table(
    explanation: UpdateExplanation, measures: set[str]
) -> None:
    html = body_of(explanation, limits=[Limit(measure, 0.0) for measure in sorted(measures)])
    notes = Reader(html).notes
    for section, part in re.findall(r'<section id="([^"]+)">(.*?)</section>', html):
        tags = [tag for tag, text in re.findall(r"<td([^>]*)>(?:<a [^>]*>)?([^<]*)", part) if text.startswith("—")]
        titles = {unescape(title) for tag in tags for title in re.findall(r'title="([^"]*)"', tag)}
        assert all("title=" in tag for tag in tags)
        assert all(f": {title}." in unescape(notes[section]) for title in titles)
        assert unescape(notes.get(section, "")).count("— in ") == len(titles)


@pytest.mark.parametrize("has_value", [True, False])
def test_cells_of_stored_steps_tell_whether_their_episode_is_stored(has_value: bool) -> None:
    episodes = [SingleAgentEpisode(id_=IDS[i]) for i in range(2)]
    for i, episode in enumerate(episodes):
        episode.add_env_reset(0.0)
        for t in range(30):
            extra = {"vf_preds": 0.5 + t} if i or has_value else {}
            episode.add_env_step(0.0, 0, 1.0 + t, extra_model_outputs=extra)
    columns = dict(example(30).columns)
    columns["episode"] = np.array([IDS[i % 3] for i in range(30)], object)
    explanation = UpdateExplanation(1, "", columns, episodes={one.id_: [one] for one in episodes})
    names, rows = Reader(html := body_of(explanation)).tables["steps"]
    part = html.split('<section id="steps">')[1]
    titles = re.findall(r'title="([^"]*)">—', part)
    assert names.count("acting_value") == 1
    lacking = sum(row[names.index("acting_value")] == "" for row in rows)
    assert lacking == (10 if has_value else 20)
    assert titles.count("the run did not store the episode of the row") == 20  # of the reward, too
    assert titles.count("the stored episode of the row does not have it") == (0 if has_value else 10)


@given(st.lists(st.floats(-1e3, 1e3) | st.floats(-1e-5, 1e-5), min_size=2, max_size=12))
def test_only_numbers_far_below_the_column_are_near_zero(values: list[float]) -> None:
    numbers = [*values, 0.5]
    html = table_html({"ratio": numbers, "share": [1.0] * len(numbers)}, [None] * len(numbers))
    assert ("≈ 0 : at most a millionth" in html) == (">≈ 0" in html)
    plain = re.findall(r"<td((?: data-v=\S+)?(?: title=\S+)?)>([^<]*)", html)
    for value, (tag, text) in zip(numbers, plain, strict=True):
        is_tiny = 0 < abs(value) <= 1e-6 * min(max(map(abs, numbers)), 1)
        assert (text == "≈ 0") == is_tiny
        assert (f'title="{value!r}"' in tag) == is_tiny


@WITH_BROWSER
@pytest.mark.parametrize(("width", "most"), [(1400, 2500), (400, 4500)])
def test_page_is_short_and_not_wider_than_the_window(tab: Tab, tmp_path: Path, width: int, most: int) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        columns = {name: example(300).columns[name] for name in (*MEASURED, "worker")}
        for update in (1, 2):
            ledger.note(update, {"obs": np.zeros(300)}, measured=columns)
    sizes = [UpdateRow(n, {"episode": "a"}, n / 10) for n in (1, 2)]
    finding = RunFinding("old_policy", "text " * 60, "advice", 2, measure="size", course=sizes)
    path = tmp_path / "page.html"
    path.write_text(update_page(tmp_path, 2, None, str, "../../", [finding]), encoding="utf-8")
    tab.page.set_viewport_size({"width": width, "height": 900})
    page = tab.open(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.scrollHeight") <= most
    tops = page.evaluate(
        """["nav", "header", "#found", ".numbers", "body > .note", ".drawn", "#steps", "#columns"].map(
        (name) => document.querySelector(name).getBoundingClientRect().top)"""
    )
    assert tops == sorted(tops)
    rows = page.evaluate(
        """() => Object.values(Object.groupBy([...document.querySelectorAll(".drawn figure")],
        (one) => one.getBoundingClientRect().top)).map((row) => row.at(-1).getBoundingClientRect().right)"""
    )
    assert len({round(right) for right in rows}) == 1  # each row is full
    wide = page.locator("#steps .wide")
    left = "(box) => box.querySelector('td').getBoundingClientRect().left"
    before = wide.evaluate(left)
    wide.evaluate("(box) => { box.scrollLeft = 1e6; }")
    assert wide.evaluate(left) == before  # the first column stays
    last = wide.evaluate(
        "(b) => b.getBoundingClientRect().right - b.querySelector('th:last-child').getBoundingClientRect().right"
    )
    assert last >= 0
    assert page.locator("nav a", has_text="previous").get_attribute("href") == "1"
    assert unescape("&larr; the run") in page.locator("nav").inner_text()


@given(explanations(st.floats(0.125, 8, width=32)), st.sampled_from(["time", "agent", "turn", "worker", "episode"]))
def test_rows_beyond_a_limit_are_those_of_the_groups_beyond_it(explanation: UpdateExplanation, group: str) -> None:
    columns = explanation.columns
    if group not in {"time", "turn", *columns}:
        return
    for measure, is_least in (("ratio_distance", False), ("first_value - value_target", True)):
        rows = explanation.by(group)
        numbers = [Limit(measure, 0.0).number_of(row) for row in rows]
        known = sorted(x for x in numbers if x == x)
        limit = Limit(measure, known[len(known) // 2] if known else 0.0, is_least)
        steps = sum(row["steps"] for row, x in zip(rows, numbers, strict=True) if limit.passed_by(x))
        assert rows_beyond(explanation, f"by-{group}", limit).sum() == steps


@given(explanations(st.floats(0.125, 8, width=32)))
def test_marked_parts_of_charts_are_the_rows_beyond_the_limit(explanation: UpdateExplanation) -> None:
    limit = Limit("ratio_distance", 0.5)
    chosen = rows_beyond(explanation, "by-episode", limit)
    html = body_of(explanation, marks=[("by-episode", {}, ())], limits=[limit])
    is_split = bool(len(chosen)) and 0 < chosen.mean() <= 0.9
    for name in ("log_ratio", "advantage"):
        figures = re.findall(r"<figure.*?</figure>", html)
        (figure,) = [one for one in figures if f'data-test="{name} ' in one] or [""]
        values = {**explanation.columns, **step_measures(explanation.columns)}[name]
        counts = [int(n) for n in re.findall(r'data-count="(\d+)"', figure)]
        marked = [int(n) for n in re.findall(r'data-marked="(\d+)"', figure)]
        assert sum(counts) == np.isfinite(values).sum()
        if is_split:
            assert sum(marked) == (np.isfinite(values) & chosen).sum()
            assert all(part <= count for part, count in zip(marked, counts, strict=True))


@pytest.mark.parametrize("values", [[1.0, 1.0004, 1.0008], [0.0, 1e-9, 2e-9], [123456.0, 123456.5], [-1.0, 0.0, 1.0]])
def test_ticks_have_texts_that_differ(values: list[float]) -> None:
    texts = charts.tick_texts(values)
    assert len({*texts}) == len(values)
    np.testing.assert_allclose(list(map(float, texts)), values, rtol=1e-9)


@pytest.mark.parametrize(("module", "suffix"), [("", ""), ("left", "/left"), ("left", "/module/left")])
def test_numbers_have_the_logged_ones_beside_them(module: str, suffix: str, tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        columns = {name: example(300).columns[name] for name in MEASURED}
        for update in (1, 2):
            ledger.note(update, {"obs": np.zeros(300)}, measured=columns, module=module)
    names = ["loss", "clip_fraction", "kl", "explained_variance", "entropy"]
    (tmp_path / "update.csv").write_text(
        f"step,num_updates,{','.join(name + suffix for name in names)},loss/other\n"
        "100,1,1.5,0.25,0.125,0.75,0.5,9\n200,2,2.5,0.5,,NaN,0.625,9\n",
        encoding="utf-8",
    )
    pages = [update_page(tmp_path, update, module or None, str, "../../") for update in (1, 2)]
    logged = [
        re.findall(
            r'<dd data-name="(\w+)"[^>]*>[^<]*</dd>(?:<small>[\d, ]*of [^<]*rows</small>)?'
            r"<small>of these rows: [^<]+</small><small>learner's [\w ]+ <b>(.*?)</b>: [^<]+</small>",
            page,
        )
        for page in pages
    ]
    assert logged[0] == [
        ("loss", "1.5"),
        ("clipped", "25.00 %"),
        ("kl", "0.125"),
        ("explained_variance", "0.75"),
    ]
    assert logged[1] == [("loss", "2.5"), ("clipped", "50.00 %")]
    assert "Also logged: entropy 0.5." in pages[0]
    assert "Also logged: entropy 0.625." in pages[1]


def test_large_updates_have_the_largest_steps_and_those_of_stored_episodes_and_beyond_limits() -> None:
    explanation = example(60)
    distances = sorted(row["ratio_distance"] for row in explanation.by("episode"))
    limit = Limit("ratio_distance", distances[2])
    assert 0 < rows_beyond(explanation, "by-episode", limit).sum() < 60
    html = body_of(explanation, lambda id_: "page" * (id_ == IDS[1]), 10, limits=[limit])
    names, rows = Reader(html).tables["steps"]
    is_in = np.arange(60) < 10
    is_in |= explanation.columns["episode"] == IDS[1]
    is_in |= rows_beyond(explanation, "by-episode", limit)
    shares = [float(row[names.index("share")]) for row in rows]
    few = [*explanation.columns["share"][:10], *explanation.columns["share"][10:][is_in[10:]][:10]]
    assert sorted(shares) == sorted(few)


def test_each_number_of_a_finding_has_a_column_of_steps() -> None:
    columns = {**example().columns, "first_logp_difference": np.linspace(-1, 1, 60)}
    assert step_measures(columns).keys() == {*STEP_MEASURES.values()} <= MEANINGS.keys()


@WITH_BROWSER
def test_filters_know_the_names_of_the_page(tab: Tab, tmp_path: Path) -> None:
    """Each name is known as it is shown, in quotes, with underscores, and as the column is called."""
    explanation = example()
    agents = np.array(["value", "it's", "</script>"] * 20, object)
    explanation = replace(explanation, columns={**explanation.columns, "agent": agents})
    path = tmp_path / "update.html"
    path.write_text(page_of("Update 1", body_of(explanation)), encoding="utf-8")
    page = tab.open(path.as_uri())
    for section in ("steps", "by-episode", "by-time", "by-worker"):
        page.evaluate(
            "(name) => { const fold = document.querySelector(`#${name} details`); if (fold) fold.open = true; }",
            section,
        )
        data = page.evaluate(
            "(name) => JSON.parse(document.querySelector(`#${name} .rows script`).textContent)", section
        )
        reader = Reader(path.read_text(encoding="utf-8"))
        names, rows = reader.tables[section]
        columns = {name: [row[k] for row in rows] for k, name in enumerate(names)}
        columns |= {name: [exact(x) for x in column] for name, column in data["columns"].items()}
        if len(rows) <= 5:
            continue
        field, output = page.locator(f"#{section} input"), page.locator(f"#{section} output")
        hint = (field.get_attribute("placeholder") or "").split(", or ")[1]
        field.fill(hint)
        assert re.match(r"\d+ of \d+ rows|$", output.inner_text()), hint
        for name, shown in data["names"].items():
            if name in ("episode", "agent", "time") or (section != "steps" and name == "worker"):
                continue
            values = np.array([float(x or "nan") for x in columns[name]])
            middle = float(np.nanmedian(values))
            count = int((values > middle).sum())
            for words in {shown, shown.upper(), shown.replace(" ", "_"), f'"{shown}"', name}:
                field.fill(f"{words} > {middle!r}")
                assert output.inner_text() == f"{count} of {len(rows)} rows" * (count < len(rows)), words
    field, output = page.locator("#steps input"), page.locator("#steps output")
    field.fill("foo > 1")
    assert {"share of loss", "times learned"} <= {
        *output.inner_text().split("the columns are ")[1].split(";")[0].split(", ")
    }
    of_two = int((explanation.columns["episode"] == IDS[2]).sum())
    for text, count in {
        "episode = 00000002": of_two,
        "episode != '00000002'": 60 - of_two,
        f"episode == {IDS[2]} and t = t": of_two,
        "share of loss > 2 %": int((explanation.columns["share"] > 0.02).sum()),
        "(share > 2%) or t % 2 == 0": int(
            ((explanation.columns["share"] > 0.02) | (explanation.columns["t"] % 2 == 0)).sum()
        ),
        "episode = 5": 0,
        "agent == value": 20,
        "agent != 'value'": 40,
        'agent = "it\'s"': 20,
    }.items():
        field.fill(text)
        assert output.inner_text() == f"{count} of 60 rows", text


NUMBER = re.compile(r"-?\b[\d.]+")


def test_chart_of_the_few_rows_of_stored_episodes_is_last_and_tells_how_many_episodes() -> None:
    episode = SingleAgentEpisode(id_=IDS[1])
    episode.add_env_reset(0.0)
    for t in range(30):
        episode.add_env_step(0.0, 0, 1.0, terminated=t == 29)
    explanation = replace(example(), episodes={episode.id_: [episode]})
    html = body_of(explanation, settings={"gamma": 0.9})
    figures = re.findall(r"<figure.*?</figure>", html)
    assert "<h2>Value against return <span>12 of 60 rows</span>" in figures[-1]
    assert "Rows of 1 stored episode that terminated." in figures[-1]
    assert not any("Value against return" in one for one in figures[:-1])


@WITH_BROWSER
def test_parts_of_charts_filter_the_steps(tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "update.html"
    path.write_text(page_of("Update 1", body_of(example())), encoding="utf-8")
    page = tab.open(path.as_uri())
    output = page.locator("#steps output")
    parts = page.eval_on_selector_all(
        ".drawn g[data-test]",
        """(parts) => parts.map((part) => {
            part.dispatchEvent(new MouseEvent("click", { bubbles: true }));
            return [part.dataset.count, document.querySelector("#steps output").textContent];
        })""",
    )
    assert len(parts) > 20
    tests = page.eval_on_selector_all(".drawn g[data-test]", "(parts) => parts.map((part) => part.dataset.test)")
    assert all(
        len(text.lstrip("-").replace(".", "").lstrip("0")) <= 6 for test in tests for text in NUMBER.findall(test)
    )
    assert all(text == f"{count} of 60 rows" for count, text in parts)
    for figure in page.locator(".drawn figure").all():  # each chart has names of its axes, and is read with keys
        names = figure.locator("svg > text").all_text_contents()
        assert sum(not re.fullmatch(r"-?[\d.e+-]+", name) for name in names) == 2
        figure.locator("svg[tabindex]").focus()
        page.keyboard.press("ArrowRight")
        assert re.search(r"\d", figure.locator("output").inner_text())
    svg = page.locator(".drawn svg[tabindex]").first
    svg.focus()
    page.keyboard.press("ArrowRight")
    read = page.locator(".drawn output").first.inner_text()
    page.keyboard.press("Enter")
    assert output.inner_text().split(" of ")[0] == read.split(": ")[1].split()[0]


@WITH_BROWSER
def test_next_update_keeps_place_filter_and_order(tab: Tab, tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        columns = {name: example(300).columns[name] for name in (*MEASURED, "worker")}
        for update in (1, 2, 3):
            ledger.note(update, {"obs": np.zeros(300)}, measured=columns)
    for update in (1, 2, 3):
        (tmp_path / str(update)).mkdir()
        html = update_page(tmp_path, update, None, str, "../../")
        for n in (1, 2, 3):
            html = html.replace(f'href="{n}"', f'href="../{n}/index.html"')
        (tmp_path / str(update) / "index.html").write_text(html, encoding="utf-8")
    page = tab.open((tmp_path / "2" / "index.html").as_uri())
    page.locator("#steps input").fill("ratio > 1")
    page.locator("#steps th[data-name=advantage] button").click()
    page.evaluate("location.hash = 'by-worker'")
    kept = page.locator("#steps output").inner_text(), page.locator("#steps tbody").inner_text()
    for key, update in (("ArrowRight", 3), ("ArrowLeft", 2), ("ArrowLeft", 1)):
        page.locator("h1").click()
        page.keyboard.press(key)
        page.wait_for_url(f"**/{update}/index.html?*#by-worker")
        page.locator("body[data-ready]").wait_for()
        assert (page.locator("#steps output").inner_text(), page.locator("#steps tbody").inner_text()) == kept
        assert page.locator("#by-worker table").is_visible()
    assert page.evaluate("document.querySelector('nav').getBoundingClientRect().top") == 0  # stays in sight


@pytest.mark.parametrize(
    ("unfolded", "expected"),
    [((), ["by-worker"]), (("by-episode",), ["by-episode", "by-worker"]), (("by-time",), ["by-time", "by-worker"])],
)
def test_tables_that_show_a_contrast_are_unfolded(unfolded: tuple[str, ...], expected: list[str]) -> None:
    """They are above the numbers and the charts. The tables of findings are first."""
    columns = dict(example().columns)
    columns["first_ratio"] = np.where(columns["worker"] == 2, 1.2, 1.0)
    columns["first_gradient_step"], columns["t"] = np.zeros(60), np.repeat([0, 1, 2], 20)
    explanation = UpdateExplanation(1, "", columns)
    html = body_of(explanation, limits=[Limit("ratio_distance", 0.003)], unfolded=unfolded)
    assert re.findall(r'<section id="([^"]*)"><details open>', html.split('<dl class="numbers">')[0]) == expected
    assert "<details open>" not in html.split('<dl class="numbers">')[1]
    reader = Reader(html)
    names, rows = reader.tables["by-worker"]
    assert [(rows[n][0], name) for n, name, _ in reader.marks["by-worker"]] == [("2.0", "ratio_distance")]
    assert names[:4] == ["worker", "ratio_distance", "clipped", "advantage"]
    marks = [("by-time", {"time": "1"}, ["ratio_distance"])]
    html_of_finding = body_of(explanation, limits=[Limit("ratio_distance", 0.003)], marks=marks)
    assert "Not marked, except the one the finding leads to, since in 3 of 3 rows" in html_of_finding
    assert "Marked: mean |log ratio| above 0.003, in 1 of 3 rows." in html
    assert "by-time" not in reader.marks
    assert "Not marked, since in 3 of 3 rows: mean |log ratio| above 0.003." in html


@WITH_BROWSER
@pytest.mark.parametrize("group", GROUPS)
def test_rows_of_groups_filter_the_steps(group: str, tab: Tab, tmp_path: Path) -> None:
    columns = dict(example().columns)
    columns["agent"] = np.array(["a", "it's", "<b>", 'a"b'] * 15, object)
    columns["episode"] = np.array([f"{'share' * (i % 5 == 0)}{IDS[i % 5]}" for i in range(60)], object)
    if group == "turn":
        columns["token"] = np.arange(60.0)
    explanation = UpdateExplanation(1, "", columns)
    path = tmp_path / "update.html"
    path.write_text(page_of("Update 1", body_of(explanation, prefix="p-")), encoding="utf-8")
    page = tab.open(f"{path.as_uri()}#p-by-{group}")
    page.locator("body[data-ready]").wait_for()
    counts = [row["steps"] for row in explanation.by(group)]
    chosen = page.evaluate(
        """(id) => [...document.querySelectorAll(`${id} tr[data-test]`)].map((row) => {
            row.querySelector("button").click();
            return document.querySelector("#p-steps output").textContent;
        })""",
        f"#p-by-{group}",
    )
    assert len(chosen) == min(len(counts), 20)
    left = sorted(counts)
    for text in chosen:
        left.remove(int(text.removesuffix(" of 60 rows")))
    assert len(left) == len(counts) - len(chosen)


def test_verdict_is_first_and_a_finding_leads_to_the_steps_by_its_number(tmp_path: Path) -> None:
    from tests.learners.test_run_findings import acting

    folder = acting(tmp_path, True)
    (finding,) = examine_run(folder)
    page = update_page(folder, finding.update or 1, None, str, "../../", [finding])
    places = [page.index(part) for part in ('<div id="found">', f'id="{finding.table}"', '<dl class="numbers">')]
    assert places == sorted(places)
    assert 'href="?steps.sort=log_ratio%20descending#steps">steps by |log ratio|</a>' in page
    names, rows = Reader(page).tables["steps"]
    sizes = [float(row[names.index("log_ratio")] or "-inf") for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 0
    assert "Sorted by |log ratio|, largest first</span><span>, since the finding is about it</span>" in page


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.floats(1e-3, 1))
def test_limit_of_the_first_gradient_step_is_at_its_height(values: list[float], limit: float) -> None:
    drawn = charts.means("", np.arange(len(values)), np.array(values), "first_gradient_step", "note", limit)
    line = re.search(r'class="limit" d="M[\d.]+ ([\d.]+)H', drawn)
    assert f"At 0, a mean above {number(limit)} stands out" in drawn
    most = max(values) or 1.0
    assert (line is not None) == (limit <= most)
    if line is not None:
        share = (charts.BOTTOM - float(line[1])) / (charts.BOTTOM - charts.TOP)
        assert share == pytest.approx(limit / most, abs=1e-3)
