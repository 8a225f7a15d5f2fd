"""Returns and advantages on tensors of any device: the functions of `episodes.returns`, with the same arguments.

Arrays are tensors here, all on one device; `offsets` may also be a list or a numpy array, which saves a CUDA device
the wait for the longest episode's length. Results are tensors on that device, outside of any graph.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from episodes.errors import InvalidArgument, WrongType
from episodes.returns.checks import (
    FINAL_VALUES_OF_PACKED,
    check_columns,
    check_flags,
    check_fraction,
    check_like_rewards,
    check_offsets,
    check_packed,
    check_steps,
    shape_of_values,
)
from episodes.returns.formulas import (
    WIDE,
    AlignedSteps,
    discounted_returns_of,
    gae_of,
    n_step_returns_of,
    settled,
    swept_remaining,
    vtrace_of,
)

__all__ = ["discounted_returns", "gae", "n_step_returns", "vtrace"]

Offsets = Tensor | np.ndarray | list[int] | None


@torch.no_grad()
def gae(
    rewards: Tensor,
    values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor,
    *,
    gamma: float,
    lambda_: float,
    offsets: Offsets = None,
    final_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalized advantages and value targets, both like `rewards`: see `episodes.returns.gae`.

    >>> ending = {"terminateds": torch.tensor([True]), "truncateds": torch.tensor([False]), "offsets": [0, 4]}
    >>> gae(torch.ones(4), torch.full((5,), 10.0), **ending, gamma=0.9, lambda_=1.0)[1]
    tensor([3.4390, 2.7100, 1.9000, 1.0000])
    """
    gamma, lambda_ = check_fraction("gamma", gamma), check_fraction("lambda_", lambda_)
    return settled(gae_of, align(rewards, values, terminateds, truncateds, offsets, final_values), gamma, lambda_)


@torch.no_grad()
def n_step_returns(
    rewards: Tensor,
    values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor,
    *,
    gamma: float,
    n_step: int,
    offsets: Offsets = None,
    final_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Targets and how many steps (int64) each one uses: see `episodes.returns.n_step_returns`."""
    gamma, n_step = check_fraction("gamma", gamma), check_steps(n_step)
    steps = align(rewards, values, terminateds, truncateds, offsets, final_values)
    targets, counts = settled(n_step_returns_of, steps, _remaining(steps), gamma, n_step)
    return targets, counts.long()


@torch.no_grad()
def discounted_returns(
    rewards: Tensor,
    terminateds: Tensor,
    truncateds: Tensor,
    *,
    gamma: float,
    values: Tensor | None = None,
    offsets: Offsets = None,
    final_values: Tensor | None = None,
) -> Tensor:
    """Discounted rewards to go, like `rewards`: see `episodes.returns.discounted_returns`."""
    gamma = check_fraction("gamma", gamma)
    if values is None:
        num_episodes = None if offsets is None else len(offsets) - 1
        values = rewards.new_zeros(shape_of_values(tuple(rewards.shape), num_episodes))
    steps = align(rewards, values, terminateds, truncateds, offsets, final_values)
    return settled(discounted_returns_of, steps, gamma)[0]


@torch.no_grad()
def vtrace(
    rewards: Tensor,
    values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor,
    ratios: Tensor,
    *,
    gamma: float,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_pg_rho: float = 1.0,
    offsets: Offsets = None,
    final_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Off-policy corrected advantages and value targets, both like `rewards`: see `episodes.returns.vtrace`."""
    gamma, lambda_ = check_fraction("gamma", gamma), check_fraction("lambda_", lambda_)
    steps = align(rewards, values, terminateds, truncateds, offsets, final_values)
    check_same_device(rewards, ratios=ratios)
    check_like_rewards("ratios", tuple(ratios.shape), tuple(rewards.shape))
    clips = (float(clip_rho), float(clip_pg_rho))
    return settled(vtrace_of, steps, ratios.to(steps.rewards.dtype), gamma, lambda_, clips)


def align(
    rewards: Tensor,
    values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor,
    offsets: Offsets,
    final_values: Tensor | None,
) -> AlignedSteps:
    """The checked input of the public functions, in floating point, with next values and boundaries."""
    check_flags(terminateds, truncateds)
    check_same_device(rewards, values=values, terminateds=terminateds, truncateds=truncateds, final_values=final_values)
    dtype = torch.promote_types(torch.promote_types(rewards.dtype, values.dtype), torch.float32)
    rewards, values = rewards.to(dtype), values.to(dtype)
    terminateds, truncateds = terminateds.bool(), truncateds.bool()
    shapes = tuple(rewards.shape), tuple(values.shape), tuple(terminateds.shape), tuple(truncateds.shape)
    if offsets is None:
        check_columns(*shapes, None if final_values is None else tuple(final_values.shape))
        finals = None if final_values is None else final_values.to(dtype)
        return _align_columns(rewards, values, terminateds, truncateds, finals)
    if final_values is not None:
        raise InvalidArgument(FINAL_VALUES_OF_PACKED)
    host_offsets = offsets.cpu().numpy() if isinstance(offsets, Tensor) else np.asarray(offsets)
    check_packed(*shapes, host_offsets.shape)
    return _align_packed(rewards, values, terminateds, host_offsets)


def _align_packed(rewards: Tensor, values: Tensor, terminateds: Tensor, offsets: np.ndarray) -> AlignedSteps:
    lengths = np.diff(offsets)
    check_offsets(int(offsets[0]), int(offsets[-1]), int(lengths.min(initial=0)), len(rewards))
    before = np.arange(len(rewards)) + np.repeat(np.arange(len(lengths)), lengths)
    some = np.flatnonzero(lengths)  # episodes with steps
    rows = torch.from_numpy(np.concatenate([before, offsets[1:][some] - 1, some])).to(rewards.device)
    before, ends, some = rows.split([len(before), len(some), len(some)])
    next_values = values[before + 1]
    next_values[ends] = next_values[ends].masked_fill(terminateds[some], 0)
    goes_on = torch.ones_like(rewards)
    goes_on[ends] = 0
    # Whether all is finite would have to be waited for on a device: there, everything is masked.
    masked = rewards.device.type != "cpu"
    return AlignedSteps(rewards, values[before], next_values, goes_on, int(lengths.max(initial=0)), masked=masked)


def _align_columns(
    rewards: Tensor, values: Tensor, terminateds: Tensor, truncateds: Tensor, final_values: Tensor | None
) -> AlignedSteps:
    next_values = values[1:] if final_values is None else torch.where(truncateds, final_values, values[1:])
    next_values = next_values.masked_fill(terminateds, 0)
    goes_on = (~(terminateds | truncateds)).to(rewards.dtype)
    goes_on[-1:] = 0
    on_host = rewards.device.type == "cpu"
    wide = on_host and rewards.numel() >= WIDE * len(rewards)
    return AlignedSteps(rewards, values[:-1], next_values, goes_on, len(rewards), swept=wide, masked=not on_host)


def _remaining(steps: AlignedSteps) -> Tensor:
    """How many steps the episode has from each one on, itself included."""
    if steps.swept:
        return swept_remaining(steps)
    length = len(steps.goes_on)
    here = torch.arange(length, device=steps.goes_on.device).reshape(-1, *[1] * (steps.goes_on.ndim - 1))
    ends = torch.where(steps.goes_on != 0, length, here)
    return ends.flip(0).cummin(0).values.flip(0) - here + 1


def check_same_device(rewards: Tensor, **others: Tensor | None) -> None:
    """Raise unless all are tensors on the rewards' device."""
    for name, other in {"rewards": rewards, **others}.items():
        if other is None:
            continue
        if not isinstance(other, Tensor):
            raise WrongType(f"{name} is a {type(other).__name__}: tensors are taken here, arrays by episodes.returns")
        if other.device != rewards.device:
            raise InvalidArgument(f"{name} is on {other.device}, rewards on {rewards.device}; move one to the other")
