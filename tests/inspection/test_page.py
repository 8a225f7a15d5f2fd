"""The page of a data set, in a real browser: it renders, sorts, filters, scrubs, follows, and asks for nothing else."""

from __future__ import annotations

import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import SingleAgentEpisode
from episodes.inspect.html_report import as_script, episode_data, write_report
from episodes.inspect.page_server import PageServer
from episodes.storage import EpisodeDataset, EpisodeWriter

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync"]
PATIENCE_MS = 240_000  # far more than anything takes on a slow and busy machine
HOSTILE = "</script><script>alert(1)</script>\"'&\U0001f642"
WITH_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed; make test installs Debian's")


def filmed(n: int, steps: int, **facts: Any) -> SingleAgentEpisode:
    """An episode whose frames are as bright as their step."""
    frames = np.zeros((steps + 1, 16, 16, 3), np.uint8) + np.arange(steps + 1, dtype=np.uint8)[:, None, None, None]
    observations = {"camera": frames, "x": np.arange(steps + 1.0)}
    return SingleAgentEpisode.from_arrays(observations, np.zeros(steps, int), np.full(steps, float(n)), **facts)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    broken = SingleAgentEpisode.from_arrays(
        {"camera": np.zeros((2, 16, 16, 3), np.uint8), "x": np.array([np.nan, np.inf])}, [0], [np.nan], id_=HOSTILE
    )
    with EpisodeWriter(path, env_spec=HOSTILE) as writer:
        writer.add([filmed(1, 10, id_="first", terminated=True), filmed(3, 4, id_="second", truncated=True), broken])
    return path


class Tab:
    """A page in the browser, and what went wrong in it."""

    def __init__(self, browser: Any, scheme: str = "light") -> None:
        self.page = browser.new_context(color_scheme=scheme).new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.asked: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def ids(self) -> list[str]:
        return self.texts("tbody td:first-child")


@pytest.fixture(scope="module")  # what drives it has an event loop in this thread, where tests of others want their own
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET, timeout=PATIENCE_MS)
        yield started
        started.close()


@WITH_BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_sorts_filters_and_scrubs_and_asks_for_nothing(data, tmp_path, browser, scheme) -> None:
    tab = Tab(browser, scheme)
    file = write_report(EpisodeDataset(data), tmp_path / "page.html")
    tab.page.goto(file.as_uri())
    assert tab.ids() == ["first", "second", HOSTILE]
    tab.page.get_by_role("button", name="return").click()
    assert tab.ids() == ["second", "first", HOSTILE]  # what is not finite comes last
    tab.page.get_by_role("button", name="return").click()
    assert tab.ids() == ["first", "second", HOSTILE]
    tab.page.fill("#words", "length < 5")
    assert tab.ids() == ["second", HOSTILE]
    tab.page.fill("#words", "")
    tab.page.select_option("#ending", "terminated")
    assert tab.ids() == ["first"]
    tab.page.locator("tbody tr").first.click()
    brightness = tab.page.locator(".frame").get_attribute("src")
    tab.page.locator("#step").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
        tab.page.keyboard.press(key)
    assert tab.texts("#now") == ["step 3"]
    assert tab.page.locator(".lane", has_text="observations/x").locator("b").inner_text() == "3"
    assert tab.page.locator(".frame").get_attribute("alt") == "observations/camera at step 3"
    assert tab.page.locator(".frame").get_attribute("src") != brightness
    tab.page.keyboard.press("End")
    assert tab.texts("#now") == ["step 10"]
    tab.page.select_option("#ending", "")
    tab.page.locator("tbody tr", has_text="alert").click()
    assert HOSTILE in tab.texts("#episode h2")[0]
    assert "Episodes of data" in tab.page.title()
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 19, 24)"
    )
    assert not tab.said
    assert [url for url in tab.asked if not url.startswith(("file:", "data:"))] == []


@WITH_BROWSER
def test_the_page_tells_episodes_of_one_name_apart_and_numbers_of_any_size(tmp_path, browser) -> None:
    path = tmp_path / "data"
    huge, exact = np.array([1.7e308, -1.7e308]), np.array([1234567.0, 2.0**60])
    with EpisodeWriter(path) as writer:
        for values, reward in ((huge, 1.0), (exact, 1234567.0)):
            writer.add([SingleAgentEpisode.from_arrays(values, [0], [reward], id_="of every worker")])
    tab = Tab(browser)
    tab.page.goto(write_report(EpisodeDataset(path), tmp_path / "page.html").as_uri())
    shown = tab.page.locator(".lane", has_text="observations").locator("b")
    assert shown.inner_text() == "1.700e+308"
    tab.page.locator("tbody tr").nth(1).click()
    assert shown.inner_text() == "1234567"
    assert tab.texts("tbody tr[aria-selected=true] td:nth-child(3)") == ["1234567"]
    tab.page.fill("#words", "return > 1e6")
    assert len(tab.ids()) == 1
    assert not tab.said


@WITH_BROWSER
def test_the_served_page_follows_a_writer_at_work(data, browser) -> None:
    server = PageServer(data)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        tab = Tab(browser)
        tab.page.goto(server.url)
        tab.page.locator("tbody tr", has_text="second").click()
        tab.page.locator("#episode h2", has_text="second").wait_for()
        with EpisodeWriter(data) as writer:
            writer.add([filmed(9, 6, id_="while it is served")])
            writer.flush()
            tab.page.locator("tbody tr", has_text="while it is served").wait_for()
            assert tab.page.locator("tbody tr[aria-selected=true]").inner_text().startswith("second")
            tab.page.locator("tbody tr", has_text="while it is served").click()
            tab.page.locator("#episode h2", has_text="while it is served").wait_for()
        assert not tab.said
        assert {url[: len(server.url)] for url in tab.asked if not url.startswith("data:")} == {server.url}
        tab.page.close()
    finally:
        server.shutdown()
        server.server_close()


def test_the_server_answers_nobody_who_calls_it_by_another_name(data) -> None:
    server = PageServer(data)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        assert server.server_address[0] == "127.0.0.1"
        for path, host, status in (("", "evil.example", 403), ("../../etc/passwd", "localhost", 404)):
            request = urllib.request.Request(server.url + path, headers={"Host": host})
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            assert refused.value.code == status
            refused.value.close()
    finally:
        server.shutdown()
        server.server_close()


def test_text_of_users_cannot_end_the_script_it_stands_in() -> None:
    assert "<" not in as_script({"id": HOSTILE})


def test_long_episodes_and_many_numbers_are_thinned() -> None:
    steps = 50_000
    long = SingleAgentEpisode.from_arrays(np.zeros((steps + 1, 100)), np.zeros(steps), np.zeros(steps))
    data = episode_data(long)
    assert len(data["lanes"]) == 102
    assert len(as_script(data)) < 3_000_000
    films = SingleAgentEpisode.from_arrays(
        np.random.default_rng(0).integers(0, 255, (801, 210, 160, 3)).astype(np.uint8), np.zeros(800), np.zeros(800)
    )
    assert len(as_script(episode_data(films))) < 4_000_000
