"""Policies: shapes, seeds, heads, and the state of recurrent policies."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from episode_learners import LSTMPolicy, MLPPolicy
from episodes.errors import InvalidArgument
from episodes.tracks.nested import map_leaves

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,))
ACTION_SPACES = {
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1.0, 1.0, (2,)),
    "dict": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1.0, 1.0, (2,))}),
}
each_action_space = pytest.mark.parametrize("action_space", ACTION_SPACES.values(), ids=ACTION_SPACES.keys())


def mlp(action_space: gym.Space = ACTION_SPACES["discrete"], seed: int = 0) -> MLPPolicy:
    return MLPPolicy(OBSERVATIONS, action_space, generator=torch.Generator().manual_seed(seed))


def lstm(action_space: gym.Space = ACTION_SPACES["discrete"], seed: int = 0) -> LSTMPolicy:
    return LSTMPolicy(OBSERVATIONS, action_space, state_size=8, generator=torch.Generator().manual_seed(seed))


def states(num_rows: int, policy: LSTMPolicy) -> dict[str, dict[str, torch.Tensor]]:
    return map_leaves(lambda leaf: torch.from_numpy(leaf).expand(num_rows, -1), policy.get_initial_state())


def test_initial_policy_is_nearly_uniform():
    policy = mlp()
    inputs = policy({"obs": torch.randn(100, 3)})["action_dist_inputs"]
    assert (policy.distribution.entropy(inputs) > np.log(4) - 0.01).all()


def test_box_policy_starts_with_trainable_deviation_one():
    policy = mlp(ACTION_SPACES["box"])
    inputs = policy({"obs": torch.randn(10, 3)})["action_dist_inputs"]
    assert torch.equal(inputs[:, 2:], torch.zeros(10, 2))
    inputs.sum().backward()
    gradient = policy.get_parameter("actor.4.log_std").grad
    assert gradient is not None
    assert gradient.tolist() == [10.0, 10.0]


def test_mlp_policy_flattens_several_axes():
    policy = MLPPolicy(spaces.Box(-1, 1, (2, 3)), spaces.Discrete(2))
    obs = torch.randn(5, 2, 3)
    assert torch.equal(policy({"obs": obs})["vf_preds"], policy.compute_values({"obs": obs.flatten(1)}))


@pytest.mark.parametrize("make", [MLPPolicy, LSTMPolicy])
@pytest.mark.parametrize(
    "space", [spaces.Box(0, 255, (3,), np.uint8), spaces.Box(-1, 1, ()), spaces.Box(0, 9, (), np.int64)]
)
def test_policy_accepts_integer_and_scalar_observations(make, space):
    policy = make(space, spaces.Discrete(2))
    leading = (5, 2) if policy.get_initial_state() else (5,)
    obs = torch.ones((*leading, *space.shape)).to(torch.from_numpy(np.zeros(0, space.dtype)).dtype)
    batch = {"obs": obs} | ({"state_in": states(5, policy)} if policy.get_initial_state() else {})
    outputs = policy(batch)
    assert outputs["action_dist_inputs"].shape == (*leading, 2)
    assert torch.equal(policy.compute_values(batch), outputs["vf_preds"])
    assert "vf_preds" not in policy(batch, explore=True)


def test_mlp_policy_with_other_space_raises_with_advice():
    with pytest.raises(InvalidArgument, match="FlattenObservations"):
        MLPPolicy(spaces.Dict({"a": OBSERVATIONS}), spaces.Discrete(2))


@each_action_space
@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("make", [mlp, lstm])
def test_compute_action_returns_member_of_space(make, action_space, explore):
    torch.manual_seed(0)
    action, _ = make(action_space).compute_action(np.array([0.1, 0.2, -0.3]), explore=explore)
    assert action_space.contains(action)
