"""The strongest rows of updates, compared with the tables that explain the updates."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes.inspect.update_explanation import UpdateExplanation
from episodes.inspect.update_measures import mean, ratio_distances, text_of, words_of_step
from episodes.inspect.update_rows import UpdateRow, strongest, strongest_rows, strongest_step
from episodes.inspect.update_tables import body_of
from tests.inspection.test_update_page import Reader

STEPS = st.lists(
    st.tuples(
        st.integers(1, 3),  # update
        st.sampled_from(["a", "b", "a\0"]),  # episode
        st.sampled_from([None, "x", "y"]),
        st.integers(0, 9),
        st.sampled_from([1.0, 0.5, 2.0, 3.0, np.nan]),  # first_ratio
        st.integers(0, 1),  # first_gradient_step
        st.sampled_from([0.0, 1.0, np.nan]),  # worker
        st.booleans(),  # among
    ),
    min_size=1,
    max_size=40,
)
NAMES = ("update", "episode", "agent", "t", "first_ratio", "first_gradient_step", "worker")


def columns_of(steps: list[Any]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the columns of steps, and which of them may be chosen."""
    lists = dict(zip((*NAMES, "among"), zip(*steps, strict=True), strict=True))
    among = np.array(lists.pop("among"))
    kinds = {"episode": object, "agent": object}
    columns = {name: np.array(values, kinds.get(name)) for name, values in lists.items()}
    return {**columns, "share": np.ones(len(steps)), "times_learned": np.ones(len(steps), np.int64)}, among


@given(STEPS, st.sampled_from(["episode", "agent", "time", "turn", "worker"]), st.sampled_from([1, -1]))
def test_strongest_rows_are_those_of_the_tables(steps: list[Any], group: str, sign: int) -> None:
    columns, among = columns_of(steps)
    distances = ratio_distances(columns)
    course = strongest_rows(columns, group, lambda rows: mean(distances[rows]), among, sign, ("t",))
    by_update = {one.update: one for one in course}
    assert [one.update for one in course] == sorted(by_update)
    for update in np.unique(columns["update"]).tolist():
        rows = np.flatnonzero(columns["update"] == update)
        table = {name: column[rows] for name, column in columns.items() if name != "update"}
        explanation = UpdateExplanation(update, "", table | {"token": np.arange(len(rows))})
        groups = explanation.by(group)
        known = [sign * row["ratio_distance"] for row in groups if np.isfinite(row["ratio_distance"])]
        one = by_update.get(update)
        if len(groups) == 1 and group != "episode":
            assert one is None  # the page of the update has no such table
        elif one is not None:
            (row,) = [row for row in groups if all(str(row[name]) == cell for name, cell in one.row.items())]
            assert one.value == pytest.approx(row["ratio_distance"])
            assert one.others == pytest.approx(mean(distances[rows[~among[rows]]]), nan_ok=True)
            page = Reader(body_of(explanation, marks=[(f"by-{group}", one.row, ["ratio_distance"])]))
            led = page.led[f"by-{group}"]
            texts = [
                text for place, name, text in page.marks[f"by-{group}"] if [place] == led and name == "ratio_distance"
            ]
            assert texts == [text_of("ratio_distance", row["ratio_distance"])]
            assert (
                sign * one.value == pytest.approx(max(known)) if among[rows].all() else sign * one.value <= max(known)
            )
        else:
            assert not (among[rows].all() and known)
    if course:
        assert sign * strongest(course, sign).value == max(sign * one.value for one in course)


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=9), st.sets(st.integers(1, 9)), st.sampled_from([1, -1]))
def test_strongest_update_has_a_stored_step_if_one_within_a_tenth_has(
    values: list[float], stored: set[int], sign: int
) -> None:
    best = strongest([UpdateRow(n, {}, x) for n, x in enumerate(values, 1)], sign, stored)
    largest = max(sign * value for value in values)
    near = {n: sign * x for n, x in enumerate(values, 1) if n in stored and largest - sign * x <= 0.1 * abs(largest)}
    assert (best.update in near) == bool(near)
    assert sign * best.value == max(near.values(), default=largest)


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        ("ratio_distance", "|log ratio| 0.6931"),
        ("logp_distance", "|logp difference| 0.25"),
        ("first_value - value_target", "value 3, value target 1"),
        ("advantage_agreement", "advantage 5, value target minus value -2"),
        ("share", "share of loss 12.50 %, value 3, value target 1"),
    ],
)
def test_words_of_a_step_are_the_same_on_all_pages(measure: str, words: str) -> None:
    numbers = {"first_ratio": 2.0, "first_logp_difference": -0.25, "first_value": 3.0, "value_target": 1.0}
    numbers |= {"first_gradient_step": 0.0, "advantage": 5.0, "share": 0.125}
    columns = {name: np.array([np.nan, value]) for name, value in numbers.items()}
    assert words_of_step(measure, columns, 1) == words


@given(STEPS, st.sets(st.sampled_from(["a", "b", "a\0"])), st.integers(0, 9))
def test_strongest_step_is_a_stored_one_if_there_is_one(steps: list[Any], stored: set[str], start: int) -> None:
    columns, among = columns_of(steps)
    sizes = np.where(among, columns["first_ratio"], np.nan)
    if not np.isfinite(sizes).any():
        return
    names = sorted(stored)
    table = {"id": np.array(names, object), "t_started": np.full(len(names), start), "length": np.full(len(names), 4)}
    step = strongest_step(columns, sizes, {"training": SimpleNamespace(metadata=table)})
    is_stored = (
        np.array([id_ in stored for id_ in columns["episode"].tolist()])
        & (columns["t"] >= start)
        & (columns["t"] < start + 4)
    )
    known = np.flatnonzero(np.isfinite(sizes) & (is_stored if (is_stored & np.isfinite(sizes)).any() else True))
    assert step.data == "training" * bool((is_stored & np.isfinite(sizes)).any())
    places = list(zip(*(columns[name].tolist() for name in ("episode", "t", "agent")), strict=True))
    same = np.array([place == (step.episode, step.t, step.agent) for place in places])
    assert np.nanmax(sizes[same]) == sizes[known].max()
    assert set(step.stored) == set(columns["update"][is_stored & np.isfinite(sizes)].tolist())
    assert step.learned_in == columns["update"][step.row]
    assert step.row == np.flatnonzero(same)[-1] or not step.data  # of the newest update, as the page of the episode


@pytest.mark.parametrize("group", ["episode", "turn", "agent"])
def test_a_long_id_needs_its_own_memory_only(group: str) -> None:
    names = np.array(["e", "x" * 50_000] * 500, object)
    columns = {"update": np.ones(1000), "episode": names, "agent": names, "t": np.arange(1000)}
    tracemalloc.start()
    try:
        (row,) = strongest_rows(columns, group, lambda rows: float(rows[-1]), np.ones(1000, bool))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert row.value == 999
    assert peak < 60e6  # numpy's texts need 200 MB
