"""Returns and advantages of numpy arrays, in the layout [T, N] or as concatenated episodes with offsets.

- **Packed**: concatenated episodes. Episode `i` has the steps `offsets[i]:offsets[i + 1]`. `rewards` are [S], `values`
    [S + n] (an episode of T steps has T + 1 observations), and the flags of endings [n], one per episode.
- **Columns** (`offsets=None`): `rewards` are [T, N], `values` [T + 1, N], and flags of endings [T, N], one per step.
    After an ending inside a column, the next row belongs to another episode. `values[t + 1]` counts as the value of the
    observation that step `t` led to. If environments are reset in the same step, that row belongs to the next episode:
    then give `final_values` [T, N], which are read at truncated steps only.

Endings: a terminated step has no future. A truncated step, and the last step of a chunk that was cut, bootstraps from
the value of the observation that it led to, and the recursion stops there. If both flags are set, terminated wins.

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

A NaN or an infinity affects only the earlier steps of its own episode. Values that no result depends on, such as the
value after a termination, may be anything.

"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from episodes.errors import InvalidArgument
from episodes.returns.checks import (
    FINAL_VALUES_OF_PACKED,
    check_columns,
    check_flags,
    check_fraction,
    check_like_rewards,
    check_offsets,
    check_packed,
    shape_of_values,
)
from episodes.returns.formulas import (
    WIDE,
    AlignedSteps,
    discounted_returns_of,
    gae_of,
    masked_if_not_finite,
    n_step_returns_of,
    solve_recurrence,
    vtrace_of,
)
from episodes.tracks.validation import checked_count

__all__ = ["discounted_returns", "gae", "n_step_returns", "vtrace"]


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
    """Return generalized advantage estimates (GAE) and value targets, each of the shape of `rewards`.

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438. float32 stays float32, and nothing is standardized. The
    module describes the layouts.

    Raises:
        ShapeMismatch: shapes do not fit each other.
        InvalidArgument: `gamma` or `lambda_` is outside [0, 1].
        WrongType: the flags are None.
    """
    gamma, lambda_ = check_fraction("gamma", gamma), check_fraction("lambda_", lambda_)
    steps = align(rewards, values, terminateds, truncateds, offsets, final_values)
    return masked_if_not_finite(gae_of, steps, gamma, lambda_)


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
    """Return n-step targets, and the number of rewards in each target, both of the shape of `rewards`.

    Near an ending a target sums the remaining steps, and bootstraps only if the ending is not a termination.

    Raises:
        ShapeMismatch: shapes do not fit each other.
        InvalidArgument: `gamma` is outside [0, 1], or `n_step` is not an int of at least 1.

    >>> n_step_returns(np.ones(3), np.full(4, 10.0), [False], [True], gamma=0.5, n_step=2, offsets=[0, 3])
    (array([4., 4., 6.]), array([2, 2, 1]))
    """
    gamma, n_step = check_fraction("gamma", gamma), checked_count("n_step", n_step)
    steps = align(rewards, values, terminateds, truncateds, offsets, final_values)
    targets, counts = masked_if_not_finite(n_step_returns_of, steps, _remaining(steps), gamma, n_step)
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
    """Return the discounted sum of rewards from each step to the end of its episode, of the shape of `rewards`.

    With `values`, a truncated or cut episode adds the discounted value of its last observation.

    Raises:
        ShapeMismatch: shapes do not fit each other.
        InvalidArgument: `gamma` is outside [0, 1].

    >>> discounted_returns([1.0, 1.0, 1.0, 5.0], [True, False], [False, False], gamma=0.5, offsets=[0, 3, 4])
    array([1.75, 1.5 , 1.  , 5.  ])
    """
    gamma = check_fraction("gamma", gamma)
    rewards = np.asarray(rewards)
    if values is None:
        num_episodes = None if offsets is None else np.size(offsets) - 1
        values = np.zeros(shape_of_values(rewards.shape, num_episodes), rewards.dtype)
    steps = align(rewards, values, terminateds, truncateds, offsets, final_values)
    return masked_if_not_finite(discounted_returns_of, steps, gamma)[0]


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
    """Return the off-policy corrected advantages and value targets of V-trace, both of the shape of `rewards`.

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561. `ratios` are the learned policy's probability of each
    action over the acting policy's. `clip_rho` and `clip_pg_rho` are the upper bounds of the ratios in the targets and
    in the advantages. With all ratios and bounds 1 the targets equal those of `gae`.

    Raises:
        ShapeMismatch: shapes do not fit each other.
        InvalidArgument: `gamma` or `lambda_` is outside [0, 1].
    """
    gamma, lambda_ = check_fraction("gamma", gamma), check_fraction("lambda_", lambda_)
    steps = align(rewards, values, terminateds, truncateds, offsets, final_values)
    weights = np.asarray(ratios, steps.rewards.dtype)
    check_like_rewards("ratios", weights.shape, steps.rewards.shape)
    return masked_if_not_finite(vtrace_of, steps, weights, gamma, lambda_, (float(clip_rho), float(clip_pg_rho)))


def align(
    rewards: ArrayLike,
    values: ArrayLike,
    terminateds: ArrayLike,
    truncateds: ArrayLike,
    offsets: ArrayLike | None,
    final_values: ArrayLike | None,
) -> AlignedSteps:
    """Check the arguments of `gae` and similar functions, and return them as `AlignedSteps`, with the value after
    each step.

    Number types become floats, of at least float32.

    Raises:
        WrongType: flags are None.
        InvalidArgument: `final_values` are given for concatenated episodes.
        ShapeMismatch: shapes do not fit together, or offsets do not ascend from 0.
    """
    check_flags(terminateds, truncateds)
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
    """Return concatenated episodes as `AlignedSteps`.

    `values` have one row more than steps per episode. The value after a termination counts as 0.

    Raises:
        ShapeMismatch: the offsets do not ascend from 0 to the number of steps.
    """
    stops = offsets[1:]
    lengths = stops - offsets[:-1]
    check_offsets(int(offsets[0]), int(offsets[-1]), int(lengths.min(initial=0)), len(rewards))
    before = np.arange(len(lengths)).repeat(lengths)  # each earlier episode has one observation more than steps
    before += np.arange(len(rewards))
    has_steps = lengths > 0  # episodes without steps have no last step
    next_values = values[1:].take(before)
    next_values[stops[terminateds & has_steps] - 1] = 0
    goes_on = np.ones(len(rewards), rewards.dtype)
    goes_on[stops[has_steps] - 1] = 0
    return AlignedSteps(rewards, values.take(before), next_values, goes_on, int(lengths.max(initial=0)))


def _align_columns(
    rewards: np.ndarray,
    values: np.ndarray,
    terminateds: np.ndarray,
    truncateds: np.ndarray,
    final_values: np.ndarray | None,
) -> AlignedSteps:
    """Align steps of the layout [T, N]. The next value is 0 after a termination, and `final_values` after a truncation,
    if they are given.
    """
    next_values = values[1:] if final_values is None else np.where(truncateds, final_values, values[1:])
    next_values = np.where(terminateds, values.dtype.type(0), next_values)
    goes_on = (~(terminateds | truncateds)).astype(rewards.dtype)
    goes_on[-1:] = 0
    wide = rewards.size >= WIDE * len(rewards)
    return AlignedSteps(rewards, values[:-1], next_values, goes_on, len(rewards), swept=wide)


def _remaining(steps: AlignedSteps) -> np.ndarray:
    """Return the number of steps from each step (included) to the end of its episode."""
    if steps.swept:
        return solve_recurrence(np.ones_like(steps.goes_on), steps.goes_on, steps)
    length = len(steps.goes_on)
    rows = np.arange(length, dtype=np.int32).reshape(-1, *[1] * (steps.goes_on.ndim - 1))
    ends = np.where(steps.goes_on, np.int32(length), rows)
    return np.minimum.accumulate(ends[::-1])[::-1] - rows + 1
