"""Gradients that are written out are those that autograd finds; what is more than a perceptron is left to it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from episode_learners import DQN, SAC, DQNConfig, FlatOptimizer, QPolicy, SACConfig, SACPolicy
from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.networks.backpropagation import Layer, PlainLayers, backpropagate, gradient_of_inputs, outputs_of
from episode_learners.networks.layers import Perceptron, hidden_layers, linear

SEEN = gym.spaces.Box(-1.0, 1.0, (3,))
THREE = gym.spaces.Discrete(3, start=-1)
BOX = gym.spaces.Box(-2.0, 2.0, (2,))


def perceptron(sizes: tuple[int, ...], activation: type[nn.Module] = nn.ReLU, seed: int = 0) -> Perceptron:
    generator = torch.Generator().manual_seed(seed)
    head = linear(sizes[-2], sizes[-1], 1.0, generator)
    made = Perceptron(*hidden_layers(sizes[:-1], activation, generator), head).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            parameter.grad = torch.zeros_like(parameter)
    return made


def plain_layers(made: Perceptron) -> list[Layer] | None:
    return PlainLayers((made,), made).now(torch.float64, learned=True)


def gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("sizes", [(3, 2), (1, 5, 1), (4, 40, 6), (3, 8, 7, 2)])
@pytest.mark.parametrize("num_rows", [1, 9])
def test_a_gradient_that_is_written_out_is_that_of_autograd(activation, sizes, num_rows):
    made = perceptron(sizes, activation)
    x = torch.randn(num_rows, sizes[0], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    slope = torch.randn(num_rows, sizes[-1], dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    x.requires_grad_()
    (2.0 * made(x) * slope).sum().backward()
    expected = [gradient_of(parameter).clone() for parameter in made.parameters()]
    of_inputs = x.grad
    made.zero_grad(set_to_none=False)
    layers = plain_layers(made)
    assert layers is not None
    with torch.no_grad():
        outputs = outputs_of(layers, x.detach())
        torch.testing.assert_close(outputs[-1], made(x), rtol=0, atol=1e-12)
        for _ in range(2):  # they gather
            backpropagate(layers, outputs, slope.clone())
        found = gradient_of_inputs(layers, outputs, 2.0 * slope)
    for parameter, slow in zip(made.parameters(), expected, strict=True):
        torch.testing.assert_close(gradient_of(parameter), slow, rtol=0, atol=1e-10)
    torch.testing.assert_close(found, of_inputs, rtol=0, atol=1e-10)


def _pruned(made: Perceptron) -> None:
    prune.l1_unstructured(made[0], "weight", 0.5)


def _normed(made: Perceptron) -> None:
    parametrizations.weight_norm(made[0])


CHANGES: dict[str, Callable[[Perceptron], Any]] = {
    "a hook": lambda made: made[0].register_forward_hook(lambda module, given, found: found.mul(2.0)),
    "a hook before": lambda made: made[1].register_forward_pre_hook(lambda module, given: (given[0] + 1.0,)),
    "a hook of gradients": lambda made: made[2].register_full_backward_hook(lambda module, given, found: None),
    "a hook of a weight": lambda made: next(made.parameters()).register_hook(lambda gradient: gradient * 2.0),
    "pruned": _pruned,
    "weight norm": _normed,
    "frozen": lambda made: made[0].requires_grad_(False),
    "another layer": lambda made: made.insert(1, nn.LayerNorm(6, dtype=torch.float64)),
    "without a bias": lambda made: setattr(made[2], "bias", None),
    "no gradients yet": lambda made: made.zero_grad(set_to_none=True),
    "another dtype": lambda made: made.float(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_more_than_plain_layers_is_left_to_autograd_and_called_as_any_module(change):
    made = perceptron((3, 6, 2))
    change(made)
    assert plain_layers(made) is None
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = x.to(next(made.parameters()).dtype)
    expected = x
    for layer in made:
        expected = layer(expected)
    torch.testing.assert_close(made(x), expected)


def test_layers_are_left_to_autograd_where_it_chooses_dtypes():
    made = perceptron((3, 6, 2))
    with torch.autocast("cpu", torch.bfloat16):
        assert plain_layers(made) is None


POLICY_CHANGES: dict[str, Callable[[Any], Any]] = {
    "a hook of the policy": lambda policy: policy.register_forward_hook(lambda module, given, found: None),
    "a hook of a part": lambda policy: part_of(policy).register_forward_pre_hook(lambda module, given: None),
    "another body": lambda policy: vars(policy)["_modules"].update({next(policy.named_children())[0]: nn.Identity()}),
    **{name: lambda policy, change=change: change(part_of(policy)) for name, change in CHANGES.items()},
}


def part_of(policy: Any) -> Perceptron:
    """What it sees observations with: two layers with activations behind them, and for actions one more."""
    return policy.actor if isinstance(policy, SACPolicy) else policy.body


@pytest.mark.parametrize("make", [lambda: dqn().policy, lambda: sac().policy], ids=["QPolicy", "SACPolicy"])
@pytest.mark.parametrize("change", POLICY_CHANGES.values(), ids=POLICY_CHANGES)
def test_what_comes_to_layers_that_were_looked_at_before_is_seen(make, change):
    policy, obs = make(), torch.zeros(1, 3, dtype=torch.float64)
    assert policy.plain_layers(obs) is not None
    other = deepcopy(policy)
    change(policy)
    assert policy.plain_layers(obs) is None
    for parameter in other.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert other.plain_layers(obs) is not None, "a copy is looked at itself"


def test_weights_that_take_the_place_of_others_are_those_that_are_asked():
    policy, obs = dqn().policy, torch.ones(1, 3, dtype=torch.float64)
    with torch.no_grad():
        before = policy.q_values({"obs": obs})
        policy.head.weight = nn.Parameter(2.0 * policy.head.weight)
        policy.body[0] = linear(3, 8, 1.0, torch.Generator().manual_seed(5)).double()
        after = policy.q_values({"obs": obs})
    torch.testing.assert_close(after, policy.q_values({"obs": obs}).detach(), rtol=0, atol=1e-12)
    assert not torch.allclose(before, after)


@pytest.mark.parametrize("dueling", [False, True])
def test_values_without_gradients_are_those_with_them(dueling):
    policy, obs = dqn(dueling=dueling).policy, torch.randn(5, 3, generator=torch.Generator().manual_seed(1)).double()
    for given in (obs, obs[0], obs[:, None]):
        with torch.no_grad():
            found = policy.q_values({"obs": given})
        torch.testing.assert_close(found, policy.q_values({"obs": given}).detach(), rtol=0, atol=1e-12)


def minibatch(actions: Tensor, weighted: bool) -> dict[str, Tensor]:
    rng = np.random.default_rng(0)
    columns = {"obs": rng.normal(size=(6, 3)), "new_obs": rng.normal(size=(6, 3)), "rewards": 3 * rng.normal(size=6)}
    columns["discounts"] = np.where(np.arange(6) % 3, 0.9, 0.0)
    columns |= {"weights": rng.uniform(0.5, 2.0, 6)} if weighted else {}
    return {"actions": actions, **{name: torch.from_numpy(column) for name, column in columns.items()}}


def dqn(**of_policy: Any) -> DQN:
    policy = QPolicy(SEEN, THREE, hidden_sizes=(8, 8), generator=torch.Generator().manual_seed(0), **of_policy)
    return DQN(policy.double(), DQNConfig(gamma=0.9))


def sac() -> SAC:
    policy = SACPolicy(SEEN, BOX, hidden_sizes=(16, 8), generator=torch.Generator().manual_seed(0))
    algorithm = SAC(policy.double(), SACConfig(gamma=0.9))
    algorithm.log_temperature.data = algorithm.log_temperature.data.double() - 0.5
    return algorithm


def both_ways(algorithm: Any, batch: dict[str, Tensor], optimizer: str) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """The gradient and what was measured, as the algorithm finds them and as autograd does."""
    found = []
    for backward in (type(algorithm).backward, Algorithm.backward):
        one = deepcopy(algorithm)
        flat: FlatOptimizer = one.optimizers[optimizer]
        flat.gathered()
        flat.gradient.fill_(0.25)
        measured = backward(one, dict(batch), optimizer, 0.5)
        found.append((flat.gathered().clone(), measured))
    return found


def assert_alike(algorithm: Any, batch: dict[str, Tensor], optimizer: str) -> None:
    (ours, measured), (slow, expected) = both_ways(algorithm, batch, optimizer)
    assert float((slow - 0.25).abs().max()) > 1e-3
    torch.testing.assert_close(ours, slow, rtol=0, atol=1e-10)
    assert measured.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(measured[name], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_a_gradient_step_of_action_values_is_the_same_both_ways(weighted, dueling):
    algorithm = dqn(dueling=dueling)
    is_plain = algorithm.policy.plain_layers(torch.zeros(1, 3, dtype=torch.float64)) is not None
    assert is_plain is not dueling
    assert_alike(algorithm, minibatch(torch.tensor([-1, 0, 1, 1, 0, -1]), weighted), "policy")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("optimizer", ["critic", "actor"])
def test_a_gradient_step_of_soft_actor_critic_is_the_same_both_ways(weighted, optimizer):
    algorithm = sac()
    assert algorithm.policy.plain_layers(torch.zeros(1, 3, dtype=torch.float64)) is not None
    actions = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, (6, 2)))
    assert_alike(algorithm, minibatch(actions, weighted), optimizer)


def test_a_policy_of_ones_own_is_asked_itself():
    class Doubled(QPolicy):
        def worth_of(self, features: Tensor) -> Tensor:
            return 2.0 * super().worth_of(features)

    policy = Doubled(SEEN, THREE, hidden_sizes=(8,), generator=torch.Generator().manual_seed(0)).double()
    assert policy.plain_layers(torch.zeros(1, 3, dtype=torch.float64)) is None
    assert_alike(DQN(policy, DQNConfig(gamma=0.9)), minibatch(torch.tensor([-1, 0, 1, 1, 0, -1]), False), "policy")


def test_going_back_twice_gives_the_same_weights_and_moments():
    algorithm = sac()
    actions = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, (6, 2)))
    batch = minibatch(actions, False)
    algorithm._updated({**batch, "indices": torch.arange(6)})
    before = deepcopy(algorithm.state_dict())
    bad = {**batch, "indices": torch.arange(6), "rewards": torch.full((6,), float("nan"), dtype=torch.float64)}
    for _ in range(2):
        with pytest.raises(Exception, match="rewards"):
            algorithm._updated(bad)
    after = algorithm.state_dict()
    for name, value in before.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, after[name]), name
    moments = [state["_extra_state"]["optimizers"]["critic"]["state"][0] for state in (before, after)]
    for name in moments[0]:
        assert torch.equal(moments[0][name], moments[1][name]), name
    algorithm._updated({**batch, "indices": torch.arange(6)})


def test_targets_of_ones_own_are_asked_for():
    class Myopic(DQN):
        def targets_of(self, minibatch: Any) -> Tensor:  # type: ignore[override]
            return minibatch["rewards"]

    policy = QPolicy(SEEN, THREE, hidden_sizes=(8,), generator=torch.Generator().manual_seed(0)).double()
    assert_alike(Myopic(policy, DQNConfig(gamma=0.9)), minibatch(torch.tensor([-1, 0, 1, 1, 0, -1]), True), "policy")
