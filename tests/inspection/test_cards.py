"""Cards in notebooks: sums that agree, whole lines of packs, places of defects, and what statistics are of."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors import learner_pipeline
from episodes import Batch, EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.command.track_tables import measured, summarized
from episodes.inspect import formatting, html, schema, sparklines
from episodes.inspect.cards.batch import batch_card
from episodes.inspect.cards.card import HISTOGRAMS
from episodes.inspect.cards.dataset import dataset_card, games_card
from episodes.inspect.cards.game import multi_agent_card
from episodes.inspect.cards.pack import pack_card
from episodes.inspect.cards.rows import parts_table, rows_of
from episodes.inspect.cards.tables import episodes_table
from episodes.inspect.series import Series, of_tracks
from episodes.inspect.sparklines import UNITS, WIDTH, Axis
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.storage import EpisodeDataset
from episodes.storage.games import GameDataset
from episodes.testing.strategies import multi_agent_histories
from episodes.tokens import Conversation
from tests.command.running import output
from tests.inspection.data import write
from tests.inspection.test_drawings import conversation, strokes, walk
from tests.inspection.test_extremes import pixels
from tests.inspection.test_page import WITH_BROWSER, Tab, browser, tab

__all__ = ["browser", "tab"]  # fixtures

BOX = spaces.Box(-1.0, 1.0, (2,), np.float64)


def numbers_after(word: str, texts: list[str]) -> float:
    """Return the sum of the numbers that follow a word in texts."""
    return sum(float(n) for text in texts for n in re.findall(rf"{word} (-?[\d.e+-]+|NaN)", text))


# --- games ------------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(history=multi_agent_histories())
def test_numbers_of_agents_add_up_to_those_of_the_game(history: Any) -> None:
    """The return of a game is that of its agents' steps, of pending rewards and of rewards of no step."""
    for game in history.chunks(3):
        card = multi_agent_card(game)
        own = [text for part in card.parts for text in part.headline]
        total = sum(numbers_after(word, own) for word in ("^return", "pending reward of", "of no step of"))
        known = {str(part.kind) for part in card.parts}
        strangers = [f for f in card.facts if f.name == "rewards of no step"]
        for fact in strangers:  # of agents that were never observed
            total += sum(float(n) for n, agent in re.findall(r"(\S+) \((\S+)\)", fact.value) if agent not in known)
        assert total == pytest.approx(game.get_return(), rel=1e-3, abs=1e-2)
        waiting = sum(line.phase == "waits" for line in game.agents.timelines.values())
        assert sum("pending action" in text for text in own) == waiting
        pending = next((fact.value for fact in card.facts if fact.name == "pending"), "")
        assert (f"{waiting} action" in pending) == (waiting > 0)


def test_a_growing_game_names_its_pending_action_and_reward() -> None:
    game = MultiAgentEpisode("g")
    game.add_env_reset(observations={"a": 0.0})
    game.add_env_step({"b": 0.0}, {"a": 1}, {"a": 2.0})
    game.add_env_step({}, {"b": 1}, {"b": 0.0})
    card = multi_agent_card(game)
    assert [fact.value for fact in card.facts if fact.name == "pending"] == ["2 actions (a, b), reward 2 (a)"]
    assert [part.headline for part in card.parts] == [
        ["0 steps and a pending action", "return 0 and a pending reward of 2"],
        ["0 steps and a pending action", "return 0"],
    ]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 1.0, -2.0])), min_size=1, max_size=20))
def test_lanes_mark_rewards_at_their_env_steps_and_parts_have_env_steps(turns: list[tuple[bool, float]]) -> None:
    """Agents that take turns at random: their rewards that are not 0 are marked at the env step of the action."""
    game, expected = MultiAgentEpisode("g"), {"a": [], "b": []}
    game.add_env_reset(observations={"a": 0.0, "b": 0.0})
    for t, (is_a, reward) in enumerate(turns):
        agent = "a" if is_a else "b"
        game.add_env_step({agent: 0.0}, {agent: 1}, {agent: reward})
        expected[agent] += [t] * (reward != 0)
    html = game._repr_html_() or ""
    unit = 640 / len(turns)
    lanes = re.findall(r'class="ep-rewards"[^>]*? d="([^"]*)"', html)
    for lane, steps in zip(lanes, expected.values(), strict=True):
        xs = np.array(re.findall(r"M(-?\d+) ", lane), np.float64)
        assert len(xs) == len(steps)
        assert np.abs(xs - np.array(steps) * unit).max(initial=0) <= 1
    assert ("gets a reward" in html) == any(map(len, expected.values()))
    axes = re.findall(r'ep-steps".*?</svg>', html)
    for axis, line in zip(axes, game.agents.timelines.values(), strict=True):
        numbers = [int(each) for each in re.findall(r"(\d+)</text>", axis)]
        steps, env_steps = numbers[::2], numbers[1::2]  # above each other
        assert (steps[0], steps[-1]) == (0, len(line.episode))
        assert env_steps == [line.observation_times[step] for step in steps]
        places = [float(x) for x in re.findall(r'x="([\d.]+)%" y="10"', axis)]
        assert places == pytest.approx([100 * step / max(len(line.episode), 1) for step in steps], abs=0.05)


LABEL = re.compile(r'<path d="[^"]*"><title>env steps? (-?[\d,]+)(?: to (-?[\d,]+))?: (.*?)</title>')


def lanes_of(html: str) -> list[str]:
    """Return the SVG of each agent's timeline of a game's card."""
    return re.findall(
        r'<div class="ep-lane"><span title=.*?</div>', html.partition('class="ep-lanes">')[2].partition("ep-kinds")[0]
    )


ZERO_LINE = r'class="ep-zero"[^>]* d="M([\d.]+) ([\d.]+)H([\d.]+)'
OUTLINE = re.compile(r'<path class="ep-pending ep-(\w+)"[^>]* d="M-3 ([\d.]+)H3V([\d.]+)H-3z"/>')
PENDING = re.compile(
    r'<svg x="([\d.e-]+)%" overflow="visible" pointer-events="none">((?:<path class="ep-pending[^>]*/>)+)</svg>'
)


def pending_of(line: Any) -> tuple[int, float]:
    """Return the env step and the reward of an agent's unfinished step."""
    clock = line.action_times if line.phase == "waits" else line.observation_times
    return clock[-1], 0.0 if line.reward is None else float(line.reward)


@settings(max_examples=40)
@given(history=multi_agent_histories())
def test_rewards_actions_and_observations_of_a_game_come_back_from_the_lanes(history: Any) -> None:
    """The bars have the sizes and signs of the rewards on one scale, and the texts of env steps their values. Those of
    unfinished steps are outlined at their env steps.
    """
    for game in history.chunks(3):
        html, lines = game._repr_html_() or "", list(game.agents.timelines.values())
        lanes = lanes_of(html)
        assert len(lanes) == len(lines)
        waiting = [pending_of(line)[1] for line in lines]
        every = np.concatenate([waiting, *(np.asarray(line.episode.tracks.rewards.data, float) for line in lines)])
        low, high = every.min(initial=0), every.max(initial=0)
        begin = min([game.env_t_started - game.lookback, *(line.observation_times[0] for line in lines)])
        unit = 640 / max(game.env_t - begin, 1)
        assert ("□ pending" in html) == any(line.phase == "waits" or pending_of(line)[1] for line in lines)
        assert ("waits for an observation</b>" in html) == any(line.phase == "waits" for line in lines)
        for line, lane in zip(lines, lanes, strict=True):
            rewards = np.asarray(line.episode.tracks.rewards.data, float)
            acted, observed = list(line.action_times)[: len(rewards)], list(line.observation_times)
            texts = {int(step.replace(",", "")): words for step, _, words in LABEL.findall(lane)}
            step, reward = pending_of(line)
            waits = line.phase == "waits"
            is_done = line.phase == "ended"
            assert list(texts) == sorted({*acted, *observed, *[step] * waits, *[line.ended_at] * is_done})
            ended = [t for t, words in texts.items() if re.search("(terminated|truncated)$", words)]
            assert ended == [line.ended_at] * is_done
            marks = re.findall(r'<svg x="([\d.e-]+)%" overflow="visible" pointer-events="none"><g', lane)
            percent = 100 * unit / 640
            assert [float(x) for x in marks] == pytest.approx([(t - begin) * percent for t in ended], abs=0.06)
            title = re.findall("<title>(.*?)</title>", lane)[0]
            assert f"{formatting.counted(len(observed), 'observation')} (above), " in title
            assert f"{formatting.counted(len(acted), 'action')}{' and a pending one' * waits} (below)" in title
            assert f"{formatting.counted(int(np.count_nonzero(rewards)), 'reward')} other than 0" in title
            assert ("and a pending one of" in title) == bool(reward)
            assert [t for t, words in texts.items() if "observes" in words] == observed
            assert [t for t, words in texts.items() if re.search("(?<!pending )action|acts", words)] == acted
            assert [t for t, words in texts.items() if "pending action" in words] == [step] * waits
            finished = {t: re.findall(r"(?<!pending )reward ([^,]+)", words) for t, words in texts.items()}
            assert [t for t, words in finished.items() if words] == acted
            values = [float(word) for words in finished.values() for word in words]
            assert values == pytest.approx(rewards.tolist(), rel=1e-3)
            found = {t: numbers_after("pending reward", [words]) for t, words in texts.items() if "pending r" in words}
            assert found == ({step: pytest.approx(reward, rel=1e-3)} if reward else {})
            [path] = re.findall(r'class="ep-actions"[^>]*? d="([^"]*)"', lane)
            middles = [(float(left) + float(right)) / 2 for left, right in re.findall(r"M(-?\d+) \d+H(-?\d+)", path)]
            assert middles == pytest.approx([(t - begin) * unit for t in acted], abs=1)
            [path] = re.findall(r'class="ep-rewards"[^>]*? d="([^"]*)"', lane)
            bars = np.array(re.findall(r"M(-?\d+) ([\d.]+)V([\d.]+)", path), float).reshape(-1, 3)
            times = np.array(acted)[rewards != 0]
            assert bars[:, 0] == pytest.approx((times - begin) * unit, abs=0.51)
            marks = PENDING.findall(lane)
            outlines = {hue: (float(top), float(end)) for _, svg in marks for hue, top, end in OUTLINE.findall(svg)}
            assert sorted(outlines) == ["actions"] * waits + ["rewards"] * bool(reward)
            for place, _ in marks:
                assert float(place) == pytest.approx(100 * (step - begin) * unit / 640, abs=0.06)
            bars = np.append(bars[:, 1:], [outlines["rewards"]] if reward else np.zeros((0, 2)), 0)
            drawn = np.append(rewards[rewards != 0], [reward] * bool(reward))
            sizes = (bars[:, 1] - bars[:, 0]) * (high - low) / 26
            assert sizes == pytest.approx(np.abs(drawn), abs=0.12 * (high - low) / 26)
            if len(bars):
                [(left, zero, right)] = np.array(re.findall(ZERO_LINE, lane), float)
                last = (line.ended_at - begin) * unit if is_done else 640
                assert [left, right] == pytest.approx([(observed[0] - begin) * unit, last], abs=0.51)
                assert ((bars[:, 0] < zero) == (drawn > 0)).all()
                scale = [float(n) for n in re.findall(r'text-anchor="end">(.*?)</text>', lane)]
                assert scale == pytest.approx([high, low], rel=1e-3)


@settings(max_examples=40)
@given(history=multi_agent_histories(observation_space=spaces.Box(0, 1, (2,)), action_space=spaces.Discrete(60)))
def test_actions_of_a_game_come_back_from_the_rows_of_its_tracks(history: Any) -> None:
    """Each action is a dot at its env step, with its number above it if there is room. A pending action is a ring."""
    for game in history.chunks(3):
        lines = game.agents.timelines
        actions = {agent: np.asarray(line.episode.tracks.actions.data).tolist() for agent, line in lines.items()}
        pending = {agent: line.action for agent, line in lines.items() if line.phase == "waits" and actions[agent]}
        every = [action for each in (*actions.values(), pending.values()) for action in each]
        html = game._repr_html_() or ""
        begin = min([game.env_t_started - game.lookback, *(line.observation_times[0] for line in lines.values())])
        span = max(game.env_t - begin, 1)
        rows = {
            agent: row
            for agent, row in re.findall(r'<div class="ep-lane"><span title="(\w+)">(.*?)</div>', html)
            if '<small class="ep-label ep-actions">actions</small>' in row
        }
        assert list(rows) == ([agent for agent in lines if actions[agent]] if len(set(every)) > 1 else [])
        for agent, row in rows.items():
            line, is_lettered = lines[agent], 'height="40"' in row
            values = [*actions[agent], *([pending[agent]] if agent in pending else [])]
            dots = [(float(x) / 640, float(y)) for x, y in re.findall(r"M(\d+) (\d+)h0", row)]
            dots += [(float(x) / 100, float(y)) for x, y in re.findall(r'<circle [^>]*cx="(.*?)%" cy="(\d+)"', row)]
            steps = [begin + x * span for x, _ in dots]
            assert steps == pytest.approx([*line.action_times], abs=0.51 * span / 640)
            heights = [y - (14 if is_lettered else 4) for _, y in dots]
            expected = [22 * (max(every) - value) / (max(every) - min(every)) for value in values]
            assert heights == pytest.approx(expected, abs=0.51)
            hovered = {int(t): re.findall(r"\d+", words) for t, _, words in LABEL.findall(row)}
            assert hovered == {t: [str(value)] for t, value in zip(line.action_times, values, strict=True)}
            assert [words.startswith("pending") for *_, words in LABEL.findall(row)] == [
                t == line.action_times[-1] and agent in pending for t in line.action_times
            ]
            assert (f"max {max(actions[agent])}, pending {pending.get(agent)}" in row) == (agent in pending)
            texts = re.findall(r'<text x="([\d.e-]+)%" y="\d+">(\d+)</text>', row)
            if is_lettered:
                assert [int(text) for _, text in texts] == values
                assert [float(x) for x, _ in texts] == pytest.approx([100 * x for x, _ in dots], abs=0.09)
            else:
                assert not texts


@pytest.mark.parametrize("part", ["action", "reward", "action and reward"])
@pytest.mark.parametrize("place", ["fact", "sum", "lane", "text", "title", "row", "legend", "headline", "fold", "name"])
@pytest.mark.parametrize("steps", [3, 500])
def test_pending_parts_of_a_game_are_in_each_place(part: str, place: str, steps: int) -> None:
    """An agent that acts and gets a reward, or only one of them, without an observation since."""
    game, acts, is_paid = MultiAgentEpisode("g"), "action" in part, "reward" in part
    game.add_env_reset(observations={"a": 0.0, "b": 0.0})
    for t in range(steps):
        game.add_env_step({"a": 0.0, "b": 0.0}, {"a": 1, "b": 1}, {"a": float(t % 3), "b": 0.0})
    game.add_env_step({"b": 0.0}, {"b": 1} | ({"a": 7} if acts else {}), {"b": 0.0} | ({"a": -5.0} if is_paid else {}))
    card = multi_agent_card(game)
    facts = {fact.name: fact.value for fact in card.facts}
    [lane, _], total = lanes_of(str(card.chart)), sum(t % 3 for t in range(steps))
    last = LABEL.findall(lane)[-1][-1]
    row = str(card.chart).partition("ep-kinds")[2].partition("</div></div>")[2]
    unfinished = ["pending action 7", "waits for an observation"] * acts + ["pending reward -5"] * is_paid
    found, expected = {
        "fact": (facts["pending"], ", ".join(["1 action (a)"] * acts + ["reward -5 (a)"] * is_paid)),
        "sum": (facts.get("return"), f"{total - 5} = {total} in agents' steps - 5 pending" if is_paid else None),
        "lane": (
            [hue for _, svg in PENDING.findall(lane) for hue, *_ in OUTLINE.findall(svg)],
            ["actions"] * acts + ["rewards"] * is_paid,
        ),
        "text": (
            [words for words in last.split(", ") if words.startswith(("pending", "waits"))],
            unfinished,
        ),
        "title": (
            re.findall(" and a pending one(?: of -5)?", re.findall("<title>(.*?)</title>", lane)[0]),
            [" and a pending one"] * acts + [" and a pending one of -5"] * is_paid,
        ),
        "row": (re.findall(r"pending \d+", row), ["pending 7"] * 2 * acts),  # of all numbers, and of the env step
        "legend": ("waits for an observation</b>" in str(card.chart) and "□ pending" in str(card.chart), acts),
        "headline": (
            card.parts[0].headline,
            [
                f"{steps} steps" + " and a pending action" * acts,
                f"return {total}" + " and a pending reward of -5" * is_paid,
            ],
        ),
        "fold": (
            [fact.value for fact in card.parts[0].facts if fact.name == "unfinished"],
            [f"env step {steps}: {', '.join(unfinished)}"],
        ),
        "name": (
            re.findall("<small>(.*?)</small>", lane),
            [f"return {total}" + " + -5 pending" * is_paid],
        ),
    }[place]
    assert found == expected


@pytest.mark.parametrize("steps", [100, 1_000, 20_000])
def test_lanes_of_long_games_have_the_sums_extremes_and_counts_of_neighbouring_env_steps(steps: int) -> None:
    rewards = np.random.default_rng(steps).integers(-3, 4, (steps, 2))
    game = MultiAgentEpisode("g")
    game.add_env_reset(observations={"a": 0.0, "b": 0.0})
    for a, b in rewards.tolist():
        game.add_env_step({"a": 0.0, "b": 0.0}, {"a": 1, "b": 2}, {"a": a, "b": b})
    html = game._repr_html_() or ""
    assert len(html) < 50_000
    for lane, own in zip(lanes_of(html), rewards.T, strict=True):
        labels = LABEL.findall(lane)
        assert 20 <= len(labels) <= 49
        total, num_actions = 0.0, 0
        for begin, end, words in labels:
            first, last = (int(each.replace(",", "")) for each in (begin, end or begin))
            part = own[first : last + 1]
            num_actions += (
                int(re.findall(r"([\d,]+) actions?", words)[0].replace(",", "")) if end else "action" in words
            )
            total += numbers_after("sum" if end else "reward", [words])
            if end and len(part):
                assert f"rewards {part.min()} to {part.max()}, sum {part.sum()}" in words
        assert (total, num_actions) == (own.sum(), steps)
        bars = re.findall(r"M[-\d.]+ ([\d.]+)V([\d.]+)", re.findall(r'class="ep-rewards"[^>]*? d="(.*?)"', lane)[0])
        tops, bottoms = np.array(bars, float).T
        assert (tops.min(), bottoms.max()) == (9.0, 35.0)


@pytest.mark.parametrize("agents", [1, 2, 3])
def test_each_env_step_of_a_parallel_game_of_40_steps_has_a_text(agents: int) -> None:
    game, names = MultiAgentEpisode("g"), "abc"[:agents]
    game.add_env_reset(observations=dict.fromkeys(names, 0.0))
    for t in range(40):
        game.add_env_step(dict.fromkeys(names, 0.0), dict.fromkeys(names, t % 5), dict.fromkeys(names, 0.1))
    html = game._repr_html_() or ""
    for lane in lanes_of(html):
        assert [int(step) for step, end, _ in LABEL.findall(lane) if not end] == [*range(41)]
        assert "<small>return 4 (0.1 each step)</small>" in lane
        assert "40 rewards other than 0 (0.1)" in lane
    rows = html.rpartition("ep-kinds")[2].split('class="ep-lane"')[1:-1]
    labels = [(int(begin), int(end or begin), words) for begin, end, words in LABEL.findall(rows[0])]
    assert [t for begin, end, _ in labels for t in range(begin, end + 1)] == [*range(labels[-1][1] + 1)]
    for begin, end, words in labels:
        own = [t % 5 for t in range(begin, min(end, 39) + 1)]
        assert words == " to ".join(dict.fromkeys([str(min(own)), str(max(own))]))


@pytest.mark.parametrize(
    ("rewards", "name"),
    [
        ([0.5, 0.5], "return 1 (0.5 each step)"),
        ([0.5], "return 0.5"),
        ([0.0, 0.0], "return 0"),
        ([1.0, 2.0], "return 3"),
        ([np.nan, np.nan], "return NaN"),
    ],
)
def test_names_of_lanes_state_a_reward_of_each_step(rewards: list[float], name: str) -> None:
    game = MultiAgentEpisode("g")
    game.add_env_reset(observations={"a": 0.0})
    for reward in rewards:
        game.add_env_step({"a": 0.0}, {"a": 1}, {"a": reward})
    assert re.findall("<small>(.*?)</small>", lanes_of(game._repr_html_() or "")[0]) == [name]


def test_card_of_a_game_draws_shared_tracks_by_env_step_or_opens_the_first_agent() -> None:
    """A track with one number for each item has a row for each agent, at the env steps of its items."""
    for is_scalar in (True, False):
        game = MultiAgentEpisode("g")
        game.add_env_reset(observations={"a": np.zeros(2)})
        for t in range(9):
            me, other = ("a", "b") if t % 2 == 0 else ("b", "a")
            game.add_env_step({other: np.ones(2)}, {me: t if is_scalar else np.ones(2) * t}, {me: 1.0})
        html = game._repr_html_() or ""
        assert ('<small class="ep-label ep-actions">actions</small>' in html) == is_scalar
        assert [part.is_open for part in multi_agent_card(game).parts] == [not is_scalar, False]


ACTIONS: dict[str, Any] = {"int": 1, "float": np.float32(0.5), "array": np.array(2), "dict": {"k": 1}, "text": "left"}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("steps", [0, 3, 300])
def test_lanes_of_any_action_and_of_rewards_that_are_not_finite(action: str, steps: int) -> None:
    game, odd = MultiAgentEpisode("g"), [0.0, np.nan, np.inf, -np.inf, 1e308, -1e308]
    game.add_env_reset(observations={"<a>": 0.0, 7: 0.0})
    for t in range(steps):
        rewards = {"<a>": odd[t % 6], 7: odd[(t + 4) % 6]}
        game.add_env_step({"<a>": odd[t % 6], 7: 0.0}, dict.fromkeys(rewards, ACTIONS[action]), rewards)
    for _ in range(2):
        chart = str(multi_agent_card(game).chart)
        assert not [path for path in re.findall(r' d="([^"]*)"', chart) if re.search("nan|inf", path)]
        assert "<a>" not in chart
        assert ('class="ep-odd"' in chart) == (steps > 0)
        if action in ("int", "float", "array") and steps == 3:
            assert chart.count(f"action {formatting.number(float(ACTIONS[action]))}, reward") == 2 * steps
        game.to_numpy()


@pytest.mark.parametrize(
    ("space", "is_common"),
    [
        (None, True),
        (spaces.MultiDiscrete([4] * 9), True),
        (spaces.Box(0, 3, (9,), np.int8), True),
        (spaces.MultiDiscrete([4] * 8 + [5]), False),
        (spaces.Box(0, np.arange(3, 12), (9,), np.int64), False),
    ],
)
def test_rows_of_colours_of_numbers_with_one_range_have_one_scale(space: Any, is_common: bool) -> None:
    values = np.zeros((3, 9), int)
    values[:, 0], values[0, 1] = (0, 1, 3), 1
    series = Series("hand", "observations", values, 3, more=1, space=space)
    html = sparklines.heat(series, Axis(2), 100)
    picture = pixels(html)
    assert (picture[1].max() == picture[0].max()) is not is_common
    scale = re.findall('<span>([^<]*)<i class="ep-key"[^>]*></i>([^<]*)</span>', html)
    assert scale == [("0", "3") if is_common else ("min of each row", "max of each row")]


@given(st.integers(9, 60), st.integers(0, 59), st.integers(0, 59), st.booleans())
def test_notes_count_the_rows_of_colours(count: int, lowest: int, highest: int, is_in_time: bool) -> None:
    values = np.ones((3, count), int)
    values[0, lowest % count], values[1, highest % count] = 0, 2
    series, axis = Series("hand", "observations", values, 3, more=1), Axis(2) if is_in_time else None
    num_rows = len(pixels(sparklines.picture(series, axis)))
    note = sparklines.rows_note(series, axis)
    assert note.startswith("rows [0] (top) to" if num_rows == count else f"{num_rows} of {count} rows [0] (top) to")


def test_return_of_a_game_names_its_summands_if_it_is_not_that_of_the_agents_steps() -> None:
    game = MultiAgentEpisode("g")
    game.add_env_reset(observations={"a": 0.0, "b": 0.0})
    game.add_env_step({"a": 0.0, "b": 0.0}, {"a": 1, "b": 1}, {"a": 2.0, "b": 1.0})
    assert "return" not in {fact.name for fact in multi_agent_card(game).facts}
    game.add_env_step({"b": 0.0}, {"a": 1, "b": 1}, {"a": 4.0, "b": 1.0})
    facts = {fact.name: fact.value for fact in multi_agent_card(game).facts}
    assert facts["return"] == "8 = 4 in agents' steps + 4 pending"


# --- lines, bars and dots ---------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(24, 240))
def test_each_episode_of_a_pack_is_drawn_from_its_first_to_its_last_item(lengths: list[int], points: int) -> None:
    pack = EpisodePack.from_episodes(walk(lengths, terminated=True))
    starts = np.cumsum([0, *(n + 1 for n in lengths)])
    axis = Axis(int(starts[-1]), 0, starts[1:-1])
    unit = UNITS * WIDTH / axis.span
    tracks = {series.label: series for series in of_tracks(pack.columns)}
    for name, more in (("rewards", 0), ("observations", 1)):
        lines = strokes(sparklines.lines(tracks[name], axis, points))
        ends = np.array([(line[:, 0].min(), line[:, 0].max()) for line in lines])
        for start, length in zip(starts[:-1].tolist(), lengths, strict=True):
            first = (start + (0 if more else 0.5)) * unit
            last = first + (length + more - 1) * unit
            inside = ends[(ends[:, 0] >= first - 1) & (ends[:, 1] <= last + 1)]
            assert (inside[:, 0].min(), inside[:, 1].max()) == pytest.approx((first, last), abs=1)


@given(st.lists(st.sampled_from([0.0] * 6 + [1.0, -2.0, np.nan]), min_size=2, max_size=300))
def test_rare_rewards_are_bars_from_zero_at_their_steps(rewards: list[float]) -> None:
    values = np.array(rewards)
    svg = str(sparklines.picture(Series("rewards", "rewards", values, len(values)), Axis(len(values))))
    if 2 * (values == 0).sum() <= len(values):
        return
    found = strokes(svg.replace("H960", ""))
    bars = [line for line in found if len(line) == 2]
    steps = np.flatnonzero(np.isfinite(values) & (values != 0))
    xs = ((steps + 0.5) * UNITS * WIDTH / len(values) + 0.5).astype(int)
    assert [bar[0, 0] for bar in bars] == sorted(set(xs.tolist()))
    assert all((bar[0, 0], bar[0, 1] < bar[1, 1]) == (bar[1, 0], True) for bar in bars)


@pytest.mark.parametrize("count", [1, 40, 300, 5000])
def test_choices_are_dots_at_their_places(count: int) -> None:
    values = np.random.default_rng(0).integers(0, 52, count)
    values[-1] = 51
    series = Series("actions", "actions", values, count, space=spaces.Discrete(52))
    svg = str(sparklines.dots(series, Axis(count)))
    places = np.array(re.findall(r"M(\d+) (\d+)l0 0", svg), int)
    assert len(places) == count if count <= sparklines.MOST_DOTS else len(places) < count
    assert places[:, 0].max() <= UNITS * WIDTH
    assert "<path d=" not in svg  # no line


# --- defects ----------------------------------------------------------------------------------------------------------


def broken(step: int) -> SingleAgentEpisode:
    """Return an episode whose second observation number is NaN at `step`, and outside of its space a step later."""
    observations = np.zeros((9, 2))
    observations[step, 1], observations[step + 1, 1] = np.nan, 7
    return SingleAgentEpisode.from_arrays(observations, np.zeros(8), np.ones(8), observation_space=BOX)


def whole(step: int) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(np.zeros((4, 2)), np.zeros(3), np.ones(3), observation_space=BOX)


def views(step: int, folder: Path) -> dict[str, tuple[Any, str, str]]:
    """Return objects with the broken episode, and the places of its NaN and of its number outside of the space."""
    one, two = f"t={step}", f"t={step + 1}"
    grown = SingleAgentEpisode(observation_space=BOX)
    grown.add_env_reset(broken(step).get_observations(0))
    for t in range(8):
        grown.add_env_step(broken(step).get_observations(t + 1), 0.0, 1.0)
    second = [whole(0), broken(step)]
    return {
        "episode": (broken(step), one, two),
        "growing": (grown, one, two),
        "pack": (EpisodePack.from_episodes(second), f"episode 1, {one}", f"episode 1, {two}"),
        "data set": (EpisodeDataset(write(folder, second)), f"episode 1, {one}", f"episode 1, {two}"),
    }


@pytest.mark.parametrize("view", ["episode", "growing", "pack", "data set"])
@pytest.mark.parametrize("step", [0, 3, 7])
def test_cards_say_where_numbers_are_wrong(view: str, step: int, tmp_path: Path) -> None:
    value, nan_at, outside_at = views(step, tmp_path / "data")[view]
    html = value._repr_html_()
    assert f"1 NaN: [1] at {nan_at}; 1 outside of its space: [1] at {outside_at} (7)" in html
    assert "Box -1 … 1" in html


def test_batches_say_in_which_row_numbers_are_wrong() -> None:
    values = np.zeros((6, 2))
    values[[2, 4], 1] = np.inf
    assert "2 infinite: first [1] at row 2" in (Batch(x=values)._repr_html_() or "")


# --- layout -----------------------------------------------------------------------------------------------------------


def robot() -> SingleAgentEpisode:
    """Return an episode with lines of 1, 3 and 6 numbers, rows of colours and images, some with notes and defects."""
    observations = {
        "camera": np.zeros((141, 16, 24, 3), np.uint8),
        "joints": broken_numbers(141, 6),
        "force": np.random.default_rng(0).normal(size=(141, 3)),
        "touch": np.random.default_rng(0).normal(size=(141, 40)),
        "a name so long that it takes several lines of its column in a card, with a space": broken_numbers(141, 2),
    }
    infos = [{"speed": float(t)} if t % 2 else {} for t in range(141)]
    box: dict[str, Any] = {n: spaces.Box(0, 5, items.shape[1:], items.dtype.type) for n, items in observations.items()}
    arrays = np.zeros((140, 2)), np.ones(140)
    return SingleAgentEpisode.from_arrays(observations, *arrays, infos=infos, observation_space=spaces.Dict(box))


def broken_numbers(num: int, size: int) -> np.ndarray:
    """Return numbers [num, size], one of which is NaN and one is infinite."""
    result = np.random.default_rng(0).normal(size=(num, size))
    result[5, 1], result[7, 0] = np.nan, np.inf
    return result


OFFSETS = """() => [...document.querySelectorAll('.ep-row')].flatMap((row) => {
    const picture = row.querySelector('svg.ep-pic')?.getBoundingClientRect(), stats = row.querySelector('.ep-stats');
    const middle = (box) => (box.top + box.bottom) / 2, names = [...stats.querySelectorAll('small')];
    return picture ? names.map((name, i) => {
        const own = middle(name.nextElementSibling.getBoundingClientRect());
        return own - picture.top - picture.height * (i + 0.5) / names.length;
    }) : [];
})"""


@WITH_BROWSER
@pytest.mark.parametrize("make", [robot, conversation, lambda: EpisodePack.from_episodes([robot()] * 2)])
def test_numbers_of_a_line_are_beside_it_with_and_without_notes(make: Any, tmp_path: Path, tab: Tab) -> None:
    (tmp_path / "card.html").write_text(html.page("card", make()._repr_html_()))
    page = tab.open_any((tmp_path / "card.html").as_uri())
    for width in (700, 1000):
        page.set_viewport_size({"width": width, "height": 800})
        offsets = page.evaluate(OFFSETS)
        assert len(offsets) >= 3
        assert max(map(abs, offsets)) < 3


@WITH_BROWSER
@pytest.mark.parametrize("width", [320, 400, 700, 1000])
@pytest.mark.parametrize("view", ["episode", "pack", "data set", "batch"])
def test_captions_of_images_are_not_cut(view: str, width: int, tmp_path: Path, tab: Tab) -> None:
    many = [robot() for _ in range(11)]
    make: dict[str, Any] = {
        "episode": lambda: many[0],
        "pack": lambda: EpisodePack.from_episodes(many),
        "data set": lambda: EpisodeDataset(write(tmp_path / "data", many)),
        "batch": lambda: Batch(camera=np.zeros((12_000, 16, 24, 3), np.uint8)),
    }
    (tmp_path / "card.html").write_text(html.page("card", make[view]()._repr_html_()))
    page = tab.open_any((tmp_path / "card.html").as_uri())
    page.set_viewport_size({"width": width, "height": 800})
    captions = page.locator("figcaption:visible")
    assert captions.count() >= 4
    measure = "(one) => [one.scrollWidth - one.clientWidth, one.clientHeight]"
    sizes = page.evaluate(f"[...document.querySelectorAll('figcaption')].map({measure})")
    assert max(excess for excess, _ in sizes) <= 0
    assert max(height for _, height in sizes) <= 2 * 12 + 1  # at most two lines
    words = [text.split() for text in captions.all_inner_texts()]
    if view in ("pack", "data set"):
        assert words[0] == ["#0", "t=0"]
        assert all(re.fullmatch(r"#\d+ t=\d+", " ".join(each)) for each in words)


# --- data sets and buffers --------------------------------------------------------------------------------------------


def test_statistics_of_a_small_data_set_are_of_all_of_it_and_else_say_of_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observations = np.array([[0.0, np.nan], [1, 1], [2, 2], [3, 3]])
    actions, rewards = np.zeros(3, np.int64), np.ones(3)
    episodes = [SingleAgentEpisode.from_arrays(observations, actions, rewards, id_=f"e{i}") for i in range(20)]
    dataset = EpisodeDataset(write(tmp_path / "data", episodes))
    assert "of all 20 episodes" in (dataset._repr_html_() or "")
    for most, read in ((20 * 3 * 32, 20), (12.5 * 3 * 32, 12), (80, 8)):  # 32 bytes of a step
        monkeypatch.setattr(schema, "MOST_BYTES", most + 1)
        assert f"of {'all' if read == 20 else f'{read} of'} 20 episodes" in (html := dataset._repr_html_() or "")
        what = f"{read} of {read * 4 * 2} numbers are NaN"
        assert heads(html) == [f"observations: {what}" + ("" if read == 20 else f" in {read} of 20 episodes")]
    games = []
    for n in range(10):
        game = MultiAgentEpisode(f"g{n}")
        game.add_env_reset(observations={"a": np.zeros(2), "b": np.zeros(2)})
        game.add_env_step({"a": np.ones(2), "b": np.ones(2)}, {"a": 1, "b": 0}, {"a": 1.0, "b": 2.0})
        games.append(game)
    html = GameDataset(write(tmp_path / "games", games))._repr_html_() or ""  # type: ignore[arg-type]
    assert "of 2 agents in 8 of 10 games, evenly spaced" in html
    assert "mean return 3 " in re.sub("<[^>]+>", " ", html)
    assert ("kind 0" in html, "1 kind" in html, " kB" in html) == (False, False, True)
    assert "2 agents <b>a, b · 20 agent steps" in html
    assert html.count("of agents") == html.count("tracks of") == 0  # one table of all agents


def games(agents: dict[str, int], ids: Sequence[str] = ("g0", "g1", "g2")) -> list[Any]:
    """Return games of agents with observations of the given sizes, whose rewards are different."""
    result: list[Any] = []
    for n, id_ in enumerate(ids):
        game = MultiAgentEpisode(id_)
        game.add_env_reset(observations={agent: np.zeros(size) for agent, size in agents.items()})
        rewards = {agent: float(10 * n + i) for i, agent in enumerate(agents)}
        items = {agent: np.ones(size) for agent, size in agents.items()}
        game.add_env_step(items, dict.fromkeys(agents, 1), rewards)
        result.append(game)
    return result


@pytest.mark.parametrize(
    ("agents", "is_merged"),
    [({"a": 2, "b": 2, "c": 2}, True), ({"a": 2, "b": 3}, False), ({"a": 2}, False)],
)
def test_agents_with_equal_tracks_have_one_table_before_that_of_the_games(
    agents: dict[str, int], is_merged: bool, tmp_path: Path
) -> None:
    dataset = GameDataset(write(tmp_path / "data", games(agents)))
    card = games_card(dataset)
    labels = [row.label for row in card.rows]
    assert ("rewards" in labels) == is_merged
    if is_merged:
        assert card.extent == "of 3 agents in all 3 games"
        [rewards] = [row for row in card.rows if row.label == "rewards"]
        deviation = formatting.number(np.std([10 * n + i for n in range(3) for i in range(3)]), 3)
        assert rewards.stats == [("", "0", f"11 ± {deviation}", "22")]
    assert [part.is_open for part in card.tracks] == [True, False][: len(card.tracks)]
    html = (dataset._repr_html_() or "").split("</style>")[1]
    places = [html.rindex("ep-chart"), html.index(">histogram "), html.index(">ending<"), html.index("ep-lanes")]
    assert places == sorted(places)
    single = EpisodeDataset(write(tmp_path / "single", walk([3, 4])))._repr_html_() or ""
    single = single.split("</style>")[1]
    assert single.index("ep-chart") < single.index(">histogram ") < single.index(">ending<")


@pytest.mark.parametrize("kind", ["episodes", "games", "part"])
def test_last_line_of_a_data_set_has_commands_that_run(kind: str, tmp_path: Path) -> None:
    names = ["7", "it's -- one", "-x"]
    made: list[Any] = games({"a": 2}) if kind == "games" else walk([3, 4, 5])
    if kind != "games":
        made = [
            SingleAgentEpisode.from_arrays(e.get_observations(), e.get_actions(), np.full(len(e), 3.0 - i), id_=name)
            for i, (e, name) in enumerate(zip(made, names, strict=True))
        ]
    folder = tmp_path / "a folder's <data>"
    dataset: Any = (GameDataset if kind == "games" else EpisodeDataset)(write(folder, made))
    dataset = dataset[1:] if kind == "part" else dataset
    shown = re.findall("<code>(.*?)</code>", dataset._repr_html_())
    watch, show = (shlex.split(unescape(command)) for command in shown)
    assert watch == ["episodes", "watch", str(folder)]
    assert show[:3] == ["episodes", "show", str(folder)]
    returns = dataset.metadata["return"]
    worst = str(dataset.metadata["id"][returns.argmin()])
    assert show[3] == f"--episode={worst}"
    assert worst in output(*show[1:])


def defective(kinds: list[set[str]], view: str) -> list[Any]:
    """Return episodes, conversations or games with a number of each of the given kinds of defects."""
    result: list[Any] = []
    values = {"NaN": np.nan, "infinite": -np.inf, "outside of its space": 7.0}
    for i, own in enumerate(kinds):
        items, name, reward = np.zeros((6, 2)), f"e{i}-{'x' * 30}", np.array([0.0, -1.0])[[i % 2]]
        for k, kind in enumerate(sorted(own)):
            items[k + 1, k % 2] = values[kind]
        if view == "conversations":
            talk = Conversation(name, outputs={"logp": "f4", "value": "f4"})
            talk.begin([1, 2])
            for k, item in enumerate(items[1:, :].sum(1).tolist()):
                talk.turn(
                    [3, 4],
                    [5] if k < 4 else [],
                    float(reward[0]) * (k == 4),
                    logp=[0.0] * 2,
                    value=[item, 0.0],
                    terminated=k == 4,
                )
            result.append(talk.episode)
        elif view == "episodes":
            rewards = np.repeat(reward, 5)
            result.append(SingleAgentEpisode.from_arrays(items, np.zeros(5), rewards, id_=name, observation_space=BOX))
        else:
            sizes = {"a": 2, "b": 2 if view == "games" else 3}
            boxes = {agent: spaces.Box(-1.0, 1.0, (size,), np.float64) for agent, size in sizes.items()}
            game = MultiAgentEpisode(name, observation_space=boxes)
            rows = [{"a": np.zeros(2), "b": np.concatenate([row, [0.0]])[: sizes["b"]]} for row in items]
            game.add_env_reset(observations=rows[0])
            for row in rows[1:]:
                game.add_env_step(row, {"a": 0, "b": 0}, {"a": 0.0, "b": float(reward[0])})
            result.append(game)
    return result


@pytest.mark.parametrize("view", ["episodes", "conversations", "games", "games of two kinds"])
@settings(max_examples=8)
@given(data=st.data())
def test_episodes_with_defects_are_in_each_place(view: str, data: st.DataObject) -> None:
    """The table lists the first 3 with their kinds of defects in red, and the command and the fold have the first."""
    known = ["NaN", "infinite"] if view == "conversations" else ["NaN", "infinite", "outside of its space"]
    kinds = data.draw(st.lists(st.just(set()) | st.sets(st.sampled_from(known)), min_size=1, max_size=16))
    with TemporaryDirectory() as folder:
        dataset: Any = (GameDataset if "games" in view else EpisodeDataset)(write(folder, defective(kinds, view)))
        card = (games_card if "games" in view else dataset_card)(dataset)
        table, ids = card.table, dataset.metadata["id"].tolist()
        assert table is not None
        listed = {int(row[0]): unescape(str(row[1])) for row in table.rows if row[0] != "⋮"}
        broken = [i for i, own in enumerate(kinds) if own]
        assert set(broken[:3]) <= set(listed)
        for i, cell in listed.items():
            assert f'title="{ids[i]}"' in cell
            marks = re.findall(r'<span class="ep-defect">(.*?)</span>', cell)
            assert [set(mark.split(", ")) for mark in marks] == [kinds[i]] * bool(kinds[i])
        assert ("first with defects" in table.note) == bool(broken and table.note)
        returns = dataset.metadata["return"]
        worst = int(returns.argmin()) if len(set(returns.tolist())) > 1 else 0
        assert f"--episode={ids[broken[0] if broken else worst]}</code>" in card.notes[-1]
        first = ids[broken[0] if broken else 0]
        if "games" in view:
            assert [part.name for part in card.parts] == [first]
        assert (card.talk is not None) == (view == "conversations")
        if card.talk is not None:
            assert card.talk.title.startswith(formatting.brief_id(first))


@given(st.lists(st.tuples(st.sampled_from(["", " ", "a", "b", "c d"]), st.booleans()), max_size=40), st.booleans())
def test_texts_of_a_track_are_listed_once_and_without_blank_ones(items: list[Any], is_always: bool) -> None:
    texts = np.array([text for text, _ in items], "U3")
    present = None if is_always else np.array([there for _, there in items], bool)
    expected: dict[str, list[int]] = {}
    for i, (text, there) in enumerate(items):
        if text.strip() and (there or is_always):
            expected.setdefault(text, []).append(i)
    [row] = rows_of([Series("infos/task", "infos", texts, len(texts), more=1, present=present)], None)[0]
    if not expected:
        assert (row.table, row.picture) == (None, "")
        return
    assert row.table is not None
    is_once = all(len(own) == 1 for own in expected.values())
    cells = [(str(own[0]), *([] if is_once else [str(len(own))]), text) for text, own in expected.items()]
    assert [tuple(each) for each in row.table.rows] == cells
    assert tuple(row.table.columns) == (("item", "text") if is_once else ("item", "times", "text"))


@pytest.mark.parametrize(("turns", "size"), [(1, 3), (2, 40), (9, 40)])
def test_data_set_of_conversations_has_the_beginning_of_one(turns: int, size: int, tmp_path: Path) -> None:
    talk = Conversation("talk", outputs={"logp": "f4"})
    talk.begin([*range(1000, 1000 + size)])
    for k in range(turns):
        ids = [*range(2000 + 100 * k, 2000 + 100 * k + size)]
        talk.turn(ids, [] if k == turns - 1 else [7], 1.0, logp=[-0.5] * size, terminated=k == turns - 1)
    html = (EpisodeDataset(write(tmp_path / "data", [talk.episode] * 1))._repr_html_() or "").split("</style>")[1]
    before, _, view = html.partition('<span class="ep-kind">conversation</span>')
    assert before.endswith('<details><summary class="ep-head">')  # closed
    assert html.index(">ending<") < html.index(">conversation<") < html.index("see more:")
    shown = [int(token) for token in re.findall(r'<span class="ep-token"[^>]*>(\d+)</span>', view)]
    expected = [[*range(1000, 1000 + size)]]
    for k in range(turns):
        expected += [[*range(2000 + 100 * k, 2000 + 100 * k + size)], *[[7]] * (k < turns - 1)]
    assert shown == [token for message in expected[:6] for token in message[:32]]
    assert ("more messages" in view) == (2 * turns > 6)
    assert "length 0 ends 1 episode: nothing follows the last turn" in html
    assert "length 0" not in (EpisodeDataset(write(tmp_path / "open", [opened()]))._repr_html_() or "")


def opened() -> SingleAgentEpisode:
    """Return an episode of tokens with an empty observation that is not its last."""
    talk = Conversation("open")
    talk.begin([1])
    talk.turn([2], [], logp=[0.0])
    talk.turn([2], [3], logp=[0.0])
    return talk.episode


@pytest.mark.parametrize("num", [1, 2, 8, 9])
def test_games_have_mean_returns_of_at_most_8_agents(num: int, tmp_path: Path) -> None:
    dataset = GameDataset(write(tmp_path / "data", games({f"a{i}": 2 for i in range(num)})))
    for part in (dataset, dataset[1:]):
        facts = {fact.name: fact.whole or fact.value for fact in games_card(part).facts}
        begin = 3 - len(part)
        means = [f"a{i} {formatting.number(np.mean([10.0 * n + i for n in range(begin, 3)]))}" for i in range(num)]
        assert facts.get("mean return by agent") == (", ".join(means) if 1 < num <= 8 else None)


@pytest.mark.parametrize("view", ["data set", "pack", "games"])
def test_tooltips_have_whole_ids(view: str, tmp_path: Path) -> None:
    ids = [
        f"{i:032x}" if i % 2 else f"episode {i} of a run with a name of more than {'x' * 30} characters"
        for i in range(6)
    ]
    episodes = [
        SingleAgentEpisode.from_arrays(np.zeros(3), np.zeros(2), np.full(2, float(i)), id_=id_)
        for i, id_ in enumerate(ids)
    ]
    made: list[Any] = games({"a": 2}, ids=ids)
    value: Any = {
        "data set": lambda: EpisodeDataset(write(tmp_path / "data", episodes)),
        "pack": lambda: EpisodePack.from_episodes(episodes),
        "games": lambda: GameDataset(write(tmp_path / "data", made)),
    }[view]()
    html = value._repr_html_() or ""
    for i, id_ in enumerate(ids):
        short = f"{id_[:8]}…" if i % 2 else f"{id_[:12]}…{id_[-11:]}"
        assert f"<title>{id_}, return {2 * i if view != 'games' else 10 * i}, length" in html
        assert f'<td><span title="{id_}">{short}</span></td>' in html


@given(st.lists(st.floats(-9, 9) | st.sampled_from([np.nan, -1.0, 1.0]), max_size=60))
def test_tables_list_and_mark_the_best_and_the_worst_episode(returns: list[float]) -> None:
    values, nothing = np.array(returns), np.zeros(len(returns), np.int64)
    table = episodes_table(nothing, nothing, values, nothing > 0, nothing > 0, nothing)
    cells = [(values[int(row[0])], row[list(table.columns).index("return")]) for row in table.rows if row[0] != "⋮"]
    found = [(value, re.fullmatch(r'(?:<span class="ep-mark">(.*)</span> )?(\S+)', str(cell))) for value, cell in cells]
    assert all(match and match[2] == formatting.number(value) for value, match in found)
    marks = {match[1]: value for value, match in found if match and match[1]}
    finite = values[np.isfinite(values)]
    expected = {}
    if len(np.unique(finite)) > 1:
        for word, value in (("best", finite.max()), ("worst", finite.min())):
            num = int((finite == value).sum())
            expected[word if num == 1 else f"{word} (1 of {num})"] = value
    assert marks == expected
    assert all((f"the {word}" in table.note) == any(word in mark for mark in marks) for word in ("best", "worst")) or (
        len(cells) == len(values) and not table.note
    )
    left_out = [int(row[1].split()[0].replace(",", "")) for row in table.rows if row[0] == "⋮"]
    assert len(cells) + sum(left_out) == len(values)
    assert 1 not in left_out  # the row itself would be as long
    assert len(table.rows) <= (8 if len(values) <= 8 else 6 + len(marks) + len(marks) + 1)


@pytest.mark.parametrize("reward", [0.0, 1.0, -0.5, "index"])
@pytest.mark.parametrize("lengths", [[3, 3, 3], [2, 9, 4]])
def test_data_set_card_has_means_and_a_chart_of_lengths_that_returns_do_not_show(
    reward: float | str, lengths: list[int], tmp_path: Path
) -> None:
    rewards = [np.full(n, i if reward == "index" else reward, np.float64) for i, n in enumerate(lengths)]
    episodes = [
        SingleAgentEpisode.from_arrays(np.zeros(len(own) + 1), np.zeros(len(own)), own, id_=f"e{i}")
        for i, own in enumerate(rewards)
    ]
    html = EpisodeDataset(write(tmp_path / "data", episodes))._repr_html_() or ""
    assert ("lengths of 3 episodes" in html) == (len(set(lengths)) > 1 and reward in ("index", 0.0))
    named = {"return": [own.sum() for own in rewards], "length": lengths}
    for name, values in ({"return = length": lengths} if reward == 1.0 else named).items():
        low, mean, high = map(formatting.number, (min(values), float(np.mean(values)), max(values)))
        assert f"mean {name} {mean}" + (f" ({low} … {high})" if low != high else "") in html


def test_means_of_returns_whose_sum_overflows(tmp_path: Path) -> None:
    huge = {0: 1e308, 8: 1e308, 1: -1e308, 9: -1e308}
    episodes = [
        SingleAgentEpisode.from_arrays(np.zeros(2), np.zeros(1), np.array([huge.get(i, 0.0)]), id_=f"e{i}")
        for i in range(24)
    ]
    dataset = EpisodeDataset(write(tmp_path / "data", episodes))
    assert "mean return 0 (-1.0e+308 … 1.0e+308)" in (dataset._repr_html_() or "")
    assert summarized(measured(dataset))["return"]["mean"] == 0


def test_card_of_a_prioritized_buffer_has_its_priorities_and_exponents() -> None:
    buffer = PrioritizedEpisodeReplayBuffer(100, alpha=0.5, beta=0.25, seed=0)
    buffer.add(walk([30], terminated=True))
    html = buffer._repr_html_() or ""
    assert "alpha <b>0.5</b>" in html
    assert "beta <b>0.25</b>" in html
    assert ">priority<" in html


# --- batches and packs ------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(*[st.floats(-1e3, 1e3) | st.just(np.nan)] * 2), min_size=1, max_size=30))
def test_opened_columns_without_an_order_have_a_standard_deviation_and_no_first_item(rows: list[Any]) -> None:
    values = np.array(rows)
    table = parts_table(Series("x", "extra", values, len(values)), is_in_time=False)
    assert table is not None
    assert table.columns == ("", "min", "mean", "std", "max")
    for row, column in zip(table.rows, values.T, strict=True):
        finite = column[np.isfinite(column)]
        expected = finite.std() if len(finite) else np.nan
        found = float(row[3])
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-6, nan_ok=True)


def test_listed_rows_of_a_batch_have_their_actions_and_rewards() -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(walk([30, 40]))
    batch = buffer.sample(8)
    table = batch_card(batch).table
    assert table is not None
    assert tuple(table.columns[:5]) == ("row", "episode", "t", "action", "reward")
    for row in table.rows:
        k = int(row[0])
        assert list(row[3:5]) == [formatting.number(batch[name][k]) for name in ("actions", "rewards")]


@pytest.mark.parametrize(("count", "caption"), [(1, ""), (10, "the episodes side by side"), (11, HISTOGRAMS)])
def test_packs_of_many_episodes_are_histograms(count: int, caption: str) -> None:
    card = pack_card(EpisodePack.from_episodes(walk([5] * count)))
    assert card.caption == caption
    assert all(("histogram" in row.picture) == (count > 10) for row in card.rows)


# --- all cards --------------------------------------------------------------------------------------------------------


def test_cards_have_one_head_for_their_statistics_and_one_vocabulary(tmp_path: Path) -> None:
    episodes = walk([30, 40], terminated=True)
    buffer = EpisodeReplayBuffer(100)
    buffer.add(episodes)
    dataset = EpisodeDataset(write(tmp_path / "data", episodes))
    batch: Any = learner_pipeline()(episodes=episodes)
    for value in (episodes[0], conversation(), EpisodePack.from_episodes(episodes), buffer, dataset, batch):
        html = (value._repr_html_() or "").split("</style>")[1]
        assert len(re.findall("<small>min</small> <small>mean(?: ± std)?</small> <small>max</small>", html)) == 1
        assert "lowest" not in html
        assert "highest" not in html


@pytest.mark.parametrize("count", [1, 6, 8, 9, 40])
def test_no_single_number_is_left_out(count: int) -> None:
    table = parts_table(Series("x", "extra", np.arange(5.0 * count).reshape(5, count), 5))
    assert table is not None
    named = [row for row in table.rows if row[0] != "⋮"]
    assert len(named) == (count if count <= 8 else 6)
    assert [row[1] for row in table.rows[len(named) :]] == ([] if count <= 8 else [f"{count - 6} more"])


# --- defects ----------------------------------------------------------------------------------------------------------


def with_defects(odd: list[tuple[int, int, float]], names: Sequence[str] = ("obs",)) -> SingleAgentEpisode:
    """Return an episode of 9 steps, whose last observation part has the given numbers (row, column, number)."""
    space = spaces.Dict(dict.fromkeys(names, BOX))
    observations = {name: np.zeros((10, 2)) for name in names}
    for row, column, number in odd:
        observations[names[-1]][row, column] = number
    return SingleAgentEpisode.from_arrays(
        observations, np.zeros(9), np.arange(9.0), id_="e", observation_space=space, terminated=True
    )


def batch_of(episode: SingleAgentEpisode) -> Any:
    return Batch({name: np.asarray(values) for name, values in episode.get_observations().items()})


def replay_of(episode: SingleAgentEpisode) -> Any:
    buffer = EpisodeReplayBuffer(100)
    buffer.add(episode)
    return buffer


HEADS: dict[str, Any] = {
    "episode": lambda episode, folder: episode,
    "pack": lambda episode, folder: EpisodePack.from_episodes([episode]),
    "batch": lambda episode, folder: batch_of(episode),
    "replay": lambda episode, folder: replay_of(episode),
    "data set": lambda episode, folder: EpisodeDataset(write(folder / "data", [episode])),
}


def heads(html: str) -> list[str]:
    """Return the defects in the head of a card."""
    return re.findall('<span class="ep-defect">(.*?)</span>', html.split("</summary>")[0])


@settings(max_examples=25)
@given(
    kind=st.sampled_from([*HEADS]),
    odd=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 1), st.sampled_from([0.5, np.nan, np.inf, -np.inf, 3.0])),
        max_size=8,
        unique_by=lambda each: each[:2],
    ),
)
def test_heads_have_the_numbers_of_defects_if_a_track_has_some(kind: str, odd: list[tuple[int, int, float]]) -> None:
    with TemporaryDirectory() as folder:
        html = HEADS[kind](with_defects(odd), Path(folder))._repr_html_()
    values = np.array([number for row, _, number in odd if row < 9 or kind != "replay"])  # which has 9 steps
    expected = {"NaN": np.isnan(values).sum(), "infinite": np.isinf(values).sum(), "outside of its space": 0}
    if kind not in ("batch", "replay"):  # which know no spaces
        expected["outside of its space"] = (values == 3).sum()
    found = heads(html)
    counts = [(word, count) for word, count in expected.items() if count]
    for (word, count), text in zip(counts[:2], found, strict=False):
        assert re.search(rf": {count} of {18 if kind == 'replay' else 20} numbers (is|are) {word}$", text)
        assert ("obs" in text, " is " in text) == (True, count == 1)
    more = [f"and {len(counts) - 2} more below"] if len(counts) > 2 else []
    assert found[2:] == more
    assert len(found) == min(len(counts), 2) + len(more)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("count", [2, 9, 30, 60])
def test_a_defect_of_the_last_of_many_tracks_is_in_the_head_and_has_a_row(
    kind: str, count: int, tmp_path: Path
) -> None:
    names = [f"part_{i:02d}" for i in range(count)]
    value = HEADS[kind](with_defects([(4, 1, np.nan)], names), tmp_path)
    html = value._repr_html_()
    [text] = heads(html)
    assert text.endswith(f"{names[-1]}: 1 of {18 if kind == 'replay' else 20} numbers is NaN")
    body = re.sub('<details class="ep-folded">.*?</details>', "", html.split("</style>")[1], flags=re.DOTALL)
    assert "1 NaN: [1] at " in body


@pytest.mark.parametrize("sizes", [{"a": 2, "b": 2}, {"a": 2, "b": 3}])
def test_defects_of_an_agent_are_in_the_head_of_the_games(sizes: dict[str, int], tmp_path: Path) -> None:
    broken = games(sizes, ["g0"])[0]
    broken.add_env_step({"b": np.full(sizes["b"], np.nan)}, {"b": 1}, {"b": 0.0})
    dataset = GameDataset(write(tmp_path / "data", [*games(sizes, ["g0", "g1"])[1:], broken]))  # type: ignore[list-item]
    is_merged = len(set(sizes.values())) == 1
    name, numbers = ("observations", 18) if is_merged else ("b/observations", 15)
    assert heads(dataset._repr_html_() or "") == [f"{name}: {sizes['b']} of {numbers} numbers are NaN"]


@pytest.mark.parametrize("kind", ["episode", "pack", "data set"])
@pytest.mark.parametrize("count", [1, 9])
def test_long_spaces_have_the_names_of_their_parts_and_open(kind: str, count: int, tmp_path: Path) -> None:
    names = [f"p{i}" for i in range(count)]
    html = HEADS[kind](with_defects([], names), tmp_path)._repr_html_()
    whole = f"Dict({', '.join(f'{name}: Box(2,) float64 -1 to 1' for name in names)})"
    assert (f"<b>Dict({', '.join(names)})</b></summary>{whole}</details>" in html) == (count > 1)
    assert f"{whole}</" in html


# --- shapes of cards --------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=1, max_size=20))
def test_rows_without_an_order_have_the_standard_deviation(items: list[list[float]]) -> None:
    array = np.array(items)
    [row] = rows_of([Series("x", "extra", array, len(array))], None)[0]
    for (_, _, mean, _), column in zip(row.stats, array.T, strict=True):
        deviation, is_rounding = formatting.number(column.std(), 3), column.std() < 2e-15 * np.abs(column).max()
        assert mean == formatting.number(column.mean()) + f" ± {deviation}" * int(column.std() > 0 and not is_rounding)
    [in_time] = rows_of([Series("x", "extra", array, len(array))], Axis(len(array)))[0]
    assert not any("±" in mean for _, _, mean, _ in in_time.stats)


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (None, None),
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), "Box(84, 84, 3) uint8 0 to 255"),
        (spaces.Box(-np.inf, np.inf, (17,), np.float32), "Box(17,) float32 -∞ to ∞"),
        (spaces.Box(np.array([0, 1]), np.array([2, 2]), dtype=np.float64), "Box(2,) float64 bounds by component"),
        (spaces.Box(0, 1, (0,)), "Box(0,) float32 without numbers"),
        (spaces.Discrete(4), "Discrete(4)"),
        (spaces.Tuple([spaces.Discrete(2), BOX]), "Tuple(Discrete(2), Box(2,) float64 -1 to 1)"),
        (spaces.Dict(a=spaces.Dict(b=BOX)), "Dict(a: Dict(b: Box(2,) float64 -1 to 1))"),
    ],
)
def test_spaces_are_described_with_shape_dtype_and_bounds(space: Any, text: str | None) -> None:
    assert schema.described(space) == text


@WITH_BROWSER
@pytest.mark.parametrize("width", [300, 320, 900])
def test_tables_of_cards_scroll_by_themselves_with_their_first_column_pinned(
    width: int, tmp_path: Path, tab: Tab
) -> None:
    name = "an-episode-of-a-run-with-a-very-long-name"
    episode = SingleAgentEpisode.from_arrays(np.zeros(3), np.zeros(2), np.zeros(2), id_=name)
    pack = EpisodePack.from_episodes([episode])
    (tmp_path / "card.html").write_text(html.page("card", pack._repr_html_() or ""))
    page = tab.open_any((tmp_path / "card.html").as_uri())
    page.set_viewport_size({"width": width, "height": 800})
    left, cell, moved = page.evaluate("""() => {
        const box = [...document.querySelectorAll('.ep-scroll')].at(-1); box.scrollLeft = 1000;
        const lefts = [box, box.querySelector('td')].map((each) => each.getBoundingClientRect().left);
        return [...lefts, box.scrollLeft]; }""")
    assert left == pytest.approx(cell, abs=1)
    assert (moved > 0) == (width < 900)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
