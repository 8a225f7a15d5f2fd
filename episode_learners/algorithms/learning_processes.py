"""`LearningProcesses`: the processes that train copies of one algorithm, which average their gradients and compare
their copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from episodes.errors import InvalidArgument, StateMismatch

if TYPE_CHECKING:
    from episode_learners.algorithms.algorithm import Algorithm
    from episode_learners.algorithms.flat_optimizer import FlatOptimizer

__all__ = ["LearningProcesses"]

_ROUNDING = 1e-4  # difference of two copies, relative to the norm of their weights, that rounding can explain


class LearningProcesses:
    """Processes that train copies of one algorithm: each calls the same methods of its copy, in the same order.

    Before each update, gradient step and new module, the processes compare what they are about to do, and before an
    update also their optimizers and weights: one all-reduce of six numbers. So copies that differ are an error in all
    processes. Without it, gradients of different networks would be averaged.

    Args:
        group: the process group of `torch.distributed`; by default all processes.
    """

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        self.group = group

    def join(self, action: str, algorithms: Sequence[Algorithm]) -> None:
        """Give `algorithms` the weights and optimizer states of their copies in the first process, and make them learn
        with the other processes from now on.

        Args:
            action: text that must be equal in all processes.
            algorithms: the algorithms, in the same order in all processes.

        Raises:
            InvalidArgument: PPO's `max_kl` could end the update of one process earlier than those of others.
            StateMismatch: the other processes do something else, or their algorithms have other optimizers.
        """
        if any(getattr(getattr(algorithm, "config", None), "max_kl", None) is not None for algorithm in algorithms):
            raise InvalidArgument("data_parallel: PPO's max_kl may end an update early in one process; set it to None")
        device = _device_of(*algorithms)
        self._agree(f"{action}: {'; '.join(map(_describe, algorithms))}", device)
        group = self.group
        source = 0 if group is None else distributed.get_global_rank(group, 0)
        with torch.no_grad():
            for algorithm in algorithms:
                states = [
                    value for optimizer in algorithm.optimizers.values() for value in _state_of(optimizer).values()
                ]
                moments = [value for value in states if isinstance(value, Tensor) and value.ndim]
                for tensor in [*algorithm.parameters(), *algorithm.buffers(), *moments]:
                    self._call(partial(distributed.broadcast, tensor, src=source, group=group))
                algorithm.processes = self

    def check(self, algorithm: Algorithm) -> None:
        """Raise `StateMismatch` in all processes, unless each is about to update a copy of `algorithm` with the same
        optimizers, learning rates and weights.
        """
        text = _describe(algorithm)  # which also rebuilds vectors whose parameters were moved
        vectors = [optimizer.vector for optimizer in algorithm.optimizers.values()]
        with torch.no_grad():
            total = sum(vector.sum(dtype=torch.float64).item() for vector in vectors)
            norm = sum(vector.norm().item() ** 2 for vector in vectors) ** 0.5
        self._agree(f"update {text}", _device_of(algorithm), (total, norm))

    def check_action(self, action: str, module: nn.Module) -> None:
        """Raise `StateMismatch` in all processes, unless `action` is the same text in each. Tensors are sent from the
        device of `module`.
        """
        self._agree(action, _device_of(module))

    def average(self, gradient: Tensor) -> None:
        """Replace a gradient, in place, by its mean over all processes.

        Raises:
            StateMismatch: another process has ended its update, so it takes fewer gradient steps.
        """
        self._agree("take a gradient step", gradient.device)
        self._call(partial(distributed.all_reduce, gradient, group=self.group))
        gradient.div_(distributed.get_world_size(self.group))

    def _agree(self, action: str, device: torch.device, weights: tuple[float, float] = (0.0, 0.0)) -> None:
        """Raise `StateMismatch` in all processes if their actions or weights differ.

        Args:
            action: text that must be equal in all processes.
            device: device of the tensors that the processes exchange.
            weights: the sum and the norm of the weights, which may differ by rounding.
        """
        digest = int.from_bytes(hashlib.sha256(action.encode()).digest()[:6])  # a float64 has 53 bits
        numbers = (float(digest), *weights)
        highest = torch.tensor([*numbers, *(-number for number in numbers)], dtype=torch.float64, device=device)
        self._call(partial(distributed.all_reduce, highest, op=distributed.ReduceOp.MAX, group=self.group))
        values = highest.tolist()
        ranges = [high + minus_low for high, minus_low in zip(values[:3], values[3:], strict=True)]
        if ranges[0] == 0 and max(ranges[1:]) <= _ROUNDING * values[2]:
            return
        text = f"{action}, weights: sum {weights[0]:.8g}, norm {weights[1]:.8g}" if weights[1] else action
        texts = self._gather(text, device)
        other = next(rank for rank, other_text in enumerate(texts) if other_text != texts[0])
        raise StateMismatch(
            f"data_parallel: process {other} would {texts[other]}; process 0 would {texts[0]}; make the same changes "
            "and updates in all processes, with the same number of gradient steps (data_parallel, called again in all, "
            "copies the weights of process 0)"
        )

    def _gather(self, text: str, device: torch.device) -> list[str]:
        """Return the texts of all processes, given the text of this process."""
        encoded = text.encode()
        longest = torch.tensor([len(encoded)], device=device)
        self._call(partial(distributed.all_reduce, longest, op=distributed.ReduceOp.MAX, group=self.group))
        row = torch.tensor([*encoded.ljust(int(longest))], dtype=torch.uint8, device=device)
        rows = [torch.empty_like(row) for _ in range(distributed.get_world_size(self.group))]
        self._call(partial(distributed.all_gather, rows, row, group=self.group))
        return [bytes(row.tolist()).decode().rstrip() for row in rows]

    def _call(self, collective: Callable[[], object]) -> None:
        """Call a function of `torch.distributed`. Its errors name the most probable cause."""
        try:
            collective()
        except RuntimeError as error:
            raise StateMismatch(
                f"data_parallel: the processes cannot exchange tensors ({error}); another process stopped, or takes "
                "another number of gradient steps: give each update the same number of steps and minibatch size"
            ) from error


def _describe(algorithm: Algorithm) -> str:
    """Return the text that must be equal in all copies of an algorithm: its class, and the parameters, learning rate
    and state of its optimizers.
    """
    parts = [type(algorithm).__name__]
    for name, optimizer in algorithm.optimizers.items():
        state = _state_of(optimizer)
        num_trained = sum(parameter.numel() for parameter in optimizer.parameters if parameter.requires_grad)
        parts.append(
            f"optimizer {name!r}: {optimizer.vector.numel()} parameters, {num_trained} not frozen, learning rate "
            f"{optimizer.learning_rate:.8g}, {int(state.get('step', 0))} steps, state {sorted(state)}"
        )
    return ", ".join(parts)


def _state_of(optimizer: FlatOptimizer) -> dict[str, Any]:
    """Return the state of the torch optimizer, such as Adam's moments, by name. Vectors whose parameters were moved are
    rebuilt first.
    """
    optimizer.collect_gradient()
    return optimizer.optimizer.state.get(optimizer.vector, {})


def _device_of(*modules: nn.Module) -> torch.device:
    """Return the device of the first parameter of some modules, or the CPU if they have none."""
    return next((parameter.device for module in modules for parameter in module.parameters()), torch.device("cpu"))
