"""Networks of the plain training loops: perceptrons, and parameters stored as one vector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def perceptron(sizes: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Return a multilayer perceptron with layer sizes `sizes`, and activations between its linear layers."""
    layers: list[nn.Module] = []
    for num_in, num_out in pairwise(sizes):
        layers += [nn.Linear(num_in, num_out), activation()]
    return nn.Sequential(*layers[:-1])


def flat(modules: Iterable[nn.Module]) -> Tensor:
    """Move the parameters of all modules into one vector, of which they become views, and return the vector. Gradients
    are stored in the same way.
    """
    parameters = [parameter for module in modules for parameter in module.parameters()]
    vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    vector.grad = torch.zeros_like(vector)
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.data = vector[start:stop].view_as(parameter)
        parameter.grad = vector.grad[start:stop].view_as(parameter)
        start = stop
    return vector


def step(optimizer: torch.optim.Optimizer, vector: Tensor, max_norm: float | None = None) -> None:
    """Clip the norm of the gradient, take an optimizer step, and set the gradient to zero.

    Raises:
        ValueError: the vector has no gradient.
    """
    gradient = vector.grad
    if gradient is None:
        raise ValueError("a vector of parameters has a gradient")
    if max_norm is not None:
        gradient.mul_((max_norm / (gradient.norm() + 1e-6)).clamp_(max=1.0))
    optimizer.step()
    gradient.zero_()
