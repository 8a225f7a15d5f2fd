"""Comparison of episodes, data sets and runs."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from episodes import MultiAgentEpisode, SingleAgentEpisode
from episodes.command.app import app
from episodes.errors import InvalidArgument, WrongType
from episodes.inspect import compare_episodes
from episodes.inspect.comparison import compare_data_sets
from episodes.storage import EpisodeDataset
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


KINDS_OF_NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "float16": st.floats(width=16),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "complex64": st.complex_numbers(width=64),
    "int8": st.integers(-128, 127),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "bool": st.booleans(),
}


def is_finite(value: complex) -> bool:
    return isinstance(value, int) or bool(np.isfinite(value))


def is_same(a: complex, b: complex) -> bool:
    if isinstance(a, complex) or isinstance(b, complex):
        a, b = (each if isinstance(each, complex) or abs(each) > 2**53 else complex(each) for each in (a, b))
        if isinstance(a, complex) and isinstance(b, complex):
            return is_same(a.real, b.real) and is_same(a.imag, b.imag)
    return a == b or (a != a and b != b)


def distance(a: complex, b: complex) -> Any:
    if isinstance(a, complex) or isinstance(b, complex):
        return abs(a - b)
    return abs(Fraction(a) - Fraction(b))


@st.composite
def pairs_of_arrays(draw: st.DrawFn) -> list[np.ndarray]:
    """Two arrays [n, ...], often of the same dtype, with numbers that are equal or next to each other."""
    kinds = [draw(st.sampled_from(sorted(KINDS_OF_NUMBERS)))]
    kinds.append(draw(st.just(kinds[0]) | st.sampled_from(sorted(KINDS_OF_NUMBERS))))
    shape = (draw(st.integers(2, 5)), *draw(st.sampled_from([(), (2,), (0,), (6,)])))
    size = int(np.prod(shape))
    some = draw(st.lists(st.tuples(*(KINDS_OF_NUMBERS[kind] for kind in kinds)), min_size=1, max_size=3))
    first = [draw(st.sampled_from(some))[0] for _ in range(size)]
    second = []
    for value in first:
        near = [value, value + 1 if isinstance(value, int) else value, draw(st.sampled_from(some))[1]]
        second.append(draw(st.sampled_from([each for each in near if fits(each, kinds[1])])))
    return [np.array(each, kind).reshape(shape) for each, kind in zip((first, second), kinds, strict=True)]


def fits(value: Any, kind: str) -> bool:
    with np.errstate(all="ignore"):
        try:
            return is_same(np.array([value]).astype(kind).tolist()[0], value)
        except (TypeError, ValueError, OverflowError, np.exceptions.ComplexWarning):
            return False


@settings(max_examples=300)
@given(pairs_of_arrays(), st.sampled_from([0, 0, 0.5, 1, 1.5, 2**60]))
def test_compare_episodes_measures_the_values_that_differ(arrays: list[np.ndarray], tolerance: float) -> None:
    """Number of values that differ, and the largest difference of finite ones, against exact fractions. The texts of
    the first step differ.
    """
    num = len(arrays[0])
    others = np.zeros(num - 1, int), np.ones(num - 1)
    pair = [SingleAgentEpisode.from_arrays(each, *others, id_="e") for each in arrays]
    found = compare_episodes(*pair, tolerance=tolerance)
    sizes, different, width = {}, [], arrays[0].size // num
    for k, (x, y) in enumerate(zip(*(each.ravel().tolist() for each in arrays), strict=True)):
        size = distance(x, y) if is_finite(x) and is_finite(y) else None
        if is_same(x, y) or (size is not None and tolerance and size <= tolerance):
            continue
        different.append(k)
        sizes |= {} if size is None else {k: size}
    assert bool(found) == bool(different)
    if not different:
        return
    (track,) = found.tracks
    assert (track.num_values, f"{len(different)} value" in str(found)) == (len(different), True)
    assert (track.step, track.num_steps) == (different[0] // width, len({k // width for k in different}))
    assert track.a != track.b
    if not sizes:
        assert track.largest is track.largest_step is None
        return
    largest = max(sizes.values())
    assert track.largest is not None
    assert track.largest == (np.inf if largest > sys.float_info.max else pytest.approx(float(largest), rel=1e-12))
    rows = {k // width for k in sizes if sizes[k] >= largest * (1 - Fraction(1, 10**12))}
    assert track.largest_step in rows or track.largest == np.inf


@pytest.mark.parametrize(
    "tolerance", [-1, -1e-9, np.nan, np.inf, -np.inf, "1", None, True, 10**400, np.float32("inf"), 1j]
)
def test_comparison_with_an_impossible_tolerance_is_an_error(tolerance: Any, tmp_path: Path) -> None:
    episode, data = walk(3, id_="e"), write(tmp_path / "data", [walk(3, id_="e")])
    with pytest.raises(InvalidArgument, match=r"tolerance=.*: give a finite number, at least 0"):
        compare_episodes(episode, episode, tolerance=tolerance)
    with pytest.raises(InvalidArgument, match="give a finite number"):
        compare_data_sets(EpisodeDataset(data), EpisodeDataset(data), tolerance=tolerance)
    if isinstance(tolerance, (int, float)) and tolerance is not True:
        assert run(data, data, "--tolerance", tolerance).exit_code == 2


LARGE = 2**53
OBJECT = "x" * 50
INFOS = [
    (None, [1, 2]),
    ([1], [2]),
    ([1.0, np.nan], [1.0, 2.0]),
    ({"a": [1]}, {"a": [2]}),
    (2**70, 2**71),
    (2**70, 2**70 + 1),
    (1, "1"),
    ("a", None),
    (f"{OBJECT}a", f"{OBJECT}b"),
    (OBJECT, f"{OBJECT}a"),
    (LARGE, LARGE + 1),
    (np.arange(9), np.append(np.arange(8), 9)),
    (np.float32(1), [1]),
    ([1, 2], np.int64(1)),
]
ABSENT: Any = object()


@pytest.mark.parametrize(("a", "b"), [*INFOS, *((value, ABSENT) for pair in INFOS for value in pair), (0, ABSENT)])
@pytest.mark.parametrize("usual", [0, "a", None, ABSENT])
def test_infos_of_any_kind_are_compared(a: Any, b: Any, usual: Any) -> None:
    """A value that differs in one of three infos, or is in only one of them."""
    pair = []
    for value in (a, b):
        infos = [{"x": each} if each is not ABSENT else {} for each in (usual, value, usual)]
        arrays = np.zeros(3), np.zeros(2), np.zeros(2)
        pair.append(SingleAgentEpisode.from_arrays(*arrays, infos=[{**each, "y": 1} for each in infos], id_="e"))
    assert not compare_episodes(pair[0], pair[0])
    assert not compare_episodes(pair[1], pair[1], tolerance=1)
    for found in (compare_episodes(*pair), compare_episodes(*pair[::-1])):
        assert found
        for track in found.tracks:
            assert (track.step, track.num_steps, track.a == track.b) == (1, 1, False)
        assert len(found.tracks) == 1 or "only" in found.facts[0]


ITEMS = {
    "texts in vectors": (["a", "b"], ["a", "c"]),
    "long texts in vectors": (["a", f"{OBJECT}b"], ["a", f"{OBJECT}c"]),
    "late values": (np.arange(9.0), np.append(np.arange(8.0), 9)),
    "late large integers": (np.full(9, LARGE), np.append(np.full(8, LARGE), LARGE + 1)),
    "late texts": (["a"] * 9, ["a"] * 8 + ["b"]),
    "imaginary parts": ([1 + 1j, 2], [1 + 2j, 2]),
    "shapes": (np.zeros((2, 2)), np.zeros(4)),
    "shapes without values": (np.zeros((0, 2)), np.zeros(0)),
    "integers and floats": (np.array(LARGE + 1), np.array(float(LARGE))),
    "floats next to each other": (np.array(1e300), np.array(np.nextafter(1e300, np.inf))),
    "texts and numbers": (np.array("1"), np.array(1)),
    "shape of one": (np.zeros(1), np.zeros(())),
}


@pytest.mark.parametrize(("a", "b"), ITEMS.values(), ids=ITEMS)
def test_difference_of_two_items_shows_two_texts(a: Any, b: Any) -> None:
    others = np.zeros(2), np.zeros(2)
    pair = [SingleAgentEpisode.from_arrays(np.stack([np.asarray(each)] * 3), *others, id_="e") for each in (a, b)]
    (track,) = compare_episodes(*pair).tracks
    assert track.a != track.b
    assert max(len(track.a), len(track.b)) < 200
    assert not compare_episodes(pair[0], pair[0])


@given(st.lists(st.lists(st.sampled_from([0, 1, LARGE, LARGE + 1]), max_size=7), min_size=1, max_size=3), st.data())
def test_ragged_integers_are_compared_exactly(turns: list[list[int]], data: st.DataObject) -> None:
    others = [data.draw(st.sampled_from([turn, [*turn, 0], turn[:-1], [*turn[:-1], LARGE]])) for turn in turns]
    pair = [
        SingleAgentEpisode.from_arrays(
            np.zeros(len(each) + 1),
            Ragged.from_lengths(np.array([value for turn in each for value in turn], np.int64), list(map(len, each))),
            np.zeros(len(each)),
            id_="e",
        )
        for each in (turns, others)
    ]
    tracks = compare_episodes(*pair).tracks
    steps = [t for t, (a, b) in enumerate(zip(turns, others, strict=True)) if a != b]
    values = sum(a != b for both in zip(turns, others, strict=True) for a, b in zip_longest(*both))
    assert [(track.step, track.num_steps, track.num_values) for track in tracks] == [
        (step, len(steps), values) for step in steps[:1]
    ]
    assert all(track.a != track.b for track in tracks)


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
    assert run(tmp_path / "a", tmp_path / "b", "--tolerance", 0.5).exit_code == 2  # which rows do not have
