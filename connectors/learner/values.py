"""Values of all T + 1 observations of a pack's episodes, in minibatches and without gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from connectors.learner.observation_source import Source
from connectors.numpy_to_tensor import NumpyToTensor
from episodes.columns import Columns
from episodes.errors import ShapeMismatch
from episodes.pack import EpisodePack


class ValueFunction:
    """Runs `rl_module.compute_values` on the module's own device.

    Args:
        minibatch_size: observations in one forward pass.
    """

    def __init__(self, minibatch_size: int) -> None:
        self.minibatch_size = minibatch_size
        self._to_device = NumpyToTensor()

    def __call__(self, rl_module: Any, pack: EpisodePack, source: Source) -> np.ndarray:
        """The values [num_steps + n] of the pack's observations, T + 1 for each episode, lookbacks left out."""
        rows, total = pack.all_observation_rows(), pack.num_steps + len(pack)
        parts = []
        for start in range(0, total, self.minibatch_size):
            span = slice(start, min(start + self.minibatch_size, total))
            observations = source(pack, span if isinstance(rows, slice) else rows[span])
            parts.append(self.compute(rl_module, {Columns.OBS: observations}, (span.stop - start,)))
        return on_host(parts)

    def compute(self, rl_module: Any, batch: dict[str, Any], shape: tuple[int, ...]) -> torch.Tensor:
        """The values of one minibatch of numpy columns, of this shape, still on the module's device."""
        device = device_of(rl_module)
        if self._to_device.device != device:
            self._to_device = NumpyToTensor(device=device)
        with torch.no_grad():
            values = rl_module.compute_values(self._to_device.to_tensors(batch))
        if tuple(values.shape) != shape:
            raise ShapeMismatch(
                f"compute_values gave {list(values.shape)} for {list(shape)} observations; it must give one each"
            )
        return values


def on_host(parts: list[torch.Tensor]) -> np.ndarray:
    """The values of all minibatches, one after another, as one numpy array."""
    values = parts[0] if len(parts) == 1 else torch.cat(parts)
    return values.detach().float().cpu().numpy()


def device_of(rl_module: Any) -> torch.device:
    """The device of a module's parameters; the CPU for a module without any."""
    parameters = getattr(rl_module, "parameters", None)
    first = next(iter(parameters()), None) if parameters is not None else None
    return torch.device("cpu") if first is None else first.device
