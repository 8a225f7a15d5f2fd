"""Episode boundaries in the three autoreset modes, row by row and for many rows at once."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes.recorder.boundaries import Boundaries

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
MODES = list(AutoresetMode)


def by_hand(mode: AutoresetMode, dones: list[bool]) -> list[tuple[bool, bool, bool, int]]:
    """Return, row by row, whether one environment stepped and ended, whether an episode begins, and its age, computed
    slowly.
    """
    waits, age, recorded = False, 0, []
    for done in dones:
        if mode is NEXT and waits:
            waits, age = False, 0
            recorded.append((False, False, True, age))
        else:
            begins = done and mode is SAME
            waits, age = done and not begins, 0 if begins else age + 1
            recorded.append((True, done, begins, age))
        if mode is DISABLED and waits:
            waits, age = False, 0  # the caller resets it at once
    return recorded


def flags(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return flags for these endings: terminated in even environments, truncated in odd environments."""
    even = np.arange(rows.shape[-1]) % 2 == 0
    return rows & even, rows & ~even


tables = st.tuples(st.integers(0, 12), st.integers(1, 4), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 0.4, 0.9]))


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=300)
@given(table=tables)
def test_classify_equals_reference_with_flags_on_resets(
    mode: AutoresetMode, table: tuple[int, int, int, float]
) -> None:
    num_rows, num_envs, seed, often = table
    dones = np.random.default_rng(seed).random((num_rows, num_envs)) < often
    boundaries, recorded = Boundaries(num_envs, mode), [by_hand(mode, column.tolist()) for column in dones.T]
    for number, done in enumerate(dones):
        row = boundaries.classify(*flags(done))
        boundaries.commit(row)
        expected = [env[number] for env in recorded]
        for result, place in ((row.stepped, 0), (row.ended, 1), (row.begun, 2)):
            assert result.tolist() == [env for env, item in enumerate(expected) if item[place]]
        assert sorted([*row.stepped.tolist(), *row.reset.tolist()]) == list(range(num_envs))
        assert boundaries.ages.tolist() == [item[3] for item in expected]
        boundaries.reset(done & (mode is DISABLED))
    assert boundaries.num_steps == sum(item[0] for env in recorded for item in env)


@pytest.mark.parametrize("mode", [NEXT, SAME])
@settings(max_examples=2000)
@given(table=tables, before=tables)
def test_classify_rows_equals_row_by_row(
    mode: AutoresetMode, table: tuple[int, int, int, float], before: tuple[int, int, int, float]
) -> None:
    num_envs = table[1]
    item, many = Boundaries(num_envs, mode), Boundaries(num_envs, mode)
    for num_rows, _, seed, often in (before, table):
        dones = np.random.default_rng(seed).random((num_rows, num_envs)) < often
        rows = many.classify_rows(dones.copy())
        many.commit_rows(rows)
        for number, done in enumerate(dones):
            row = item.classify(*flags(done))
            item.commit(row)
            assert rows.stepped[number].nonzero()[0].tolist() == row.stepped.tolist()
            assert rows.ended[number].nonzero()[0].tolist() == row.ended.tolist()
        assert (many.waiting.tolist(), many.ages.tolist()) == (item.waiting.tolist(), item.ages.tolist())
        assert many.num_steps == item.num_steps


def test_classify_changes_nothing() -> None:
    boundaries = Boundaries(2, NEXT)
    done = np.array([True, False])
    boundaries.classify(done, ~done)
    assert (len(boundaries.waiting), boundaries.num_steps, boundaries.ages.tolist()) == (0, 0, [0, 0])
