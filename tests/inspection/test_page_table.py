"""Table of episodes, lanes of an episode and of a game, and what Back returns to, on the page of a data set."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.inspect import examine
from episodes.inspect.html_report import write_report
from episodes.inspect.learned_tracks import LearnedTracks
from episodes.inspect.page_server import LiveDataset
from episodes.inspect.run_findings import TITLES
from episodes.inspect.run_findings_page import COLUMNS, LiveFindings
from episodes.inspect.schema import read_schema
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.copying import condition
from episodes.storage.runs import write_status
from tests.inspection.data import write
from tests.inspection.test_page import WITH_BROWSER, Tab, browser, head, plain, report, served, tab

__all__ = ["browser", "tab"]  # fixtures
NAN = math.nan


def kept(n: int, kept_as: str = "best", num_steps: int | None = None, length: int = 4) -> SingleAgentEpisode:
    """Return an episode of a run as its keeper stores it."""
    episode = plain([float(n)] * length, id_=f"e{n}", terminated=True)
    episode.custom_data |= {"kept_as": kept_as, "num_steps": n if num_steps is None else num_steps, "group": 3}
    return episode


def columns_of(rows: list[tuple[Any, ...]]) -> dict[str, np.ndarray]:
    """Return columns of an update, given the episode, agent, update, worker, ratio, gradient step and advantage."""
    names = ("episode", "agent", "update", "worker", "first_ratio", "first_gradient_step", "advantage")
    lists = list(map(list, zip(*rows, strict=True))) if rows else [[]] * len(names)
    kinds = (object, object, np.int64, float, float, float, float)
    table = {name: np.array(part, kind) for name, part, kind in zip(names, lists, kinds, strict=True)}
    return table | {"t": np.arange(len(rows))}


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "g_left", "g_right", None]),
        st.sampled_from([None, "left", "right"]),
        st.integers(1, 3),
        st.sampled_from([0.0, 1.0, NAN]),
        st.sampled_from([0.5, 1.0, 2.0]),
        st.integers(0, 1),
        st.sampled_from([-1.5, 0.25, NAN]),
    ),
    max_size=12,
)


@given(ROWS, ROWS)
def test_columns_of_episodes_are_the_means_of_their_newest_update(first: list[Any], second: list[Any]) -> None:
    learned = LearnedTracks({"x": columns_of(first), "y": columns_of(second)})
    ids = ["a", "g", "b", "unknown"]
    expected: dict[str, list[float]] = {name: [] for name in ("update", "worker", "log_ratio", "advantage")}
    for id_ in ids:
        rows = [row for row in first + second if row[0] == id_ or (row[1] is not None and row[0] == f"{id_}_{row[1]}")]
        newest = max((row[2] for row in rows), default=NAN)
        rows = [row for row in rows if row[2] == newest]
        workers = {row[3] for row in rows if row[3] == row[3]}
        ratios = [abs(math.log(row[4])) for row in rows if row[5] == 0]
        advantages = [row[6] for row in rows if row[6] == row[6]]
        expected["update"].append(newest)
        expected["worker"].append(workers.pop() if len(workers) == 1 else NAN)
        expected["log_ratio"].append(float(np.mean(ratios)) if ratios else NAN)
        expected["advantage"].append(float(np.mean(advantages)) if advantages else NAN)
    got = learned.columns(ids)
    assert list(got) == [name for name, values in expected.items() if not np.isnan(values).all()]
    for name, values in got.items():
        np.testing.assert_allclose(values, expected[name])


def test_live_rows_are_sent_again_when_an_update_learns_from_an_earlier_episode(tmp_path: Path) -> None:
    data = write(tmp_path / "data", [kept(0), kept(1)])
    row = ("e0", None, 1, 2.0, 1.0, 0, 0.5)
    states = [LearnedTracks({"": columns_of(rows)}) for rows in ([], [row], [row, ("e1", None, 2, 0.0, 1.0, 0, 0.5)])]
    source = LiveDataset(data, learned=lambda: states[0])
    source.rows(None)
    for _ in range(2):
        version, _ = source.version, states.pop(0)
        message = source.rows(version)
        assert json.loads(head(message))["meta"]["begin"] == 0
        assert source.rows(source.version) is None


FILTERS = {
    'kept_as == "worst"': ["e3", "e1"],
    "custom_data/kept_as == 'worst'": ["e3", "e1"],
    "num_steps > 5": ["e1"],
    "worker == 2": ["e2"],
    "update >= 2 and log_ratio > 0.5": ["e2"],
    "advantage < 0": ["e3"],
    "E2": ["e2"],
    "worst": ["e3", "e1"],
}


@WITH_BROWSER
def test_page_of_a_run_sorts_and_filters_by_the_names_in_the_heads(
    tmp_path: Path, tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "training", [kept(1, "worst", 9), kept(2, num_steps=5), kept(3, "worst", 2)])
    rows = [
        ("e1", None, 1, 0.0, 1.0, 0, 1.0),
        ("e2", None, 4, 2.0, 2.0, 0, 2.0),
        ("e3", None, 3, 0.0, 1.0, 0, -1.0),
    ]
    learned = LearnedTracks({"": columns_of(rows)})
    monkeypatch.setattr(LiveFindings, "learned", lambda self, number: learned)
    write_status(tmp_path, settings={}, stopped_by="max_epochs")
    with served(tmp_path) as server:
        tab.page.set_viewport_size({"width": 1500, "height": 900})
        page = tab.open(f"{server.url}episodes/0/training/")
        kept_note = "3 kept episodes (best and worst of their interval): their mean is not the run's."
        assert tab.texts("#overview > .note") == [f"{kept_note} The length of each episode is 4."]
        assert page.locator("#overview svg .here").count() == 4
        assert tab.ids() == ["e3", "e2", "e1"]  # in the order of the training
        assert tab.texts("#rows thead th") == [
            *("#", "id", "return", "update", "worker", "log_ratio", "advantage", "kept_as", "num_steps")
        ]
        assert tab.texts("#same") == ["the same in all rows: length 4, ending terminated, group 3"]
        for text, ids in FILTERS.items():
            page.fill("#words", text)
            assert (tab.ids(), tab.texts("#error")) == (ids, [""]), text
        page.fill("#words", "worker ==")  # not complete: the rows of the last condition stay
        assert tab.ids() == ["e3"]
        assert "the table still shows advantage < 0" in tab.texts("#error")[0]
        page.fill("#words", "nobody")
        assert 'no id and no other text contains "nobody"' in tab.texts("#empty")[0]
        page.fill("#words", "")
        for name, ids in (("worker", ["e2", "e3", "e1"]), ("advantage", ["e2", "e1", "e3"])):
            page.locator(f"th button[data-column={name}]").click()
            assert tab.ids() == ids
        for ids in (["e3", "e1", "e2"], ["e3", "e2", "e1"]):  # the other way, and the order of the training again
            page.locator("th button[data-column=advantage]").click()
            assert tab.ids() == ids
        page.locator("#body tr", has_text="e2").click()
        page.locator("#episode h2", has_text="sampled by worker 2").wait_for()
        for name in ("update", "worker", "log_ratio", "kept_as", "num_steps"):
            title = page.locator("#rows thead th", has_text=name).locator("button").get_attribute("title")
            assert len(title.split()) > 3, name
        page.locator("th button[data-column=log_ratio]").focus()
        assert tab.texts("#meaning")[0].startswith("log_ratio: how much the policy differed")
        page.set_viewport_size({"width": 700, "height": 900})
        page.set_viewport_size({"width": 400, "height": 900})
        page.locator("#chooser summary", has_text="more columns").click()
        assert {"id", "return", "update", "worker", "log_ratio"} <= set(tab.texts("#rows thead th"))
        assert page.evaluate("find('rows').scrollWidth - find('rows').clientWidth") <= 1
        page.locator("#chooser input[data-column=advantage]").click()
        page.wait_for_url("**columns=**")
        page.reload()
        page.locator("body[data-ready=yes]").wait_for()
        assert "advantage" in tab.texts("#rows thead th")


@WITH_BROWSER
def test_column_that_begins_later_stays_at_its_rows(tmp_path: Path, tab: Tab) -> None:
    """The browser has no earlier values of a column that was empty."""
    page = tab.open(report(write(tmp_path / "data", [kept(0)])))
    script = """() => { addRows({ ...table, num: 3, begin: 1, columns: Object.fromEntries(["id", "seed"].map((name) =>
        [name, { texts: ["x", "y"], codes: [1, 2] }])) }); return table.columns.seed; }"""
    assert page.evaluate(script) == [None, "x", "y"]


@WITH_BROWSER
def test_back_returns_to_the_episodes_before(tmp_path: Path, tab: Tab) -> None:
    page = tab.open(report(write(tmp_path / "data", [kept(n) for n in range(4)])))
    title, difference = page.locator("#episode h2"), page.locator("#difference")

    def shows(id_: str, compared: str = "") -> None:
        title.filter(has_text=id_).wait_for()
        difference.filter(has_text=f"compared with {compared}").wait_for() if compared else difference.wait_for(
            state="detached"
        )

    page.locator("#body tr").nth(1).click()
    shows("e1")
    page.get_by_role("button", name="compare").press("Enter")
    page.locator("#body tr").nth(3).click()
    shows("e1", "e3")
    page.locator("#body tr").nth(2).click()
    shows("e2")
    page.locator("#step").fill("3")  # no entry of its own
    for id_, compared in (("e1", "e3"), ("e1", ""), ("e0", "")):
        page.go_back()
        shows(id_, compared)
    page.go_forward()
    page.go_forward()
    shows("e1", "e3")
    page.locator("#rows").focus()
    page.get_by_role("button", name="compare").press("Enter")
    page.locator("#rows").press("ArrowDown")  # with the keyboard
    shows("e1", "e2")
    ending = "getComputedStyle(document.querySelector('#body tr[aria-selected=true] td[data-column=return]')).color"
    assert page.evaluate("getSelection().toString()") == ""
    assert page.evaluate(ending)


@WITH_BROWSER
def test_lanes_are_shared_among_agents_and_name_what_is_left_out(tmp_path: Path, tab: Tab) -> None:
    game = MultiAgentEpisode("g")
    agents = ["a", "b", "c"]

    def observed(t: float) -> dict[str, Any]:
        return {agent: {"hand": np.full(52, t), "trick": np.full(3, t)} for agent in agents}

    game.add_env_reset(observations=observed(0.5))
    for t in range(3):
        actions, rewards = dict.fromkeys(agents, 0.5), {agent: float(i) for i, agent in enumerate(agents)}
        game.add_env_step(observed(t + 0.25), actions, rewards, terminateds={"__all__": t == 2})
    page = tab.open(report(write(tmp_path / "data", [game])))  # type: ignore[list-item]
    labels = "(agent) => chosenLanes().filter((one) => one.agent === agent).map((one) => one.label.slice(2))"
    wanted = ["rewards", "actions", "observations/hand[0]", "observations/hand[1]"]
    wanted += [f"observations/trick[{k}]" for k in range(3)]
    for agent in agents:
        assert sorted(page.evaluate(labels, agent)) == sorted(wanted)
    assert tab.texts("#left button") == [f"{agent}/observations/hand (50 of 52 lanes)" for agent in agents]
    assert page.locator(".lane.turn").count() == 0  # all act at every step
    assert tab.texts("#agents button") == agents
    page.get_by_role("button", name="by quantity").press("Enter")
    names = tab.texts("#lanes .lane .name")
    assert names[:2] == ["rewards: a, b, c", "actions: a, b, c"]
    assert tab.value("rewards: ") == "0, 1, 2"
    page.evaluate("saveNow()")
    tab.open(page.url)
    assert tab.texts("#lanes .lane .name") == names
    page.get_by_role("button", name="b/observations/hand").click()
    assert len(page.evaluate(labels, "b")) == 57
    page.locator("#picker summary").click()
    page.get_by_label("search lanes").fill("c/observations/TRICK")
    assert page.locator("#picker label:visible").all_inner_texts() == [f"c/observations/trick[{k}]" for k in range(3)]


@WITH_BROWSER
def test_agents_without_a_value_at_a_step_have_a_dash(tmp_path: Path, tab: Tab) -> None:
    game = MultiAgentEpisode("g")
    game.add_env_reset(observations={"a": 0.0})
    for t, (agent, after) in enumerate([("a", "b"), ("b", "c"), ("c", "a")]):
        game.add_env_step({after: float(t)}, {agent: 0.5}, {agent: 2.0})
    page = tab.open(report(write(tmp_path / "data", [game])))  # type: ignore[list-item]
    page.get_by_role("button", name="by quantity").press("Enter")
    readings = []
    for step in range(3):
        page.evaluate("(step) => move(step)", step)
        readings.append(tab.value("observations: "))
    assert readings == ["0, \u2013, \u2013", "0 (of step 0), 0, \u2013", "0 (of step 0), 0 (of step 1), 1"]


@WITH_BROWSER
def test_observations_of_turns_are_drawn_until_the_next_turn(tmp_path: Path, tab: Tab) -> None:
    """Without a slope, whose values were never observed. An agent's button opens its lanes in each mode."""
    game = MultiAgentEpisode("g")
    game.add_env_reset(observations={"a": 0.0})
    for t in range(9):
        agent, after = ("a", "b") if t % 2 == 0 else ("b", "a")
        game.add_env_step({after: float(t * t)}, {agent: 1}, {agent: 0.0})
    page = tab.open(report(write(tmp_path / "data", [game])))  # type: ignore[list-item]
    page.get_by_role("button", name="by quantity").press("Enter")
    page.locator("#lanes .turn button", has_text="a").first.press("Enter")
    assert page.locator("#modes button[aria-pressed=true]").all_inner_texts() == ["by agent"]
    path = page.evaluate("""() => {
        const track = shown.lanes.find((one) => one.label === "a/observations");
        return path(shown, track, 0, 49);
    }""")
    points = [(kind, [float(word) for word in words.split()]) for kind, words in re.findall(r"([MLH])([\d. ]+)", path)]
    assert [kind for kind, _ in points] == [*"MH", *"LH" * 4]
    at = None
    for kind, numbers in points:
        assert kind != "L" or numbers[0] == at
        at = numbers[0]
    heights = [numbers[1] for kind, numbers in points if kind != "H"]
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) == 5


@WITH_BROWSER
@pytest.mark.parametrize(
    "focused", ["#play", "#body button, th button", "#keys summary", "#rows", "#scrub input[type=checkbox]"]
)
def test_left_and_right_step_whatever_button_has_the_focus(focused: str, tmp_path: Path, tab: Tab) -> None:
    page = tab.open(report(write(tmp_path / "data", [plain([1.0] * 9, id_="e"), plain([2.0] * 9, id_="f")])))
    page.locator(focused).first.focus()
    for key, step in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        assert page.evaluate("state.step") == step
    page.keyboard.press("Space")
    assert page.evaluate("Boolean(playing)") == (focused in ("#play", "#rows"))  # Space presses what has the focus
    for chosen in ("#words", "#ending", "#speed", "#step"):
        page.evaluate("stop(), move(4)")
        page.locator(chosen).focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("state.step") == (5 if chosen == "#step" else 4)
    assert tab.texts(".places")[0].split() == ["episode", "0", "1"]  # as in the first column of cards


@WITH_BROWSER
def test_lanes_have_the_scale_of_the_steps_in_view(tmp_path: Path, tab: Tab) -> None:
    outputs = {"x": np.array([100.0, 1, 2, 3, -50]), "learner": {"values": np.arange(5.0), "value_targets": np.ones(5)}}
    outputs["learner"]["logp_difference"] = np.array([NAN, 0, NAN, NAN, NAN])  # type: ignore[index]
    episode = SingleAgentEpisode.from_arrays(
        np.zeros(6), np.zeros(5, int), np.zeros(5), id_="e", extra_model_outputs=outputs
    )
    page = tab.open(report(write(tmp_path / "data", [episode])))
    lane = page.locator("#lanes .lane", has_text="x")
    scale = lane.locator(".scale span")
    assert scale.all_inner_texts() == ["100", "-50"]
    page.evaluate("zoom(1, 3)")
    assert scale.all_inner_texts() == ["2", "1"]  # of steps 1 and 2
    assert "learner/values, learner/value_targets" in tab.texts("#lanes .lane .name")  # one scale
    assert tab.texts("#left button") == ["learner/logp_difference: 0 at all 1 known step"]
    low = lane.locator("svg").bounding_box()["height"]
    page.get_by_label("menu of x").click()
    page.get_by_role("button", name="large").click()
    assert lane.locator("svg").bounding_box()["height"] > 4 * low
    page.locator("#left button").click()
    page.get_by_role("button", name="next known step").click()
    assert tab.texts("#now") == ["step 1"]
    assert "known for 1 of 5 steps: only those of the first gradient step" in tab.texts(".legend")[0]


@WITH_BROWSER
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize(("reward", "text"), [(np.inf, "∞"), (-np.inf, "-∞"), (NAN, "NaN")])
def test_page_shows_bad_data_at_the_top(reward: float, text: str, width: int, tmp_path: Path, tab: Tab) -> None:
    episodes = [kept(1), plain([0.0, 1.0, reward], id_="bad", terminated=True)]
    data = EpisodeDataset(write(tmp_path / "data", episodes))
    tab.page.set_viewport_size({"width": width, "height": 900})
    page = tab.open(write_report(data, tmp_path / "page.html", findings=examine(data)).as_uri())
    assert page.locator("#doctor summary").bounding_box()["y"] < page.locator("#overview").bounding_box()["y"]
    assert page.locator("#doctor summary").bounding_box()["y"] < 130
    assert tab.texts("#body td.bad[data-column=return]") == [text]
    page.locator("#body tr", has_text="bad").click()
    page.locator("#episode h2", has_text=f"return {text}").wait_for()
    if text != "NaN":
        assert page.locator("#overview .infinite").count() == 1
        page.get_by_role("button", name=f"{text} at step 2", exact=True).click()
        assert tab.texts("#now") == ["step 2"]
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("num", "read"), [(15, 15), (1000, 1000), (1001, 200)])
def test_schema_reads_all_episodes_of_a_small_data_set(num: int, read: int, tmp_path: Path) -> None:
    schema = read_schema(EpisodeDataset(write(tmp_path / "data", [plain([float(n)], id_=str(n)) for n in range(num)])))
    assert (schema.num_read, schema.tracks[0].series.range[2]) == (read, num - 1)


@WITH_BROWSER
def test_page_numbers_episodes_and_counts_findings(tmp_path: Path, tab: Tab) -> None:
    rewards = [[1.0], [np.nan], [2.0, np.inf], [3.0]]
    episodes = [plain(values, id_=f"e{n}", terminated=True) for n, values in enumerate(rewards)]
    data = EpisodeDataset(write(tmp_path / "data", episodes))
    findings = examine(data)
    expected = [sum(one.episode == f"e{n}" for one in findings) for n in range(4)]
    assert expected[0] == 0 < expected[1]
    with served(data.path) as server:
        page = tab.open(server.url)
        page.fill("#words", "findings > 0")
        assert "unknown column 'findings'" in tab.texts("#error")[0]
        page.get_by_role("button", name="run the doctor").click()
        page.locator("th button[data-column=findings]").wait_for()
        counted = page.evaluate("Array.from(table.columns.findings)")
        assert counted == expected
        assert tab.ids() == [f"e{n}" for n in range(4) if expected[n]]
        assert len(tab.texts("#body td.bad[data-column=findings]")) == sum(count > 0 for count in expected)
        page.fill("#words", "nth % 2 = 1")
        assert tab.texts("#body td:first-child") == ["1", "3"]
        page.fill("#words", "")
        page.locator("th button[data-column=nth]").click()
        assert tab.ids() == ["e3", "e2", "e1", "e0"]
        assert "conditions: nth, id" in page.locator("#names").text_content()
        names = page.locator("#names").text_content()
        assert "episode_length" not in names
        page.fill("#words", "lenght > 1")
        assert tab.texts("#error")[0].split("the columns are ")[1].startswith(names.split(": ")[1].rstrip("."))
        assert tab.texts("#count") == ["still 4 of 4"]
        page.fill("#words", "nth < 2")
        page.fill("#words", "nth < 2 or")
        assert tab.texts("#count") == ["still 2 of 4 (the last filter)"]
        page.locator("h1").click()
        page.keyboard.press("/")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.id") == "rows"
        assert page.input_value("#words") == "nth < 2 or"
        page.fill("#words", "")
        page.set_viewport_size({"width": 400, "height": 900})
        page.wait_for_function("() => fitted === `${document.body.clientWidth} true`")
        heads = tab.texts("#rows thead th")
        assert heads.index("findings") < (heads.index("ending") if "ending" in heads else len(heads))
        offered = page.locator("#chooser input").evaluate_all("boxes => boxes.map((box) => box.dataset.column)")
        repeated = {"episode_return", "episode_length", "terminated", "truncated"}  # what other columns say
        assert set(offered) == set(page.evaluate("Object.keys(table.columns)")) - {"id"} - repeated
        page.locator("#chooser summary").click()
        page.locator("#chooser input[data-column=is_complete]").check()
        assert "is_complete" in tab.texts("#rows thead th")


@pytest.mark.parametrize("name", ["findings", "update", "worker", "log_ratio", "advantage"])
def test_columns_of_pages_are_no_columns_of_conditions_in_python(name: str, tmp_path: Path) -> None:
    table = EpisodeDataset(write(tmp_path / "data", [kept(0)])).metadata
    with pytest.raises(InvalidArgument, match=f"'{name}' is a column of pages alone"):
        condition(f"{name} > 0")(table)


@WITH_BROWSER
def test_invalid_filter_stays_in_its_box(tmp_path: Path, tab: Tab) -> None:
    data = write(tmp_path / "data", [kept(n) for n in range(4)])
    with served(data) as server:
        page = tab.open(server.url)
        page.fill("#words", "nth < 2")
        page.fill("#words", "nth < 2 and")
        polls = page.evaluate("version")
        with EpisodeWriter(data) as writer:
            writer.add([kept(9)])
        for act in (
            lambda: page.keyboard.press("Enter"),
            lambda: page.locator("#body tr").nth(1).click(),
            lambda: page.locator("th button[data-column=nth]").click(),
            lambda: page.wait_for_function("(before) => version !== before", arg=polls),
        ):
            act()
            assert page.input_value("#words") == "nth < 2 and"
            assert "the condition is not complete" in tab.texts("#error")[0]
            assert sorted(tab.ids()) == ["e0", "e1"]
        page.wait_for_url("**filter=nth+%3C+2+and**")
        page.reload()
        page.locator("body[data-ready=yes]").wait_for()
        assert page.input_value("#words") == "nth < 2 and"
        assert "the condition is not complete; the table still shows all rows" in tab.texts("#error")[0]


RANDOM = "04683c44" + "0123456789abcdef" * 2
LONG = "robot-007-of-the-long-run-2026-07-03T12:33:11"


@WITH_BROWSER
def test_short_id_in_a_condition_is_named_and_found(tmp_path: Path, tab: Tab) -> None:
    ids = [RANDOM[:32], LONG, "e3"]
    page = tab.open(report(write(tmp_path / "data", [plain([float(n)], id_=id_) for n, id_ in enumerate(ids)])))
    short = tab.texts("#body td[data-column=id]")
    assert (short[0], short[2]) == ("04683c44…", "e3")
    for n, written in ((0, "04683c44"), (0, short[0]), (1, short[1]), (1, "robot")):
        page.fill("#words", f"id = '{written}'")
        assert f"no id equals '{written}', but 1 begins with it" in tab.texts("#empty")[0]
        page.get_by_role("button", name=f"find {written}").click()
        assert tab.ids() == [ids[n]]
    page.fill("#words", "id = 'nobody'")
    assert tab.texts("#empty") == ["no episode matches the filter"]


@WITH_BROWSER
def test_short_ids_have_the_parts_of_the_id_and_differ_from_others(tmp_path: Path, tab: Tab) -> None:
    page = tab.open(report(write(tmp_path / "data", [kept(0)])))
    parts = st.sampled_from(
        [RANDOM[:32], RANDOM, "run", "_right", "-007", "x" * 20, "ü", "b1946ac92492d2347c6235b4d2611184"]
    )
    ids = st.lists(parts, min_size=1, max_size=4).map("".join)

    @settings(max_examples=60)
    @given(ids, st.lists(ids, max_size=4))
    def check(id_: str, others: list[str]) -> None:
        alone = page.evaluate("(id) => shortId(id)", id_)
        assert len(alone) <= 24
        for most in (24, 11):
            every = [id_, *others]
            shorts = page.evaluate("([ids, most]) => ids.map((id) => shortId(id, ids, most))", [every, most])
            assert len(set(shorts)) == len(set(every))
            assert page.evaluate("([id, others, most]) => shortId(id, others, most)", [id_, others, most]) == shorts[0]
            for id_of, short in zip(every, shorts, strict=True):
                assert ("…" in short) == (short != id_of)
                assert re.fullmatch(".*".join(map(re.escape, short.split("…"))), id_of)
                assert len(short) <= most or short == id_of

    check()


@WITH_BROWSER
@pytest.mark.parametrize("width", [400, 1400])
def test_keys_reach_each_row_in_the_window(width: int, tmp_path: Path, tab: Tab) -> None:
    tab.page.set_viewport_size({"width": width, "height": 500})
    page = tab.open(report(write(tmp_path / "data", [kept(n) for n in range(200)])))
    page.locator("#rows").focus()
    for key, row in (("End", 199), ("k", 198), ("ArrowUp", 197), ("j", 198), ("Home", 0), ("j", 1), ("End", 199)):
        page.keyboard.press(key)
        page.wait_for_function("(row) => rowOf(state.episode) === row && find(`row-${row}`) !== null", arg=row)
        low, high = page.evaluate(
            "(row) => { const box = find(`row-${row}`).getBoundingClientRect(); return [box.top, box.bottom]; }", row
        )
        assert 0 <= low < high <= 500, key
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "words"
    assert page.input_value("#words") == ""


@WITH_BROWSER
def test_bars_of_amounts_begin_at_zero_on_the_scale_of_their_column(tmp_path: Path, tab: Tab) -> None:
    page = tab.open(report(write(tmp_path / "data", [kept(0)])))
    number = st.floats(-1e308, 1e308) | st.sampled_from([np.nan, np.inf, -np.inf])

    @settings(max_examples=50)
    @given(st.lists(number, min_size=1, max_size=8))
    def check(values: list[float]) -> None:
        script = """(values) => { table.columns.x = values.map(Number);
            return table.columns.x.map((one) => barOf("x", one) ?? null); }"""
        bars = page.evaluate(
            script, [{np.inf: "Infinity", -np.inf: "-Infinity"}.get(v, "NaN" if v != v else v) for v in values]
        )
        known = [value for value in values if np.isfinite(value)]
        low, high = min([0.0, *known]), max([0.0, *known])
        for value, bar in zip(values, bars, strict=True):
            if not np.isfinite(value) or len(set(known)) == 1:
                assert bar is None
                continue
            ends = [float(part.split(":")[1][:-1]) for part in bar.split(";")]
            expected = [100 * (end / 2 - low / 2) / (high / 2 - low / 2) for end in sorted([0.0, value])]
            assert ends == pytest.approx(expected, abs=0.06)

    check()


@WITH_BROWSER
def test_lanes_are_called_lanes(tmp_path: Path, tab: Tab) -> None:
    page = tab.open(report(write(tmp_path / "data", [plain([1.0])])))
    page.locator("#body tr").first.click()
    assert re.fullmatch(r"(\d+) of \1 lanes", page.locator("#picker summary").inner_text())


AXES = {
    "training step": ([5, 5, 90, 7, 400], "num_steps", [5, 5, 90, 7, 400]),
    "episode in the order of the training": ([5] * 5, None, [0, 1, 2, 3, 4]),  # of equal steps
    "episode": (None, "nth", [0, 1, 2, 3, 4]),
}


@WITH_BROWSER
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("title", ["returns", "lengths"])
def test_charts_of_episodes_have_the_places_that_their_axis_names(
    title: str, axis: str, tmp_path: Path, tab: Tab
) -> None:
    steps, column, places = AXES[axis]
    lengths = [3, 1, 4, 2, 6]
    episodes = [plain([float(n) + 2] * length, id_=f"e{n}", terminated=True) for n, length in enumerate(lengths)]
    for n, episode in enumerate(episodes if steps else []):
        episode.custom_data |= {"num_steps": steps[n]}  # type: ignore[index]
    page = tab.open(report(write(tmp_path / "data", episodes)))
    plot = page.locator("#overview .chart").nth(["returns", "lengths"].index(title)).locator(".plot")
    ends = plot.locator(".places span").all_inner_texts()
    low, high = min(places), max(places)
    assert ends == [f"{axis} {low}", str(high)]
    dots = re.findall(r"M([\d.]+) ([\d.]+)h0", plot.locator("path.dots").first.get_attribute("d"))
    values = lengths if title == "lengths" else [(n + 2.0) * length for n, length in enumerate(lengths)]
    drawn = sorted((low + (float(x) - 4) / 592 * (high - low), float(y)) for x, y in dots)
    by_height = [y for _, y in sorted(drawn, key=lambda dot: dot[1])]
    assert [x for x, _ in drawn] == pytest.approx(sorted(places), abs=0.1 * (high - low) / 592 + 1e-9)
    tall = [(90 - y) / 84 * (max(values) - min(values)) + min(values) for y in by_height]
    assert tall == pytest.approx(sorted(values, reverse=True), abs=0.2)
    box = plot.locator("svg").bounding_box()

    def drag(a: float, b: float) -> None:
        """Drag from one share of the width to another one."""
        y = box["y"] + 20
        page.mouse.move(box["x"] + a * box["width"], y)
        page.mouse.down()
        page.mouse.move(box["x"] + (a + b) / 2 * box["width"], y)
        page.mouse.move(box["x"] + b * box["width"], y)
        page.mouse.up()

    page.evaluate("window.before = keyText(state.episode)")
    for a, b in ((0.1, 0.9), (0.8, 0.2)):  # the second one replaces the first one, from right to left
        drag(a, b)
        left, right = (low + (600 * share - 4) / 592 * (high - low) for share in sorted((a, b)))
        written = f"{column} >= {math.ceil(left)} and {column} <= {math.floor(right)}"
        assert page.input_value("#words") == (written if column else "")
        wanted = [f"e{n}" for n in range(5) if column is None or left <= places[n] <= right]
        assert sorted(tab.ids()) == wanted
    assert page.evaluate("keyText(state.episode) === before") == bool(column)  # without a range it is a click


@WITH_BROWSER
def test_bars_of_endings_and_the_select_are_one_filter_and_leave_the_text(tmp_path: Path, tab: Tab) -> None:
    ends = [(True, False), (False, True), (True, True), (False, False), (True, False)]
    episodes = [plain([1.0, n], id_=f"e{n}", terminated=a, truncated=b) for n, (a, b) in enumerate(ends)]
    page = tab.open(report(write(tmp_path / "data", episodes)))
    rows = {"terminated": [0, 4], "truncated": [1], "terminated and truncated": [2], "cut": [3]}
    texts: dict[str, Any] = {"": range(5), "nth < 4": range(4), "nth = 0 or nth = 4": (0, 4), "e": range(5)}
    for text, matches in texts.items():
        page.fill("#words", text)
        for name, wanted in rows.items():
            known = [f"e{row}" for row in wanted if row in matches]
            bar = page.locator(f"#overview .bar[data-ending='{name}']")
            if not known:
                assert not bar.count() or bar.is_disabled()
                continue
            for choose in (lambda bar=bar: bar.press("Enter"), lambda name=name: page.select_option("#ending", name)):
                choose()
                assert tab.ids() == known
                assert (page.input_value("#ending"), bar.get_attribute("aria-pressed")) == (name, "true")
                counts = page.locator("#overview .bar").evaluate_all(
                    "(bars) => Object.fromEntries(bars.map((bar) => [bar.dataset.ending, bar.lastChild.innerText]))"
                )
                assert {one: int(count) for one, count in counts.items() if count != "0"} == {
                    one: n for one, of in rows.items() if (n := len(set(of) & set(matches)))
                }  # those of the text alone, so that another one can be chosen at once
                bar.press("Enter")
                assert page.input_value("#ending") == ""
                assert page.evaluate("document.activeElement.className") == "bar"
                assert page.input_value("#words") == text
                assert tab.ids() == [f"e{row}" for row in matches]


@WITH_BROWSER
def test_order_of_the_table_is_marked(tmp_path: Path, tab: Tab) -> None:
    for name, steps, column in (("a", [9, 5, 7], "num_steps"), ("b", [None] * 3, "#")):
        episodes = [plain([float(n)], id_=f"e{n}") for n in range(3)]
        for episode, step in zip(episodes, steps, strict=True):
            episode.custom_data |= {} if step is None else {"num_steps": step}
        page = tab.open(report(write(tmp_path / name / "data", episodes)))
        marks = "heads => heads.map((th) => [th.innerText, th.ariaSort]).filter(([, sort]) => sort !== 'none')"
        heads = page.locator("#rows thead th")
        assert heads.evaluate_all(marks) == [[column, "ascending"]]
        page.locator("th button[data-column=return]").click()
        assert heads.evaluate_all(marks) == [["return", "descending"]]


@WITH_BROWSER
def test_table_of_a_link_fits_as_without_it_and_shows_the_columns_that_are_named(tmp_path: Path, tab: Tab) -> None:
    """The width of a table that is shown later, or in a window that changes, is that of one shown at once."""
    episodes = [kept(n, ["best", "worst"][n % 2], 1000 * n, length=2 + n) for n in range(6)]
    for n, episode in enumerate(episodes):
        episode.custom_data |= {f"a_long_name_of_custom_data_{k}": n * k for k in range(9)} | {"worker": n % 2}
    url = report(write(tmp_path / "data", episodes))
    layout = "[find('rows').clientWidth, find('rows').scrollWidth, ...visibleColumns()]"

    def settled() -> Any:
        """Return the layout after the table was fitted."""
        widths = "() => fitted === `${document.body.clientWidth} ${find('rows').clientWidth > 0}`"
        page.wait_for_function(widths, timeout=20_000)
        return page.evaluate(layout)

    link = 'episode=["e2",0,"",0]'
    for width in (1400, 1000, 400):
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.page.goto("about:blank")
        page = tab.open(f"{url}#list=yes&{link}")
        at_once = settled()
        assert at_once[1] <= at_once[0] + 1
        page.set_viewport_size({"width": width + 300, "height": 900})
        settled()
        page.set_viewport_size({"width": width, "height": 900})
        assert settled() == at_once
        tab.page.goto("about:blank")
        page = tab.open(f"{url}#{link}")
        page.get_by_role("button", name="all episodes").press("Enter")
        assert settled() == at_once
        assert "custom_data/worker" not in at_once
        for named in ("keep=worker", "filter=worker+%3D+0", "sort=custom_data/worker"):
            tab.page.goto("about:blank")
            page = tab.open(f"{url}#{link}&{named}")
            page.get_by_role("button", name="all episodes").press("Enter")
            assert "custom_data/worker" in settled(), named


def test_links_of_findings_name_columns_of_episodes() -> None:
    names = LearnedTracks({"": columns_of([("e", None, 1, 2.0, 1.0, 0, 0.5)])}).columns(["e"])
    assert set(COLUMNS) <= set(TITLES)
    assert set(COLUMNS.values()) <= set(names)


@WITH_BROWSER
@pytest.mark.parametrize("width", [400, 1400])
def test_sorted_and_filtered_tables_begin_at_the_top_and_keep_the_episode(width: int, tmp_path: Path, tab: Tab) -> None:
    tab.page.set_viewport_size({"width": width, "height": 700})
    page = tab.open(report(write(tmp_path / "data", [kept(n, length=1 + n % 7) for n in range(300)])))
    page.locator("#overview svg").first.click(position={"x": 150, "y": 40})
    page.wait_for_function("() => rowOf(state.episode) > 0")
    row = page.evaluate("rowOf(state.episode)")
    is_seen = """(row) => { const place = (id) => find(id)?.getBoundingClientRect();
        const [line, box] = [place(`row-${row}`), place("rows")];
        return Boolean(line) && line.top >= box.top && line.bottom <= Math.min(box.bottom, innerHeight) + 1; }"""
    assert page.evaluate(is_seen, row)
    returns = [n * (1 + n % 7) for n in range(300)]

    def first() -> int:
        """Return the row at the top of the table, while the chosen episode stays."""
        assert page.evaluate("rowOf(state.episode)") == row
        assert page.evaluate("find('rows').scrollTop") == 0
        return page.evaluate("order[0]")

    for column, best in (
        ("return", returns.index(max(returns))),
        ("return", returns.index(min(returns))),
        ("nth", 299),
    ):
        page.evaluate("find('rows').scrollTop = 3000")
        page.locator(f"th button[data-column={column}]").press("Enter")
        assert first() == best
    page.evaluate("find('rows').scrollTop = 3000")
    page.fill("#words", f"nth >= {row - 50}")
    assert first() == 299
    assert tab.texts("#outside") == [""]
    page.fill("#words", "nth < 0")
    assert tab.texts("#outside") == [f"episode e{row} is not among the 0 shown"]
    page.fill("#words", f"nth < {row}")
    assert tab.texts("#outside") == [f"episode e{row} is not among the {row} shown open the first match"]
    page.get_by_role("button", name="open the first match").press("Enter")
    page.locator("#episode h2", has_text=f"e{row - 1}").wait_for()
    assert tab.texts("#outside") == [""]
    page.fill("#words", "")
    if width == 400:
        page.locator("#body tr").nth(5).click()
        page.wait_for_function("() => document.querySelector('#reading').getBoundingClientRect().top < 20")
        assert page.locator("#overview").bounding_box()["y"] < page.locator("#episode").bounding_box()["y"]
        page.get_by_role("button", name="back to the table").press("Enter")
        assert page.evaluate("document.activeElement.id") == "rows"
        assert page.evaluate(is_seen, page.evaluate("rowOf(state.episode)"))


@WITH_BROWSER
def test_menu_of_columns_closes_and_comparing_says_what_to_do(tmp_path: Path, tab: Tab) -> None:
    page = tab.open(report(write(tmp_path / "data", [kept(n) for n in range(3)])))
    summary = page.locator("#chooser summary")
    for close in (lambda: page.keyboard.press("Escape"), lambda: page.locator("h1").click()):
        summary.click()
        page.locator("#chooser input").first.focus()
        close()
        assert page.locator("#chooser[open]").count() == 0
    for width in (400, 700, 1400):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function("() => fitted === `${document.body.clientWidth} true`")
        boxes = "['compare', 'chooser', 'fold', 'rows'].map((id) => JSON.stringify(find(id).getBoundingClientRect()))"
        before = page.evaluate(boxes)
        summary.click()
        assert page.evaluate(boxes) == before  # the menu moves nothing
        assert len({json.loads(box)["bottom"] for box in before[:3]}) == 1  # and no button has a line of its own
        menu = page.locator("#chooser > div").bounding_box()
        assert 0 <= round(menu["x"]) <= round(width - menu["width"])
        summary.click()
    page.locator("#compare").press("Enter")
    assert tab.texts("#hint") == ["choose a second episode in the table"]
    page.locator("#body tr").nth(2).click()
    page.locator("#difference").wait_for()
    assert tab.texts("#hint") == [""]


@WITH_BROWSER
def test_numbers_that_are_not_known_say_why(tmp_path: Path, tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "training", [kept(n) for n in range(3)])
    rows = [("e0", None, 1, 0.0, 1.0, 0, 1.0), ("e1", None, 2, NAN, 1.0, 1, NAN)]  # not of the first gradient step
    learned = LearnedTracks({"": columns_of(rows)})
    monkeypatch.setattr(LiveFindings, "learned", lambda self, number: learned)
    write_status(tmp_path, settings={}, stopped_by="max_epochs")
    with served(tmp_path) as server:
        tab.page.set_viewport_size({"width": 1500, "height": 900})
        page = tab.open(f"{server.url}episodes/0/training/")
        cells = "cells => cells.map((cell) => [cell.dataset.column, cell.innerText, cell.title])"
        not_learned = "not learned from in an update that was measured"
        names = ("update", "worker", "log_ratio", "advantage")
        reasons = {
            0: ["", "", "", ""],
            1: [
                "",
                "not recorded, or several workers",
                "no step of it is in the first gradient step of update 2",
                "not recorded in update 2",
            ],
            2: [not_learned] * 4,
        }
        for row, titles in reasons.items():
            of = {name: rest for name, *rest in page.locator(f"#row-{row} td").evaluate_all(cells)}
            assert [of[name][1] for name in names] == titles
            assert all((of[name][0] == chr(0x2013)) == bool(title) for name, title in zip(names, titles, strict=True))


@WITH_BROWSER
def test_groups_of_many_episodes_are_read_below_their_chart(tmp_path: Path, tab: Tab) -> None:
    """With the pointer and with keys: the episodes of each group, their range and their median."""
    random, num = np.random.default_rng(1), 2400
    returns = random.integers(0, 50, num).astype(float)
    pack = EpisodePack(
        observations=np.zeros(2 * num),
        actions=np.zeros(num, int),
        rewards=returns,
        lengths=np.ones(num, int),
        terminated=np.ones(num, bool),
        truncated=np.zeros(num, bool),
    )
    page = tab.open(report(write(tmp_path / "data", pack)))
    svg = page.locator("#overview svg").first
    box = svg.bounding_box()

    def words(group: int, low: float = 0) -> str:
        """Return what is to be read of a group of 60 episodes."""
        part = returns[60 * group : 60 * group + 60]
        part, median = part[part >= low], np.median(part[part >= low])
        place = f"episodes {60 * group:,} to {60 * group + 59:,}"
        return f"{place}: {part.min():.0f} … {part.max():.0f}, median {median:g}"

    idle = tab.texts("#overview .reading")[0]
    for low in (0, 20):
        page.fill("#words", f"return >= {low}")
        for group in (0, 17, 39):
            x = 4 + 592 * (group + 0.5) / 40
            for y in (3, 50, 90):  # the whole column
                page.mouse.move(box["x"] + x / 600 * box["width"], box["y"] + y)
                assert tab.texts("#overview .reading")[0] == words(group, low)
        page.mouse.move(5, 5)
        assert tab.texts("#overview .reading")[0] == idle
    svg.focus()
    step = page.evaluate("state.step")
    for key, group in (("ArrowRight", 0), ("ArrowRight", 1), ("End", 39), ("ArrowRight", 39), ("ArrowLeft", 38)):
        page.keyboard.press(key)
        assert tab.texts("#overview .reading")[0] == words(group, 20)
    assert page.evaluate("state.step") == step
    page.fill("#words", f"return = {returns[0]:.0f}")
    assert tab.texts("#overview h2")[0].endswith(f"all {returns[0]:.0f}")


@WITH_BROWSER
def test_search_counts_ids_and_marks_what_it_found(tmp_path: Path, tab: Tab) -> None:
    ids = ["a57", "57b", "c", f"04683c44{'57' * 12}"]
    episodes = [plain([float(n)], id_=id_) for n, id_ in enumerate(ids)]
    episodes[2].custom_data |= {"note": "57 in a text"}
    page = tab.open(report(write(tmp_path / "data", episodes)))
    page.fill("#words", "57")
    assert tab.texts("#count") == ['4 of 4: "57" in 3 ids, 1 elsewhere']
    assert tab.texts("#body td[data-column=id] mark") == ["57", "57"]  # the third one is in the part that is cut
    page.fill("#words", "nth < 3")
    assert tab.texts("#count") == ["3 of 4"]
    assert page.locator("mark").count() == 0


@WITH_BROWSER
def test_similar_names_are_at_most_a_third_of_their_characters_away(tmp_path: Path, tab: Tab) -> None:
    """The page has the words of Python."""
    page = tab.open(report(write(tmp_path / "data", [kept(0)])))
    words = st.text("abE_", min_size=1, max_size=7).map(lambda word: f"x{word}")

    def distance(a: str, b: str) -> int:
        """Return the edit distance by its definition."""
        if not a or not b:
            return len(a or b)
        return min(distance(a[1:], b) + 1, distance(a, b[1:]) + 1, distance(a[1:], b[1:]) + (a[0] != b[0]))

    @settings(max_examples=40)
    @given(
        words.map(lambda word: word[:5]),
        st.lists(words.map(lambda word: word[:5]), min_size=1, max_size=3, unique=True),
    )
    def check(word: str, names: list[str]) -> None:
        if word in names:
            return
        with pytest.raises(InvalidArgument) as error:
            condition(f"{word} > 0")({name: np.zeros(1) for name in names})
        script = """([word, names]) => { try { condition(`${word} > 0`, {}, names); }
            catch (error) { return error.message; } }"""
        names = ["nth", *names]
        assert page.evaluate(script, [word, names]) == str(error.value)
        near = [name for name in names if 3 * distance(word.lower(), name.lower()) <= len(name)]
        assert ("did you mean" in str(error.value)) == bool(near)

    check()
