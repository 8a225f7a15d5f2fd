"""The formulas of returns and advantages, of numpy arrays and of tensors alike: they use operators only.

So a copy of either, to write to, is `numbers * 1.0`.

Nothing loops over the steps of an episode: recurrences are solved by doubling, in log2(longest episode) passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

WIDE = 256  # columns from which sweeping row by row beats doubling on a CPU (128 x 4096 steps: 0.7 ms against 7.5 ms)


@dataclass(frozen=True, slots=True)
class AlignedSteps:
    """Steps of many episodes with what each one needs beside it: arrays or tensors, all [S] or all [T, N]."""

    rewards: Any
    values: Any  # V of the observation the action was taken in
    next_values: Any  # V of the observation it led to; 0 after a termination
    goes_on: Any  # 1.0 where the next row is the next step of the same episode, else 0.0
    longest: int  # no episode has more steps than this
    swept: bool = False  # recurrences go row by row, all columns at once, instead of by doubling
    masked: bool = False  # what lies behind an episode's end is masked out; else it is multiplied by 0


def settled(formula: Callable[..., tuple[Any, ...]], steps: AlignedSteps, *arguments: Any) -> tuple[Any, ...]:
    """The formula's results, where no NaN or infinity of an episode reaches another one.

    Multiplying by 0 at the ends of episodes is the fast way, and right as long as every number is finite. Masks are
    needed only where one is not.
    """
    if steps.masked:
        return formula(steps, *arguments)
    with np.errstate(over="ignore", invalid="ignore"):
        results = formula(steps, *arguments)
        # The first result is enough: the others are made of it, or of numbers that are in it too. Its total is finite
        # where it minus itself is 0; no `isfinite` takes arrays and tensors alike.
        total = results[0].sum()
        return results if total - total == 0 else formula(replace(steps, masked=True), *arguments)


def zeroed(numbers: Any, mask: Any, steps: AlignedSteps) -> Any:
    """The numbers with 0 in place of those whose mask is 0, in their own memory."""
    if steps.masked:
        numbers[mask == 0] = 0
    else:
        numbers *= mask
    return numbers


def gae_of(steps: AlignedSteps, gamma: float, lambda_: float) -> tuple[Any, Any]:
    """(advantages, value_targets) of aligned steps."""
    errors = steps.rewards + gamma * steps.next_values - steps.values
    advantages = solve_recurrence(errors, steps.goes_on * (gamma * lambda_), steps)
    return advantages, advantages + steps.values


def discounted_returns_of(steps: AlignedSteps, gamma: float) -> tuple[Any]:
    """(rewards to go,) of aligned steps."""
    return (solve_recurrence(rewards_and_last_values(steps, gamma), steps.goes_on * gamma, steps),)


def rewards_and_last_values(steps: AlignedSteps, gamma: float) -> Any:
    """The rewards; at the last step of each episode with the discounted value that it led to."""
    inputs = zeroed(gamma * steps.next_values, 1.0 - steps.goes_on, steps)
    inputs += steps.rewards
    return inputs


def n_step_returns_of(steps: AlignedSteps, remaining: Any, gamma: float, n_step: int) -> tuple[Any, Any]:
    """(targets, how many steps each uses) of aligned steps, of which so many are `remaining` from each on.

    A window that meets the end of its episode has the last value in its sum; to the others the value after them is
    added.
    """
    size = max(1, min(n_step, steps.longest))
    targets = window_sums(rewards_and_last_values(steps, gamma), remaining, gamma, size, steps)
    inside = slice(0, max(0, len(targets) - size + 1))  # the others go past the last row
    targets[inside] += zeroed(gamma**size * steps.next_values[size - 1 :], remaining[inside] > size, steps)
    return targets, remaining.clip(max=size)


def vtrace_of(
    steps: AlignedSteps, ratios: Any, gamma: float, lambda_: float, clips: tuple[float, float]
) -> tuple[Any, Any]:
    """(advantages, value_targets) of aligned steps; `clips` bound the ratios of the targets and of the advantages."""
    clip_rho, clip_pg_rho = clips
    errors = ratios.clip(max=clip_rho) * (steps.rewards + gamma * steps.next_values - steps.values)
    traces = zeroed(ratios.clip(max=1.0) * (gamma * lambda_), steps.goes_on, steps)
    corrections = solve_recurrence(errors, traces, steps)
    later = steps.next_values * 1.0
    later[:-1] += zeroed(corrections[1:] * 1.0, steps.goes_on[:-1], steps)
    advantages = ratios.clip(max=clip_pg_rho) * (steps.rewards + gamma * later - steps.values)
    return advantages, corrections + steps.values


def window_sums(inputs: Any, remaining: Any, gamma: float, size: int, steps: AlignedSteps) -> Any:
    """Discounted sums of `size` inputs from each step on, or of the `remaining` ones where they are fewer.

    Windows of 1, 2, 4, ... steps are built from one another; those in the size's binary digits are joined.
    """

    def join(window: Any, length: int, later: Any) -> Any:
        """The window of `length` steps followed by `later`."""
        joined = window * 1.0
        joined[:-length] += zeroed(gamma**length * later[length:], remaining[:-length] > length, steps)
        return joined

    sums, covered, window, length = None, 0, inputs, 1
    while True:
        if size & length:
            sums = window if sums is None else join(sums, covered, window)
            covered += length
        if covered == size:
            return sums
        window = join(window, length, window)
        length *= 2


def swept_remaining(steps: AlignedSteps) -> Any:
    """How many steps the episode has from each one on, itself included."""
    return solve_recurrence(steps.goes_on * 0.0 + 1.0, steps.goes_on * 1.0, steps)


def solve_recurrence(inputs: Any, factors: Any, steps: AlignedSteps) -> Any:
    """The solution y of `y[t] = inputs[t] + factors[t] * y[t + 1]`, in the memory of `inputs`.

    `factors` are 0 at the last step of each episode. Doubling: after each pass, `y[t]` holds the sum over twice as many
    steps, and `factors[t]` the product over as many; there is one for each step that has as many after it.
    """
    within = steps.goes_on != 0 if steps.masked else None  # True while the sum stays within its episode
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
