"""What stands out in runs, on the page of trainings in a real browser."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episode_learners.loggers import CSVLogger
from episodes.inspect import examine_run, run_findings_page
from episodes.inspect.formatting import number
from episodes.inspect.run_findings import RunFinding
from episodes.inspect.run_findings_page import LEAST_HEIGHT, MARKED_BAR, LiveFindings, course_html, divergence_html
from episodes.inspect.update_rows import UpdateRow
from episodes.storage.ledger import Ledger
from episodes.storage.ledger.difference import Difference
from tests.inspection.test_page import WITH_BROWSER, Tab, browser, served, tab
from tests.learners.test_run_findings import signs

__all__ = ["browser", "tab"]  # fixtures


@WITH_BROWSER
def test_page_leads_from_a_finding_to_the_agent_that_shows_it(tmp_path: Path, tab: Tab) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "good").mkdir()
    runs = [signs(tmp_path / "bad", True), signs(tmp_path / "good", False)]
    with served(*runs) as server:
        page = tab.open(server.url)
        page.locator("#findings .out").nth(1).wait_for()
        assert page.locator("#findings .out > ul > li").count() == 1
        assert "of agent b have the wrong sign" in page.locator("#findings .out").nth(0).inner_text()
        assert "Nothing" in page.locator("#findings .out").nth(1).inner_text()
        bar = page.locator("figure.divergence")
        page.evaluate("draw()")  # curves are drawn again beside this figure, which has none
        assert (bar.get_attribute("data-update"), bar.get_attribute("data-cause")) == ("1", "inputs")
        link = page.locator("#findings .links a").first
        shown = re.fullmatch(r"Update \d: correlation of advantages (-[.\d]+) of agent b", link.inner_text())
        assert shown
        page.set_viewport_size({"width": 400, "height": 900})
        link.click()
        page.locator("#by-agent").wait_for()
        place = page.locator("#by-agent td.stands").evaluate("(cell) => cell.getBoundingClientRect().toJSON()")
        assert 0 <= place["left"] < place["right"] <= 400
        assert 0 <= place["top"] < place["bottom"] <= 900
        assert tab.texts("#by-agent td.stands") == [shown[1]]
        assert (
            f"In this update: correlation of advantages {shown[1]} of agent b" in page.locator(".finding").inner_text()
        )
        page.locator("nav a", has_text="last").or_(page.locator("nav span", has_text="last")).first.click()
        assert tab.texts("#by-agent tr:has(td.stands) td:first-child") == ["b"]
        assert "of agent b have the wrong sign" in page.locator(".finding").inner_text()
        assert page.locator("nav span").all_inner_texts() == ["next", "last"]
        page.locator(".finding svg a").first.click()
        page.locator("h1", has_text="Update 1").wait_for()
        assert page.locator("nav span").all_inner_texts() == ["first", "previous"]
        page.locator("nav a").first.click()
        page.locator("#findings").wait_for(state="attached")


SIZES = st.floats(-1e6, 1e6, width=32)


@given(st.lists(st.tuples(SIZES, SIZES | st.just(math.nan)), min_size=2, max_size=40), st.integers(1, 40))
def test_bars_of_a_finding_read_with_their_axis_are_its_numbers(pairs: list[tuple[float, float]], update: int) -> None:
    course = [UpdateRow(n, {"agent": "<b>"}, value, {}, other) for n, (value, other) in enumerate(pairs, 1)]
    finding = RunFinding("a", "b", "c", update, measure="size", others="<i>", course=course)
    html = course_html(finding, lambda n: f"u{n}")
    values, others = [value for value, _ in pairs], [other for _, other in pairs if not math.isnan(other)]
    hollow = re.findall(r'y="([-\d.]+)" width="[\d.]+" height="([\d.]+)" class="others"', html)
    are_seen = len(hollow) > 0
    assert len(hollow) == len(others) * are_seen
    assert ("hollow: &lt;i&gt;" in html, "too small to draw: &lt;i&gt;" in html) == (are_seen, bool(others) > are_seen)
    bars = re.findall(r'href="u(\d+)".*? y="([-\d.]+)".*? height="([\d.]+)" fill="([#\w]+)"', html)
    assert [int(number) for number, *_ in bars] == list(range(1, len(values) + 1))
    assert [int(number) for number, *_, colour in bars if colour == MARKED_BAR] == [update] * (update <= len(values))
    zero = float(re.findall(r'y1="([\d.]+)"', html)[0])
    heights = {
        float(text): float(y) - 4 for y, text in re.findall(r'y="([\d.]+)" text-anchor="end">([^<]+)<', html)[:-1]
    }
    assert heights[0.0] == pytest.approx(zero, abs=0.06)
    most = max([*values, *others], key=abs)
    assert float(number(most)) in heights
    tallest = max(map(abs, others), default=0.0) * abs(heights[float(number(most))] - zero) / abs(most or 1.0)
    assert are_seen == (tallest > LEAST_HEIGHT) or tallest == pytest.approx(LEAST_HEIGHT, abs=0.1)
    shown = [*[(top, tall) for _, top, tall, _ in bars], *hollow]
    for value, (top, tall) in zip([*values, *others * are_seen], shown, strict=True):
        assert float(top) == pytest.approx(zero if value < 0 else zero - float(tall), abs=0.11)
        if most:
            expected = abs(value / most) * abs(heights[float(number(most))] - zero)
            assert float(tall) == pytest.approx(max(expected, 1), abs=0.11)
    assert "<b>" not in html
    assert "<i>" not in html
    for row, words in zip(
        course, re.findall(r"<li>(.*?)</li>", html), strict=True
    ):  # for fingers, which read no titles
        assert words.startswith(f"update {row.update}: size {number(row.value)} of")
        assert words.endswith(f"; &lt;i&gt; {number(row.others)}") == (row.others == row.others)
    assert course_html(RunFinding("a", "b", "c", course=course[:1])) == ""


@WITH_BROWSER
def test_curves_mark_the_update_of_a_finding_and_open_it(tmp_path: Path, tab: Tab) -> None:
    run = signs(tmp_path, True)
    (finding,) = examine_run(run)
    with CSVLogger(run) as logger:
        for n in (1, 2):
            logger.log("update", {"num_updates": n, "loss": 0.1 * n}, 100 * n)
    with served(run) as server:
        page = tab.open(server.url)
        figure = page.locator("figure[data-metric='update/loss']")
        mark = figure.locator("line.found")
        assert mark.get_attribute("x1") == str(300 * finding.update)  # of 600
        assert mark.locator("title").text_content() == f"update {finding.update}: Advantages have the wrong sign"
        page.locator("#smooth").fill("0.5")
        page.select_option("#x", "update")
        box = figure.locator("svg").bounding_box()
        page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 20)
        assert figure.locator(".values").inner_text() == "0.15\nupdate 2, smoothed, click opens update 2"
        page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 20)
        page.locator("h1", has_text="Update 2").wait_for()
        page.locator("nav a").first.click()
        figure.wait_for()
        assert page.evaluate("[state.smooth, state.x]") == [0.5, "update"]
        page.locator("#findings [data-updates]").wait_for()
        svg = figure.locator("svg")
        for keys, update in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowRight", 2), ("ArrowLeft", 1)):
            svg.press(keys)
            assert f"update {update}, " in figure.locator(".values").inner_text()
        page.evaluate("draw()")  # as when a row arrives: the focus stays
        page.keyboard.press("Enter")
        page.locator("h1", has_text="Update 1").wait_for()


CAUSES = {"settings": "settings", "episode": "sampling", "content": "inputs", "weights": "weights"}


@given(st.sampled_from(sorted(CAUSES)), st.integers(1, 1000), st.integers(0, 1000))
def test_bar_shows_the_common_part_and_the_cause(what: str, update: int, more: int) -> None:
    difference = Difference(update, "", None, what, "<a>", "b", update + more)
    html = divergence_html(difference, ("<x>", "y"))
    width = float(html.split('style="width:')[1].split("%")[0])
    assert width == pytest.approx(100 * (update - 1) / (update + more), abs=0.01)
    assert f'data-cause="{CAUSES[what]}"' in html
    assert "<a>" not in html
    assert "<x>" not in html


KNOWN: dict[str, Callable[[LiveFindings], tuple[int, int]]] = {
    "the page of the run": lambda findings: newest_in(findings.html()),
    "the page of an update": lambda findings: (1, findings.of_run(0).updates[-1][0]),  # type: ignore[attr-defined]
    "the page of an episode": lambda findings: findings.learned(0).extent or (0, 0),
}


def newest_in(html: str) -> tuple[int, int]:
    (numbers,) = re.findall(r"updates (\d+) to (\d+)", html)
    return int(numbers[0]), int(numbers[1])


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_each_page_of_a_run_knows_its_newest_updates(
    known: Callable[[LiveFindings], tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no other page is open."""
    findings = LiveFindings([tmp_path])
    with Ledger(tmp_path / "ledger", every=1) as ledger:
        for update in range(1, 4):
            monkeypatch.setattr(run_findings_page, "monotonic", partial(next, count(update * 1000.0, 0.001)))
            ledger.note(update, {"obs": np.arange(4.0)}, measured={"loss": np.arange(4)})
            assert known(findings) == (1, update)


def test_runs_with_findings_are_first_and_others_are_one_line(tmp_path: Path) -> None:
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
    runs = [signs(tmp_path / "good", False), signs(tmp_path / "bad", True)]
    html = LiveFindings(runs).html()
    assert re.findall(r'<details class="out" data-run="(\d)"[^>]*?( open)?><summary>', html) == [
        ("1", " open"),
        ("0", ""),
    ]


@pytest.mark.parametrize("what", ["settings", "weights"])
def test_hashes_of_both_sides_are_in_the_title_alone(what: str) -> None:
    html = divergence_html(Difference(3, "", None, what, "1eac7c94fe3b1129", "031deb88d8215e26", 9), ("a", "b"))
    shown = re.sub(r'title="[^"]*"', "", html)
    for text in ("1eac7c94fe3b1129", "031deb88d8215e26"):
        assert text in html
        assert text not in shown
    assert f"update 3: {what} differ" in shown
