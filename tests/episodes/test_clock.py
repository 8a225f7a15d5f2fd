"""Index arithmetic of env steps, compared with a search through the list."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes.multi_agent.env_step_index import MISSING, chunk_rows, row_at, rows_between, rows_of

clocks = st.lists(st.integers(0, 30), unique=True).map(sorted)
env_steps = st.integers(-3, 33)


@pytest.mark.parametrize("kind", [list, np.array, lambda times: array("q", times)], ids=["list", "numpy", "array"])
def test_env_step_index_accepts_any_sequence(kind):
    times = kind([0, 2, 5])
    assert [row_at(times, t) for t in range(7)] == [0, MISSING, 1, MISSING, MISSING, 2, MISSING]
    assert rows_between(times, 1, 6) == (1, 3)
    assert rows_of(times, range(6), 1) == [MISSING, MISSING, 1, MISSING, MISSING, 2]


@given(times=clocks, t=env_steps)
def test_row_at_equals_list_search(times, t):
    assert row_at(times, t) == (times.index(t) if t in times else MISSING)


@given(times=clocks, begin=env_steps, end=env_steps)
def test_rows_between_equals_list_search(times, begin, end):
    first, stop = rows_between(times, begin, end)
    assert times[first:stop] == [t for t in times if begin <= t < end]


@given(times=clocks, env_steps=st.lists(env_steps), earliest=env_steps)
def test_rows_of_before_earliest_are_missing(times, env_steps, earliest):
    expected = [times.index(t) if t in times and t >= earliest else MISSING for t in env_steps]
    assert rows_of(times, env_steps, earliest) == expected


@given(
    observation_times=clocks.filter(bool),
    begin=st.integers(0, 30),
    length=st.integers(0, 10),
    lookback=st.integers(0, 8),
)
def test_chunk_rows_hold_steps_that_complete_in_chunk(observation_times, begin, length, lookback):
    action_times = observation_times[:-1]
    end = begin + length
    first, zero, last = chunk_rows(observation_times, action_times, (begin, end), lookback)
    complete = [
        i for i in range(len(action_times)) if begin < observation_times[i + 1] <= end and observation_times[0] <= end
    ]
    assert list(range(zero, max(last, zero))) == complete
    reach = [i for i in range(zero) if action_times[i] >= begin - lookback]
    assert list(range(first, zero)) == reach
