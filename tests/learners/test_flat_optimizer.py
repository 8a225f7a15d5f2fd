"""Parameters in one vector are trained exactly like separate parameters."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from episode_learners import FlatOptimizer, TargetNetwork
from episode_learners.algorithms.flat_optimizer import FlatAdam
from episodes.errors import InvalidArgument, StateMismatch

FLAT_ADAM = partial(FlatAdam, lr=0.05, fused=True)
ADAM = partial(Adam, lr=0.05, fused=True)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def loss_of(module: nn.Module, seed: int) -> torch.Tensor:
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
    return (module(x) - 1.0).square().mean()


def assert_same(ours: nn.Module, expected: nn.Module) -> None:
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name])


@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize("make", [ADAM, FLAT_ADAM, partial(SGD, lr=0.1, momentum=0.9)])
def test_flat_optimizer_equals_optimizer_of_each_tensor(make, max_norm):
    ours, reference = network(), network()
    flat, apart = FlatOptimizer(ours.parameters(), make, max_norm=max_norm), make(list(reference.parameters()))
    for seed in range(10):
        loss_of(ours, seed).backward()
        norm = flat.step()
        apart.zero_grad()
        loss_of(reference, seed).backward()
        expected = nn.utils.clip_grad_norm_(reference.parameters(), max_norm or float("inf"))
        apart.step()
        torch.testing.assert_close(norm, expected)
    assert_same(ours, reference)


def _to_double_and_back(module: nn.Module) -> None:
    module.double()
    module.float()


@pytest.mark.parametrize(
    "tear",
    [
        lambda module: module.zero_grad(set_to_none=True),
        lambda module: module.load_state_dict(deepcopy(module.state_dict())),
        _to_double_and_back,
        lambda module: [setattr(p, "grad", torch.zeros_like(p)) for p in module.parameters()],
    ],
    ids=["no gradients", "weights loaded", "another dtype and back", "gradients of their own"],
)
def test_flat_optimizer_rebuilds_replaced_views(tear):
    ours, expected = network(), network()
    flat, undisturbed = FlatOptimizer(ours.parameters(), ADAM), FlatOptimizer(expected.parameters(), ADAM)
    for seed in range(6):
        for module, optimizer in ((ours, flat), (expected, undisturbed)):
            if module is ours and seed in (2, 4):
                tear(module)
            loss_of(module, seed).backward()
            optimizer.step()
    assert_same(ours, expected)


def test_state_of_other_size_is_rejected():
    flat, other_optimizer = (FlatOptimizer(module.parameters(), ADAM) for module in (network(), nn.Linear(3, 1)))
    flat.gradient.fill_(1.0)
    flat.step()
    with pytest.raises(StateMismatch, match="32 numbers, this one has 4"):
        other_optimizer.load_state_dict(flat.state_dict())


def test_gradient_not_finite_changes_nothing():
    module = network()
    flat = FlatOptimizer(module.parameters(), FLAT_ADAM, max_norm=1.0)
    loss_of(module, 0).backward()
    flat.step()
    before, state = flat.vector.clone(), deepcopy(flat.state_dict())
    for bad in (float("nan"), float("inf")):
        flat.gradient[3] = bad
        assert not torch.isfinite(flat.step())
        assert torch.equal(flat.vector, before)
        assert not flat.gradient.any()
    torch.testing.assert_close(flat.state_dict()["state"], state["state"], rtol=0, atol=0)


def test_parameters_of_two_dtypes_raise():
    with pytest.raises(InvalidArgument, match="one dtype on one device"):
        FlatOptimizer([*nn.Linear(1, 1).parameters(), *nn.Linear(1, 1).double().parameters()], ADAM)
    with pytest.raises(InvalidArgument, match="none"):
        FlatOptimizer([], ADAM)


def test_target_network_follows_source_and_buffers():
    source = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    target = TargetNetwork(source)
    before = deepcopy(target.module.state_dict())
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(1.0)
    source(torch.randn(5, 2))
    target.polyak_update(source, 0.1)
    torch.testing.assert_close(target.module[0].weight, before["0.weight"] + 0.1)
    assert torch.equal(target.module[1].running_mean, source[1].running_mean)
    target.copy(source)
    assert_same(target.module, source)
    assert not any(parameter.requires_grad for parameter in target.parameters())
    twin = deepcopy(target)
    twin.copy(network_like(source))
    assert_same(target.module, source)


def network_like(source: nn.Module) -> nn.Module:
    return deepcopy(source).apply(lambda part: None if not hasattr(part, "weight") else nn.init.zeros_(part.weight))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_polyak_update_with_vector_is_equal(share, frozen):
    source = network()
    source[0].requires_grad_(not frozen)  # of a frozen layer the optimizer has no values
    by_modules, by_values = TargetNetwork(source), TargetNetwork(source)
    optimizer = FlatOptimizer(source.parameters(), ADAM)
    for seed in range(3):
        loss_of(source, seed).backward()
        optimizer.step()
        by_modules.polyak_update(source, share)
        by_values.polyak_update(source, share, optimizer.vector)
    assert torch.equal(by_values.vector, by_modules.vector)
    assert not torch.equal(by_values.vector, TargetNetwork(network()).vector)
