"""n-step sums over steps that follow each other on disk."""

from __future__ import annotations

import numpy as np

from episodes.storage.sampling.draws import StepDraw, WindowDraw
from episodes.storage.sampling.stored_tracks import SUMS

REWARDS = "rewards"


def followed(draw: StepDraw, n_step: int | np.ndarray, gamma: float) -> tuple[StepDraw, np.ndarray, np.ndarray]:
    """The draw with its last steps: up to `n_step` from each on, which stop where the chunk does.

    With it the discounted sums [n] of their rewards, and how many they are, int32 [n]. `n_step` is one number, or one
    for each [n].
    """
    onward = draw.ends - draw.numbers
    counts = np.minimum(onward, n_step)
    place = draw.tracks.structure[REWARDS]
    ahead = WindowDraw(draw.tracks, draw.steps, 0, int(counts.max(initial=1)))
    rewards = as_sums(ahead.items(place))
    total = rewards[:, 0].copy()
    with np.errstate(invalid="ignore"):  # inf - inf
        for k in range(1, rewards.shape[1]):
            total += np.where(counts > k, rewards[:, k], 0) * total.dtype.type(gamma**k)
    last = StepDraw(draw.tracks, draw.steps, draw.numbers + counts - 1)
    return last, total, counts.astype(np.int32)


def as_sums(rewards: np.ndarray) -> np.ndarray:
    """Rewards of a dtype that sums of them fit into, as replay buffers store them."""
    if rewards.dtype in SUMS:
        return rewards
    return rewards.astype(np.float32 if rewards.dtype == np.float16 else np.float64)
