"""The page of a data set in a real browser."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.inspect.html_report import episode_data, write_report
from episodes.inspect.page_messages import encode
from episodes.inspect.page_server import LiveDataset, PageServer
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.copying import condition
from episodes.tokens import Conversation
from tests.inspection.data import write

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync"]
PATIENCE_MS = 240_000  # far more than anything takes on a slow and busy machine
HOSTILE = "</script><script>alert(1)</script>\"'&\U0001f642"
WITH_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed; make test installs Debian's")


def filmed(n: int, steps: int, **facts: Any) -> SingleAgentEpisode:
    """Return an episode of two cameras whose frames are as bright as their step."""
    frames = np.zeros((steps + 1, 16, 16, 3), np.uint8) + np.arange(steps + 1, dtype=np.uint8)[:, None, None, None]
    observations = {"camera": frames, "wrist": 255 - frames, "x": np.arange(steps + 1.0)}
    return SingleAgentEpisode.from_arrays(observations, np.zeros(steps, int), np.full(steps, float(n)), **facts)


def plain(rewards: Any, **facts: Any) -> SingleAgentEpisode:
    """Return an episode with these rewards."""
    num = len(rewards)
    return SingleAgentEpisode.from_arrays(np.arange(num + 1.0), np.zeros(num, int), np.asarray(rewards, float), **facts)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    broken = SingleAgentEpisode.from_arrays(
        {name: np.zeros((2, 16, 16, 3), np.uint8) for name in ("camera", "wrist")} | {"x": np.array([np.nan, np.inf])},
        [0],
        [np.nan],
        id_=HOSTILE,
    )
    episodes = [filmed(1, 10, id_="first", terminated=True), filmed(3, 4, id_="second", truncated=True), broken]
    return write(tmp_path / "data", episodes, env_spec=HOSTILE)


class Tab:
    """A page in the browser, with its requests and its errors."""

    def __init__(self, browser: Any, scheme: str = "light") -> None:
        self.page = browser.new_context(color_scheme=scheme).new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, url: str) -> Any:
        """Open an address, and return the page when it is ready."""
        self.page.goto(url)
        self.page.locator("body[data-ready=yes]").wait_for()
        return self.page

    def open_any(self, url: str) -> Any:
        """Open an address that needs no script, and return the page."""
        self.page.goto(url)
        return self.page

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def ids(self) -> list[str]:
        cells = self.page.locator("#body td[data-column=id]")
        return cells.evaluate_all("cells => cells.map((cell) => cell.title)")

    def value(self, label: str) -> str:
        """Return the number of a lane at the current step."""
        return self.page.locator(".lane", has_text=label).locator("b").inner_text()


@pytest.fixture(scope="module")  # its driver has an event loop in this thread, where other tests need their own
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET, timeout=PATIENCE_MS)
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """A tab in which no error occurs, and that requests nothing from other machines."""
    tab = Tab(browser)
    yield tab
    assert not tab.errors
    assert all(url.startswith(("file:", "data:", "http://127.0.0.1:")) for url in tab.requests)
    tab.page.context.close()


def report(path: Path) -> str:
    """Write the page of a data set, and return its address."""
    return write_report(EpisodeDataset(path), path.parent / "page.html").as_uri()


@contextmanager
def served(*paths: Path, **options: Any) -> Iterator[PageServer]:
    """Serve a data set or runs."""
    server = PageServer(*paths, **options)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@WITH_BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_sorts_filters_and_scrubs(data: Path, browser: Any, scheme: str) -> None:
    tab = Tab(browser, scheme)
    page = tab.open(report(data))
    assert tab.ids() == ["first", "second", HOSTILE]
    for expected in (["second", "first", HOSTILE], ["first", "second", HOSTILE]):  # NaN is last in both orders
        page.get_by_role("button", name="return").click()
        assert tab.ids() == expected
    page.fill("#words", "length < 5")
    assert tab.ids() == ["second", HOSTILE]
    page.fill("#words", "sec")
    assert tab.ids() == ["second"]
    page.fill("#words", "")
    page.select_option("#ending", "terminated")
    assert tab.ids() == ["first"]
    page.locator("#body tr").first.click()
    page.locator("#step").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert tab.texts("#now") == ["step 3"]
    assert tab.value("observations/x") == "3"
    page.keyboard.press("End")
    assert tab.texts("#now") == ["step 10"]
    page.select_option("#ending", "")
    page.locator("#body tr", has_text="script>").click()
    page.locator("#episode h2", has_text="script>").wait_for()
    assert page.locator("#episode h2 button").get_attribute("title") == HOSTILE
    assert tab.value("observations/x") == "∞"
    assert "Episodes of data" in page.title()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 19, 24)")
    assert not tab.errors
    assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []


@WITH_BROWSER
def test_page_cameras_follow_the_step(data: Path, tab: Tab) -> None:
    page = tab.open(report(data))
    before = [image.get_attribute("src") for image in page.locator(".frame").all()]
    assert len(before) == 2
    page.locator("#step").fill("7")
    images = page.locator(".frame").all()
    assert [image.get_attribute("alt") for image in images] == [
        f"observations/{n} at step 7" for n in ("camera", "wrist")
    ]
    assert all(image.get_attribute("src") != old for image, old in zip(images, before, strict=True))


@WITH_BROWSER
def test_page_separates_equal_ids_and_shows_huge_numbers(
    tmp_path: Path, tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # data sets of earlier versions have repeated ids
    monkeypatch.setattr("episodes.storage.known_chunks.conflicts", lambda *spans: False)
    huge, exact = np.array([1.7e308, -1.7e308]), np.array([1234567.0, 2.0**60])
    episodes = [
        SingleAgentEpisode.from_arrays(values, [0], [reward], id_="of every worker")
        for values, reward in ((huge, 1.0), (exact, 1234567.0))
    ]
    page = tab.open(report(write(tmp_path / "data", episodes)))
    assert tab.value("observations") == "1.700e+308"
    page.locator("#body tr").nth(1).click()
    page.locator("#episode h2", has_text="return 1234567").wait_for()
    assert tab.value("observations") == "1234567"
    assert tab.texts("#body tr[aria-selected=true] td[data-column=return]") == ["1,234,567"]


NAMES = st.sampled_from(
    [
        "length",
        "return",
        "t_started",
        "3",
        "2.5",
        "-1",
        "length % 3",
        "return % 2.5",
        "custom_data/score",
        "custom_data/'my key'",
        "custom_data/seed",
        "custom_data/sign",
        "nth",
        "9007199254740991",
        "9007199254740993",
        "9007199254740993.0",
    ]
)
DIGITS = ["7", "007", "7.0", "0x7", " 7", "12345678901234567890", "12345678901234567891", "\U0001f600", "\uff5e", "77"]
TEXTS = st.sampled_from(
    ["id", "ending", "'cut'", "'e1'", '"terminated"', "custom_data/digits", *map("'{}'".format, DIGITS)]
)
FLAGS = st.sampled_from(["terminated", "truncated", "is_complete", "True", "False"])
MISSING = st.sampled_from(
    ["custom_data/task", "cut", "e1", "0e1f", "04683", "7c", "constructor", "__proto__", "column_0"]
)  # some rows are None, or no column
ANY = st.one_of(NAMES, TEXTS, FLAGS, MISSING, st.builds("{} {} {}".format, FLAGS, st.sampled_from("+-*"), FLAGS))
SUMS = st.recursive(
    NAMES, lambda part: st.builds("({} {} {})".format, part, st.sampled_from("+-*/%"), part), max_leaves=3
)
SIGNS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
COMPARED = st.one_of(
    st.builds("custom_data/digits {} '{}'".format, SIGNS, st.sampled_from(DIGITS)),
    st.builds("1 {} 2 / {}{}".format, SIGNS, st.sampled_from(["", "-", "-0 * ", "5 % -"]), st.just("custom_data/sign")),
    st.builds("{} {} {}".format, SUMS, SIGNS, SUMS),
    st.builds("{} {} {} {} {}".format, ANY, SIGNS, ANY, SIGNS, ANY),
    st.builds("{} {} {}".format, TEXTS, SIGNS, TEXTS),
    st.builds("{} {} {}".format, ANY, SIGNS, ANY),
    ANY,
    st.sampled_from(["terminated", "truncated", "is_complete"]),
)
CONDITIONS = st.recursive(
    COMPARED,
    lambda part: st.one_of(
        st.builds("({} {} {})".format, part, st.sampled_from(["and", "or"]), part), st.builds("not {}".format, part)
    ),
    max_leaves=4,
)
SPELLINGS = ["1_000", "0x10", "1j", "1.", ".5", "2.5.3", "1e1", "1e-1", "007", "00", "09e1", "0.5", "1e999", "9" * 5000]
SPELLINGS += [
    "# ",
    "\n",
    "\t",
    "\xa0",
    "\\",
    "'a\\n'",
    "r'e1'",
    "b'e1'",
    "f'e1'",
    "'''e1'''",
    "'e1' 'e1'",
    "'e\n1'",
    '"e\'1"',
]
SPELLINGS += [
    "e-1",
    "e1-x",
    "a.b",
    "é",
    "٣",
    "None",
    "class",
    "lambda",
    "nth",
    "is",
    "in",
    "if",
    "else",
    "[",
    "]",
    ",",
    ":=",
]
SPELLINGS += [
    "//",
    "**",
    "&",
    "|",
    "~",
    "!",
    "custom_data",
    "custom_data / score",
    "custom_data/'score'",
    "custom_data/3",
]
SPELLINGS += [
    "length",
    "return",
    "id",
    "3",
    "'e1'",
    "True",
    "and",
    "or",
    "not",
    "=",
    "==",
    "<",
    "-",
    "+",
    "*",
    "%",
    "(",
    ")",
]
WORDS = st.lists(st.sampled_from(SPELLINGS), min_size=1, max_size=5)
SPELLED = st.one_of(
    st.builds("".join, WORDS),
    st.builds(" ".join, WORDS),
    st.builds("length{}{}".format, SIGNS, st.sampled_from(SPELLINGS)),
    st.builds("id {} {}".format, SIGNS, st.sampled_from(SPELLINGS)),
    st.builds("{}{}{}".format, COMPARED, st.sampled_from(SPELLINGS), COMPARED),
)


@WITH_BROWSER
def test_page_filter_equals_the_conditions_of_copy(tmp_path: Path, tab: Tab) -> None:
    episodes = []
    for n in range(12):
        episode = plain(np.arange(n) - 3.0, id_=f"e{n}", terminated=n % 3 == 0, truncated=n % 4 == 0)
        episode.custom_data |= {
            "score": n / 2,
            "my key": n % 5,
            "seed": 2**53 + n - 5,
            "sign": [-0.0, 0.0, -1.0][n % 3],
            "digits": DIGITS[n % len(DIGITS)],
            **({"task": f"e{n % 2}"} if n % 3 else {}),
        }
        episodes.append(episode)
    data = write(tmp_path / "data", episodes)
    table = EpisodeDataset(data).metadata
    page = tab.open(report(data))

    @settings(max_examples=300)
    @given(st.one_of(CONDITIONS, SPELLED))
    def check(text: str) -> None:
        with np.errstate(all="ignore"):
            try:
                expected: Any = condition(text)(table).tolist()
                assert condition(text.replace("==", "="))(table).tolist() == expected
            except InvalidArgument:
                expected = None
        script = """(text) => { try { const f = condition(text, table.columns);
            return [...Array(table.num).keys()].map(f); } catch (error) { return null; } }"""
        for same in (text, text.replace("==", "=")):
            assert page.evaluate(script, same) == expected, same

    check()


WRONG_FILTERS = {
    "return >": "the condition is not complete",
    "speed > 3": "unknown column 'speed'",
    "return > 3 4": "4 is out of place",
    "id > 3": "compares numbers with numbers",
    "(return > 3": "a ) is missing",
    "ending == terminated": "ending is a text and terminated a flag; a text is in quotes: ending == 'terminated'",
    "terminated != ending": "a text is in quotes: 'terminated' != ending",
    "ending == length": "ending is a text and length a number; a text is in quotes: ending == 'length'",
    "length == '3'": "compares numbers with numbers, and texts with texts, but '3' is a text and length a number",
    "id == 46831e4": "id is a text and 46831e4 a number; a text is in quotes: id == '46831e4'",
    "id == 04683c44": "a text is in quotes: '04683c44'",
    "id == d91ef583": "a text is in quotes: id == 'd91ef583'",
    "ending == 'cut' or 'terminated'": "'terminated' is a text, no condition; compare it, such as: ending == 'cut'",
    "not id": "id is a text, no condition",
    "id + 1 > 2": "id is a text or None, no number",
    "1 / 0 < return": "a division by 0",
    "length % (2 - 2) > 1": "a division by 0",
    "id == constructor": "unknown column 'constructor'",
    "constructor == 1": "unknown column 'constructor'",
    "column_0 == 1 and return == 1": "unknown column 'column_0'",
    "id = cart-003": "a text is in quotes: id = 'cart-003'",
    "length > 3 and id != cart-x.y": "a text is in quotes: id != 'cart-x.y'",
    "infos/success > 0": "unknown column 'infos'; infos have a value for each step, columns one for each episode",
    "rewards > 0": "unknown column 'rewards'; rewards have a value for each step, columns one for each episode",
    "retrn > 3": "unknown column 'retrn'; did you mean return; the columns are",
    "RETURN > 3": "unknown column 'RETURN'; did you mean return; the columns are",
    "length > 3 AND return > 3": "AND is out of place; did you mean and",
    "NOT truncated": "NOT is out of place; did you mean not",
    "truncated == true": "unknown column 'true'; did you mean True; the columns are",
    "speeed > 3": "unknown column 'speeed'; the columns are",
    "return > 1_000": "1_000 is no number",
    "return > 3 # of all": "cannot read",
    "id == 'a' 'b'": "'b' is out of place",
    "t_started == 9007199254740993": "9007199254740993 is above 2**53",
}
OF_PYTHON = {"return >": "is no condition", "return > 3 4": "is no condition", "(return > 3": "is no condition"}


@WITH_BROWSER
def test_page_wrong_filter_shows_an_error(data: Path, tab: Tab) -> None:
    page = tab.open(report(data))
    for text, message in WRONG_FILTERS.items():
        page.fill("#words", text)
        assert message in tab.texts("#error")[0]
        page.fill("#words", "ending == 'truncated' and return > 2")
        assert tab.texts("#error") == [""]
        assert tab.ids() == ["second"]


@pytest.mark.parametrize("text", WRONG_FILTERS)
def test_wrong_condition_is_an_error_with_the_words_of_the_page(text: str, data: Path) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(OF_PYTHON.get(text, WRONG_FILTERS[text]))):
        condition(text)(EpisodeDataset(data).metadata)


@pytest.mark.parametrize("column", [np.array([1, 2**40], np.uint64), np.array([1, 2**40]), np.array([True, False])])
@pytest.mark.parametrize("sign", ["+", "-", "*", "/", "%"])
@pytest.mark.parametrize("other", ["3", "0", "2.0 ** 62", "-5", "9" * 40 + ".0"])
def test_arithmetic_of_conditions_never_wraps_around(column: np.ndarray, sign: str, other: str) -> None:
    """Numbers are float64, as on the page. A division by a column's 0 is infinite or NaN."""
    with np.errstate(all="ignore"):
        a, b = column.astype(np.float64), np.float64(eval(other))
        results = {"+": a + b, "-": a - b, "*": a * b, "/": a / b, "%": np.mod(a, b)}
    other = str(eval(other))
    assert condition(f"x {sign} y > 5")({"x": column, "y": np.full(2, b)}).tolist() == (results[sign] > 5).tolist()
    if b != 0 or sign not in "/%":
        assert condition(f"x {sign} {other} > 5")({"x": column}).tolist() == (results[sign] > 5).tolist()
    assert condition(f"-x < {other}")({"x": column}).tolist() == (-a < b).tolist()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), SIGNS, st.integers(-(2**53) + 1, 2**53 - 1))
def test_comparisons_of_integers_with_exact_numbers_are_exact(values: list[int], sign: str, number: int) -> None:
    expected = [eval(f"{value} {sign} {number}") for value in values]
    for dtype in (np.int64, object):
        assert condition(f"x {sign} {number}")({"x": np.array(values, dtype)}).tolist() == expected


def test_nested_comparisons_are_evaluated_once() -> None:
    """A comparison of a comparison 40 levels deep."""
    text = "flag"
    for _ in range(40):
        text = f"({text} == 1)"
    assert condition(text)({"flag": np.array([True, False])}).tolist() == [True, False]


@WITH_BROWSER
def test_page_zooms_by_dragging_and_the_address_restores_it(tmp_path: Path, tab: Tab) -> None:
    data = write(tmp_path / "data", [plain(np.arange(200.0), id_="a"), plain(np.arange(100.0), id_="b")])
    page = tab.open(report(data))
    page.locator("#body tr").nth(1).click()
    page.locator("#episode h2", has_text="b").wait_for()
    box = page.locator(".lane svg").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.2 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=4)
    page.mouse.up()
    assert page.evaluate("state.view") == [20, 60]
    page.mouse.move(box["x"] + 0.5 * box["width"], middle)
    assert tab.texts("#now") == ["step 40"]
    assert tab.value("rewards") == "40"
    page.mouse.click(box["x"] + 0.25 * box["width"], middle)
    page.fill("#words", "length < 150")
    page.get_by_role("button", name="length").click()
    page.wait_for_timeout(300)
    address = page.url
    page.goto("about:blank")
    tab.open(address)
    assert page.evaluate("[state.view, state.step, state.filter, state.sort]") == [
        [20, 60],
        30,
        "length < 150",
        "length",
    ]
    assert tab.texts("#episode h2")[0].startswith("b")
    assert tab.ids() == ["b"]
    page.get_by_role("button", name="whole").click()
    assert page.evaluate("state.view") is None


@WITH_BROWSER
def test_page_keyboard_walks_through_rows_and_keeps_focus(tmp_path: Path, tab: Tab) -> None:
    data = write(tmp_path / "data", [plain([float(n)], id_=f"e{n:03d}") for n in range(300)])
    page = tab.open(report(data))
    page.locator("#rows").focus()
    n = 60
    for _ in range(n):
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.id") == "rows"
    page.locator("#episode h2", has_text=f"e{n:03d}").wait_for()
    selected = page.locator("#body tr[aria-selected=true]")
    assert selected.locator("[data-column=id]").inner_text() == f"e{n:03d}"
    assert page.evaluate("document.getElementById('rows').getAttribute('aria-activedescendant')") == f"row-{n}"
    page.keyboard.press("End")
    page.locator("#episode h2", has_text="e299").wait_for()
    assert len(tab.ids()) < 100  # the other rows are not in the document
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "episode"


@WITH_BROWSER
def test_page_compares_two_episodes_and_marks_differences(tmp_path: Path, tab: Tab) -> None:
    rewards = np.zeros(30)
    changed = rewards.copy()
    changed[17:] = 2.0
    page = tab.open(report(write(tmp_path / "data", [plain(rewards, id_="a"), plain(changed, id_="b")])))
    page.locator("#body tr").nth(1).click(modifiers=["Shift"])
    page.get_by_role("button", name="first difference: step 17, rewards").click()
    assert tab.texts("#now") == ["step 17"]
    assert tab.value("rewards") == "0 | 2"
    assert tab.value("actions") == "0 | 0"
    page.get_by_role("button", name="stop comparing").click()
    assert tab.value("rewards") == "0"


@WITH_BROWSER
def test_page_shows_texts_as_turns(tmp_path: Path, tab: Tab) -> None:
    episode = SingleAgentEpisode("chat")
    episode.add_env_reset("what is 2 + 2?", {"tool": "none"})
    episode.add_env_step("thanks", "<b>4</b>", 1.0, {"tool": "calculator"}, terminated=True)
    page = tab.open(report(write(tmp_path / "data", [episode])))
    turns = tab.texts("#turns li")
    assert [turn.split("\n")[-1] for turn in turns if "infos" not in turn] == ["what is 2 + 2?", "<b>4</b>", "thanks"]
    page.locator("#turns li", has_text="thanks").click()
    assert tab.texts("#now") == ["step 1"]


@WITH_BROWSER
def test_pages_show_tokens_as_text_with_decode(tmp_path: Path, tab: Tab) -> None:
    talk = Conversation("chat", outputs={})
    talk.begin([1, 2])
    talk.turn([3], [4], 1.0)
    data, words = write(tmp_path / "data", [talk.episode]), ["", "what ", "is ", "<b>it?</b>", "this"]
    file = write_report(EpisodeDataset(data), tmp_path / "page.html", decode=lambda ids: words[ids[0]])
    with served(data, decode=lambda ids: words[ids[0]]) as server:
        for url in (file.as_uri(), server.url):
            tab.open(url).locator("#conversation").wait_for()
            assert tab.texts("#conversation .ep-token") == words[1:], url


@WITH_BROWSER
def test_page_without_episodes_or_steps_states_it(tmp_path: Path, tab: Tab) -> None:
    tab.open(report(write(tmp_path / "none", [])))
    assert tab.texts("#empty") == ["the data set has no episodes"]
    tab.open(report(write(tmp_path / "short", [plain([], id_="short")])))
    assert tab.texts("#episode h2")[0].startswith("short")
    tab.page.fill("#words", "length > 3")
    assert tab.texts("#empty") == ["no episode matches the filter"]


@WITH_BROWSER
def test_page_charts_of_many_episodes_keep_the_distribution(tmp_path: Path, tab: Tab) -> None:
    """Each group of neighbouring episodes has its quantiles, also of the chosen ones alone."""
    random, num = np.random.default_rng(0), 3000
    returns = np.append(random.uniform(5, 60, num - 1), 1000.0)[random.permutation(num)]
    truncated = random.random(num) < 0.2
    pack = EpisodePack(
        observations=np.zeros(2 * num),
        actions=np.zeros(num, int),
        rewards=returns,
        lengths=np.ones(num, int),
        terminated=~truncated,
        truncated=truncated,
    )
    page = tab.open(report(write(tmp_path / "data", pack)))
    low, high = returns.min(), returns.max()

    def check(chosen: np.ndarray) -> None:
        """Check the drawn quantiles of the chosen returns of each group."""
        drawn = {
            name: read_rows(
                page.locator(f"#overview .chart:not(.chart ~ .chart) .quantile.{name}").get_attribute("d"), pattern
            )
            for name, pattern in (
                ("wide", r"M([\d.]+) ([\d.]+)h[\d.]+V([\d.]+)h"),
                ("half", r"M([\d.]+) ([\d.]+)h[\d.]+V([\d.]+)h"),
                ("median", r"M([\d.]+) ([\d.]+)h[\d.]+"),
            )
        }
        groups = [group[chosen[i]] for i, group in enumerate(returns.reshape(40, -1))]
        places = [4 + 592 * i / 40 for i, group in enumerate(groups) if len(group)]
        for name, shares in (("wide", (0.9, 0.1)), ("half", (0.75, 0.25)), ("median", (0.5,))):
            expected = np.array([np.quantile(group, shares) for group in groups if len(group)])
            assert [x for x, *_ in drawn[name]] == pytest.approx(places, abs=0.06)
            got = low + (90 - np.array([row[1:] for row in drawn[name]])) / 84 * (high - low)
            np.testing.assert_allclose(got, expected, atol=1e-4 * (high - low))

    check(np.ones((40, num // 40), bool))
    dots = page.evaluate(
        "[...document.querySelector('#overview .chart').querySelectorAll('path.dots')].map(p => p.attributes.d.value)"
    )
    assert {y for path in dots for y in re.findall(r" ([\d.]+)h0", path)} == {
        "6.0",
        "90.0",
    }  # the lowest and the highest
    assert f"mean {returns.mean():.4g}"[:8] in tab.texts("#overview h2")[0]
    page.fill("#words", "return < 20")
    chosen = returns[returns < 20]
    assert tab.texts("#overview h2")[0].split("mean ")[1].startswith(f"{chosen.mean():.4g}")
    assert tab.texts("#overview .bar b") == [
        str((~truncated[returns < 20]).sum()),
        str(truncated[returns < 20].sum()),
        "0",
    ]
    check((returns < 20).reshape(40, -1))


@WITH_BROWSER
def test_page_filter_dims_the_dots_of_other_episodes(tmp_path: Path, tab: Tab) -> None:
    page = tab.open(report(write(tmp_path / "data", [plain([float(n)]) for n in range(6)])))
    page.fill("#words", "return < 2")
    dots = dict(
        page.evaluate("""[...document.querySelectorAll("#overview .chart:not(.chart ~ .chart) path.dots")].map((path) =>
        [path.classList.contains("faint"), path.getAttribute("d").split("M").length - 1])""")
    )
    assert dots == {True: 4, False: 2}


@WITH_BROWSER
@pytest.mark.parametrize("num_steps", [40, 5000])
def test_page_bands_have_the_share_of_each_number(num_steps: int, tmp_path: Path, tab: Tab) -> None:
    """Whole numbers are areas without lines, and the area of each number is the share of its steps."""
    actions = np.random.default_rng(1).integers(0, 4, num_steps)
    episode = SingleAgentEpisode.from_arrays(np.zeros(num_steps + 1), actions, np.zeros(num_steps), id_="a")
    page = tab.open(report(write(tmp_path / "data", [episode])))
    bands, lines = page.evaluate("""(() => { const lane = [...document.querySelectorAll(".lane")].find(
        (line) => line.tracks?.[0].label === "actions");
        return [[...lane.querySelectorAll("path.cell")].map((p) => [Number(p.dataset.value), p.getAttribute("d")]),
            [...lane.querySelectorAll("path:not(.cell):not(.odd)")].length]; })()""")
    assert lines == 0
    areas = {
        value: sum(
            (float(right) - float(left)) * float(tall)
            for left, right, tall in re.findall(r"M([\d.]+) [\d.]+H([\d.]+)v([\d.]+)H", path)
        )
        for value, path in bands
    }
    shares = np.bincount(actions) / num_steps
    total = sum(areas.values())
    assert total == pytest.approx(1000 * 24, rel=0.01)
    assert [areas[value] / total for value in range(4)] == pytest.approx(shares.tolist(), abs=0.01)


def played(num_agents: int, num_steps: int, seed: int, id_: str) -> MultiAgentEpisode:
    """Return a game in which random agents act at each step."""
    random, agents = np.random.default_rng(seed), [f"p{i}" for i in range(num_agents)]
    game = MultiAgentEpisode(id_)
    up = {agent for agent in agents if random.random() < 0.6} | {"p0"}
    game.add_env_reset(observations={agent: np.zeros(2) for agent in up})
    for t in range(num_steps):
        actions = {agent: int(random.integers(3)) for agent in up}
        up = {agent for agent in agents if random.random() < 0.6} | {agents[(t + 1) % num_agents]}
        observed = {agent: np.full(2, t + 1.0) for agent in up}
        game.add_env_step(observed, actions, dict.fromkeys(actions, 1.0), terminateds={"__all__": t == num_steps - 1})
    return game


@WITH_BROWSER
def test_page_of_games_has_a_row_and_the_turns_of_each_game(tmp_path: Path, tab: Tab) -> None:
    """Games are counted as games, and the drawn turns are the env steps of each agent's observations and actions."""
    games = [played(2 + n, 7 + n, n, f"game {n}") for n in range(3)]
    data = write(tmp_path / "data", games)
    file = report(data)
    with served(data) as server:
        for url in (file, server.url):
            page = tab.open(url)
            assert tab.texts("#about")[0].startswith("3 games · 24 env steps")
            assert tab.ids() == [game.id_ for game in games]
            for row, game in enumerate(games):
                page.locator("#body tr").nth(row).click()
                page.locator("#episode h2", has_text=game.id_).wait_for()
                assert f"{len(game)} steps, return {game.get_return():.0f}, terminated" in tab.texts("#episode h2")[0]
                drawn = page.evaluate("""[...document.querySelectorAll(".lane.turn")].map((line) => [line.turn.agent,
                    ...[".observes", ".acts"].map((name) => line.querySelector(name).getAttribute("d"))])""")
                turns = {
                    agent: [
                        [round(float(x) * len(game) / 1000) for x in re.findall(r"M([\d.]+)", path)] for path in paths
                    ]
                    for agent, *paths in drawn
                }
                assert turns == {
                    agent: [list(line.observation_times), list(line.action_times)]
                    for agent, line in game.to_numpy().agents.timelines.items()
                }
                page.locator("#step").fill("3")
                for agent, line in game.agents.timelines.items():
                    known = [t for t in line.observation_times if t <= 3]
                    old = "" if known and known[-1] == 3 else f" (of step {known[-1]})" if known else None
                    shown = tab.value(f"{agent}/observations[0]")
                    assert shown == ("" if old is None else f"{known[-1]}{old}")


@WITH_BROWSER
def test_page_keeps_cameras_and_time_in_view(data: Path, tab: Tab) -> None:
    page = tab.open(report(data))
    page.set_viewport_size({"width": 1300, "height": 400})
    page.evaluate("find('keys').scrollIntoView({ block: 'end' })")  # below the last lane
    for name in (".frame", "#step", ".axis"):
        box = page.locator(name).first.bounding_box()
        assert 0 <= box["y"] <= 400, name
    panel, plot = (page.locator(name).bounding_box()["width"] for name in ("#lanes", "#lanes .lane svg >> nth=0"))
    assert plot > 0.9 * panel  # plots take the width


@WITH_BROWSER
def test_page_plays_with_a_speed_joins_lanes_and_lists_keys(data: Path, tab: Tab) -> None:
    page = tab.open(report(data))
    page.locator("#speed").select_option("60")
    page.get_by_label("loop").check()
    page.locator("#play").click()
    steps = page.evaluate("""new Promise((done) => { const steps = []; new MutationObserver(() => {
        steps.push(state.step); if (steps.length > 14) done(steps); }).observe(find("now"), { childList: true }); })""")
    assert all(b == (a + 1 if a < 10 else 0) for a, b in itertools.pairwise(steps))  # and again from the start
    page.locator("#play").click()
    num = page.locator("#lanes .lane").count()
    page.get_by_label("menu of actions").click()
    page.get_by_role("button", name="draw in the lane above").click()
    assert page.locator("#lanes .lane").count() == num - 1
    assert tab.texts("#lanes .lane .name")[0] == "rewards, actions"
    page.wait_for_timeout(300)
    tab.open(page.url)
    assert page.locator("#lanes .lane").count() == num - 1
    page.get_by_label("menu of rewards, actions").press("Enter")  # with the keyboard
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("#lanes .lane").count() == num
    page.get_by_label("menu of actions").click()
    page.get_by_role("button", name="hide", exact=True).click()
    assert "actions" not in tab.texts("#lanes .lane .name")
    page.locator("#episode").focus()
    page.keyboard.press("?")
    assert "Space: play" in page.locator("#keys p").inner_text()
    for focused in ("#episode", "#step"):
        page.locator(focused).focus()
        for words in ("stop", "play"):
            page.keyboard.press(" ")
            assert page.locator("#play").inner_text() == words


@WITH_BROWSER
def test_page_compares_with_a_tolerance(tmp_path: Path, tab: Tab) -> None:
    noise = np.random.default_rng(0).uniform(-0.1, 0.1, 30)
    noise[19] = 3.0
    page = tab.open(report(write(tmp_path / "data", [plain(np.zeros(30), id_="a"), plain(noise, id_="b")])))
    page.locator("#body tr").nth(1).click(modifiers=["Shift"])
    page.get_by_role("button", name="first difference: step 0, rewards").wait_for()
    assert page.locator(".lane path.first").count() == 1
    assert page.locator(".lane path.differing").get_attribute("d").count("M") == 1  # neighbouring steps are one line
    page.get_by_label("tolerance").fill("0.5")
    page.get_by_label("tolerance").press("Enter")
    page.get_by_role("button", name="first difference: step 19, rewards").wait_for()
    assert page.locator(".lane path.first").get_attribute("data-step") == "19"


@st.composite
def drawn_tracks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rewards [T], numbers of outputs [T] and observations [T + 1], also with NaN."""
    num = draw(st.integers(1, 12))
    numbers = st.floats(-1e6, 1e6, width=32)
    odd = numbers | st.just(float("nan"))
    return tuple(
        np.array(draw(st.lists(kind, min_size=n, max_size=n)))
        for kind, n in ((numbers, num), (odd, num), (odd, num + 1))
    )  # type: ignore[return-value]


def read_rows(path: str | None, pattern: str) -> list[list[float]]:
    return [[float(number) for number in found] for found in re.findall(pattern, path or "")]


@WITH_BROWSER
def test_rewards_are_bars_from_zero_outputs_hold_for_a_step_and_observations_are_joined(
    tmp_path: Path, tab: Tab
) -> None:
    """What is drawn comes back: each number at its step, the zero line, and gaps."""
    cases: list[Any] = []

    @settings(max_examples=12, deadline=None)
    @given(drawn_tracks())
    def collect(case: Any) -> None:
        cases.append(case)

    collect()
    episodes = [
        SingleAgentEpisode.from_arrays(
            observations, np.zeros(len(rewards), int), rewards, extra_model_outputs={"x": outputs}, id_=f"e{n}"
        )
        for n, (rewards, outputs, observations) in enumerate(cases)
    ]
    page = tab.open(report(write(tmp_path / "data", episodes)))
    for n, (rewards, outputs, observations) in enumerate(cases):
        page.evaluate("(n) => choose(n)", n)
        page.locator(f"#episode h2 button[title=e{n}]").wait_for()
        lanes = page.evaluate("""Object.fromEntries([...document.querySelectorAll("#lanes .lane")].map((line) => {
            const get = (selector, name) => line.querySelector(selector)?.getAttribute(name);
            const ends = [...line.querySelectorAll(".scale span")].map((end) => end.title);
            return [line.tracks[0].label, [get(".bar", "d"), get("path[stroke]", "d"), get(".zero", "y1"), ends]];
        }))""")
        wide = 1000 / len(rewards)

        def value(y: float, low: float, high: float) -> float:
            return low + (28 - y) / 26 * (high - low) if high > low else low

        path, _, zero, _ = lanes["rewards"]
        low, high = min(0.0, rewards.min()), max(0.0, rewards.max())
        bars = read_rows(path, r"M([\d.]+) ([\d.]+)h[\d.]+V([\d.]+)H")
        near = 1e-3 * (high - low) + 1e-9
        assert [x for x, *_ in bars] == pytest.approx([t * wide for t in range(len(rewards))], abs=0.06)
        assert [value(top, low, high) for _, top, _ in bars] == pytest.approx(np.maximum(rewards, 0).tolist(), abs=near)
        assert [value(end, low, high) for *_, end in bars] == pytest.approx(np.minimum(rewards, 0).tolist(), abs=near)
        assert value(float(zero), low, high) == pytest.approx(0.0, abs=near)
        for label, track, pattern in (
            ("x", outputs, r"[ML]([\d.]+) ([\d.]+)H[\d.]+"),
            ("observations", observations, r"[ML]([\d.]+) ([\d.]+)(?!H)"),
        ):
            known = np.flatnonzero(~np.isnan(track))
            low, high = (float(f(track[known])) if len(known) else np.nan for f in (np.min, np.max))
            points = read_rows(lanes[label][1], pattern)
            assert [x for x, _ in points] == pytest.approx((known * wide).tolist(), abs=0.06)
            got, expected = [value(y, low, high) for _, y in points], track[known].tolist()
            assert got == pytest.approx(expected, abs=0.01 * (high - low) + 1e-9 if len(known) else 0)
            assert (lanes[label][2] is not None) == (len(known) > 0 and low <= 0 <= high and low < high)
            assert (lanes[label][3] == []) == (not len(known))  # no made-up scale


@WITH_BROWSER
@pytest.mark.parametrize("width", [400, 1400])
def test_link_to_an_episode_shows_it_at_the_top(width: int, tmp_path: Path, tab: Tab) -> None:
    """The table is folded into one line with the neighbours, in the order of the table."""
    ids = [f"{n:032x}" for n in (7, 5, 3)]
    url = report(write(tmp_path / "data", [plain([float(n)] * 4, id_=id_) for n, id_ in enumerate(ids)]))
    tab.page.set_viewport_size({"width": width, "height": 800})
    page = tab.open(f"{url}#id={ids[1]}&t=2&sort=-return")
    assert page.locator("#episode").bounding_box()["y"] < 130
    assert page.evaluate("[scrollY, document.documentElement.scrollWidth]") == [0, width]
    assert not page.locator("#rows").is_visible()
    assert tab.texts("#place span, #now") == ["episode 2 of 3", "step 2"]
    assert page.locator("#episode h2 button").get_attribute("title") == ids[1]
    page.get_by_role("button", name="next").press("Enter")
    page.locator("#episode h2", has_text="return 0").wait_for()
    assert tab.texts("#place span") == ["episode 3 of 3"]
    assert page.get_by_role("button", name="next").is_disabled()
    page.get_by_role("button", name="all episodes").press("Enter")
    assert page.locator("tr[aria-selected=true]").is_visible()
    assert tab.ids() == [ids[2], ids[1], ids[0]]
    page.wait_for_timeout(300)
    tab.open(page.url)  # has the table too
    assert page.locator("#rows").is_visible()
    page.get_by_role("button", name="hide the table").press("Enter")
    assert not page.locator("#rows").is_visible()
    assert page.evaluate("document.activeElement.textContent") == "all episodes"
    tab.page.goto("about:blank")
    page = tab.open(f"{url}#id=nobody&t=2")
    assert tab.texts("#episode h2, #episode p") == ["nobody", "This page does not have this episode."]
    assert page.locator("#rows").is_visible()


# --- served -----------------------------------------------------------------------------------------------------------


@WITH_BROWSER
def test_served_page_follows_a_writer(data: Path, tab: Tab) -> None:
    with served(data) as server:
        page = tab.open(server.url)
        page.locator("#body tr", has_text="second").click()
        page.locator("#episode h2", has_text="second").wait_for()
        with EpisodeWriter(data) as writer:
            writer.add([filmed(9, 6, id_="while it is served")])
            writer.flush()
            page.locator("#body tr", has_text="while it is served").wait_for()
            assert page.locator("tr[aria-selected=true] [data-column=id]").inner_text() == "second"
            page.locator("#body tr", has_text="while it is served").click()
            page.locator("#episode h2", has_text="while it is served").wait_for()


@WITH_BROWSER
def test_served_page_pairs_rows_and_episodes_during_flushes(tmp_path: Path, tab: Tab) -> None:
    data = write(tmp_path / "data", [plain([float(n)], id_=f"first {n}") for n in range(20)])
    stop = threading.Event()

    def flush_often(name: str) -> None:
        with EpisodeWriter(data) as writer:
            for n in range(10_000):
                if stop.wait(0.1):
                    return
                writer.add([plain([-float(n)], id_=f"{name} {n}")])
                writer.flush()

    threads = [threading.Thread(target=flush_often, args=(name,)) for name in ("a", "b")]  # 20 flushes per second
    for thread in threads:
        thread.start()
    try:
        with served(data) as server:
            page = tab.open(server.url)
            wrong = 0
            for k in range(100):
                row = page.locator("#body tr").nth(k % 15)
                row.click()
                chosen = page.locator("tr[aria-selected=true] td[data-column=id]").inner_text()
                page.locator("#episode h2", has_text=chosen).wait_for()
                number = page.locator("tr[aria-selected=true] td[data-column=return]").inner_text()
                wrong += f"return {number}," not in tab.texts("#episode h2")[0]
            assert wrong == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@WITH_BROWSER
def test_served_page_without_server_shows_no_other_episode(data: Path, browser: Any) -> None:
    tab = Tab(browser)
    with served(data) as server:
        page = tab.open(server.url)
        page.locator("#body tr", has_text="first").click()
        page.locator("#episode h2", has_text="first").wait_for()
    page.locator("#live", has_text="the server is gone").wait_for()
    page.locator("#body tr", has_text="second").click()
    page.locator("#episode p", has_text="The server is gone.").wait_for()
    assert tab.texts("#episode h2")[0].startswith("second")
    assert all("ERR_CONNECTION_REFUSED" in error for error in tab.errors)  # of the browser, not of the page


@WITH_BROWSER
def test_served_page_follows_a_replaced_data_set_in_two_browsers(tmp_path: Path, browser: Any) -> None:
    data = write(tmp_path / "data", [plain([1.0], id_="old")])
    with served(data) as server:
        tabs = [Tab(browser) for _ in range(2)]
        for tab in tabs:
            tab.open(server.url)
        shutil.rmtree(data)
        write(data, [plain([2.0, 3.0], id_="new")])
        for tab in tabs:
            tab.page.locator("#body tr", has_text="new").click()
            tab.page.locator("#episode h2", has_text="return 5").wait_for()
            assert tab.ids() == ["new"]
            assert not tab.errors
            tab.page.context.close()


@WITH_BROWSER
def test_page_with_any_address_opens(tmp_path: Path, tab: Tab) -> None:
    url = report(write(tmp_path / "data", [plain([], id_="short"), plain([1.0, 2.0], id_="b")]))
    for part in (
        "lanes=x",
        "lanes=3",
        "view=a,b",
        "view=5,9",
        "episode=[1",
        "episode=7",
        "id=&t=x",
        "step=1e99",
        "sort=no",
    ):
        tab.page.goto("about:blank")
        page = tab.open(f"{url}#{part}")
        page.locator("#body tr", has_text="b").click()
        page.locator("#episode h2", has_text="return 3").wait_for()
        page.evaluate("zoom(1, 4)")
        page.evaluate("zoom(9, 12)")
        page.evaluate("zoom()")
        assert page.evaluate("state.view") is None


@WITH_BROWSER
def test_served_page_zoom_gets_exact_numbers(tmp_path: Path, tab: Tab) -> None:
    rewards = np.zeros(100_000)
    rewards[70_001] = 1.0
    with served(write(tmp_path / "data", [plain(rewards)])) as server:
        page = tab.open(server.url)
        page.evaluate("move(70001)")
        assert tab.value("rewards").startswith("0 … 1")
        page.evaluate("zoom(69900, 70100)")
        page.locator(".rail i", has_text="70000").wait_for()
        page.evaluate("move(70001)")
        assert tab.value("rewards") == "1"
        page.evaluate("move(70000)")
        assert tab.value("rewards") == "0"


def test_server_rejects_other_host_names_and_paths(data: Path) -> None:
    with served(data) as server:
        assert server.server_address[0] == "127.0.0.1"
        for path, host, status in (
            ("", "evil.example", 403),
            ("../../etc/passwd", "localhost", 404),
            ("episode", "localhost", 400),
        ):
            request = urllib.request.Request(server.url + path, headers={"Host": host})
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(request)
            assert error.value.code == status
            error.value.close()


def test_server_finds_episodes_by_id_and_not_by_position(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # data sets of earlier versions have repeated ids
    monkeypatch.setattr("episodes.storage.known_chunks.conflicts", lambda *spans: False)

    def lanes(server: PageServer, **query: Any) -> bytes:
        with urllib.request.urlopen(f"{server.url}episode?{urlencode(query)}") as response:
            return response.read()

    with served(data) as server:
        before = lanes(server, id="second", t=0)
        write(data, [filmed(1, 2, id_="new"), filmed(2, 5, id_="second")])
        assert lanes(server, id="second", t=0) == before
        assert lanes(server, id="second", t=0, nth=1) != before
        with pytest.raises(urllib.error.HTTPError) as error:
            lanes(server, id="gone", t=0)
        assert error.value.code == 404
        error.value.close()


def test_server_sends_new_rows_only(data: Path) -> None:
    source = LiveDataset(data)
    assert json.loads(head(source.rows(None)))["meta"]["begin"] == 0
    assert source.rows(source.version) is None
    version = source.version
    write(data, [filmed(1, 2, id_="new")])
    message = json.loads(head(source.rows(version)))["meta"]
    assert (message["begin"], message["num"]) == (3, 4)


def test_server_sends_the_status_of_the_run_when_it_changes(data: Path) -> None:
    statuses = ["running", "running", "finished", "finished"]
    source = LiveDataset(data, run="a", status=lambda: statuses.pop(0))
    assert json.loads(head(source.rows(None)))["meta"]["status"] == "running"
    version = source.version
    assert source.rows(version) is None
    message = json.loads(head(source.rows(version)))["meta"]
    assert (message["status"], message["begin"], message["num"]) == ("finished", 3, 3)
    assert source.rows(source.version) is None


def head(message: bytes | None) -> bytes:
    """Return the JSON of a message."""
    assert message is not None
    return message[4 : 4 + int.from_bytes(message[:4], "little")]


def test_report_text_of_users_cannot_end_a_script(data: Path, tmp_path: Path) -> None:
    write_report(EpisodeDataset(data), tmp_path / "page.html")
    assert "<script>alert" not in (tmp_path / "page.html").read_text()


def test_report_long_episodes_and_many_numbers_are_small() -> None:
    steps = 50_000
    long = SingleAgentEpisode.from_arrays(np.zeros((steps + 1, 100)), np.zeros(steps), np.zeros(steps))
    data = episode_data(long)
    assert len(data["lanes"]) == 102
    assert len(encode(data)) < 600_000
    frames = np.random.default_rng(0).integers(0, 255, (801, 210, 160, 3), np.uint8)
    films = SingleAgentEpisode.from_arrays(frames, np.zeros(800), np.zeros(800))
    assert len(encode(episode_data(films))) < 4_000_000


@pytest.mark.slow
@WITH_BROWSER
def test_report_of_10000_episodes_is_at_most_5_mb(tmp_path: Path, tab: Tab) -> None:
    from episode_runners import SingleAgentEnvRunner

    with SingleAgentEnvRunner("CartPole-v1", num_envs=16, seed=0) as runner:
        pack = runner.sample(num_episodes=10_000, random_actions=True)
    url = report(write(tmp_path / "data", pack))
    assert (tmp_path / "page.html").stat().st_size <= 5_000_000
    page = tab.open(url)
    assert "10,000 of 10,000" in tab.texts("#count")[0]
    page.keyboard.press("End")
    page.locator("#body tr").nth(20).click()
    assert page.locator(".lane").count() == 7
