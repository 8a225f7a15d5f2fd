"""Comparison of episodes, data sets and runs."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
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
from episodes.tracks.ragged import Ragged
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


KINDS_OF_NUMBERS = {
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "int8": st.integers(-128, 127),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "bool": st.booleans(),
}


@given(st.sampled_from(sorted(KINDS_OF_NUMBERS)), st.integers(1, 4), st.sampled_from([(), (2,), (0,)]), st.data())
def test_compare_episodes_measures_the_values_that_differ(
    dtype: str, num: int, shape: tuple[int, ...], data: st.DataObject
) -> None:
    """Number of values that differ, and the largest difference of finite ones, against exact fractions."""
    size = (num + 1) * int(np.prod(shape))
    a, b = ([data.draw(KINDS_OF_NUMBERS[dtype]) for _ in range(size)] for _ in range(2))
    b = [data.draw(st.sampled_from(pair)) for pair in zip(a, b, strict=True)]
    actions, rewards = np.zeros(num, int), np.ones(num)
    arrays = [np.array(each, dtype).reshape(num + 1, *shape) for each in (a, b)]
    found = compare_episodes(*(SingleAgentEpisode.from_arrays(each, actions, rewards, id_="e") for each in arrays))
    pairs = [(x, y) for x, y in zip(*(each.ravel().tolist() for each in arrays), strict=True)]
    different = [k for k, (x, y) in enumerate(pairs) if x != y and not (x != x and y != y)]
    assert bool(found) == bool(different)
    if not different:
        return
    (track,) = found.tracks
    assert (track.num_values, f"{len(different)} value" in str(found)) == (len(different), True)
    sizes = {k: abs(Fraction(x) - Fraction(y)) for k in different for x, y in [pairs[k]] if np.isfinite([x, y]).all()}
    if not sizes:
        assert track.largest is track.largest_step is None
        return
    largest = max(sizes.values())
    assert track.largest is not None
    assert track.largest == (np.inf if largest > sys.float_info.max else pytest.approx(float(largest), rel=1e-12))
    rows = {k * (num + 1) // size for k in sizes if sizes[k] >= largest * Fraction(1 - 1e-12)}
    assert track.largest_step in rows or track.largest == np.inf


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from([-1.0, np.nan]), max_size=3), min_size=1, max_size=3), st.data())
def test_tracks_of_ragged_floats_differ_in_values_or_in_lengths(turns: list[list[float]], data: st.DataObject) -> None:
    """The lengths are compared as lengths, and do not repeat the values."""
    others = [data.draw(st.sampled_from([turn, [*turn, np.nan], [*turn, -2.0], turn[:-1]])) for turn in turns]
    pair = [
        SingleAgentEpisode.from_arrays(
            np.zeros(len(each) + 1),
            np.zeros(len(each)),
            np.zeros(len(each)),
            extra_model_outputs={
                "logp": Ragged.from_lengths(np.concatenate(list(map(np.float64, each))), list(map(len, each)))
            },
            id_="e",
        )
        for each in (turns, others)
    ]
    tracks = {track.track: track for track in compare_episodes(*pair).tracks}
    lengths = [len(a) != len(b) for a, b in zip(turns, others, strict=True)]
    assert sum(each.num_steps for name, each in tracks.items() if name.endswith("length")) == sum(lengths)


DATA = {
    "poles": (np.zeros((4, 4)), np.zeros(3, int)),
    "robots": ({"camera": np.zeros((4, 5, 5)), "touch": np.zeros((4, 3))}, np.zeros((3, 7))),
    "robots without a camera": ({"touch": np.zeros((4, 3))}, np.zeros((3, 2))),
    "walks": (np.zeros((4, 2)), np.ones(3, int)),
}


@pytest.mark.parametrize("same_ids", [False, True])
@pytest.mark.parametrize("b", DATA)
@pytest.mark.parametrize("a", DATA)
def test_diff_of_data_without_common_tracks_is_short(a: str, b: str, same_ids: bool, tmp_path: Path) -> None:
    for place, name in (("a", a), ("b", b)):
        owner = "" if same_ids else place
        episodes = [SingleAgentEpisode.from_arrays(*DATA[name], np.zeros(3), id_=f"{owner}{n}") for n in range(8)]
        write(tmp_path / place, episodes)
    result = run(tmp_path / "a", tmp_path / "b")
    alike = a == b or {a, b} in ({"poles", "walks"}, {"robots", "robots without a camera"})
    assert result.exit_code == (a != b)
    assert ("nothing in common" in result.output) == (not alike and not same_ids)
    assert alike or same_ids or len(result.output.splitlines()) <= 6
    facts = json.loads(run(tmp_path / "a", tmp_path / "b", "--json").output)
    assert len(facts["differences"]) == 8 * (a != b)


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
    assert lines[:4] == [
        "A has 12 episodes, B has 10; paired by id",
        "0 of 12 episodes are equal",
        "10 episodes, such as e00: endings: terminated in A, truncated in B",
        "e10, e11: only in A",
    ]
    assert lines[5].split() == ["rewards", "7", "7", "0"]  # the fourth step, which A does not have
    below = lines.index("the first 5 of 7 episodes whose tracks differ; --json has all of them:")
    assert [line.split()[0] for line in lines[below:] if "rewards" in line] == [f"e{n:02}" for n in range(3, 8)]


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
