"""`TargetNetwork`: a slowly updated copy of a network, by which algorithms compute stable targets."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from episode_learners.algorithms.flat_optimizer import views_of

__all__ = ["TargetNetwork"]


class TargetNetwork(nn.Module):
    """Copy of a network without gradients. It is set to the network's weights by `copy`, or moved towards them
    gradually by `polyak_update`.

    Its parameters are views of one vector, so an update is one operation. Buffers, as of batch normalization, are
    copied.

    Args:
        source: the network that is copied.

    >>> source = nn.Linear(2, 1)
    >>> target = TargetNetwork(source)
    >>> with torch.no_grad():
    ...     _ = source.weight.add_(1.0)
    >>> before = target.module.weight.clone()
    >>> target.polyak_update(source, 0.25)
    >>> (target.module.weight - before).mul(100).round().tolist()
    [[25.0, 25.0]]
    """

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.module = deepcopy(source).requires_grad_(False)
        self._has_buffers = next(self.module.buffers(), None) is not None
        self._flatten_parameters()

    def _flatten_parameters(self) -> None:
        """Copy all parameters of the target network into one vector, and make each parameter a view of its part of the
        vector. `vector` calls this again after the module was copied or moved to another device.
        """
        self._flattened = parameters = list(self.module.parameters())
        with torch.no_grad():
            vector = torch.cat([parameter.reshape(-1) for parameter in parameters])
        for parameter, view in zip(parameters, views_of(vector, parameters), strict=True):
            parameter.data = view
        self._vector = vector

    @property
    def vector(self) -> Tensor:
        """All parameters of the target network as one vector [P]. Changing the vector changes the parameters."""
        if self._flattened[0].data_ptr() != self._vector.data_ptr():
            self._flatten_parameters()  # the module went to another device, or was copied
        return self._vector

    def set_vector(self, values: Tensor) -> None:
        """Set all parameters of the target network to the values of a vector [P]."""
        self.vector.copy_(values)

    def copy(self, source: nn.Module) -> None:
        """Set parameters and buffers of the target network to the values of the network `source`."""
        self.polyak_update(source, 1.0)

    def polyak_update(self, source: nn.Module, share: float, values: Tensor | None = None) -> None:
        """Move the target network's parameters towards the parameters of `source` by the fraction `share`, 0..1
        (Polyak averaging). Buffers are copied.

        Args:
            source: the trained network.
            share: the fraction; 1 copies the parameters.
            values: the parameters of `source` as one vector, if the caller has it, such as `FlatOptimizer.vector`. It
                saves time.
        """
        with torch.no_grad():
            if values is None or values.shape != self.vector.shape:
                values = torch.cat([parameter.detach().reshape(-1) for parameter in source.parameters()])
            self.vector.copy_(values) if share == 1.0 else self.vector.lerp_(values, share)
            if self._has_buffers:
                for ours, source_buffer in zip(self.module.buffers(), source.buffers(), strict=True):
                    ours.copy_(source_buffer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)
