"""Compute n-step returns of sampled steps on disk."""

from __future__ import annotations

import numpy as np

from episodes.storage.sampling.draws import StepDraw, WindowDraw
from episodes.storage.sampling.stored_tracks import SUMS

REWARDS = "rewards"


def n_step_returns(draw: StepDraw, n_step: int | np.ndarray, gamma: float) -> tuple[StepDraw, np.ndarray, np.ndarray]:
    """Return the sampled steps with the last steps of their n-step windows, the discounted sums [n] and lengths [n].

    A window has up to `n_step` steps, one number or one for each row [n], and stops with its episode.
    """
    onward = draw.ends - draw.numbers
    counts = np.minimum(onward, n_step)
    place = draw.tracks.structure[REWARDS]
    ahead = WindowDraw(draw.tracks, draw.steps, 0, int(counts.max(initial=1)))
    rewards = as_summable(ahead.items(place))
    total = rewards[:, 0].copy()
    with np.errstate(invalid="ignore"):  # inf - inf
        for k in range(1, rewards.shape[1]):
            total += np.where(counts > k, rewards[:, k], 0) * total.dtype.type(gamma**k)
    last = StepDraw(draw.tracks, draw.steps, draw.numbers + counts - 1)
    return last, total, counts.astype(np.int32)


def as_summable(rewards: np.ndarray) -> np.ndarray:
    """Return rewards converted to float32 or float64, the dtypes in which replay buffers sum rewards."""
    if rewards.dtype in SUMS:
        return rewards
    return rewards.astype(np.float32 if rewards.dtype == np.float16 else np.float64)
