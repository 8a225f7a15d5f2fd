"""Connectors that compute actions from the policy's outputs."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from connectors import distribution_for, module_to_env_pipeline
from connectors.categorical_sampler import NumpyCategoricalSampler
from connectors.distributions import Categorical
from connectors.module_to_env import GetActions, ListifyForVectorEnv, NormalizeAndClipActions, TensorToNumpy
from episodes import EpisodePack
from episodes.errors import ShapeMismatch, TrackMismatch, UnknownKey
from episodes.tracks.policy_box import policy_space_of, to_policy_actions

BOX = spaces.Box(np.array([-2, 0, -np.inf], np.float32), np.array([2, 10, 1], np.float32))


def test_default_pipeline_returns_policy_and_env_actions() -> None:
    space = spaces.Box(-2, 6, (1,), np.float32)
    inputs = torch.tensor([[0.5, -20.0], [-3.0, -20.0]])  # means and logarithms of tiny deviations
    out = module_to_env_pipeline(action_space=space)(
        batch={"action_dist_inputs": inputs, "vf_preds": torch.ones(2)}, episodes=[0, 0], explore=False
    )
    assert out["actions"].tolist() == [[0.5], [-3.0]]
    assert out["actions_for_env"].tolist() == [[4.0], [-2.0]]
    assert all(isinstance(column, np.ndarray) for column in out.values())
    assert set(out) == {"action_dist_inputs", "vf_preds", "actions", "action_logp", "actions_for_env"}


def test_random_numbers_continue_after_restore_and_pickling() -> None:
    batch = {"action_dist_inputs": torch.zeros(64, 5)}

    def draw(piece: GetActions) -> list[int]:
        return piece(batch=dict(batch))["actions"].tolist()

    first_piece, two = GetActions(None, spaces.Discrete(5), seed=1), GetActions(None, spaces.Discrete(5), seed=2)
    state_before = first_piece.get_state()
    first = draw(first_piece)
    two.set_state(first_piece.get_state())
    three = pickle.loads(pickle.dumps(first_piece))
    assert draw(first_piece) == draw(two) == draw(three)
    two.set_state(two.merge_states([first_piece.get_state(), three.get_state()]))
    assert draw(first_piece) == draw(two)
    two.set_state(state_before)
    assert draw(two) == first  # a state contains the seed
    first_piece.reset_state()
    assert draw(first_piece) == first


@pytest.mark.parametrize("seed", [3, 0, -1, 2**63])
def test_choices_do_not_depend_on_rows_per_call(seed: int) -> None:
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(3000, 3)).astype(np.float32)
    clocks = np.log(np.random.default_rng(seed % 2**64).standard_exponential(inputs.shape, np.float32))
    piece, parts = GetActions(None, spaces.Discrete(3), seed=seed), np.sort(rng.integers(0, 3000, 40))
    drawn = [piece(batch={"action_dist_inputs": torch.tensor(part)})["actions"] for part in np.split(inputs, parts)]
    assert torch.cat(drawn).tolist() == (inputs - clocks).argmax(-1).tolist()


def test_unseeded_choices_use_torch_numbers_like_distribution() -> None:
    inputs, space = torch.randn(7, 4), spaces.Discrete(4, start=-2)
    torch.manual_seed(5)
    expected = [distribution_for(space).sample(inputs).tolist() for _ in range(3)] + [torch.rand(2).tolist()]
    torch.manual_seed(5)
    piece = GetActions(None, space)
    drawn = [piece(batch={"action_dist_inputs": inputs})["actions"].tolist() for _ in range(3)]
    assert [*drawn, torch.rand(2).tolist()] == expected


def test_exploring_samples_and_not_exploring_takes_the_likeliest() -> None:
    piece = GetActions(None, spaces.Discrete(3, start=5))
    inputs = torch.tensor([[0.0, 0.1, 0.0]]).repeat(200, 1)
    assert set(piece(batch={"action_dist_inputs": inputs}, explore=False)["actions"].tolist()) == {6}
    for explore in (True, None):
        out = piece(batch={"action_dist_inputs": inputs}, explore=explore)
        assert set(out["actions"].tolist()) == {5, 6, 7}
        torch.testing.assert_close(out["action_logp"], inputs.log_softmax(-1)[torch.arange(200), out["actions"] - 5])


def test_actions_of_policy_are_unchanged() -> None:
    out = module_to_env_pipeline(action_space=spaces.Discrete(3))(batch={"actions": torch.tensor([2, 1])})
    assert set(out) == {"actions", "actions_for_env"}
    assert out["actions_for_env"].tolist() == [2, 1]


def test_policy_without_actions_or_inputs_raises() -> None:
    with pytest.raises(UnknownKey, match="neither 'actions' nor 'action_dist_inputs', but vf_preds"):
        GetActions(None, spaces.Discrete(2))(batch={"vf_preds": torch.ones(1)})
    with pytest.raises(UnknownKey, match="has no action space"):
        GetActions()(batch={"action_dist_inputs": torch.ones(1, 2)})


def test_log_probs_of_all_steps_equal_each_step() -> None:
    space = spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32), "jump": spaces.Discrete(2, start=3)})
    each, late = GetActions(None, space), GetActions(None, space, log_probs=False)
    inputs = torch.randn(5, 6)
    out = {
        name: TensorToNumpy()(batch={"x": column})["x"]
        for name, column in each(batch={"action_dist_inputs": inputs}).items()
    }
    assert "action_logp" not in late(batch={"action_dist_inputs": inputs})
    outputs = {"action_dist_inputs": inputs.numpy()}
    pack = EpisodePack(
        observations=np.zeros((7, 1)),
        actions=out["actions"],
        rewards=np.zeros(5),
        lengths=[2, 1],
        lookbacks=[1, 1],
        extra_model_outputs=outputs,
    )
    np.testing.assert_allclose(
        late.with_log_probs(pack).extra_model_outputs["action_logp"], out["action_logp"], rtol=1e-6
    )
    assert late.with_log_probs(pack.replace(extra_model_outputs={})).extra_model_outputs == {}
    assert "action_logp" not in pack.extra_model_outputs


def test_output_with_wrong_number_of_rows_raises() -> None:
    pipeline = module_to_env_pipeline(action_space=spaces.Discrete(2))
    with pytest.raises(TrackMismatch, match="output 'vf_preds' has 3 rows for 2 episodes"):
        pipeline(batch={"action_dist_inputs": torch.zeros(2, 2), "vf_preds": torch.ones(3)}, episodes=[0, 0])


def test_nested_tensors_with_gradients_become_arrays() -> None:
    outputs = {"a": torch.ones(2, requires_grad=True) * 2, "state_out": {"h": torch.zeros(2, 3)}, "n": np.ones(2)}
    out = TensorToNumpy()(batch=outputs)
    assert out["a"].tolist() == [2.0, 2.0]
    assert isinstance(out["state_out"]["h"], np.ndarray)


def test_time_axis_of_recurrent_outputs_is_removed() -> None:
    policy = type("Stateful", (), {"get_initial_state": lambda self: {"h": np.zeros(4)}})()
    pipeline = module_to_env_pipeline(action_space=spaces.Discrete(2), policy=policy)
    state = {"h": torch.zeros(3, 4)}
    out = pipeline(batch={"action_dist_inputs": torch.zeros(3, 1, 2), "state_out": state}, episodes=[0] * 3)
    assert out["actions"].shape == out["action_logp"].shape == (3,)
    assert out["state_out"]["h"].shape == (3, 4)
    with pytest.raises(ShapeMismatch, match=r"'action_dist_inputs' has shape \[3, 2\]"):
        pipeline(batch={"action_dist_inputs": torch.zeros(3, 2)})


# Units


def in_bounds(actions: Any) -> Any:
    return NormalizeAndClipActions(None, BOX).to_env(np.array(actions, np.float32)).tolist()


def test_unit_actions_are_scaled_to_bounds_and_clipped() -> None:
    assert in_bounds([[-1, -1, -1], [0, 0, 0], [1, 1, 1]]) == [[-2, 0, -1], [0, 5, 0], [2, 10, 1]]
    assert in_bounds([[-9, 9, -9]]) == [[-2, 10, -9]]  # the last dimension has one bound only: clipped, not spread
    assert in_bounds([[0, 0, 9]]) == [[0, 5, 1]]


def test_clipping_keeps_the_environments_units() -> None:
    piece = NormalizeAndClipActions(None, BOX, normalize_actions=False, clip_actions=True)
    assert piece.to_env(np.array([[-9, 3, 9]], np.float32)).tolist() == [[-2, 3, 1]]
    both = NormalizeAndClipActions(None, BOX, normalize_actions=True, clip_actions=True)
    assert both.to_env(np.array([[-9, 0, 9]], np.float32)).tolist() == in_bounds([[-9, 0, 9]])


@given(st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3))
def test_inverse_returns_actions_in_policy_units(action: list[float]) -> None:
    piece = NormalizeAndClipActions(None, BOX)
    actions = np.array([action], np.float32)
    back = to_policy_actions(policy_space_of(BOX, "normalize"), piece.to_env(actions))
    np.testing.assert_allclose(back, actions, atol=1e-5)


def test_parts_without_bounded_box_are_unchanged() -> None:
    space = spaces.Dict(
        {
            "move": spaces.Box(0, 4, (1,), np.float32),
            "jump": spaces.Discrete(2),
            "free": spaces.Box(-np.inf, np.inf, (1,)),
        }
    )
    piece = NormalizeAndClipActions(None, space)
    actions = {"move": np.array([[0.0]], np.float32), "jump": np.array([1]), "free": np.array([[50.0]])}
    out = piece(batch={"actions": actions})["actions_for_env"]
    assert out["move"].tolist() == [[2.0]]
    assert out["jump"] is actions["jump"]
    assert out["free"] is actions["free"]
    pair = spaces.Tuple([space["move"], space["jump"]])
    spread = NormalizeAndClipActions(None, pair).to_env((actions["move"], actions["jump"]))
    assert spread[0].tolist() == [[2.0]]


def test_integer_boxes_get_whole_numbers() -> None:
    piece = NormalizeAndClipActions(None, spaces.Box(0, 10, (1,), np.int64))
    assert piece.to_env(np.array([[0.11], [-1.0]])).tolist() == [[6], [0]]
    assert piece.to_env(np.array([[0.11]])).dtype == np.int64


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Box(-1, 1, (2,), np.float32),
        spaces.MultiDiscrete([2, 3]),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.MultiBinary(3), spaces.Box(0, 1, (1,))])}),
    ],
    ids=str,
)
def test_output_is_accepted_by_vector_environment(space: spaces.Space) -> None:
    batched = gym.vector.utils.batch_space(space, 4)
    pipeline = module_to_env_pipeline(action_space=space)
    size = GetActions(None, space).distribution_of(None).num_inputs
    actions = pipeline(batch={"action_dist_inputs": torch.zeros(4, size)}, episodes=[0] * 4)["actions_for_env"]
    assert len(list(gym.vector.utils.iterate(batched, actions))) == 4
    assert batched.contains(actions)


def test_actions_of_spaces_without_batch_arrays_become_tuples() -> None:
    space = spaces.Dict({"say": spaces.Text(5), "move": spaces.Discrete(2)})
    actions = {"say": np.array(["a", "bc"]), "move": np.array([0, 1])}
    out = ListifyForVectorEnv(None, space)(batch={"actions_for_env": actions})["actions_for_env"]
    assert out["say"] == ("a", "bc")
    assert out["move"] is actions["move"]


def test_zero_noise_never_selects_masked_action() -> None:
    class Zeros:
        def standard_exponential(self, num: int, dtype: Any) -> np.ndarray:
            return np.zeros(num, dtype)

    rows = NumpyCategoricalSampler(seed=0)
    rows._stream = Zeros()  # type: ignore[assignment]
    inputs = np.array([[-np.inf, 0.0, 1.0], [2.0, -np.inf, -np.inf]], np.float32)
    assert rows.sample(Categorical(3), inputs).tolist() == [2, 0]
