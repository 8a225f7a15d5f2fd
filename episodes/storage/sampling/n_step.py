"""n-step returns of steps sampled from disk."""

from __future__ import annotations

import numpy as np

from episodes.storage.sampling.draws import StepDraw, WindowDraw
from episodes.storage.sampling.stored_tracks import SUMS

REWARDS = "rewards"


def n_step_returns(draw: StepDraw, n_step: int | np.ndarray, gamma: float) -> tuple[StepDraw, np.ndarray, np.ndarray]:
    """Compute the discounted sum of up to `n_step` rewards from each sampled step on.

    `n_step` is one number, or one for each row [n]. A sum stops with its episode.

    Returns:
        The last step of each sum as a `StepDraw`, the sums [n], and the numbers of summed rewards, int32 [n].
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
    """Convert rewards to a dtype in which they can be summed, float32 or float64, as replay buffers do."""
    if rewards.dtype in SUMS:
        return rewards
    return rewards.astype(np.float32 if rewards.dtype == np.float16 else np.float64)
