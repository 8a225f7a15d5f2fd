"""Comparison of episodes, data sets and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from episodes import MultiAgentEpisode, SingleAgentEpisode
from episodes.command.app import app
from episodes.errors import WrongType
from episodes.inspect import compare_episodes
from episodes.storage.ledger import Ledger
from episodes.testing.strategies import episodes as any_episodes
from tests.inspection.data import write


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["diff", *map(str, words)])


def walk(num: int, **facts: Any) -> SingleAgentEpisode:
    observations = np.arange(2.0 * num + 2).reshape(-1, 2)
    return SingleAgentEpisode.from_arrays(observations, np.zeros(num, int), np.ones(num), **facts)


@settings(max_examples=50)
@given(any_episodes())
def test_compare_episodes_of_itself_is_empty(episode: SingleAgentEpisode) -> None:
    assert not compare_episodes(episode, episode)


@given(st.integers(1, 50), st.data())
def test_compare_episodes_counts_changed_items(num: int, data: st.DataObject) -> None:
    steps = data.draw(st.sets(st.integers(0, num - 1), min_size=1))
    episode, rewards = walk(num, id_="e"), np.ones(num)
    rewards[list(steps)] = np.nan
    other_episode = SingleAgentEpisode.from_arrays(episode.get_observations(), episode.get_actions(), rewards, id_="e")
    (track,) = compare_episodes(episode, other_episode).tracks
    assert (track.track, track.step, track.num_steps) == ("rewards", min(steps), len(steps))
    assert (track.a, track.b) == ("1", "NaN")
    assert not compare_episodes(other_episode, other_episode)


def test_compare_episodes_aligns_chunks_by_env_step() -> None:
    whole = walk(9, id_="e", terminated=True)
    difference = compare_episodes(whole, whole.slice(slice(4, None), len_lookback_buffer=2))
    assert {(track.track, track.step, track.num_steps) for track in difference.tracks} == {
        ("observations", 0, 4),
        ("actions", 0, 4),
        ("rewards", 0, 4),
    }


def test_compare_episodes_tolerance_length_and_ending() -> None:
    a, b = walk(5, id_="e", terminated=True), walk(3, id_="e", truncated=True)
    difference = compare_episodes(a, b)
    assert [track.step for track in difference.tracks] == [3, 3, 4]
    assert difference.facts == ("endings: terminated in A, truncated in B",)
    near = SingleAgentEpisode.from_arrays(
        a.get_observations() + 1e-6, a.get_actions(), a.get_rewards(), terminated=True
    )
    assert compare_episodes(a, near)
    assert not compare_episodes(a, near, tolerance=1e-5)
    with pytest.raises(WrongType):
        compare_episodes(a, MultiAgentEpisode())


NEARLY = [
    (1.0, 1.00001),
    (0.1, 0.1 + 1e-9),
    (1e-8, 1e-8 + 1e-14),
    (2.0**20, 2.0**20 + 1),
    (0.0, 5e-324),
    (1e300, 2e300),
]


@pytest.mark.parametrize(("a", "b"), NEARLY)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_difference_shows_two_texts_for_two_numbers(a: float, b: float, shape: tuple[int, ...]) -> None:
    pair = [SingleAgentEpisode.from_arrays(np.full((2, *shape), value), [0], [0.0], id_="same") for value in (a, b)]
    difference = compare_episodes(*pair)
    (track,) = difference.tracks
    assert track.a != track.b
    assert str(difference).startswith("episode same\n")


def test_diff_of_data_sets_pairs_episodes_by_id(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [walk(3, id_="x"), walk(4, id_="y")])
    b = write(tmp_path / "b", [walk(4, id_="y"), walk(5, id_="x"), walk(2, id_="z")])
    result = run(a, a)
    assert (result.exit_code, result.output) == (0, "2 of 2 episodes are equal\n")
    result = run(a, b)
    assert result.exit_code == 1
    pairing, first, unpaired, heads, *rows = [line.split() for line in result.output.splitlines()]
    assert " ".join(pairing) == "A has 2 episodes, B has 3; paired by id"
    assert (" ".join(first), heads[:3]) == ("1 of 3 episodes are equal", ["episode", "differs", "in"])
    assert [row[:3] for row in rows[:3]] == [
        ["x", "rewards", "3"],
        ["actions", "3", "none"],
        ["observations", "4", "none"],
    ]
    assert " ".join(unpaired) == "z: only in B"
    facts = json.loads(run(a, b, "--episode", "x", "--json").output)["differences"][0]
    assert {track["step"] for track in facts["tracks"]} == {3, 4}
    assert run(a, b, "--episode", "y").exit_code == 0
    assert run(a, b, "--episode", "y", "--episode", "x").exit_code == 1
    assert run(a, b, "--episode", "none").exit_code == 2
    assert run(a, tmp_path / "nowhere").exit_code == 2


def test_diff_of_data_sets_without_common_ids_pairs_by_index(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", [walk(3)]), write(tmp_path / "b", [walk(3)])
    pairing = "A has 1 episode, B has 1; paired by position, because no id is in both"
    assert run(a, b).output == f"{pairing}\n1 of 1 episodes are equal\n"


def test_diff_of_unlike_data_sets_counts_all_episodes_that_differ_alike(tmp_path: Path) -> None:
    both = [walk(3, id_=f"e{n:02}", terminated=True) for n in range(12)]
    others = [walk(4 if n > 2 else 3, id_=f"e{n:02}", truncated=True) for n in range(10)]
    lines = run(write(tmp_path / "a", both), write(tmp_path / "b", others)).output.splitlines()
    assert lines[:5] == [
        "A has 12 episodes, B has 10; paired by id",
        "0 of 12 episodes are equal",
        "10 episodes, such as e00: endings: terminated in A, truncated in B",
        "e10, e11: only in A",
        "the first 5 of 7 episodes whose tracks differ; --json has all of them:",
    ]
    assert [line.split()[0] for line in lines[6:] if "rewards" in line] == [f"e{n:02}" for n in range(3, 8)]


def test_diff_of_runs_compares_ledgers(tmp_path: Path) -> None:
    from connectors import learner_pipeline

    for name, last in (("a", 6.0), ("b", 7.0)):
        with Ledger(tmp_path / name) as ledger:
            path = SingleAgentEpisode.from_arrays([0.0, 1.0, last], [0, 1], [1.0, last], id_="path", terminated=True)
            ledger.note(1, learner_pipeline()(episodes=[path]))
    result = run(tmp_path / "a", tmp_path / "b")
    assert (result.exit_code, "update 1" in result.output) == (1, True)
    data = write(tmp_path / "data", [walk(3)])
    assert run(tmp_path / "a", data).exit_code == 2
