"""Action distributions agree with torch.distributions, keep shapes, and sample with the right probabilities."""

from __future__ import annotations

import math
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as oracle

from connectors.distributions import Categorical, distribution_for
from episodes.errors import InvalidArgument

NUM_CHOICES = [2, 5, 3]


def reference(space: gym.Space, inputs: torch.Tensor, actions: Any) -> tuple[Any, Any, Any]:
    """Return log-probabilities, entropies and modes by `torch.distributions`, for inputs [n, num_inputs]."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        keys = list(space.spaces) if isinstance(space, spaces.Dict) else range(len(space.spaces))
        rows = inputs.split([distribution_for(space[key]).num_inputs for key in keys], dim=-1)
        parts = [reference(space[key], part, actions[key]) for key, part in zip(keys, rows, strict=True)]
        modes = [mode for *_, mode in parts]
        mode = dict(zip(keys, modes, strict=True)) if isinstance(space, spaces.Dict) else tuple(modes)
        return sum(part[0] for part in parts), sum(part[1] for part in parts), mode
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        start = torch.as_tensor(space.start)
        counts = np.ravel(space.nvec).tolist() if isinstance(space, spaces.MultiDiscrete) else [int(space.n)]
        each = [oracle.Categorical(logits=part) for part in inputs.split(counts, dim=-1)]
        choices = (actions - start).reshape(len(inputs), len(each)).unbind(-1)
        log_prob = sum(one.log_prob(choice) for one, choice in zip(each, choices, strict=True))
        mode = torch.stack([one.mode for one in each], -1).reshape(actions.shape) + start
        return log_prob, sum(one.entropy() for one in each), mode
    if isinstance(space, spaces.MultiBinary):
        bits = oracle.Independent(oracle.Bernoulli(logits=inputs), 1)
        mode = (inputs > 0).to(torch.int8).reshape(actions.shape)
        return bits.log_prob(actions.reshape(inputs.shape).float()), bits.entropy(), mode
    mean, log_std = inputs.chunk(2, dim=-1)
    normal = oracle.Independent(oracle.Normal(mean, log_std.exp()), 1)
    return normal.log_prob(actions.reshape(mean.shape)), normal.entropy(), mean.reshape(actions.shape)


SPACES = {
    "discrete": spaces.Discrete(4),
    "discrete from minus two": spaces.Discrete(4, start=-2),
    "multi-discrete": spaces.MultiDiscrete(NUM_CHOICES),
    "multi-discrete from other starts": spaces.MultiDiscrete(NUM_CHOICES, start=[1, -3, 0]),
    "multi-discrete in two axes": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
    "multi-binary": spaces.MultiBinary(3),
    "multi-binary in two axes": spaces.MultiBinary((2, 3)),
    "box": spaces.Box(-100.0, 100.0, (3,)),
    "box without axes": spaces.Box(-100.0, 100.0, ()),
    "box in two axes": spaces.Box(-100.0, 100.0, (2, 2)),
    "dict": spaces.Dict({"b": spaces.Discrete(3, start=1), "a": spaces.Box(-100.0, 100.0, (2,))}),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"x": spaces.MultiBinary(2)}))),
}
each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


def inputs_for(space: gym.Space, *leading: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(*leading, distribution_for(space).num_inputs, generator=generator)


def leaves(actions: Any) -> list[torch.Tensor]:
    if isinstance(actions, torch.Tensor):
        return [actions]
    parts = actions.values() if isinstance(actions, dict) else actions
    return [leaf for part in parts for leaf in leaves(part)]


def rows_of(actions: Any, i: int) -> Any:
    if isinstance(actions, torch.Tensor):
        return actions[i].numpy()
    if isinstance(actions, dict):
        return {key: rows_of(part, i) for key, part in actions.items()}
    return tuple(rows_of(part, i) for part in actions)


@each_space
@pytest.mark.parametrize("draw", ["sample", "mode"])
def test_actions_are_members_of_their_space(space, draw):
    distribution = distribution_for(space)
    actions = getattr(distribution, draw)(inputs_for(space, 50))
    for i in range(50):
        row = rows_of(actions, i)
        assert space.contains(np.int64(row) if isinstance(space, spaces.Discrete) else row)


@each_space
@pytest.mark.parametrize("leading", [(), (0,), (6,), (2, 3)])
def test_every_method_keeps_the_leading_axes(space, leading):
    distribution, inputs = distribution_for(space), inputs_for(space, *leading)
    actions = distribution.sample(inputs)
    assert all(leaf.shape[: len(leading)] == leading for leaf in leaves(actions))
    assert distribution.log_prob(inputs, actions).shape == leading
    assert distribution.entropy(inputs).shape == leading


@each_space
def test_distribution_equals_torch_for_each_row_also_with_time_axes(space):
    distribution, inputs = distribution_for(space), inputs_for(space, 2, 3)
    flat = inputs.flatten(0, 1)
    actions = distribution.sample(flat)
    log_prob, entropy, mode = reference(space, flat, actions)
    torch.testing.assert_close(distribution.log_prob(flat, actions), log_prob)
    torch.testing.assert_close(distribution.entropy(inputs).flatten(), entropy)
    for timed, expected in zip(leaves(distribution.mode(inputs)), leaves(mode), strict=True):
        assert torch.equal(timed.flatten(0, 1), expected)


@each_space
def test_sample_depends_on_generator_only(space):
    distribution, inputs = distribution_for(space), inputs_for(space, 64)
    draws = [leaves(distribution.sample(inputs, torch.Generator().manual_seed(seed))) for seed in (3, 3, 4)]
    assert all(torch.equal(a, b) for a, b in zip(draws[0], draws[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(draws[0], draws[2], strict=True))


@each_space
def test_gradients_reach_the_inputs_and_are_finite(space):
    distribution, inputs = distribution_for(space), inputs_for(space, 5).requires_grad_()
    actions = distribution.sample(inputs.detach())
    (distribution.log_prob(inputs, actions) + distribution.entropy(inputs)).sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.isfinite().all()
    assert inputs.grad.abs().sum() > 0


@pytest.mark.parametrize("n", [1, 2, 7, 15, 16, 40])
def test_rows_of_few_choices_have_the_log_probabilities_of_torch(n):
    logits = torch.randn(3, 5, n, generator=torch.Generator().manual_seed(n)) * 4
    logits[1, 2, (n + 1) // 2 :] = -math.inf
    ours, reference = (logits.clone().requires_grad_() for _ in range(2))
    actions = torch.zeros(3, 5, dtype=torch.int64)
    result = Categorical(n).log_prob(ours, actions)
    expected = reference.log_softmax(-1)[..., 0]
    result.sum().backward()
    expected.sum().backward()
    right = logits.double().log_softmax(-1)[..., 0].float()
    few_bits = {"rtol": 4 * torch.finfo(torch.float32).eps, "atol": 1e-6}  # how torch adds up differs from CPU to CPU
    torch.testing.assert_close(result, right, **few_bits)
    torch.testing.assert_close(expected, right, **few_bits)
    torch.testing.assert_close(ours.grad, reference.grad)


def test_masked_action_is_never_sampled_and_gradients_are_finite():
    distribution = distribution_for(spaces.Discrete(3))
    logits = torch.tensor([0.5, -torch.inf, 0.1]).repeat(2000, 1).requires_grad_()
    actions = distribution.sample(logits.detach())
    assert set(actions.tolist()) == {0, 2}
    (distribution.log_prob(logits, actions) + distribution.entropy(logits)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    expected = oracle.Categorical(logits=torch.tensor([0.5, 0.1]))
    torch.testing.assert_close(distribution.entropy(logits.detach())[0], expected.entropy())


def test_draws_follow_the_probabilities():
    generator = torch.Generator().manual_seed(0)
    num_draws = 200_000
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    draws = distribution_for(spaces.Discrete(4)).sample(logits.expand(num_draws, 4), generator)
    expected = logits.softmax(-1) * num_draws
    chi_square = ((draws.bincount(minlength=4) - expected) ** 2 / expected).sum()
    assert chi_square < 16.27  # 99.9 % of chi-square with 3 degrees of freedom
    ones = distribution_for(spaces.MultiBinary(1)).sample(torch.tensor([1.0]).expand(num_draws, 1), generator)
    assert abs(ones.float().mean() - torch.tensor(1.0).sigmoid()) < 0.005
    numbers = distribution_for(spaces.Box(-1, 1, (1,))).sample(
        torch.tensor([3.0, -1.0]).expand(num_draws, 2), generator
    )
    assert abs(numbers.mean() - 3.0) < 0.005
    assert abs(numbers.std() - np.exp(-1.0)) < 0.005


@pytest.mark.parametrize(
    "space",
    [spaces.Text(5), spaces.Box(0, 255, (2,), np.uint8), spaces.Dict({}), spaces.Tuple((spaces.Text(3),))],
    ids=str,
)
def test_space_without_distribution_is_named(space):
    with pytest.raises(
        InvalidArgument, match=r"(?s)distribution_for: .* is given, .*Dict or Tuple of these.* is allowed"
    ):
        distribution_for(space)


@each_space
def test_distribution_survives_pickling(space):
    distribution, inputs = distribution_for(space), inputs_for(space, 4)
    restored = pickle.loads(pickle.dumps(distribution))
    assert torch.equal(restored.entropy(inputs), distribution.entropy(inputs))
