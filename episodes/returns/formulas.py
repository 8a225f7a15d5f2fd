"""Formulas of GAE, n-step returns and V-trace, for numpy arrays.

Recurrences are solved by doubling, in log2(longest episode) passes, or by a loop over rows if `AlignedSteps.swept`,
which is faster for many columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

Results = TypeVar("Results", bound=tuple[np.ndarray, ...])
WIDE = 256  # columns from which a loop over rows beats doubling on a CPU (128 x 4096 steps: 0.7 ms and 7.5 ms)


@dataclass(frozen=True, slots=True)
class AlignedSteps:
    """Rewards, values, next values and episode ends of steps, aligned as arrays [S] or [T, N]."""

    rewards: np.ndarray
    values: np.ndarray  # value of the observation before the step
    next_values: np.ndarray  # value of the observation after the step; 0 after a termination
    goes_on: np.ndarray  # 1.0 if the next row is the next step of the same episode, else 0.0
    longest: int  # upper bound of the number of steps of an episode
    swept: bool = False  # True to solve recurrences by a loop over rows instead of by doubling
    masked: bool = False  # True to mask values beyond an episode's end instead of multiplying them by 0


def masked_if_not_finite(
    formula: Callable[..., Results], steps: AlignedSteps, *arguments: np.ndarray | float | tuple[float, float]
) -> Results:
    """Apply a formula to the steps. If results are not finite, repeat it with masks that confine NaN to its episode.

    Multiplying by 0 at the ends of episodes is faster, and right if every number is finite.
    """
    if steps.masked:
        return formula(steps, *arguments)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        results = formula(steps, *arguments)
        # The first result is enough, since the others are computed from the same numbers.
        return results if np.isfinite(results[0].sum()) else formula(replace(steps, masked=True), *arguments)


def zeroed(numbers: np.ndarray, mask: np.ndarray, steps: AlignedSteps) -> np.ndarray:
    """Set `numbers` to 0 in place where `mask` is 0, and return `numbers`."""
    if steps.masked:
        numbers[mask == 0] = 0
    else:
        numbers *= mask
    return numbers


def gae_of(steps: AlignedSteps, gamma: float, lambda_: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the generalized advantage estimates (GAE) and the value targets of the steps."""
    errors = steps.rewards + gamma * steps.next_values - steps.values
    advantages = solve_recurrence(errors, steps.goes_on * (gamma * lambda_), steps)
    return advantages, advantages + steps.values


def discounted_returns_of(steps: AlignedSteps, gamma: float) -> tuple[np.ndarray]:
    """Return the discounted sum of rewards from each step to the end of its episode, in a 1-tuple."""
    return (solve_recurrence(rewards_and_last_values(steps, gamma), steps.goes_on * gamma, steps),)


def rewards_and_last_values(steps: AlignedSteps, gamma: float) -> np.ndarray:
    """Return the rewards. The discounted next value is added at the last step of each episode."""
    inputs = zeroed(gamma * steps.next_values, 1.0 - steps.goes_on, steps)
    inputs += steps.rewards
    return inputs


def n_step_returns_of(
    steps: AlignedSteps, remaining: np.ndarray, gamma: float, n_step: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return n-step targets, and the number of rewards in each target.

    `remaining` is the number of steps from each step to the end of its episode. A window that reaches the end of its
    episode has the last value in its sum already. The others get the value after the window.
    """
    size = max(1, min(n_step, steps.longest))
    targets = window_sums(rewards_and_last_values(steps, gamma), remaining, gamma, size, steps)
    inside = slice(0, max(0, len(targets) - size + 1))  # windows that do not pass the last row
    targets[inside] += zeroed(gamma**size * steps.next_values[size - 1 :], remaining[inside] > size, steps)
    return targets, remaining.clip(max=size)


def vtrace_of(
    steps: AlignedSteps, ratios: np.ndarray, gamma: float, lambda_: float, clips: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the V-trace advantages and the value targets of the steps.

    `clips` are the upper bounds of the ratios in the targets and in the advantages.
    """
    clip_rho, clip_pg_rho = clips
    errors = ratios.clip(max=clip_rho) * (steps.rewards + gamma * steps.next_values - steps.values)
    traces = zeroed(ratios.clip(max=1.0) * (gamma * lambda_), steps.goes_on, steps)
    corrections = solve_recurrence(errors, traces, steps)
    later = steps.next_values.copy()
    later[:-1] += zeroed(corrections[1:].copy(), steps.goes_on[:-1], steps)
    advantages = ratios.clip(max=clip_pg_rho) * (steps.rewards + gamma * later - steps.values)
    return advantages, corrections + steps.values


@np.errstate(under="ignore")
def window_sums(inputs: np.ndarray, remaining: np.ndarray, gamma: float, size: int, steps: AlignedSteps) -> np.ndarray:
    """Return the discounted sum of `size` inputs from each step on, or of the `remaining` inputs if these are fewer.

    Windows of 1, 2, 4, ... steps are built from one another, and those in the binary digits of `size` are joined.
    """

    def join(window: np.ndarray, length: int, later: np.ndarray) -> np.ndarray:
        """Extend each discounted sum over `length` steps by the sum in `later` that begins after these steps."""
        joined = window.copy()
        joined[:-length] += zeroed(gamma**length * later[length:], remaining[:-length] > length, steps)
        return joined

    sums: Any = None
    covered, window, length = 0, inputs, 1
    while True:
        if size & length:
            sums = window if sums is None else join(sums, covered, window)
            covered += length
        if covered == size:
            return sums
        window = join(window, length, window)
        length *= 2


@np.errstate(under="ignore")  # products of many factors become 0, also in a program with np.seterr(all="raise")
def solve_recurrence(inputs: np.ndarray, factors: np.ndarray, steps: AlignedSteps) -> np.ndarray:
    """Compute `y[t] = inputs[t] + factors[t] * y[t + 1]` backwards in time, in place of `inputs`, and return y.

    `factors` are 0 at the last step of each episode. Doubling: after each pass, `y[t]` is the sum over twice as many
    steps, and `factors[t]` the product over as many.

        pass 0   y[t] = inputs[t]
        pass 1   y[t] = inputs[t] + f[t] inputs[t+1]
        pass 2   y[t] = inputs[t] + f[t] inputs[t+1] + f[t] f[t+1] inputs[t+2] + f[t] f[t+1] f[t+2] inputs[t+3]
    """
    within = steps.goes_on != 0 if steps.masked else None  # True if the sum stays within its episode
    if steps.swept:
        for t in reversed(range(len(inputs) - 1)):
            later = factors[t] * inputs[t + 1]
            inputs[t] += later if within is None else zeroed(later, within[t], steps)
        return inputs
    reach = 1
    while reach < steps.longest:
        sums = inputs[:-reach]
        later = factors[: len(sums)] * inputs[reach:]
        sums += later if within is None else zeroed(later, within[: len(sums)], steps)
        factors = factors[:-reach] * factors[reach:]
        if within is not None:
            within = within[:-reach] & within[reach:]
        reach *= 2
    return inputs
