"""Findings of the doctor on the page of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import SingleAgentEpisode
from episodes.inspect import examine
from episodes.inspect.html_report import episode_data, write_report
from episodes.storage import EpisodeDataset, EpisodeWriter
from tests.inspection.data import write
from tests.inspection.test_page import WITH_BROWSER, Tab, browser, served, tab

__all__ = ["browser", "tab"]  # fixtures
SPACE = spaces.Dict({"a/b": spaces.Box(-1.0, 1.0, (2, 3), np.float64), "c": spaces.Discrete(3)})


def bounded(places: list[tuple[int, int]], steps: int = 20, **facts: Any) -> SingleAgentEpisode:
    """Return an episode whose observations at some (step, number) are outside of their space."""
    numbers = np.random.default_rng(0).uniform(-1, 1, (steps + 1, 6))
    for step, number in places:
        numbers[step, number] = 5.0
    observations = {"a/b": numbers.reshape(-1, 2, 3), "c": np.arange(steps + 1) % 3}
    return SingleAgentEpisode.from_arrays(
        observations, np.zeros(steps, int), np.ones(steps), observation_space=SPACE, **facts
    )


@settings(max_examples=50)
@given(st.sets(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=8), st.integers(0, 5))
def test_lanes_have_a_mark_for_each_number_outside_its_space(places: set[tuple[int, int]], lookback: int) -> None:
    episode = bounded(sorted(places))[lookback:] if lookback else bounded(sorted(places))
    marked = {
        (step + lookback, int(lane["label"].rpartition("[")[2][:-1]))
        for lane in episode_data(episode)["lanes"]
        for step, text in lane.get("marks", ())
        if text == "bounds -1 to 1"
    }
    assert marked == {(step, number) for step, number in places if step >= lookback}


@WITH_BROWSER
def test_page_shows_marks_and_findings(tmp_path: Path, tab: Tab) -> None:
    episodes = [bounded([], id_="sound", terminated=True), bounded([(7, 4)], id_="<b>bad", terminated=True)]
    data = EpisodeDataset(write(tmp_path / "data", episodes))
    page = tab.open(write_report(data, tmp_path / "page.html", findings=examine(data)).as_uri())
    assert "finding" in tab.texts("#doctor summary")[0]
    page.get_by_role("button", name="<b>bad, step 7").first.click()
    page.locator("#episode h2", has_text="<b>bad").wait_for()
    assert tab.texts("#now") == ["step 7"]
    assert tab.value("[4]") == "5, bounds -1 to 1"
    assert page.locator("path.found").count() == 1
    assert page.locator(".rail .mark.found").count() >= 1
    page.keyboard.press("ArrowRight")
    assert "bounds" not in tab.value("[4]")


@WITH_BROWSER
def test_served_page_runs_the_doctor_on_request(tmp_path: Path, tab: Tab) -> None:
    with served(write(tmp_path / "data", [bounded([(7, 4)], id_="bad")])) as server:
        page = tab.open(server.url)
        page.get_by_role("button", name="run the doctor").click()
        page.get_by_role("button", name="bad, step 7").first.wait_for()
        assert "outside_space" in tab.texts("#doctor li b")


@WITH_BROWSER
def test_page_of_a_sound_data_set_states_no_findings(tmp_path: Path, tab: Tab) -> None:
    data = EpisodeDataset(write(tmp_path / "data", [bounded([], id_="sound", terminated=True)]))
    tab.open(write_report(data, tmp_path / "page.html", findings=examine(data)).as_uri())
    assert tab.texts("#doctor summary") == ["doctor: no findings in 20 steps"]


def test_lanes_of_chunks_with_one_id_have_their_marks_only(tmp_path: Path) -> None:
    """The page marks steps of findings only if one row has the id. Marks of numbers come from the chunk itself."""
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add([bounded([(3, 1)], id_="e"), bounded([], id_="e", t_started=20)])
    first, second = map(episode_data, EpisodeDataset(tmp_path / "data"))
    assert sum(len(lane.get("marks", ())) for lane in first["lanes"]) == 1
    assert not any("marks" in lane for lane in second["lanes"])
