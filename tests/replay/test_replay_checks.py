"""Our column of the README's table of replay buffers holds."""

from __future__ import annotations

import pytest

from benchmarks.replay_checks import LIBRARIES, ROWS, cell


@pytest.mark.parametrize("row", ROWS)
def test_ours_does_what_the_table_says(row: str) -> None:
    assert ROWS[row]["ours"]() is True


def test_a_check_that_fails_or_raises_is_a_no() -> None:
    def raises() -> bool:
        raise ValueError

    def is_missing() -> bool:
        raise ImportError

    cells = [cell(None), cell(lambda: True), cell(lambda: False), cell(raises), cell(is_missing)]
    assert cells == ["", "yes", "no", "no (ValueError)", "not run"]
    assert all(set(checks) <= set(LIBRARIES) for checks in ROWS.values())
