"""Sampling of categorical actions in numpy, which is faster than torch for small batches on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np
import torch

from connectors.distributions import ActionDistribution, Categorical

_AHEAD = 4096  # random numbers drawn at once
_SMALLEST = np.finfo(np.float32).tiny


class NumpyCategoricalSampler:
    """Sampler of categorical actions [N] from logits [N, n] on the CPU.

    It uses the Gumbel-max method, as `_gumbel_argmax` does, but in numpy. With a seed, the noise comes from a random
    stream of this object, drawn some thousands of numbers at a time. Without a seed, it comes from torch's global
    generator.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self.restart()

    def restart(self) -> None:
        """Restart the stream of random numbers at the position given by the seed."""
        self._stream: np.random.Generator | None = None  # created with the first sample
        self._ahead = np.empty(0, np.float32)  # unused noise [k]

    def get_state(self) -> dict[str, Any]:
        """Return the state of the random number stream as a dict, which is empty without a seed or before the first
        sample.
        """
        return {} if self._stream is None else {"stream": self._stream.bit_generator.state, "ahead": self._ahead.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of the random number stream that `get_state` returned."""
        self.restart()
        if state:
            self._stream, self._ahead = np.random.default_rng(), state["ahead"].copy()
            self._stream.bit_generator.state = state["stream"]

    def sample(self, distribution: Categorical, inputs: np.ndarray) -> np.ndarray:
        """Return one random action [N] for each row of the logits `inputs` [N, n], offset by `distribution.start`."""
        choices = (inputs - self._log_exponential_noise(inputs.size).reshape(inputs.shape)).argmax(-1)
        return choices + distribution.start if distribution.start else choices

    def _log_exponential_noise(self, num: int) -> np.ndarray:
        """Return the logarithms of `num` samples of the exponential distribution with rate 1, float32 [num]."""
        if self._seed is None:
            return torch.empty(num, device="cpu").exponential_().log_().numpy()
        if len(self._ahead) < num:
            self._draw(self._seed, num)
        noise, self._ahead = self._ahead[:num], self._ahead[num:]
        return noise

    def _draw(self, seed: int, num: int) -> None:
        """Draw samples of the exponential distribution in advance and store their logarithms, until at least `num` are
        stored.
        """
        if self._stream is None:
            self._stream = np.random.default_rng(seed % 2**64)
        times = self._stream.standard_exponential(max(num - len(self._ahead), _AHEAD), np.float32)
        np.maximum(times, _SMALLEST, out=times)  # log(0) would select a masked action
        self._ahead = np.concatenate([self._ahead, np.log(times, out=times)])

    def mode(self, distribution: Categorical, inputs: np.ndarray) -> np.ndarray:
        """Return the most likely action [N] for each row of the logits `inputs` [N, n], equal to
        `distribution.mode`.
        """
        choices = inputs.argmax(-1)
        return choices + distribution.start if distribution.start else choices


def can_sample_in_numpy(distribution: ActionDistribution, inputs: torch.Tensor) -> TypeGuard[Categorical]:
    """Return True if a `NumpyCategoricalSampler` can sample for `distribution`: a plain `Categorical` with float32
    inputs on the CPU.
    """
    return (
        type(distribution) is Categorical
        and len(vars(distribution)) == 2
        and inputs.is_cpu
        and inputs.dtype is torch.float32
        and not inputs.requires_grad
    )
