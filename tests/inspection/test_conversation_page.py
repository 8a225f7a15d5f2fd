"""Conversations on pages in a real browser: each token once and in order, with its value, and marks of addresses."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import MultiAgentEpisode, RaggedKind, SingleAgentEpisode
from episodes.inspect import explain_update, view_conversation
from episodes.inspect.conversation import MOST_OF_PAGE, QUANTITIES, page_conversation
from episodes.inspect.html_report import episode_data
from episodes.storage.runs import write_status
from episodes.tokens import Conversation
from tests.inspection.data import write
from tests.inspection.test_page import WITH_BROWSER, Tab, browser, report, served, tab
from tests.learners.test_run_findings import learned_tokens
from tests.tokens.conversations import conversations

__all__ = ["browser", "tab"]  # fixtures

NUMBERS = st.sampled_from([-9.0, -3.0, -0.25, -0.1, 0.0, 0.05, 1.0, 1.1, 30.0, float("nan")])
LEARNER = {"advantages": "advantage", "ratios": "ratio", "loss_shares": "loss_share"}
SHADES = {"var(--ep-many)": 1, "var(--ep-warm)": 1, "var(--ep-cool)": -1}
MOST_OF_TURN = 300  # tokens that are shown at first
OPACITY = 0.0075  # of one percent of strength


def strength(name: str, value: float) -> float:
    """Return the strength of a colour in percent, computed number by number, as a slow reference."""
    ends = {"logp": (6, 0), "logp_difference": (0.2, 0.2), "advantage": (2, 2), "loss_share": (0, 4)}
    if np.isnan(value):
        return 0
    if name == "ratio":
        share = np.log(min(max(value, 0.8), 1.25)) / np.log(1.25)
    else:
        low, high = ends[name]
        share = min(value / high, 1) if value > 0 and high else max(value / low, -1) if value < 0 and low else 0
    return 100 * np.sign(share) * abs(share) ** 0.5


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda quantity: quantity.name)
@given(value=NUMBERS)
def test_scales_are_those_of_a_slow_reference(quantity: Any, value: float) -> None:
    [found] = quantity.strengths([value]).tolist()
    expected = strength(quantity.name, value)
    assert found == pytest.approx(expected, abs=0.51)
    css = quantity.css(found)
    assert (css == "") == (found == 0)
    if css:
        shade, alpha = re.fullmatch(r"rgba\((.*), ([\d.]+)\)", css).groups()  # type: ignore[union-attr]
        assert float(alpha) == pytest.approx(OPACITY * abs(found), abs=1e-3)
        assert SHADES[shade] == (1 if not quantity.is_centred else np.sign(found))


@given(st.data())
def test_page_data_has_each_token_once_in_order_with_its_values(data: st.DataObject) -> None:
    plain = data.draw(conversations())
    talk = plain.record()
    found = page_conversation(talk.episode, decode=lambda ids: "".join(f"<{id_}>" for id_ in ids))
    begin, sampled = 0, 0
    model = [message for message in found["messages"] if message["role"] == "model"]
    assert [message["turn"] for message in model] == list(range(len(plain.turns)))
    assert sum(message["size"] for message in found["messages"]) == len(found["ids"]) == len(found["texts"])
    for message in found["messages"]:
        ids = found["ids"][begin : begin + message["size"]].tolist()
        assert found["texts"][begin : begin + message["size"]] == [f"<{id_}>" for id_ in ids]
        begin += message["size"]
        if message["role"] == "model":
            turn = plain.turns[message["step"]]
            assert ids == turn.ids
            for name in ("logp", "learned", "version") if plain.has_outputs else ():
                values = found["values"][name][sampled : sampled + len(ids)]
                np.testing.assert_array_equal(values, np.asarray(turn.values[name], values.dtype))
            sampled += len(ids)
        else:
            assert ids == talk.episode.get_observations(message["step"]).tolist()


def rated(id_: str, numbers: list[list[float]], group: str | None = None) -> SingleAgentEpisode:
    """Return a conversation of ids that count up, whose tokens have these numbers as each quantity."""
    talk = Conversation(id_, outputs={"logp": "f4", "trainer_logp": "f4", "learned": "?"}, group=group)
    talk.begin([90, 91])
    count = 0
    for t, turn in enumerate(numbers):
        logp = np.array([min(value, 0.0) if value == value else -1.0 for value in turn], "f4")
        trainer = np.where(np.isnan(turn), np.nan, logp - np.array(turn, "f4")).astype("f4")
        ids, mask = range(count, count + len(turn)), [k % 2 == 0 for k in range(len(turn))]
        talk.turn(
            list(ids),
            [92],
            float(t),
            terminated=t == len(numbers) - 1,
            logp=logp,
            trainer_logp=trainer,
            learned=mask,
        )
        count += len(turn)
    return talk.episode


TOKENS = "tokens => tokens.map((one) => [one.textContent, one.style.backgroundColor, one.className])"


def drawn(tab: Tab) -> list[tuple[str, float, str]]:
    """Return text, opacity of the colour and classes of each token of a page, in order."""
    parts = tab.page.locator("#conversation .talks .ep-token").evaluate_all(TOKENS)
    alphas = [re.search(r"rgba\(.*, ([\d.]+)\)", colour) for _, colour, _ in parts]
    return [
        (text, float(alpha[1]) if alpha else 0.0, name) for (text, _, name), alpha in zip(parts, alphas, strict=True)
    ]


@WITH_BROWSER
@settings(max_examples=4)
@given(numbers=st.lists(st.lists(NUMBERS, max_size=5), min_size=1, max_size=4))
def test_page_draws_each_token_once_with_its_colour_mask_and_words(browser: Any, numbers: list[list[float]]) -> None:
    tab = Tab(browser)
    with tempfile.TemporaryDirectory() as folder:
        episode = rated("a", numbers)
        page = tab.open(report(write(Path(folder) / "data", [episode])))
        order = [90, 91]
        values: list[tuple[float, float, bool] | None] = [None, None]
        for t in range(len(numbers)):
            parts = [episode.get_extra_model_outputs(key, t) for key in ("logp", "trainer_logp", "learned")]
            order += [*episode.get_actions(t).tolist(), 92]
            values += [(float(a), float(a - b), bool(c)) for a, b, c in zip(*parts, strict=True)]
            values.append(None)
        options = page.locator("#colour option").evaluate_all("options => options.map((one) => one.value)")
        assert options[-1] == "none"
        for name in options:
            page.select_option("#colour", name)
            found = drawn(tab)
            assert [text for text, *_ in found] == list(map(str, order))
            for (_, alpha, classes), known in zip(found, values, strict=True):
                own = {"logp": known[0], "logp_difference": known[1]}.get(name, 0.0) if known else 0.0
                expected = abs(strength(name, own)) if known and name != "none" else 0
                assert alpha == pytest.approx(OPACITY * expected, abs=0.006)
                assert ("ep-dim" in classes) == (known is not None and not known[2])
                assert ("ep-unknown" in classes) == (known is not None and np.isnan(own))
        for at, known in list(enumerate(values))[:6]:
            page.locator("#conversation .talks .ep-token").nth(at).hover()
            words = page.locator("#token").inner_text()
            assert f"id {order[at]}" in words
            if known is None:
                assert "not sampled" in words
            else:
                assert ("left out of the loss" in words) == (not known[2])
                assert float(re.search(r"log-probability (-?[\d.]+)", words)[1]) == pytest.approx(known[0], rel=1e-3)  # type: ignore[index]
        assert f"{len(numbers)} turn" in page.locator("#episode h2").inner_text()
    assert not tab.errors
    tab.page.context.close()


@WITH_BROWSER
def test_link_of_a_token_marks_it_and_keyboard_reads_its_neighbours(tmp_path: Path, tab: Tab) -> None:
    folder = learned_tokens(tmp_path / "run", True, is_stored=True)
    write_status(folder, settings={}, stopped_by="max_epochs")
    explanations = [explain_update(folder, update) for update in (1, 2)]
    explanation = explanations[1]
    step = explanation[3]
    assert f"id={step.id_}&amp;t={step.t}&amp;token={step.token}" in explanation.to_html(page="page.html")
    with served(folder) as server:
        page = tab.open(f"{server.url}episodes/0/training/#id={step.id_}&t={step.t}&token={step.token}")
        linked = page.locator(".ep-linked")
        assert linked.evaluate("token => token === document.activeElement")
        assert linked.count() == 1
        assert linked.evaluate("one => [one.place[1].role, one.place[1].turn, one.place[2]]") == [
            "model",
            step.t,
            step.token,
        ]
        assert linked.inner_text() == str(step.token_id)
        page.wait_for_function(
            "() => { const box = document.querySelector('.ep-linked').getBoundingClientRect();"
            " return 0 <= box.top && box.bottom <= innerHeight; }"
        )
        words = page.locator("#token").inner_text()
        for name, label in (("advantage", "advantage"), ("ratio", "ratio")):
            number = float(re.search(rf"{label} (-?[\d.e-]+)", words)[1])  # type: ignore[index]
            assert number == pytest.approx(step.measurements[name], rel=1e-3)
        share = float(re.search(r"loss share ([\d.e-]+) %", words)[1])  # type: ignore[index]
        assert share == pytest.approx(100 * step.share, rel=1e-3)
        multiple = float(re.search(r"= ([\d.e-]+) mean shares", words)[1])  # type: ignore[index]
        assert multiple == pytest.approx(step.share * len(explanation), rel=1e-3)
        linked.focus()
        page.keyboard.press("ArrowLeft")
        assert page.locator("#token").inner_text() != words
        assert page.url.endswith(f"token={step.token}") or f"token={step.token}&" in page.url  # the step is the same
        learned = page.locator("#learned a").last
        assert learned.inner_text() == "update 2"
        members = page.locator("#siblings tbody tr")
        found = {row[0].split()[0]: row for row in (line.split("\t") for line in members.all_inner_texts())}
        assert len(found) == 8  # the key of the group is the same in both updates
        for id_, (_, _, _, gain, *_) in found.items():
            gains = [one.measurements["advantage"] for update in explanations for one in update if one.id_ == id_]
            assert float(gain) == pytest.approx(np.mean(gains), rel=1e-3)
        learned.click()
        page.wait_for_url("**/updates/0/2")
        assert "update 2" in page.locator("body").inner_text().lower()


@WITH_BROWSER
@settings(max_examples=4)
@given(
    a=st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=4),
    b=st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=4),
)
def test_two_conversations_are_beside_each_other_with_the_first_other_token(
    browser: Any, a: list[list[int]], b: list[list[int]]
) -> None:
    talks = []
    for id_, turns in (("a", a), ("b", b)):
        talk = Conversation(id_, outputs={}, group="g")
        talk.begin([7])
        for ids in turns:
            talk.turn(ids, [8])
        talks.append(talk.episode)
    flat = [[(0, 0, 7)], [(0, 0, 7)]]
    for tokens, turns in zip(flat, (a, b), strict=True):
        for t, ids in enumerate(turns):
            tokens += [(2 * t + 1, k, id_) for k, id_ in enumerate(ids)] + [(2 * t + 2, 0, 8)]
    tab = Tab(browser)
    with tempfile.TemporaryDirectory() as folder:
        page = tab.open(report(write(Path(folder) / "data", talks)))
        page.get_by_role("button", name="compare with b").click()
        page.locator(".talks.two").wait_for()
        place = "[2 * one.place[1].step + (one.place[1].role === 'model'), one.place[2], Number(one.textContent)]"
        places = f"tokens => tokens.map((one) => {place})"
        for which, tokens in enumerate(flat):
            own = page.locator(".talks .ep-token").evaluate_all(
                f"(tokens) => ({places})(tokens.filter((one) => one.place[0] === find('conversation').talks[{which}]))"
            )
            assert [tuple(one) for one in own] == tokens
        marked = sorted(tuple(one) for one in page.locator(".talks .ep-differs").evaluate_all(places))
        pairs = [{(m, k): id_ for m, k, id_ in tokens} for tokens in flat]
        others = sorted(
            place for place in pairs[0].keys() | pairs[1].keys() if pairs[0].get(place) != pairs[1].get(place)
        )
        expected = sorted((*others[0], pair[others[0]]) for pair in pairs if others[0] in pair) if others else []
        assert marked == expected
        page.wait_for_function(
            "() => [...document.querySelectorAll('.ep-differs')].every((one) => "
            "one.getBoundingClientRect().bottom <= document.querySelector('.talks').getBoundingClientRect().bottom)"
        )
        assert page.get_by_text("Both have the same tokens").count() == (not others)
        page.get_by_role("button", name="stop comparing").first.click()
        assert page.locator(".talks.two").count() == 0
    assert not tab.errors
    tab.page.context.close()


@WITH_BROWSER
def test_colour_is_in_the_address_and_missing_things_are_named(tmp_path: Path, tab: Tab) -> None:
    episode = rated("a", [[0.1, -0.1], [0.0]])
    bare = Conversation("bare", outputs={})
    bare.begin([1])
    bare.turn([2], [3])
    url = report(write(tmp_path / "data", [episode]))
    page = tab.open(f"{url}#colour=logp")
    assert page.locator("#colour").input_value() == "logp"
    assert "-6 and below" in page.locator(".scales").inner_text()
    page.select_option("#colour", "logp_difference")
    page.wait_for_function("() => location.hash.includes('colour=logp_difference')")
    assert "No tokenizer given: token ids." in page.locator("#conversation").inner_text()
    assert not page.locator("#lanes").is_visible()
    page.get_by_text("tracks of turns").click()
    assert page.locator("#lanes").is_visible()
    page = tab.open(report(write(tmp_path / "bare", [bare.episode])))
    assert "No log-probabilities were recorded." in page.locator("#conversation").inner_text()


@pytest.mark.parametrize("name", ["advantages", "ratios", "clipped", "shares", "loss_shares"])
@pytest.mark.parametrize("count", [1, 4])
def test_numbers_that_are_not_one_per_token_are_named_and_shift_no_others(name: str, count: int) -> None:
    kinds: dict[str, Any] = {"observations": "i4", "actions": "i4", "learner": {name: "f4"}}
    episode = SingleAgentEpisode("a", ragged=kinds)
    episode.add_env_reset([1])
    for ids, numbers in (([2, 3], [9.0] * count), ([4, 5], [-1.0, -2.0])):
        episode.add_env_step([1], ids, 0.0, extra_model_outputs={"learner": {name: numbers}})
    found = page_conversation(episode.to_numpy())
    assert f"{count} numbers for 2 tokens" in found["messages"][1]["notes"][-1]
    key = name if name == "clipped" else name.removesuffix("s")
    np.testing.assert_array_equal(found["values"][key], [np.nan, np.nan, -1.0, -2.0])
    str(view_conversation(episode)._repr_html_())


@pytest.mark.parametrize("kinds", [{"learner": "f4"}, {"learner": {"advantages": RaggedKind("f4", (2,))}}])
def test_outputs_of_the_name_learner_of_another_kind_are_not_shown(kinds: dict[str, Any]) -> None:
    episode = SingleAgentEpisode("a", ragged={"observations": "i4", "actions": "i4", **kinds})
    episode.add_env_reset([1])
    value: Any = [1.0] if kinds["learner"] == "f4" else {"advantages": np.zeros((1, 2))}
    episode.add_env_step([1], [2], 0.0, extra_model_outputs={"learner": value})
    assert page_conversation(episode.to_numpy())["values"] == {}


def test_turns_of_a_chunk_are_counted_from_the_begin_and_tools_have_a_role() -> None:
    talk = Conversation("a", outputs={})
    talk.begin([1])
    talk.turn([2], [3], infos={"finish_reason": "tool_calls"})
    whole = page_conversation(talk.episode)
    assert [(one["role"], one["turn"]) for one in whole["messages"]] == [("prompt", 0), ("model", 0), ("tool", 1)]
    assert "finish reason tool_calls" in whole["messages"][1]["notes"]
    talk.cut()
    talk.turn([4, 5], [6])
    chunk = page_conversation(talk.episode)
    assert [(one["role"], one["turn"], one["step"]) for one in chunk["messages"]][-2:] == [
        ("model", 1, 0),
        ("reply", 2, 1),
    ]


def test_game_of_language_agents_has_a_conversation_of_each() -> None:
    game = MultiAgentEpisode("g", ragged={"x": {"observations": "i4", "actions": "i4"}})
    game.add_env_reset(observations={"x": [1, 2]})
    game.add_env_step(observations={"x": [4]}, actions={"x": [3]}, rewards={"x": 1.0})
    [talk] = episode_data(game.to_numpy())["conversation"]
    assert (talk["name"], talk["ids"].tolist()) == ("x", [1, 2, 3, 4])


@WITH_BROWSER
def test_link_of_a_token_in_a_game_marks_it_in_the_turn_of_its_agent(tmp_path: Path, tab: Tab) -> None:
    kinds: dict[str, Any] = {name: {"observations": "i4", "actions": "i4"} for name in "xy"}
    game = MultiAgentEpisode("g", ragged=kinds)
    game.add_env_reset(observations={"x": [1, 2]})
    game.add_env_step(observations={"y": [4]}, actions={"x": [3]}, rewards={"x": 1.0})
    game.add_env_step(
        observations={"x": [6], "y": [6]}, actions={"y": [5, 7]}, rewards={"y": 1.0}, terminateds={"__all__": True}
    )
    games: Any = [game.to_numpy()]
    address = {"id": game.agent_episodes["y"].id_, "t": 0, "agent": "y", "token": 1}
    with served(write(tmp_path / "games", games)) as server:
        page = tab.open(f"{server.url}#{urlencode(address)}")
        assert page.locator(".ep-linked").all_inner_texts() == ["7"]
        assert page.locator(".ep-current").count() == 1
        assert "y" in page.locator(".ep-current .ep-meta").inner_text()


def test_page_of_a_very_long_conversation_states_what_it_leaves_out() -> None:
    talk = Conversation("a", outputs={})
    talk.begin(np.arange(100_000))
    talk.turn(np.arange(70_000), [5, 6])
    found = page_conversation(talk.episode)
    assert len(found["ids"]) <= MOST_OF_PAGE
    assert [one["size"] + one["left"] for one in found["messages"]] == [100_000, 70_000, 2]


@WITH_BROWSER
def test_long_turns_are_folded_and_words_are_found_in_them(tmp_path: Path, tab: Tab) -> None:
    long = Conversation("a", outputs={})
    long.begin(np.arange(1000, 1700))
    for turn in range(30):
        long.turn([7, 8], [9], float(turn))
    page = tab.open(report(write(tmp_path / "data", [long.episode])))
    tokens = page.locator("#conversation .ep-prompt .ep-token")
    assert tokens.count() == MOST_OF_TURN
    page.fill("#find", "1650 1651")
    assert page.locator("[role=status]", has_text="1 of 1").count() == 1
    assert page.locator(".ep-found").all_inner_texts() == ["1650", "1651"]
    assert (tokens.count(), page.get_by_role("button", name="show all").count()) == (700, 0)
    page.fill("#find", "7 8 ")
    for number in (2, 3):
        page.press("#find", "Enter")
        assert page.locator("[role=status]", has_text=f"{number} of 30").count() == 1
    assert page.locator(".ep-at").evaluate("one => one.place[1].turn") == 2
    page.fill("#find", "nothing")
    assert page.locator("[role=status]", has_text="not found").count() == 1
    page.reload()
    page.get_by_role("button", name="show all 700 tokens").click()
    assert tokens.all_inner_texts() == list(map(str, range(1000, 1700)))
    assert tokens.nth(MOST_OF_TURN).evaluate("one => one === document.activeElement")


@WITH_BROWSER
def test_group_marks_the_compared_conversation_and_states_what_is_equal(tmp_path: Path, tab: Tab) -> None:
    talks = []
    for name in "abc":
        talk = Conversation(name, outputs={"logp": "f4"}, group=4)
        talk.begin([1])
        for turn in range(2):
            talk.turn([2, 3], [4], 1.0, logp=[-1.0, -ord(name) / 100 - turn], terminated=turn == 1)
        talks.append(talk.episode)
    page = tab.open(report(write(tmp_path / "data", talks)))
    rows = page.locator("#siblings tbody tr")
    words = "group 4: 3 conversations, each of 2 turns, terminated"
    assert page.locator("#siblings summary").inner_text() == words
    assert page.locator("#siblings thead").inner_text().split() == ["id", "return"]
    assert (rows.nth(0).inner_text().split()[:4], rows.nth(0).locator("button").count()) == (
        ["a", "this", "one", "2"],
        0,
    )
    pressed = page.locator("#siblings [aria-pressed=true]")
    for name in "bc":
        page.get_by_role("button", name=f"compare with {name}").click()
        page.locator(".talks.two").wait_for()
        page.wait_for_function(f"() => document.querySelector('#siblings .compared').innerText.startsWith('{name}')")
        assert pressed.count() == 1
    pressed.click()
    assert (page.locator(".talks.two").count(), pressed.count()) == (0, 0)
    page.get_by_text("tracks of turns").click()
    lanes = page.locator("#lanes .lane .name").all_inner_texts()
    assert [name for name in lanes if name.startswith("logp")] == ["logp: mean, lowest and highest of the tokens"]
    equal = page.locator("#lanes > .note").inner_text()
    assert equal == "equal in all turns: rewards 1 · actions 2 tokens · observations 1 tokens"
