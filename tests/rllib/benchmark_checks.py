"""The benchmark rows of `install` run with few steps."""

from __future__ import annotations

import pytest

from benchmarks.figure import Figure, Size, Timed
from benchmarks.rllib import FIGURES


@pytest.mark.slow
@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_both_sides_of_each_figure_work(figure: Figure) -> None:
    for side in (figure.ours, figure.other):
        timed = side.prepare(Size(most=100))
        assert isinstance(timed, Timed)
        timed.run(*([] if timed.fresh is None else [timed.fresh()]))
