"""Multi-layer perceptron, and parameters in one vector, for the plain training loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def perceptron(sizes: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Create linear layers with activations between the layers."""
    layers: list[nn.Module] = []
    for num_in, num_out in pairwise(sizes):
        layers += [nn.Linear(num_in, num_out), activation()]
    return nn.Sequential(*layers[:-1])


def flat(modules: Iterable[nn.Module]) -> Tensor:
    """Move all parameters into one vector, of which the parameters become views. Gradients, too."""
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
    """Clip the gradient norm, make an optimizer step, and set the gradient to zero."""
    gradient = vector.grad
    if gradient is None:
        raise ValueError("a vector of parameters has a gradient")
    if max_norm is not None:
        gradient.mul_((max_norm / (gradient.norm() + 1e-6)).clamp_(max=1.0))
    optimizer.step()
    gradient.zero_()
