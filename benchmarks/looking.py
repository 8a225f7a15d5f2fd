"""What a notebook waits for: the HTML of an episode, and its bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.figure import Counted, Figure, Side, Size, Timed, at_most, limit


def episode(steps: int):
    from episodes import SingleAgentEpisode

    rng = np.random.default_rng(0)
    observations = rng.normal(size=(steps + 1, 4)).cumsum(0).astype(np.float32)
    outputs = {"action_logp": rng.normal(size=steps), "vf_preds": rng.normal(size=steps).cumsum()}
    return SingleAgentEpisode.from_arrays(
        observations, rng.integers(0, 2, steps), np.ones(steps), extra_model_outputs=outputs, terminated=True
    )


def drawing(steps: int) -> Callable[[Size], Timed]:
    """Draws an episode of so many steps."""

    def prepare(size: Size) -> Timed:
        return Timed(episode(size(steps))._repr_html_)

    return prepare


def weighing(steps: int) -> Callable[[Size], Counted]:
    """The bytes of its HTML."""

    def prepare(size: Size) -> Counted:
        return Counted(len(episode(size(steps))._repr_html_().encode()))

    return prepare


FIGURES = (
    Figure("looking/200 steps", Side("ours", drawing(200)), limit("5 ms", 0.005), at_most(1), "ms"),
    Figure("looking/100,000 steps", Side("ours", drawing(100_000)), limit("20 ms", 0.020), at_most(1), "ms"),
    Figure("looking/200 steps, bytes", Side("ours", weighing(200)), limit("50 kB", 50_000), at_most(1), "bytes"),
    Figure(
        "looking/100,000 steps, bytes", Side("ours", weighing(100_000)), limit("50 kB", 50_000), at_most(1), "bytes"
    ),
)
