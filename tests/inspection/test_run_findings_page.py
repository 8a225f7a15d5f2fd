"""What stands out in runs, on the page of trainings in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes.inspect.run_findings_page import divergence_html
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
        assert page.locator("#findings .out li").count() == 1
        assert "of agent b have the wrong sign" in page.locator("#findings .out").nth(0).inner_text()
        assert "Nothing" in page.locator("#findings .out").nth(1).inner_text()
        bar = page.locator("figure.divergence")
        assert (bar.get_attribute("data-update"), bar.get_attribute("data-cause")) == ("1", "inputs")
        page.locator("#findings li a").click()
        page.locator("#by-agent").wait_for()
        assert tab.texts("#by-agent tr:has(td.mark) td:first-child") == ["b"]
        page.locator("nav a").first.click()
        page.locator("#findings").wait_for(state="attached")


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
