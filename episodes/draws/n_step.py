"""Discounted sums of rewards over n steps, for sampled steps of any store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from episodes.draws.draw import StepsDraw

SUMS = (np.dtype(np.float32), np.dtype(np.float64))
"""Dtypes that sums of rewards fit into."""
_FEW = 256  # weights of more steps are not cached


def n_step_sums(draw: StepsDraw, n_step: int | np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sum up to `n_step` discounted rewards from each sampled step on. A sum ends with its episode.

    Args:
        draw: the sampled steps, [n].
        n_step: number of steps, at least 1: one int, or int [n].
        gamma: discount factor.

    Returns:
        Positions of the last steps [n], the sums, float [n], and the numbers of summed rewards, int32 [n].
    """
    if isinstance(n_step, (int, np.integer)):
        path = draw.path(int(n_step))
        last = path[-1]
    else:
        path = draw.path(int(n_step.max(initial=1)))
        last = np.stack(path)[np.minimum(n_step, len(path)) - 1, np.arange(len(n_step))]
    num_later = draw.num_between(draw.slots, last)
    return last, _sums(draw, path, num_later, gamma), (num_later + 1).astype(np.int32)


def _sums(draw: StepsDraw, path: Sequence[np.ndarray], num_later: np.ndarray, gamma: float) -> np.ndarray:
    """Return the discounted sums [n] of the rewards of the first step and of the `num_later` [n] steps after it.

    If all rewards are finite, those after the end are multiplied by 0, which is fast. Otherwise they are left out,
    since 0 * inf is NaN.
    """
    rewards = draw.reward_reader()
    total = rewards(path[0])
    if draw.rewards_are_finite:
        for positions, weights in zip(path[1:], _discounts(len(path), gamma, total.dtype.char), strict=True):
            later = rewards(positions)
            later *= weights[num_later]
            total += later
    else:
        with np.errstate(invalid="ignore"):  # inf - inf
            for k, positions in enumerate(path[1:], 1):
                total += np.where(num_later >= k, rewards(positions), 0) * total.dtype.type(gamma**k)
    return total


def _discounts(num_steps: int, gamma: float, dtype: str) -> Iterable[np.ndarray]:
    """Yield for k = 1, 2, ... the weight of the reward k steps later: gamma^k, or 0 in windows that end before."""
    if num_steps <= _FEW:
        return _few_discounts(num_steps, gamma, dtype)
    return (_weights(k, num_steps, gamma, dtype) for k in range(1, num_steps))


@lru_cache(maxsize=8)
def _few_discounts(num_steps: int, gamma: float, dtype: str) -> tuple[np.ndarray, ...]:
    return tuple(_weights(k, num_steps, gamma, dtype) for k in range(1, num_steps))


def _weights(k: int, num_steps: int, gamma: float, dtype: str) -> np.ndarray:
    """Return the weights [num_steps] of the reward of step `k` in the return of 1, 2, ... steps: 0, then gamma**k."""
    weights = np.zeros(num_steps, dtype)
    weights[k:] = gamma**k
    return weights


def as_summable(rewards: np.ndarray) -> np.ndarray:
    """Convert rewards to a dtype in which they can be summed, float32 or float64."""
    if rewards.dtype in SUMS:
        return rewards
    return rewards.astype(np.float32 if rewards.dtype == np.float16 else np.float64)
