"""What updates measured at the steps of stored episodes: as tracks, beside what acting stored, and as a calibration."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episode_learners import DQN, DQNConfig, QPolicy
from episodes import SingleAgentEpisode
from episodes.inspect import examine_run, explain_update, view_conversation
from episodes.inspect.html_report import episode_data
from episodes.inspect.learned_tracks import LearnedTracks
from episodes.inspect.run_findings_page import LiveFindings
from episodes.inspect.update_page import update_page
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.storage.ledger import Ledger
from episodes.storage.runs import write_status
from episodes.tokens import Conversation
from tests.inspection.data import write
from tests.inspection.test_page import WITH_BROWSER, Tab, browser, played, served, tab
from tests.learners.test_planted_faults import ENV, sampled
from tests.learners.test_run_findings import learned_tokens, made, trained, with_logp_of

__all__ = ["browser", "tab"]  # fixtures

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),  # episode
        st.sampled_from([None, "red"]),  # agent
        st.integers(0, 8),  # time
        st.sampled_from([-1.5, 0.0, 2.5]),  # value
        st.sampled_from([0.0, 0.5, 1.0, 2.0]),  # ratio
        st.integers(0, 1),  # gradient step
    ),
    max_size=40,
)


@given(ROWS, st.integers(1, 5), st.integers(0, 3), st.integers(0, 2), st.sampled_from([None, "red"]))
def test_tracks_have_the_newest_measurement_of_each_step(
    rows: list[tuple[Any, ...]], num_steps: int, start: int, lookback: int, agent: str | None
) -> None:
    ids, agents, t, values, ratios, steps = zip(*rows, strict=True) if rows else ((),) * 6
    columns = {
        "episode": np.array(ids, object),
        "agent": np.array(agents, object),
        "t": np.array(t, np.int64),
        "update": np.arange(len(rows)),
        "first_value": np.array(values, float),
        "first_ratio": np.array(ratios, float),
        "first_gradient_step": np.array(steps, float),
    }
    lookback = min(lookback, start)
    blank = np.zeros(lookback + num_steps)
    observations = np.zeros(lookback + num_steps + 1)
    facts: dict[str, Any] = {"t_started": start - lookback, "agent_id": agent}
    whole = SingleAgentEpisode.from_arrays(observations, blank, blank, id_="a", **facts)
    episode = whole.slice(slice(lookback, None), len_lookback_buffer=lookback)
    assert (episode.t_started, len(episode), episode.tracks.lookback) == (start, num_steps, lookback)
    learned = LearnedTracks({"": columns})
    newest = {row[2]: row for row in rows if row[:2] == ("a", agent)}
    known = [newest.get(start + i) for i in range(num_steps)]
    seen = learned.of(episode)
    tracks = seen.get_extra_model_outputs("learner") if "learner" in seen.extra_model_outputs else {}
    if all(known):
        assert tracks["values"].tolist() == [row[3] for row in known if row]
    else:
        assert "values" not in tracks
    assert learned.has_values(seen) == all(known)
    limit = np.finfo(np.float32).tiny
    expected = np.array([-np.log(max(row[4], limit)) if row and row[5] == 0 else np.nan for row in known])
    np.testing.assert_allclose(tracks.get("logp_difference", np.full(num_steps, np.nan)), expected)
    assert np.array_equal(seen.get_observations(), episode.get_observations())
    is_here = [row[:2] == ("a", agent) and 0 <= row[2] - start < num_steps for row in rows]
    assert learned.updates_of(episode) == [(update, "", 1) for update in np.flatnonzero(is_here).tolist()]
    assert learned.extent == ((0, len(rows) - 1) if rows else None)
    assert learned.newest.get("a") == max((i for i, row in enumerate(rows) if row[0] == "a"), default=None)


def test_calibration_compares_values_when_learned_with_the_returns_that_followed(tmp_path: Path) -> None:
    kept: list[SingleAgentEpisode] = []

    def sample(policy: Any, ending: str) -> EpisodePack:
        rng = np.random.default_rng(len(kept))
        facts = {"terminated": ending == "terminated", "truncated": ending == "truncated"}
        episodes = [made(policy, f"e{len(kept)}.{i}", rng.normal(size=5), **facts) for i in range(4)]
        kept.append(episodes[0])
        return EpisodePack.from_episodes(episodes)

    folder = trained(tmp_path, *[lambda p, e=e: sample(p, e) for e in ("terminated", "cut", "truncated", "terminated")])
    write(folder / "training", kept)
    write_status(folder, settings={"algorithm.gamma": 0.9}, stopped_by="max_epochs")
    findings = examine_run(folder)
    assert findings.calibrated == "2 stored episodes of updates 3 to 4"
    assert [line.ending for line in findings.calibration] == ["terminated", "truncated"]
    for line, number in zip(findings.calibration, (3, 2), strict=True):
        episode, columns = kept[number], explain_update(folder, number + 1).columns
        is_here = columns["episode"] == episode.id_
        values = columns["first_value"][is_here][np.argsort(columns["t"][is_here])]
        rewards = episode.get_rewards().astype(float)
        returns = [sum(r * 0.9**k for k, r in enumerate(rewards[t:])) for t in range(5)]
        later = [0.9 ** (4 - t) * (values[-1] - rewards[-1]) * (number == 2) for t in range(5)]
        expected = (5, values.mean(), np.mean(returns), np.mean(returns) + np.mean(later), values[-1])
        assert tuple(line[1:]) == pytest.approx(expected, rel=1e-5)
    assert f"<td>{findings.calibration[0].value:.3g}</td>" in LiveFindings([folder]).html()
    write_status(folder, settings={}, stopped_by="max_epochs")
    findings = examine_run(folder)
    assert not findings.calibration
    assert "one discount" in str(findings)


@pytest.mark.parametrize("scale", [1.0, 5.0])  # of what acting saw
def test_steps_have_what_acting_recorded_beside_what_learned(scale: float, tmp_path: Path) -> None:
    kept: list[SingleAgentEpisode] = []

    def sample(policy: Any) -> list[SingleAgentEpisode]:
        kept[:] = [with_logp_of(episode, scale) for episode in sampled(policy)]
        return kept

    folder = trained(tmp_path, sample)
    write(folder / "training", kept[:2])
    stored = {episode.id_: episode for episode in kept[:2]}
    steps = explain_update(folder, 1)  # finds the data sets of the run
    assert {step.id_ for step in steps if step.episode is not None} == set(stored)
    for step in steps:
        if step.episode is None:
            continue
        recorded, episode = step.recorded, stored[step.id_ or ""]
        assert recorded["reward"] == episode.get_rewards(step.t)
        assert recorded["acting_logp"] == pytest.approx(episode.get_extra_model_outputs("action_logp", step.t))
        ratio = np.exp(recorded["learning_logp"] - recorded["acting_logp"])
        assert ratio == pytest.approx(step.measurements["first_ratio"], rel=1e-4)
    names, rows = steps.table(len(steps))
    column = names.index("reward")
    assert [row[column] != "" for row in rows] == [step.episode is not None for step in steps]
    page = update_page(folder, 1, None, "../{}/".format, "../")
    assert all(
        words in page.split('<section id="steps">')[1].split('<section id="columns">')[0]
        for words in ("reward", "acting logp", "learning logp")
    )


def ends(folder: Path, num_at_end: int, is_terminated: bool, num_updates: int = 2) -> Path:
    """Train with episodes of at most 40 steps, of which each update has `num_at_end` that end there, and 8 others."""
    rng = np.random.default_rng(0)

    def sample(policy: Any, n: int) -> EpisodePack:
        lengths = [*rng.integers(5, 40, size=8).tolist(), *[40] * num_at_end]
        at_end = {"terminated": is_terminated, "truncated": not is_terminated}
        return EpisodePack.from_episodes(
            [
                made(policy, f"e{n}.{i}", np.ones(length), **(at_end if length == 40 else {}))
                for i, length in enumerate(lengths)
            ]
        )

    return trained(folder, *[lambda policy, n=n: sample(policy, n) for n in range(num_updates)])


@pytest.mark.parametrize(
    ("num_at_end", "is_terminated", "num_updates", "has_note"),
    [(4, True, 2, True), (4, False, 2, False), (1, True, 2, False), (8, True, 1, False)],
)
def test_note_of_equal_ends_without_learned_values(
    num_at_end: int, is_terminated: bool, num_updates: int, has_note: bool, tmp_path: Path
) -> None:
    findings = examine_run(ends(tmp_path, num_at_end, is_terminated, num_updates))
    assert not list(findings)  # it is no alarm
    assert [(note.kind, note.t) for note in findings.notes] == [("equal_ends", 39)] * has_note
    assert ("by its rules" in str(findings)) == has_note
    page = LiveFindings([tmp_path]).html()
    assert ("<p>8 of 24 episodes end at the same step t=39" in page) == has_note
    assert "Nothing: no sign of a defect" in page


@pytest.mark.parametrize("is_terminated", [True, False])
def test_note_of_equal_ends_of_a_dqn_run(is_terminated: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    buffer = EpisodeReplayBuffer(10_000, seed=0)
    for i in range(30):
        n = 20 if i % 3 == 0 else int(rng.integers(5, 20))
        facts: dict[str, Any] = {"terminated": n < 20 or is_terminated, "truncated": n == 20 and not is_terminated}
        arrays = rng.normal(size=(n + 1, 4)).astype(np.float32), rng.integers(0, 2, n), np.ones(n)
        buffer.add(SingleAgentEpisode.from_arrays(*arrays, id_=f"e{i}", **facts))
    algorithm = DQN(QPolicy(ENV.observation_space, ENV.action_space, hidden_sizes=(8,)), DQNConfig(batch_size=64))
    algorithm.measures_rows = True
    with Ledger(tmp_path / "ledger", measures_rows=True) as ledger:
        algorithm.witness = lambda batch: ledger.note(algorithm.num_updates, batch, measured=algorithm.row_measurements)
        for _ in range(12):
            algorithm.update_from(buffer)
    findings = examine_run(tmp_path)
    assert (list(findings), len(findings.notes)) == ([], int(is_terminated))


@given(st.lists(st.integers(1, 30), max_size=12), st.integers(0, 6), st.integers(0, 1))
def test_note_of_equal_ends_in_stored_episodes(others: list[int], num_at_end: int, num_truncated: int) -> None:
    lengths = [*others, *[31] * num_at_end]
    episodes = [
        SingleAgentEpisode.from_arrays(np.zeros(n + 1), np.zeros(n), np.arange(float(n)), id_=f"e{i}", terminated=True)
        for i, n in enumerate(lengths)
    ]
    episodes += [
        SingleAgentEpisode.from_arrays(np.zeros(4), np.zeros(3), np.zeros(3), id_=f"t{i}", truncated=True)
        for i in range(num_truncated)
    ]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "training", episodes)
        findings = examine_run(folder)
        longest = max(lengths, default=0)
        at, others_ = lengths.count(longest), max([lengths.count(n) for n in set(lengths) - {longest}], default=0)
        is_known = any(finding.kind == "time_limit_terminates" for finding in findings)
        expected = at >= 3 and at > 2 * others_ and longest >= 10 and not num_truncated and not is_known
        assert len(findings.notes) == int(expected)


def test_conversations_of_a_run_have_the_log_probabilities_of_the_trainer(tmp_path: Path) -> None:
    folder = learned_tokens(tmp_path, True, is_stored=True)
    learned = examine_run(folder).learned
    for update in (1, 2):
        steps = explain_update(folder, update)
        known = {(step.id_, step.t, step.token): step for step in steps}
        for id_ in {step.id_ for step in steps}:
            episode = next(step.episode for step in steps if step.id_ == id_)
            seen = learned.of(episode)
            for t in range(len(episode)):
                logp, trainer = (seen.get_extra_model_outputs(key, t) for key in ("logp", "trainer_logp"))
                for token, difference in enumerate(logp - trainer):
                    step = known.get((id_, t, token))
                    is_new = step is not None and step.measurements["first_gradient_step"] == 0
                    expected = step.measurements["first_logp_difference"] if step is not None and is_new else np.nan
                    assert difference == pytest.approx(expected, abs=1e-5, nan_ok=True)
                    if step is not None:
                        assert step.recorded["acting_logp"] == pytest.approx(logp[token])
            assert "sampler minus trainer, -0.2" in str(view_conversation(seen)._repr_html_())


@WITH_BROWSER
def test_pages_of_a_run_show_what_was_learned_at_its_episodes(tmp_path: Path, tab: Tab) -> None:
    kept: list[SingleAgentEpisode] = []

    def sample(policy: Any) -> list[SingleAgentEpisode]:
        kept[:] = [with_logp_of(episode, 3.0) for episode in sampled(policy)]
        return kept

    folder = trained(tmp_path, sample)
    write(folder / "training", kept[:2])
    write_status(folder, settings={"algorithm.gamma": 0.9}, stopped_by="max_epochs")
    episode = kept[0]
    columns = explain_update(folder, 1).columns
    rows = np.flatnonzero((columns["episode"] == episode.id_) & (columns["first_gradient_step"] == 0))
    expected = {int(columns["t"][row]): -np.log(columns["first_ratio"][row]) for row in rows}
    with served(folder) as server:
        page = tab.open(server.url)
        page.locator(".calibration").wait_for()
        page = tab.open(f"{server.url}episodes/0/training/#id={episode.id_}&t=0")
        lane = page.locator(".lane", has_text="learner/logp_difference")
        cells = lane.locator("rect.cell").evaluate_all(
            "cells => cells.map((cell) => [cell, 'x', 'data-value', 'fill', 'fill-opacity'].reduce("
            "(found, name) => typeof name === 'string' ? [...found, cell.getAttribute(name)] : found, []))"
        )
        most = max(map(abs, expected.values()))
        assert [round(float(x) * len(episode) / 1000) for x, *_ in cells] == sorted(expected)
        for (_, value, fill, opacity), t in zip(cells, sorted(expected), strict=True):
            assert float(value) == pytest.approx(expected[t], rel=1e-6)
            assert ("observations" in fill) == (expected[t] < 0)
            assert float(opacity) == pytest.approx(abs(expected[t]) / most, abs=1e-3)
        assert f"{most:.4g}"[:5] in lane.locator(".legend").inner_text()
        assert lane.locator("path.odd").get_attribute("d") == ""  # unknown is no defect
        page.get_by_role("button", name="run the doctor").click()
        assert "checks the episodes only" in page.locator("#doctor .note").inner_text()
        assert tab.texts("#learned") == [f"Learned from by update 1 ({len(episode)} steps)"]
        assert tab.texts("#live") == ["ended"]
        page.locator("#doctor .note a").click()
        page.locator("#findings").wait_for(state="attached")


def measured(game: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return columns of some updates that learned from steps of all agents of a game."""
    lines = [line.episode for line in game.agents.timelines.values()]
    rows = [(e.id_, e.agent_id, t, update) for update in (3, 4) for e in lines for t in range(len(e))]
    rows = [row for row in rows if row[3] == 3 or rng.random() < 0.7]
    ids, agents, t, updates = map(list, zip(*rows, strict=True))
    columns = {"episode": np.array(ids, object), "agent": np.array(agents, object), "t": np.array(t)}
    names = ("first_value", "value_target", "advantage")
    return columns | {"update": np.array(updates)} | {name: rng.normal(size=len(t)) for name in names}


@given(st.integers(1, 4), st.integers(1, 8), st.integers(0, 2**16))
def test_lanes_of_games_have_what_was_learned_at_the_env_steps_of_actions(num: int, steps: int, seed: int) -> None:
    game = played(num, steps, seed, "g").to_numpy()
    columns = measured(game, np.random.default_rng(seed))
    learned = LearnedTracks({"shared": columns, "other": {name: column[:0] for name, column in columns.items()}})
    data = episode_data(game, learned=learned)
    lanes = {lane["label"]: lane for lane in data["lanes"]}
    counts = {}
    for agent, line in game.agents.timelines.items():
        is_own = columns["agent"] == agent
        for row in np.flatnonzero(is_own):
            update = int(columns["update"][row])
            counts[update, agent] = counts.get((update, agent), 0) + 1
        for name, key in (("values", "first_value"), ("value_targets", "value_target"), ("advantages", "advantage")):
            newest = dict(zip(columns["t"][is_own].tolist(), columns[key][is_own].tolist(), strict=True))
            if newest:
                lane = lanes[f"{agent}/learner/{name}"]
                assert lane["values"].tolist() == [newest[t] for t in range(len(line.episode))]
                assert lane["at"].tolist() == list(line.action_times)
                assert lane["agent"] == agent
    assert {(update, agent): n for update, module, n, agent in data["updates"]} == counts
    assert {module for _, module, *_ in data["updates"]} == {"shared"}
    assert data["extent"] == [3, int(columns["update"].max())]
    assert episode_data(game)["updates"] == []


@WITH_BROWSER
def test_link_to_a_step_of_an_agent_opens_its_lanes(tmp_path: Path, tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    games: list[Any] = [played(3, 9, n, f"game{n}").to_numpy() for n in range(3)]
    columns = measured(games[1], np.random.default_rng(0))
    learned = LearnedTracks({"shared": columns})
    monkeypatch.setattr(LiveFindings, "learned", lambda self, number: learned)
    write(tmp_path / "training", games)
    write_status(tmp_path, settings={}, stopped_by="max_epochs")
    line = games[1].agents.timelines["p2"]
    t = len(line.episode) - 1
    with served(tmp_path) as server:
        page = tab.open(f"{server.url}episodes/0/training/#id={line.episode.id_}&t={t}&agent=p2")
        assert tab.texts("#place span") == ["game 2 of 3"]
        assert tab.texts("#now") == [f"step {line.action_times[t]}"]
        assert tab.texts(".turn.current button") == ["p2"]
        names = [name for name in tab.texts("#lanes .group .lane .name") if name]  # the visible ones
        assert names
        assert {name.split("/")[0] for name in names} == {"p2"}
        rows = np.flatnonzero((columns["episode"] == line.episode.id_) & (columns["t"] == t))
        assert tab.value("p2/learner/advantages") == f"{columns['advantage'][rows[-1]]:.4g}"
        agents = ", ".join(games[1].agents.timelines)
        for update, words in zip((3, 4), tab.texts("#learned")[0].split("update ")[1:], strict=True):
            assert words.startswith(f"{update} ({(columns['update'] == update).sum()} agent steps of {agents})")
        link = page.locator("#learned a").first
        assert link.evaluate("(link) => link.href") == f"{server.url}updates/0/3?module=shared"
        page.get_by_role("button", name="p0", exact=True).press("Enter")  # the keyboard stays there
        assert page.evaluate("document.activeElement.textContent") == "p0"
        assert {name.split("/")[0] for name in tab.texts("#lanes .group .lane .name") if name} == {"p0"}
        page.wait_for_url(lambda url: "agent=p0" in url)
        tab.open(page.url)  # and is in the address
        assert tab.texts(".turn.current button") == ["p0"]
        page.get_by_role("button", name="next").click()
        page.locator("#learned", has_text="None of the updates 3 to 4 learned from it.").wait_for()


TOKEN_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),  # episode
        st.integers(0, 4),  # turn
        st.integers(0, 4),  # token
        st.sampled_from([-1.5, 0.0, 2.5]),  # advantage and difference
        st.integers(0, 1),  # gradient step
        st.integers(1, 3),  # update
    ),
    max_size=30,
)


@given(TOKEN_ROWS, st.lists(st.integers(0, 4), min_size=2, max_size=4), st.booleans(), st.booleans())
def test_tokens_have_the_newest_measurement_of_each(
    rows: list[tuple[Any, ...]], lengths: list[int], is_chunk: bool, has_logp: bool
) -> None:
    rows.sort(key=lambda row: row[-1])
    ids, t, tokens, values, steps, updates = zip(*rows, strict=True) if rows else ((),) * 6
    columns = {
        "episode": np.array(ids, object),
        "agent": np.full(len(rows), None, object),
        "t": np.array(t, np.int64),
        "token": np.array(tokens, float),
        "advantage": np.array(values, float),
        "share": np.abs(np.array(values, float)) / 10,
        "first_logp_difference": np.array(values, float),
        "first_gradient_step": np.array(steps, float),
        "update": np.array(updates, np.int64),
    }
    talk = Conversation("a", outputs={"logp": "f4"} if has_logp else {})
    talk.begin([1])
    for i, length in enumerate(lengths):
        if is_chunk and i == 1:
            talk.cut()  # the first turn is in the lookback of the rest
        outputs: dict[str, Any] = {"logp": np.full(length, -1.0, "f4")} if has_logp else {}
        talk.turn(range(length), [2], **outputs)
    episode = talk.episode.to_numpy()
    learned = LearnedTracks({"": columns})
    seen = learned.of(episode)
    newest = {row[1:3]: row for row in rows if row[0] == "a"}
    counts = {update: updates.count(update) for update in updates}
    names = seen.get_extra_model_outputs("learner") if "learner" in seen.extra_model_outputs else {}
    for i in range(len(episode)):
        turn = episode.t_started + i
        known = [newest.get((turn, k)) for k in range(lengths[turn])]
        if "advantages" in names:
            found = seen.get_extra_model_outputs("learner", i)
            np.testing.assert_array_equal(found["advantages"], [row[3] if row else np.nan for row in known])
            shares = [abs(row[3]) / 10 * counts[row[5]] if row else np.nan for row in known]
            np.testing.assert_allclose(found["loss_shares"], shares, rtol=1e-6)
        else:
            assert not any(known)
        if "trainer_logp" in seen.extra_model_outputs:
            expected = [-1 - row[3] if row and row[4] == 0 else np.nan for row in known]
            np.testing.assert_allclose(seen.get_extra_model_outputs("trainer_logp", i), expected)
        else:
            assert not has_logp or not any(row and row[4] == 0 for row in known)
    own = [row[3] for row in rows if row[0] == "a" and row[5] == learned.newest["a"]]
    assert learned.advantages(["a", "c"]) == ({"a": pytest.approx(np.mean(own))} if own else {})
