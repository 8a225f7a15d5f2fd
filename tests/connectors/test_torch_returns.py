"""Returns on tensors equal those on arrays, which agree with a scalar reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from connectors import returns as on_tensors
from episodes import returns as on_arrays
from episodes.errors import InvalidArgument, ShapeMismatch, WrongType
from tests.reference_returns import columns, fractions, packed, plain_episodes

packs_of_episodes = st.lists(plain_episodes(min_length=0), min_size=1, max_size=4)


def tensors(arguments, device="cpu"):
    return {k: torch.from_numpy(v).to(device) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}


def check_equal(name, arguments, device="cpu", **options):
    expected = getattr(on_arrays, name)(**arguments, **options)
    result = getattr(on_tensors, name)(**tensors(arguments, device), **options)
    pairs = zip(result, expected, strict=True) if isinstance(expected, tuple) else [(result, expected)]
    for tensor, array in pairs:
        assert tensor.device.type == device
        assert tensor.dtype == torch.from_numpy(array).dtype
        np.testing.assert_allclose(tensor.cpu().numpy(), array, rtol=1e-10, atol=1e-10, err_msg=name)


def check_all(arguments, ratios, device, gamma, lambda_, n_step):
    check_equal("gae", arguments, device, gamma=gamma, lambda_=lambda_)
    check_equal("n_step_returns", arguments, device, gamma=gamma, n_step=n_step)
    check_equal("vtrace", arguments | {"ratios": ratios}, device, gamma=gamma, lambda_=lambda_)
    check_equal("discounted_returns", arguments, device, gamma=gamma)
    arguments = {k: v for k, v in arguments.items() if k not in ("values", "final_values")}
    check_equal("discounted_returns", arguments, device, gamma=gamma)


@given(packs_of_episodes, fractions, fractions, st.integers(1, 320))
def test_packed_tensors_equal_packed_arrays(episodes, gamma, lambda_, n_step):
    ratios = np.array([x for e in episodes for x in e.ratios])
    check_all(packed(episodes), ratios, "cpu", gamma, lambda_, n_step)


@given(st.tuples(st.integers(1, 30), st.sampled_from([1, 4, 300])), st.integers(0, 9), fractions, fractions)
def test_tensor_columns_equal_array_columns(shape, seed, gamma, lambda_):
    made = columns(np.random.default_rng(seed), *shape, ending_rate=0.1)
    check_all(made.arguments(), made.ratios, "cpu", gamma, lambda_, n_step=3)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 1), (40, 3), (128, 4096)])
def test_cuda_equals_numpy(shape):
    made = columns(np.random.default_rng(0), *shape, ending_rate=0.05)
    check_all(made.arguments(), made.ratios, "cuda", 0.99, 0.95, n_step=5)
    episodes = [piece for _, _, piece in made.pieces]
    ratios = np.array([x for e in episodes for x in e.ratios])
    check_all(packed(episodes), ratios, "cuda", 0.99, 0.95, n_step=5)


def test_offsets_may_be_a_list_an_array_or_a_tensor_and_results_have_no_gradient():
    rewards, values = torch.ones(2, dtype=torch.bfloat16), torch.ones(3, requires_grad=True)
    ending = {"terminateds": torch.tensor([False]), "truncateds": torch.tensor([True])}
    for offsets in ([0, 2], np.array([0, 2]), torch.tensor([0, 2])):
        advantages, _ = on_tensors.gae(rewards, values, **ending, gamma=0.5, lambda_=1.0, offsets=offsets)
        assert advantages.tolist() == [0.75, 0.5]
        assert advantages.dtype == torch.float32
        assert not advantages.requires_grad


def test_missing_flags_raise():
    with pytest.raises(WrongType, match="terminateds is None: give a flag per step"):
        on_tensors.gae(torch.ones(2), torch.ones(3), None, None, gamma=0.9, lambda_=0.9, offsets=[0, 2])  # type: ignore[arg-type]


def test_arrays_other_devices_and_wrong_shapes_are_named():
    flag, rewards, values = torch.tensor([False]), torch.ones(2), torch.ones(3)
    options = {"gamma": 0.9, "lambda_": 0.9, "offsets": [0, 2]}
    with pytest.raises(WrongType, match="values is a ndarray"):
        on_tensors.gae(rewards, np.ones(3), flag, flag, **options)
    with pytest.raises(InvalidArgument, match="values is on meta, rewards on cpu"):
        on_tensors.gae(rewards, values.to("meta"), flag, flag, **options)
    with pytest.raises(ShapeMismatch, match=r"values \[2\] of 1 packed episodes"):
        on_tensors.gae(rewards, rewards, flag, flag, **options)
    with pytest.raises(ShapeMismatch, match=r"ratios \[3\]"):
        on_tensors.vtrace(rewards, values, flag, flag, values, gamma=0.9, offsets=[0, 2])
    with pytest.raises(InvalidArgument, match="final_values with offsets"):
        on_tensors.gae(rewards, values, flag, flag, **options, final_values=rewards)
