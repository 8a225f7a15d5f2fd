"""Networks for all kinds of observations and actions fulfil the policy interface, in full and half precision."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn import functional

from connectors import Actor
from connectors.distributions import Categorical, DiagonalGaussian, distribution_for
from connectors.env_to_module import TransformerContext
from connectors.testing import check_policy
from connectors.views.view import Views
from episode_learners import (
    EncoderPolicy,
    FlatOptimizer,
    GRUPolicy,
    LSTMPolicy,
    LSTMQPolicy,
    MLPPolicy,
    QPolicy,
    TransformerPolicy,
)
from episode_learners.networks import Autoregressive, encoder_for
from episode_learners.networks.encoders import ImageEncoder, is_image
from episodes.errors import InvalidArgument, ShapeMismatch
from episodes.tracks import nested
from tests.learners.weights import seeded

NUMBERS = spaces.Box(-1.0, 1.0, (3,), np.float32)
BYTES = spaces.Box(0, 255, (36, 40, 3), np.uint8)
SEEN = {
    "numbers": NUMBERS,
    "one number": spaces.Box(-1.0, 1.0, (), np.float32),
    "whole numbers": spaces.Box(0, 9, (2, 2), np.int64),
    "an image": BYTES,
    "an image with channels first": spaces.Box(0, 255, (4, 40, 36), np.uint8),
    "a small image": spaces.Box(0.0, 1.0, (7, 7, 3), np.float32),
    "choices": spaces.MultiDiscrete([2, 3], start=[1, -1]),
    "dict": spaces.Dict({"a": NUMBERS, "b": spaces.Tuple([spaces.Discrete(3, start=2), spaces.MultiBinary(2)])}),
    "tuple": spaces.Tuple([spaces.Box(0, 255, (5, 6, 1), np.uint8), spaces.Dict({"x": spaces.Discrete(2)})]),
    "with a mask": spaces.Dict({"observation": NUMBERS, "action_mask": spaces.Box(0, 1, (4,), np.int8)}),
}
TUPLE = spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-1.0, 1.0, (2,), np.float32)])
DONE = {
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([2, 3], start=[0, 5]),
    "continuous": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "nested": spaces.Dict({"a": TUPLE, "b": spaces.MultiBinary(2)}),
}
SMALL: dict[Any, dict[str, Any]] = {
    EncoderPolicy: {"hidden_sizes": (8,)},
    LSTMPolicy: {"hidden_sizes": (8,), "state_size": 6},
    GRUPolicy: {"hidden_sizes": (8,), "state_size": 6},
    TransformerPolicy: {"size": 8},
    MLPPolicy: {"hidden_sizes": (8,)},
    QPolicy: {"hidden_sizes": (8,)},
    LSTMQPolicy: {"hidden_sizes": (8,), "state_size": 6},
}
KINDS = (EncoderPolicy, LSTMPolicy, GRUPolicy, TransformerPolicy)
each_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind: Any, observation_space: gym.Space, done: gym.Space, **options: Any) -> tuple[Any, list[Any]]:
    """Return a small policy and its views."""
    views = [TransformerContext(k=3)] if kind is TransformerPolicy else []
    space: Any = Views(views, observation_space, done).observation_space
    policy = kind(space, done, generator=seeded(), **{**SMALL[kind], **options})
    for parameter in policy.parameters():  # what it says depends on what it sees
        torch.nn.init.normal_(parameter, 0.0, 0.3, generator=seeded(parameter.numel()))
    return policy, views


def batch_of(policy: Any, observation_space: gym.Space, leading: tuple[int, ...]) -> dict[str, Any]:
    """Return samples [*leading, ...] of a policy's input without views."""
    observation_space.seed(1)
    rows = nested.stack([observation_space.sample() for _ in range(math.prod(leading))])
    obs = nested.map_leaves(lambda leaf: torch.from_numpy(leaf.reshape(*leading, *leaf.shape[1:])), rows)
    state = nested.map_leaves(lambda leaf: torch.zeros(leading[0], *leaf.shape), policy.get_initial_state())
    return {"obs": obs, "state_in": state} if state else {"obs": obs}


@pytest.mark.parametrize("kind", [*KINDS, QPolicy, LSTMQPolicy])
@pytest.mark.parametrize("observation_space", SEEN.values(), ids=SEEN.keys())
def test_policy_with_any_observation_space_meets_contract(kind: Any, observation_space: gym.Space) -> None:
    has_values = kind in KINDS
    policy, views = made(kind, observation_space, DONE["discrete"], **({} if has_values else {"dueling": True}))
    interface = ["compute_values"] if has_values else []
    check_policy(policy, observation_space, policy.action_space, views=views, interface=interface, tolerance=1e-3)


@pytest.mark.parametrize("name", ["numbers", "one number", "whole numbers"])
def test_mlp_policy_with_any_box_meets_contract(name: str) -> None:
    policy, _ = made(MLPPolicy, SEEN[name], DONE["discrete"])
    check_policy(policy, SEEN[name], policy.action_space, interface=["compute_values"], tolerance=1e-3)


@each_kind
@pytest.mark.parametrize("done", DONE.values(), ids=DONE.keys())
def test_policy_with_any_action_space_meets_contract(kind: Any, done: gym.Space) -> None:
    policy, views = made(kind, SEEN["dict"], done)
    check_policy(policy, SEEN["dict"], done, views=views, tolerance=1e-3)
    if not views:
        for explore in (False, True):
            assert done.contains(policy.compute_action(SEEN["dict"].sample(), explore=explore)[0])


@each_kind
@pytest.mark.parametrize("done", [DONE["multi-discrete"], DONE["nested"]], ids=["multi-discrete", "nested"])
def test_autoregressive_policy_meets_contract(kind: Any, done: gym.Space) -> None:
    policy, views = made(kind, NUMBERS, done, distribution=Autoregressive(done, 8, generator=seeded()))
    check_policy(policy, NUMBERS, done, views=views, tolerance=1e-3)
    assert any(name.startswith("distribution.") for name in policy.state_dict())


@pytest.mark.parametrize("kind", [*KINDS, MLPPolicy, QPolicy, LSTMQPolicy])
@pytest.mark.parametrize("options", [{}, {"hidden_sizes": ()}], ids=["layers", "no layers"])
def test_half_precision_policy_takes_and_returns_float32(kind: Any, options: dict[str, Any]) -> None:
    options = {} if kind is TransformerPolicy else options
    policy, views = made(kind, NUMBERS, DONE["discrete"], **options)
    full, _ = made(kind, NUMBERS, DONE["discrete"], **options)
    policy.to(torch.bfloat16)
    if kind in KINDS:
        check_policy(policy, NUMBERS, policy.action_space, views=views, tolerance=0.05)
    if not views:
        batch = batch_of(policy, NUMBERS, (5, 2) if policy.get_initial_state() else (5,))
        outputs = policy(batch, explore=False)["action_dist_inputs"]
        assert outputs.dtype == torch.float32
        assert all(column.dtype == torch.float32 for name, column in policy(batch).items() if name != "state_out")
        torch.testing.assert_close(outputs, full(batch, explore=False)["action_dist_inputs"], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kind", [*KINDS, MLPPolicy, QPolicy, LSTMQPolicy])
def test_weights_depend_on_generator_and_share_a_vector(kind: Any) -> None:
    space = Views([TransformerContext(k=3)], NUMBERS, DONE["discrete"]).observation_space
    observation_space: Any = space if kind is TransformerPolicy else NUMBERS
    policies = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        policies.append(kind(observation_space, DONE["discrete"], generator=seeded(), **SMALL[kind]))
    for actual, expected in zip(*(policy.parameters() for policy in policies), strict=True):
        assert torch.equal(actual, expected)
    other_policy = kind(observation_space, DONE["discrete"], generator=seeded(1), **SMALL[kind])
    assert not all(map(torch.equal, other_policy.parameters(), policies[0].parameters()))
    vector = FlatOptimizer(policies[0].parameters(), lambda tensors: torch.optim.SGD(tensors, lr=0.1)).vector
    assert vector.numel() == sum(parameter.numel() for parameter in policies[1].parameters())


def test_recurrent_q_policy_uses_all_layers() -> None:
    policy = LSTMQPolicy(NUMBERS, DONE["discrete"], hidden_sizes=(8,), state_size=6, dueling=True)
    batch = batch_of(policy, NUMBERS, (3, 4))
    policy(batch)["q_values"].sum().backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())


# What encoders make of observations


def test_image_encoder_scales_bytes_and_accepts_axis_orders() -> None:
    last = encoder_for(BYTES, (), generator=seeded())
    first = encoder_for(spaces.Box(0, 255, (3, 36, 40), np.uint8), (), generator=seeded())
    images = torch.randint(0, 256, (2, 5, 36, 40, 3), dtype=torch.uint8)
    torch.testing.assert_close(last(images), first(images.movedim(-1, -3)))
    assert isinstance(last, ImageEncoder)
    of_one = last.convolutions(images[1, 2].permute(2, 0, 1)[None] / 255)[0]
    torch.testing.assert_close(last(images)[1, 2], of_one)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(0, 255, (84, 84, 4), np.uint8), True),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), True),
        (spaces.Box(0, 1, (5, 5, 1), np.float32), True),
        (spaces.Box(-1, 1, (8, 8, 3), np.float32), False),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), False),
        (spaces.Box(0, 255, (84, 84), np.uint8), False),
        (spaces.Discrete(3), False),
    ],
    ids=str,
)
def test_is_image_depends_on_shape_and_bounds(space: gym.Space, expected: bool) -> None:
    assert is_image(space) is expected


def test_choice_encoder_is_one_hot_or_zeros() -> None:
    encoder = encoder_for(spaces.MultiDiscrete([2, 3], start=[1, -1]), ())
    assert encoder(torch.tensor([[1, 1], [2, -1], [0, 9]])).tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0], [0] * 5]
    assert encoder_for(spaces.Discrete(3, start=5), ())(torch.tensor(6)).tolist() == [0, 1, 0]


def test_unsupported_spaces_are_named() -> None:
    for space in (spaces.Text(3), spaces.Sequence(NUMBERS), spaces.Dict({"action_mask": NUMBERS})):
        with pytest.raises(InvalidArgument, match="observation_space"):
            EncoderPolicy(space, DONE["discrete"])
    with pytest.raises(InvalidArgument, match="FlattenObservations"):
        MLPPolicy(SEEN["dict"], DONE["discrete"])
    with pytest.raises(InvalidArgument, match="TransformerContext"):
        TransformerPolicy(spaces.Discrete(4), DONE["discrete"])
    with pytest.raises(InvalidArgument, match="num_heads"):
        TransformerPolicy(spaces.Box(-1, 1, (3, 4)), DONE["discrete"], size=9)
    with pytest.raises(InvalidArgument, match=r"the space Discrete\(3\) is given"):
        Autoregressive(spaces.Discrete(3))


def test_transformer_ignores_masked_steps() -> None:
    policy, _ = made(TransformerPolicy, NUMBERS, DONE["discrete"])
    batch = {"obs": torch.randn(5, 3, 3), "past_actions": torch.randn(5, 3, 4), "attention_mask": torch.ones(5, 3) > 0}
    batch["attention_mask"][:, 0] = False
    before = policy(batch)
    batch["obs"][:, 0], batch["past_actions"][:, 0] = 1e4, -1e4
    after = policy(batch)
    for name in ("action_dist_inputs", "vf_preds"):
        assert torch.equal(before[name], after[name])
    batch["obs"][:, 1] += 1
    assert not torch.equal(policy(batch)["vf_preds"], after["vf_preds"])


# Masks


def test_masked_probabilities_are_of_legal_actions() -> None:
    distribution, logits = Categorical(4), torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]])
    inputs = distribution.masked(logits, mask)
    actions = distribution.sample(inputs)
    result = torch.autograd.grad(distribution.log_prob(inputs, actions).sum(), logits, retain_graph=True)[0]
    entropies = torch.autograd.grad(distribution.entropy(inputs).sum(), logits)[0]
    for row in range(6):
        legal = [a for a in range(4) if mask[row, a] or not mask[row].any()]
        assert int(actions[row]) in legal
        row_logits = logits[row].detach().clone().requires_grad_()
        chances = row_logits[legal].exp() / row_logits[legal].exp().sum()
        log_prob = chances[legal.index(int(actions[row]))].log()
        torch.testing.assert_close(distribution.log_prob(inputs, actions)[row], log_prob)
        torch.testing.assert_close(result[row], torch.autograd.grad(log_prob, row_logits, retain_graph=True)[0])
        entropy = -(chances * chances.log()).sum()
        torch.testing.assert_close(distribution.entropy(inputs)[row], entropy)
        torch.testing.assert_close(entropies[row], torch.autograd.grad(entropy, row_logits)[0], atol=1e-12, rtol=1e-9)


def test_multi_discrete_masks_apply_separately() -> None:
    several = distribution_for(spaces.MultiDiscrete([2, 3], start=[1, 0]))
    mask = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 0, 1, 1]])
    inputs = several.masked(torch.randn(2, 5), mask)
    assert inputs.isinf().tolist() == [[True, False, False, True, True], [False, False, True, False, False]]
    assert several.sample(inputs)[0].tolist() == [2, 0]
    joint = distribution_for(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1.0, 1.0, (1,), np.float32)}))
    inputs = joint.masked(torch.zeros(1, 4), {"a": torch.tensor([[0, 1]])})
    assert inputs.isinf().tolist() == [[True, False, False, False]]


def test_mask_of_wrong_shape_raises() -> None:
    with pytest.raises(ShapeMismatch, match=r"\[1, 3\]"):
        Categorical(4).masked(torch.zeros(1, 4), torch.ones(1, 3))
    with pytest.raises(ShapeMismatch, match="'c'"):
        distribution_for(spaces.Dict({"a": spaces.Discrete(2)})).masked(torch.zeros(1, 2), {"c": torch.ones(1, 2)})
    with pytest.raises(InvalidArgument, match="DiagonalGaussian"):
        DiagonalGaussian((1,)).masked(torch.zeros(1, 2), torch.ones(1, 2))


@each_kind
def test_masked_policy_samples_only_legal_actions(kind: Any) -> None:
    observation_space = SEEN["with a mask"]
    policy, views = made(kind, observation_space, DONE["discrete"])
    legal = np.array([0, 1, 0, 1], np.int8)
    observation = {"observation": np.ones(3, np.float32), "action_mask": legal}
    actor = Actor(policy, observation_space, policy.action_space, pieces=views or ())
    for explore in (True, False):
        draws = {int(actor.act(observation, explore=explore)[0]) for _ in range(15)}
        assert draws <= {1, 3}


@pytest.mark.parametrize("kind", [QPolicy, LSTMQPolicy])
def test_q_policy_explores_only_legal_actions(kind: Any) -> None:
    policy, _ = made(kind, SEEN["with a mask"], DONE["discrete"], epsilon=0.3)
    batch = batch_of(policy, SEEN["with a mask"], (20, 2) if kind is LSTMQPolicy else (20,))
    mask = batch["obs"]["action_mask"].bool()
    legal = mask | ~mask.any(-1, keepdim=True)
    values = policy(batch)["q_values"]
    chances = policy(batch, explore=True)["action_dist_inputs"].exp()
    assert torch.equal(values > -math.inf, legal)
    assert torch.equal(policy(batch, explore=False)["action_dist_inputs"], values)
    best = functional.one_hot(values.argmax(-1), 4)
    expected = 0.3 * legal / legal.sum(-1, keepdim=True) + 0.7 * best
    torch.testing.assert_close(chances, expected)


# Autoregressive parts


def pair() -> Autoregressive:
    """Return the distribution of a choice, and of a number whose mean and deviation depend on the choice."""
    distribution = Autoregressive(TUPLE, 4, generator=seeded()).double()
    for parameter in distribution.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.7, generator=seeded(parameter.numel()))
    return distribution


def slow_log_prob(distribution: Autoregressive, features: torch.Tensor, choice: int, point: torch.Tensor) -> Any:
    """Return log p(choice) + log p(point | choice) of one row by explicit products."""
    heads: Any = distribution.heads
    first, second = heads
    hidden = torch.tanh(first[0].weight @ features + first[0].bias)
    logits = first[2].weight @ hidden + first[2].bias
    one_hot = torch.zeros(3, dtype=torch.float64)
    one_hot[choice - 1] = 1
    hidden = torch.tanh(second[0].weight @ torch.cat([features, one_hot]) + second[0].bias)
    mean = second[2].mean.weight @ hidden + second[2].mean.bias
    chance = functional.softmax(logits, 0)[choice - 1].log()
    return chance + torch.distributions.Normal(mean, second[2].log_std.exp()).log_prob(point).sum()


def test_autoregressive_log_probs_equal_products() -> None:
    distribution, features = pair(), torch.randn(5, 4, dtype=torch.float64, generator=seeded())
    choices, points = distribution.sample(features, seeded())
    parameters = list(distribution.parameters())
    choices, points = choices.detach(), points.detach()
    result = distribution.log_prob(features, (choices, points))
    slow = [slow_log_prob(distribution, *row) for row in zip(features, choices.tolist(), points, strict=True)]
    torch.testing.assert_close(result, torch.stack(slow), rtol=1e-10, atol=1e-10)
    ours, reference = (torch.autograd.grad(total, parameters) for total in (result.sum(), torch.stack(slow).sum()))
    for actual, expected in zip(ours, reference, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_autoregressive_samples_follow_probabilities() -> None:
    distribution = Autoregressive(spaces.MultiDiscrete([2, 3]), 4, generator=seeded())
    for parameter in distribution.parameters():
        torch.nn.init.normal_(parameter, 0.0, 1.0, generator=seeded(parameter.numel()))
    distribution.requires_grad_(False)
    features = torch.randn(4, generator=seeded())
    every = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    chances = distribution.log_prob(features.expand(6, 4), every).exp()
    assert abs(float(chances.sum()) - 1) < 1e-6
    draws = distribution.sample(features.expand(20_000, 4), seeded())
    counts = torch.bincount(draws[:, 0] * 3 + draws[:, 1], minlength=6) / 20_000
    torch.testing.assert_close(counts, chances, rtol=0, atol=0.015)
    entropies = distribution.entropy(features.expand(20_000, 4))
    assert abs(float(entropies.mean() + (chances * chances.log()).sum())) < 0.02
    first = chances.reshape(2, 3).sum(1).argmax()
    assert distribution.mode(features).tolist() == [int(first), int(chances.reshape(2, 3)[first].argmax())]


# Squashed


def test_squashed_density_equals_transformed_normal() -> None:
    distribution: Any = distribution_for(spaces.Box(-3.0, 5.0, (2,), np.float32), squashed=True)
    inputs = (0.5 * torch.randn(7, 4, dtype=torch.float64, generator=seeded())).requires_grad_()
    actions = distribution.sample(inputs.detach(), seeded())
    assert (actions.abs() < 1).all()
    mean, log_std = inputs.chunk(2, -1)
    raw = actions.atanh()
    normal = -0.5 * ((raw - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
    slow = (normal - (1 - actions**2).log()).sum(-1)
    result = distribution.log_prob(inputs, actions)
    torch.testing.assert_close(result, slow, rtol=1e-8, atol=1e-8)
    ours, expected = (torch.autograd.grad(density.sum(), inputs)[0] for density in (result, slow))
    torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("squashed", [False, True])
def test_continuous_policy_starts_with_trainable_deviation_one(squashed: bool) -> None:
    done = DONE["continuous"]
    policy = MLPPolicy(NUMBERS, done, distribution=distribution_for(done, squashed=squashed))
    inputs = policy({"obs": torch.zeros(2, 3)})["action_dist_inputs"]
    assert inputs.tolist() == [[0, 0, 0, 0]] * 2
    inputs.sum().backward()
    assert policy.get_parameter("actor.4.log_std").grad.tolist() == [2.0, 2.0]  # type: ignore[union-attr]
    check_policy(policy, NUMBERS, done)


def test_discrete_policy_starts_nearly_uniform() -> None:
    policy = MLPPolicy(NUMBERS, DONE["discrete"])
    inputs = policy({"obs": torch.randn(100, 3)})["action_dist_inputs"]
    assert (policy.distribution.entropy(inputs) > math.log(4) - 0.01).all()
