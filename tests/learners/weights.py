"""Seeded initial weights, and comparison of the weights of modules."""

from __future__ import annotations

import torch

__all__ = ["assert_same_weights", "seeded"]


def seeded(seed: int = 0) -> torch.Generator:
    """Return a new random generator with a seed, for example for initial weights."""
    return torch.Generator().manual_seed(seed)


def assert_same_weights(ours: torch.nn.Module, expected: torch.nn.Module) -> None:
    """Check that all tensors in the state of two modules are equal."""
    weights = expected.state_dict()
    for name, value in ours.state_dict().items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, weights[name]), name
