"""`walk_to_ends`: positions after each link, for walks that are longer than the stride between two tests for ends."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from episodes.replay.link_traversal import walk_to_ends


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(0, 70), st.data())
def test_walks_follow_each_link_and_end_after_the_last_step(
    lengths: list[int], most_steps: int, data: st.DataObject
) -> None:
    last = np.repeat(np.cumsum(lengths) - 1, lengths)  # position of the last step of the episode of each step
    positions = np.arange(len(last))
    starts = np.array(data.draw(st.lists(st.sampled_from(positions.tolist()), min_size=1, max_size=5)))
    path = walk_to_ends(np.minimum(positions + 1, last), starts, most_steps)
    expected = [np.minimum(starts + step, last[starts]) for step in range(most_steps + 1)]
    assert len(path) <= most_steps + 1
    assert np.array_equal(np.stack(path), np.stack(expected[: len(path)]))
    assert len(path) == most_steps + 1 or np.array_equal(path[-1], last[starts])
