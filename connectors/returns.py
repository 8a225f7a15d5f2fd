"""Returns and advantages (GAE, V-trace, n-step, discounted) of torch tensors, with the arguments of `episodes.returns`.

The computation runs in numpy on the CPU. Arguments on another device are copied to the CPU, and the results are copied
back, so a CUDA device waits for one round trip per call. Results are outside of any autograd graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from episodes import returns
from episodes.errors import InvalidArgument, WrongType

__all__ = ["discounted_returns", "gae", "n_step_returns", "vtrace"]

Offsets = Tensor | np.ndarray | list[int] | None


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
    """Return generalized advantage estimates (GAE) and value targets as tensors, each of the shape of `rewards`.

    `episodes.returns.gae` describes the arguments and shapes.

    Raises:
        WrongType: an argument is not a tensor.
        InvalidArgument: tensors are on different devices, or a number such as `gamma` is out of range.
        ShapeMismatch: the shapes of tensors do not fit each other.

    >>> ending = {"terminateds": torch.tensor([True]), "truncateds": torch.tensor([False]), "offsets": [0, 4]}
    >>> gae(torch.ones(4), torch.full((5,), 10.0), **ending, gamma=0.9, lambda_=1.0)[1]
    tensor([3.4390, 2.7100, 1.9000, 1.0000])
    """
    columns = {"values": values, "terminateds": terminateds, "truncateds": truncateds, "final_values": final_values}
    return _call_on_cpu(returns.gae, rewards, columns, offsets, gamma=gamma, lambda_=lambda_)


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
    """Return n-step value targets as a tensor of the shape of `rewards`, and the number of steps that each target sums
    up, int64.

    `episodes.returns.n_step_returns` describes the arguments and shapes.

    Raises:
        WrongType: an argument is not a tensor.
        InvalidArgument: tensors are on different devices, or a number such as `gamma` is out of range.
        ShapeMismatch: the shapes of tensors do not fit each other.
    """
    columns = {"values": values, "terminateds": terminateds, "truncateds": truncateds, "final_values": final_values}
    return _call_on_cpu(returns.n_step_returns, rewards, columns, offsets, gamma=gamma, n_step=n_step)


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
    """Return the discounted sum of rewards from each step to the end of its episode (returns to go), as a tensor of the
    shape of `rewards`.

    `episodes.returns.discounted_returns` describes the arguments and shapes.

    Raises:
        WrongType: an argument is not a tensor.
        InvalidArgument: tensors are on different devices, or a number such as `gamma` is out of range.
        ShapeMismatch: the shapes of tensors do not fit each other.
    """
    columns = {"values": values, "terminateds": terminateds, "truncateds": truncateds, "final_values": final_values}
    return _call_on_cpu(returns.discounted_returns, rewards, columns, offsets, gamma=gamma)


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
    """Return V-trace advantages and value targets as tensors of the shape of `rewards`. They are corrected for
    off-policy actions by importance ratios.

    `episodes.returns.vtrace` describes the arguments and shapes.

    Raises:
        WrongType: an argument is not a tensor.
        InvalidArgument: tensors are on different devices, or a number such as `gamma` is out of range.
        ShapeMismatch: the shapes of tensors do not fit each other.
    """
    columns = {"values": values, "terminateds": terminateds, "truncateds": truncateds, "final_values": final_values}
    options = {"gamma": gamma, "lambda_": lambda_, "clip_rho": clip_rho, "clip_pg_rho": clip_pg_rho}
    return _call_on_cpu(returns.vtrace, rewards, {**columns, "ratios": ratios}, offsets, **options)


def _call_on_cpu(
    function: Callable[..., Any], rewards: Tensor, columns: dict[str, Tensor | None], offsets: Offsets, **options: float
) -> Any:
    """Call a function of `episodes.returns` with tensors copied to numpy arrays, and return its results as tensors on
    the device of `rewards`.
    """
    columns = {"rewards": rewards, **columns}
    arrays = {name: None if column is None else _as_array(column, name, rewards) for name, column in columns.items()}
    offsets = offsets.cpu().numpy() if isinstance(offsets, Tensor) else offsets
    results = function(**arrays, offsets=offsets, **options)
    if isinstance(results, tuple):
        return tuple(_as_tensor(result, rewards) for result in results)
    return _as_tensor(results, rewards)


def _as_array(column: object, name: str, rewards: Tensor) -> np.ndarray:
    """Return a tensor as a numpy array in host memory, without gradients. Half precision becomes float32.

    Raises:
        WrongType: `column` is not a tensor.
        InvalidArgument: `column` is on another device than `rewards`.
    """
    if not isinstance(column, Tensor):
        raise WrongType(f"{name} is a {type(column).__name__}; give a tensor, or call episodes.returns for arrays")
    if column.device != rewards.device:
        raise InvalidArgument(f"{name} is on {column.device}, rewards on {rewards.device}; move one to the other")
    column = column.detach()
    return (column.float() if column.dtype in (torch.float16, torch.bfloat16) else column).cpu().numpy()


def _as_tensor(result: np.ndarray, rewards: Tensor) -> Tensor:
    """Return a numpy result as a tensor on the device of `rewards`. int32 becomes int64."""
    tensor = torch.from_numpy(result)
    return (tensor.long() if tensor.dtype is torch.int32 else tensor).to(rewards.device)
