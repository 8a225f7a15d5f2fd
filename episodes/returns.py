"""Returns and advantages: free functions over whole episodes, in one of two layouts.

- **Packed**: episodes one after another, step `offsets[i]:offsets[i + 1]` being those of episode `i`. `rewards` are
  [S], `values` [S + n] (an episode of T steps has T + 1 observations), the endings [n], one per episode.
- **Columns** (`offsets=None`): `rewards` are [T, N], `values` [T + 1, N], the endings [T, N], one per step. An ending
  inside a column is a boundary: the next row is another episode's. `values[t + 1]` counts as the value of the
  observation that step `t` led to. Where an environment was reset in the same step that row belongs to the next
  episode: give `final_values` [T, N], which are read at truncated steps only.

Endings: a terminated step has no future. A truncated one, and the last of a chunk that was cut, bootstraps from the
value of the observation it led to, and the recursion stops there. When both flags are set, terminated wins.

Four steps of reward 1 and value 10 with gamma 0.9 and lambda 1:

>>> ones, tens = np.ones(4), np.full(5, 10.0)
>>> def value_targets(terminated, truncated):
...     targets = gae(ones, tens, [terminated], [truncated], gamma=0.9, lambda_=1.0, offsets=[0, 4])[1]
...     return targets.round(3).tolist()
>>> value_targets(terminated=True, truncated=False)
[3.439, 2.71, 1.9, 1.0]
>>> value_targets(terminated=False, truncated=True)
[10.0, 10.0, 10.0, 10.0]
>>> value_targets(terminated=False, truncated=False)  # cut: it goes on in a later chunk
[10.0, 10.0, 10.0, 10.0]
>>> value_targets(terminated=True, truncated=True)
[3.439, 2.71, 1.9, 1.0]

Nothing loops over the steps of an episode: recurrences are solved by doubling, in log2(longest episode) passes. The
formulas below the numpy functions use operators only, so that `connectors.returns` runs them on tensors of a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from episodes.errors import InvalidArgument, ShapeMismatch

__all__ = ["discounted_returns", "gae", "n_step_returns", "vtrace"]

WIDE = 256  # columns from which sweeping row by row beats doubling on a CPU (128 x 4096 steps: 0.7 ms against 7.5 ms)


def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    terminateds: ArrayLike,
    truncateds: ArrayLike,
    *,
    gamma: float,
    lambda_: float,
    offsets: ArrayLike | None = None,
    final_values: ArrayLike | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Generalized advantages and value targets, both like `rewards`: (advantages, value_targets).

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438. float32 stays float32; nothing is standardised.

    Raises:
        ShapeMismatch: shapes do not fit together.
        InvalidArgument: `gamma` or `lambda_` outside [0, 1].
    """
    check_fraction("gamma", gamma)
    check_fraction("lambda_", lambda_)
    steps = align(rewards, values, terminateds, truncateds, offsets, final_values)
    return gae_of(steps, gamma, lambda_)


def n_step_returns(
    rewards: ArrayLike,
    values: ArrayLike,
    terminateds: ArrayLike,
    truncateds: ArrayLike,
    *,
    gamma: float,
    n_step: int,
    offsets: ArrayLike | None = None,
    final_values: ArrayLike | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Targets of up to `n_step` rewards plus the discounted value after them, and how many: (targets, n_steps).

    Near an ending a target uses the steps that are left, and bootstraps only if the ending is no termination.

    >>> n_step_returns(np.ones(3), np.full(4, 10.0), [False], [True], gamma=0.5, n_step=2, offsets=[0, 3])
    (array([4., 4., 6.]), array([2, 2, 1]))
    """
    check_fraction("gamma", gamma)
    check_steps(n_step)
    steps = align(rewards, values, terminateds, truncateds, offsets, final_values)
    targets, counts = n_step_returns_of(steps, gamma, n_step)
    return targets, counts.astype(np.int64)


def discounted_returns(
    rewards: ArrayLike,
    terminateds: ArrayLike,
    truncateds: ArrayLike,
    *,
    gamma: float,
    values: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    final_values: ArrayLike | None = None,
) -> np.ndarray:
    """Discounted sums of the rewards from each step to the last of its episode, like `rewards`.

    With `values`, a truncated or cut episode adds the discounted value of its last observation; without, nothing is
    added.

    >>> discounted_returns([1.0, 1.0, 1.0, 5.0], [True, False], [False, False], gamma=0.5, offsets=[0, 3, 4])
    array([1.75, 1.5 , 1.  , 5.  ])
    """
    check_fraction("gamma", gamma)
    rewards = np.asarray(rewards)
    if values is None:
        num_episodes = None if offsets is None else np.size(offsets) - 1
        values = np.zeros(shape_of_values(rewards.shape, num_episodes), rewards.dtype)
    return discounted_returns_of(align(rewards, values, terminateds, truncateds, offsets, final_values), gamma)


def vtrace(
    rewards: ArrayLike,
    values: ArrayLike,
    terminateds: ArrayLike,
    truncateds: ArrayLike,
    ratios: ArrayLike,
    *,
    gamma: float,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_pg_rho: float = 1.0,
    offsets: ArrayLike | None = None,
    final_values: ArrayLike | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Off-policy corrected advantages and value targets, both like `rewards`: (advantages, value_targets).

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561. `ratios` are the learned policy's probability of each
    action over the acting policy's. With all ratios 1 the targets are those of `gae`.
    """
    check_fraction("gamma", gamma)
    check_fraction("lambda_", lambda_)
    steps = align(rewards, values, terminateds, truncateds, offsets, final_values)
    weights = np.asarray(ratios, steps.rewards.dtype)
    check_like_rewards("ratios", weights.shape, steps.rewards.shape)
    return vtrace_of(steps, weights, gamma, lambda_, (clip_rho, clip_pg_rho))


@dataclass(frozen=True, slots=True)
class AlignedSteps:
    """Steps of many episodes with what each one needs beside it: arrays or tensors, all [S] or all [T, N]."""

    rewards: Any
    values: Any  # V of the observation the action was taken in
    next_values: Any  # V of the observation it led to; 0 after a termination
    goes_on: Any  # 1.0 where the next row is the next step of the same episode, else 0.0
    longest: int  # no episode has more steps than this
    swept: bool = False  # recurrences go row by row, all columns at once, instead of by doubling


def gae_of(steps: AlignedSteps, gamma: float, lambda_: float) -> tuple[Any, Any]:
    """(advantages, value_targets) of aligned steps."""
    errors = steps.rewards + gamma * steps.next_values - steps.values
    advantages = solve_recurrence(errors, steps.goes_on * (gamma * lambda_), steps)
    return advantages, advantages + steps.values


def discounted_returns_of(steps: AlignedSteps, gamma: float) -> Any:
    """Rewards to go of aligned steps; the last step of each episode adds the value it led to."""
    last_values = steps.next_values * (1.0 - steps.goes_on)
    return solve_recurrence(steps.rewards + gamma * last_values, steps.goes_on * gamma, steps)


def n_step_returns_of(steps: AlignedSteps, gamma: float, n_step: int) -> tuple[Any, Any]:
    """(targets, how many steps each uses) of aligned steps.

    A target is the value before it plus the discounted temporal-difference errors of its steps: the values between
    cancel.
    """
    errors = steps.rewards + gamma * steps.next_values - steps.values
    remaining = solve_recurrence(steps.goes_on * 0.0 + 1.0, steps.goes_on * 1.0, steps)
    n_step = max(1, min(n_step, steps.longest))
    return steps.values + window_sums(errors, remaining, gamma, n_step), remaining.clip(max=n_step)


def vtrace_of(steps: AlignedSteps, ratios: Any, gamma: float, lambda_: float, clips: tuple[float, float]) -> Any:
    """(advantages, value_targets) of aligned steps; `clips` bound the ratios of the targets and of the advantages."""
    clip_rho, clip_pg_rho = clips
    errors = ratios.clip(max=clip_rho) * (steps.rewards + gamma * steps.next_values - steps.values)
    traces = ratios.clip(max=1.0) * (gamma * lambda_)
    corrections = solve_recurrence(errors, steps.goes_on * traces, steps)
    later = steps.next_values * 1.0
    later[:-1] += steps.goes_on[:-1] * corrections[1:]
    advantages = ratios.clip(max=clip_pg_rho) * (steps.rewards + gamma * later - steps.values)
    return advantages, corrections + steps.values


def window_sums(inputs: Any, remaining: Any, gamma: float, length: int) -> Any:
    """Discounted sums of `length` inputs from each step on, or of the `remaining` ones where they are fewer.

    Windows of 1, 2, 4, ... steps are built from one another; those in `length`'s binary digits are joined.
    """

    def join(window: Any, size: int, later: Any) -> Any:
        """The window of `size` steps followed by `later`."""
        joined = window * 1.0
        joined[:-size] += (remaining[:-size] > size) * (gamma**size * later[size:])
        return joined

    sums, covered, window, size = None, 0, inputs, 1
    while True:
        if length & size:
            sums = window if sums is None else join(sums, covered, window)
            covered += size
        if covered == length:
            return sums
        window = join(window, size, window)
        size *= 2


def solve_recurrence(inputs: Any, factors: Any, steps: AlignedSteps) -> Any:
    """The solution y of `y[t] = inputs[t] + factors[t] * y[t + 1]`, in the memory of `inputs`.

    `factors` are 0 at the last step of each episode (they are overwritten too). Doubling: after each pass, `y[t]`
    holds the sum over twice as many steps, and `factors[t]` the product over as many.
    """
    if steps.swept:
        for t in reversed(range(len(inputs) - 1)):
            inputs[t] += factors[t] * inputs[t + 1]
        return inputs
    reach = 1
    while reach < steps.longest:
        inputs[:-reach] += factors[:-reach] * inputs[reach:]
        factors[:-reach] = factors[:-reach] * factors[reach:]
        reach *= 2
    return inputs


def align(
    rewards: ArrayLike,
    values: ArrayLike,
    terminateds: ArrayLike,
    truncateds: ArrayLike,
    offsets: ArrayLike | None,
    final_values: ArrayLike | None,
) -> AlignedSteps:
    """The checked input of the public functions, in floating point, with next values and boundaries."""
    rewards, values = np.asarray(rewards), np.asarray(values)
    dtype = np.result_type(rewards, values, np.float32)
    rewards, values = rewards.astype(dtype, copy=False), values.astype(dtype, copy=False)
    terminateds, truncateds = np.asarray(terminateds, bool), np.asarray(truncateds, bool)
    if offsets is None:
        finals = None if final_values is None else np.asarray(final_values, dtype)
        check_columns(
            rewards.shape, values.shape, terminateds.shape, truncateds.shape, None if finals is None else finals.shape
        )
        return _align_columns(rewards, values, terminateds, truncateds, finals)
    offsets = np.asarray(offsets)
    if final_values is not None:
        raise InvalidArgument(FINAL_VALUES_OF_PACKED)
    check_packed(rewards.shape, values.shape, terminateds.shape, truncateds.shape, offsets.shape)
    return _align_packed(rewards, values, terminateds, offsets)


def _align_packed(
    rewards: np.ndarray, values: np.ndarray, terminateds: np.ndarray, offsets: np.ndarray
) -> AlignedSteps:
    lengths = np.diff(offsets)
    check_offsets(int(offsets[0]), int(offsets[-1]), int(lengths.min(initial=0)), len(rewards))
    before = np.arange(len(rewards)) + np.repeat(np.arange(len(lengths)), lengths)
    next_values = values[before + 1]
    ends = offsets[1:] - 1
    next_values[ends[terminateds & (lengths > 0)]] = 0
    goes_on = np.ones_like(rewards)
    goes_on[ends[lengths > 0]] = 0
    return AlignedSteps(rewards, values[before], next_values, goes_on, int(lengths.max(initial=0)))


def _align_columns(
    rewards: np.ndarray,
    values: np.ndarray,
    terminateds: np.ndarray,
    truncateds: np.ndarray,
    final_values: np.ndarray | None,
) -> AlignedSteps:
    next_values = values[1:] if final_values is None else np.where(truncateds, final_values, values[1:])
    next_values = np.where(terminateds, values.dtype.type(0), next_values)
    goes_on = (~(terminateds | truncateds)).astype(rewards.dtype)
    goes_on[-1:] = 0
    wide = rewards.size >= WIDE * len(rewards)
    return AlignedSteps(rewards, values[:-1], next_values, goes_on, len(rewards), swept=wide)


FINAL_VALUES_OF_PACKED = (
    "final_values with offsets: packed values already hold each episode's last one; give final_values for [T, N] only"
)


def shape_of_values(rewards: tuple[int, ...], num_episodes: int | None) -> tuple[int, ...]:
    """The shape that `values` must have beside rewards of this shape, packed when a number of episodes is given."""
    if not rewards:
        raise ShapeMismatch("rewards are a single number; give one per step, [S] with offsets or [T, N]")
    return (rewards[0] + (1 if num_episodes is None else num_episodes), *rewards[1:])


def check_columns(
    rewards: tuple[int, ...],
    values: tuple[int, ...],
    terminateds: tuple[int, ...],
    truncateds: tuple[int, ...],
    final_values: tuple[int, ...] | None,
) -> None:
    """Raise `ShapeMismatch` unless the shapes of a [T, N] layout fit together."""
    wanted = shape_of_values(rewards, None)
    if values != wanted:
        raise ShapeMismatch(
            f"values {list(values)} beside rewards {list(rewards)}: they must be {list(wanted)}, one more row for the "
            "observation after the last step; pass offsets when the arrays hold packed episodes"
        )
    check_like_rewards("terminateds", terminateds, rewards)
    check_like_rewards("truncateds", truncateds, rewards)
    if final_values is not None:
        check_like_rewards("final_values", final_values, rewards)


def check_packed(
    rewards: tuple[int, ...],
    values: tuple[int, ...],
    terminateds: tuple[int, ...],
    truncateds: tuple[int, ...],
    offsets: tuple[int, ...],
) -> None:
    """Raise `ShapeMismatch` unless the shapes of a packed layout fit together."""
    if len(offsets) != 1 or not offsets[0] or len(rewards) != 1:
        raise ShapeMismatch(f"rewards {list(rewards)} with offsets {list(offsets)}: packed they are [S] and [n + 1]")
    num_episodes = offsets[0] - 1
    wanted = shape_of_values(rewards, num_episodes)
    if values != wanted:
        raise ShapeMismatch(
            f"values {list(values)} of {num_episodes} packed episodes with {rewards[0]} steps: they must be "
            f"{list(wanted)}, one per observation, T + 1 of each episode"
        )
    for name, shape in (("terminateds", terminateds), ("truncateds", truncateds)):
        if shape != (num_episodes,):
            raise ShapeMismatch(
                f"{name} {list(shape)} of {num_episodes} packed episodes: one flag per episode is needed"
            )


def check_offsets(first: int, last: int, shortest: int, num_steps: int) -> None:
    """Raise `ShapeMismatch` unless offsets go from 0 to the number of steps and never down."""
    if first != 0 or last != num_steps or shortest < 0:
        raise ShapeMismatch(
            f"offsets from {first} to {last} of {num_steps} packed steps: they must rise from 0 to {num_steps}"
        )


def check_like_rewards(name: str, shape: tuple[int, ...], rewards: tuple[int, ...]) -> None:
    """Raise `ShapeMismatch` unless an array has the rewards' shape."""
    if tuple(shape) != tuple(rewards):
        raise ShapeMismatch(f"{name} {list(shape)} beside rewards {list(rewards)}: they must have one entry per step")


def check_fraction(name: str, value: float) -> float:
    """The discount itself; `InvalidArgument` unless it lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise InvalidArgument(f"{name}={value}: it must lie in [0, 1]")
    return value


def check_steps(n_step: int) -> None:
    """Raise `InvalidArgument` unless there is at least one step to sum over."""
    if n_step < 1:
        raise InvalidArgument(f"n_step={n_step}: it must be at least 1")
