"""`FlatOptimizer`: an optimizer that stores all parameters as one vector, which makes steps of small networks
faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.optim.adam import adam as functional_adam
from torch.optim.optimizer import Optimizer

from episode_learners.algorithms.config import AlgorithmConfig
from episodes.errors import InvalidArgument, StateMismatch

__all__ = ["FlatOptimizer", "Snapshot", "adam_optimizer", "copied", "views_of"]

Snapshot = tuple[Tensor, dict[str, Any]]
_TINY = 1e-6  # added to the norm that gradients are divided by, as torch.nn.utils.clip_grad_norm_ does


class FlatOptimizer:
    """Optimizer that keeps all parameters in one vector, and all gradients in another. A step of a small network then
    needs only a few operations.

    The parameters become views of `vector` [P], and their gradients views of `gradient` [P]:

        vector       | weight 0      | bias 0 | weight 1      | ...
        gradient     | its gradient  | ...

    Modules keep their parameters, names and `state_dict`. If a view is replaced (by moving a module to another device,
    or by setting a gradient to None), `step` rebuilds the vectors. A parameter that a loss does not reach has a
    gradient of 0, not None.

    On the CPU, where reading a number is cheap, a gradient that is not finite changes nothing.

    Args:
        parameters: the parameters. Those without `requires_grad` are left out.
        make: function that returns the optimizer of a list of tensors, such as `partial(Adam, lr=1e-3, fused=True)`.
        max_norm: gradients with a larger norm are scaled down to this norm; None for no limit.

    >>> layer = nn.Linear(3, 2)
    >>> optimizer = FlatOptimizer(layer.parameters(), lambda tensors: torch.optim.SGD(tensors, lr=0.5))
    >>> layer(torch.ones(1, 3)).sum().backward()
    >>> optimizer.vector.shape, round(float(optimizer.step() ** 2))  # the norm of eight gradients of 1
    (torch.Size([8]), 8)
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        make: Callable[[list[Tensor]], Optimizer],
        *,
        max_norm: float | None = None,
    ) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.has_moved = True  # with the last step, as far as that is known at once
        self.max_norm = max_norm
        self._flatten_parameters()
        self.optimizer = make([self.vector])
        self._move = self.optimizer.move if isinstance(self.optimizer, FlatAdam) else self.optimizer.step

    def _flatten_parameters(self) -> None:
        """Copy all parameters into one vector, and make each parameter a view of its part of the vector. Do the same
        with the gradients.

        Raises:
            InvalidArgument: the parameters have several dtypes or devices, or there are none.
        """
        kinds = {(parameter.dtype, parameter.device) for parameter in self.parameters}
        if len(kinds) != 1:
            raise InvalidArgument(
                f"an optimizer needs parameters of one dtype on one device, but these are {kinds or 'none'}; use a "
                "separate optimizer for each dtype and device"
            )
        with torch.inference_mode(False), torch.no_grad():
            self.vector = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
            self.gradient = self.vector.grad = torch.zeros_like(self.vector)
            values, self._gradients = (views_of(vector, self.parameters) for vector in (self.vector, self.gradient))
            self._addresses = [value.data_ptr() for value in values]
            for parameter, value, gradient in zip(self.parameters, values, self._gradients, strict=True):
                if parameter.grad is not None:
                    gradient.copy_(parameter.grad)
                parameter.data = value
                parameter.grad = gradient

    def collect_gradient(self) -> Tensor:
        """Return the gradient of all parameters as one vector [P]. Gradients that were set on single parameters are
        copied into the vector first.
        """
        for parameter, place, gradient in zip(self.parameters, self._addresses, self._gradients, strict=True):
            if parameter.data_ptr() != place:
                self._reflatten_parameters()
                break
            if parameter.grad is not gradient:
                gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad)
                parameter.grad = gradient
        return self.gradient

    def _reflatten_parameters(self) -> None:
        """Build the vectors of parameters and gradients again, after the parameters were moved to another device, and
        move the optimizer's state to this device.
        """
        state = self.optimizer.state_dict()
        self._flatten_parameters()
        self.optimizer.param_groups[0]["params"] = [self.vector]
        self.optimizer.state.clear()
        self.optimizer.load_state_dict(state)  # to the device where the parameters are now

    def step(self, reduce: Callable[[Tensor], object] | None = None) -> Tensor:
        """Clip the gradient, update the parameters, set the gradient to zero, and return the norm that the gradient had
        before clipping.

        Args:
            reduce: function that changes the gradient [P] in place before it is clipped, such as a mean over processes.
        """
        gradient, max_norm = self.collect_gradient(), self.max_norm
        if reduce is not None:
            reduce(gradient)
        norm = torch.linalg.vector_norm(gradient)
        if not self.knows_norm_before_step:
            if max_norm is not None:
                gradient.mul_((max_norm / (norm + _TINY)).clamp_(max=1.0))
            self._move()
        else:
            length = norm.item()
            self.has_moved = isfinite(length)
            if max_norm is not None and length > max_norm:
                gradient.mul_(max_norm / (length + _TINY))
            if self.has_moved:
                self._move()
        gradient.zero_()
        return norm

    @property
    def knows_norm_before_step(self) -> bool:
        """Whether `step` reads the gradient norm before it changes any parameter, so that a norm of NaN changes
        nothing. It is True on the CPU.
        """
        return self.vector.is_cpu

    def zero_grad(self) -> None:
        """Set the accumulated gradients of all parameters to zero."""
        self.collect_gradient().zero_()

    @property
    def learning_rate(self) -> float:
        """Learning rate that the next step uses, after the factor of a schedule."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def base_learning_rate(self) -> float:
        """Learning rate without the factor of a schedule. If there is no schedule, it equals `learning_rate`."""
        group = self.optimizer.param_groups[0]
        return float(group.get("initial_lr", group["lr"]))

    def set_base_learning_rate(self, rate: float) -> None:
        """Set the learning rate that a schedule multiplies. The schedule keeps its current factor."""
        group = self.optimizer.param_groups[0]
        group["lr"] *= rate / self.base_learning_rate
        if "initial_lr" in group:
            group["initial_lr"] = rate

    def snapshot(self) -> Snapshot:
        """Return a copy of the parameters and of the optimizer's state. `restore` undoes later steps with it."""
        self.collect_gradient()  # which builds the vector again if the parameters were moved
        state = self.optimizer.state.get(self.vector, {})
        return self.vector.clone(), {name: copied(value) for name, value in state.items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Set the parameters and the optimizer's state back to a copy that `snapshot` made, and set the gradients to
        zero.
        """
        values, state = snapshot
        self.zero_grad()
        self.vector.copy_(values)
        self.optimizer.state[self.vector] = {name: copied(value) for name, value in state.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the torch optimizer, such as Adam's moments, without the parameters."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the torch optimizer that `state_dict` returned.

        Raises:
            StateMismatch: the state is of other parameters.
        """
        for part in state["state"].values():
            sizes = {value.numel() for value in part.values() if isinstance(value, Tensor) and value.ndim}
            if sizes - {self.vector.numel()}:
                raise StateMismatch(
                    f"the state belongs to an optimizer of {max(sizes)} numbers, this one has {self.vector.numel()}: "
                    "load it into an algorithm with the same networks"
                )
        self.collect_gradient()
        self.optimizer.load_state_dict(deepcopy(state))  # it would keep the tensors that it is given


def adam_optimizer(
    parameters: Iterable[nn.Parameter],
    config: AlgorithmConfig,
    *,
    learning_rate: float | None = None,
    eps: float = 1e-8,
) -> FlatOptimizer:
    """Return a `FlatOptimizer` with Adam for `parameters`, with the learning rate and gradient clipping of an
    algorithm's configuration.

    Args:
        parameters: the parameters to optimize.
        config: the configuration whose `learning_rate` and `max_gradient_norm` apply.
        learning_rate: a learning rate instead of the configuration's.
        eps: see `torch.optim.Adam`.
    """
    make = partial(FlatAdam, lr=learning_rate or config.learning_rate, eps=eps, fused=True)
    return FlatOptimizer(parameters, make, max_norm=config.max_gradient_norm)


class FlatAdam(Adam):
    """torch's Adam for a single tensor, with the method `move`, a faster replacement of `step`."""

    def move(self) -> None:
        """Take an Adam step faster than `step`, without calling torch's hooks. The first call is an ordinary `step`."""
        group = self.param_groups[0]  # a `step` takes four times as long for small networks
        vector = group["params"][0]
        state = self.state.get(vector)
        if not state:
            self.step()
            return
        functional_adam(
            [vector],
            [vector.grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def copied(value: object) -> Any:
    """Return a copy of a tensor. A value that is not a tensor is returned itself."""
    return value.clone() if isinstance(value, Tensor) else value


def views_of(vector: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Split a vector [P] into one view per parameter, in the parameter's shape, without copying."""
    parts = vector.split([parameter.numel() for parameter in parameters])
    return [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]
