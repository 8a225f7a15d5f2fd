"""Unusual input to episodes: invalid input raises and changes nothing, valid input is stored unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import InvalidArgument, InvalidFill, ShapeMismatch, WrongType


def grown(num_steps: int = 3, **arguments: Any) -> SingleAgentEpisode:
    """Return a growing episode of vectors with one extra output."""
    episode = SingleAgentEpisode("abc", **arguments)
    episode.add_env_reset(np.zeros(2))
    for step in range(num_steps):
        episode.add_env_step(np.full(2, step), step, 1.0, extra_model_outputs={"value": 0.5})
    return episode


@pytest.mark.parametrize("invalid", [{"action": np.zeros(3)}, {"extra_model_outputs": {"value": np.zeros(3)}}])
def test_concat_of_other_shapes_raises_and_changes_nothing(invalid: Any) -> None:
    episode = grown()
    chunk = episode.cut()
    chunk.add_env_step(
        **{"observation": np.ones(2), "action": 0, "reward": 1.0, "extra_model_outputs": {"value": 1.0}} | invalid
    )
    before = episode.to_numpy().get_state()
    with pytest.raises(ShapeMismatch, match=r"\[3\] cannot follow items of shape \[\]"):
        episode.concat_episode(chunk)
    assert len(episode) == 3
    assert SingleAgentEpisode.from_state(before).equals(episode)


@pytest.mark.parametrize(
    ("dtype", "actions"), [(np.uint8, [300]), (np.uint8, [1, -1]), (np.int8, [np.int64(200)]), (np.int32, [2**40])]
)
def test_integer_outside_space_dtype_raises(dtype: Any, actions: Any) -> None:
    info = np.iinfo(dtype)
    episode = SingleAgentEpisode(action_space=spaces.Box(int(info.min), int(info.max), (), dtype))
    episode.add_env_reset(0)
    for action in actions:
        episode.add_env_step(0, action, 0.0)
    with pytest.raises(ShapeMismatch, match="without loss"):
        episode.to_numpy()
    assert episode.get_actions() == actions


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize("nvec", [[2, 3], [[2, 3], [1, 4]]])
def test_one_hot_of_no_actions_is_empty(finalized: bool, nvec: Any) -> None:
    space = spaces.MultiDiscrete(nvec)
    episode = SingleAgentEpisode(action_space=space)
    episode.add_env_reset(0)
    episode.add_env_step(0, space.sample(), 0.0)
    if finalized:
        assert episode.to_numpy().get_actions([], one_hot_discrete=True).shape == (0, int(space.nvec.sum()))
    else:
        assert episode.get_actions([], one_hot_discrete=True) == []


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize("new_data", [0.0, (1.0, 2.0, 3.0)])
def test_setter_without_rows_raises(finalized: bool, new_data: Any) -> None:
    episode = grown().to_numpy() if finalized else grown()
    with pytest.raises(ShapeMismatch, match="give a list of items"):
        episode.set_rewards(new_data=new_data)
    with pytest.raises(ShapeMismatch, match="give a list of items"):
        episode.set_extra_model_outputs(key="new", new_data=new_data)
    assert list(episode.get_rewards()) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("steps", [2, "ab", None])
def test_slice_by_other_types_raises(steps: Any) -> None:
    for read in (lambda episode: episode[steps], lambda episode: episode.slice(steps)):
        with pytest.raises(WrongType, match="sliced by steps"):
            read(grown())


@pytest.mark.parametrize("finalized", [False, True])
def test_state_shares_no_memory(finalized: bool) -> None:
    episode = grown()
    episode.custom_data["seen"] = [1]
    untouched = SingleAgentEpisode.from_state(episode.get_state())
    if finalized:
        assert not np.shares_memory(episode.to_numpy().get_state()["observations"], episode.get_observations())
        return
    state = episode.get_state()
    state["observations"][0][:] = 9.0
    state["rewards"].append(9.0)
    state["infos"][0]["new"] = 9
    state["custom_data"]["seen"].append(9)
    state["extra_model_outputs"]["value"][0] = 9.0
    assert episode.equals(untouched)
    copied = episode.get_state()
    restored = SingleAgentEpisode.from_state(copied)
    copied["observations"][0][:] = 9.0
    assert restored.equals(untouched)


def of_actions(actions: Any) -> SingleAgentEpisode:
    """Return a finished episode with these actions."""
    return SingleAgentEpisode.from_arrays(np.zeros(len(actions) + 1), actions, np.ones(len(actions)))


@pytest.mark.parametrize(
    ("actions", "new"),
    [
        (np.zeros(2, np.int8), 300),
        (np.zeros(2, np.int8), 0.5),
        (np.zeros(2, np.float32), 1e300),
        (np.zeros(2, bool), 2),
        (np.array(["ab", "cd"]), "long"),
    ],
)
def test_setter_widens_dtype_if_needed(actions: Any, new: Any) -> None:
    for at, data in ((1, new), ([1], [new]), (slice(1, 2), np.array([new]))):
        episode = of_actions(actions)
        episode.set_actions(new_data=data, at_indices=at)
        assert episode.get_actions(1) == new
        assert episode.get_actions(0) == actions[0]


@pytest.mark.parametrize("new", ["a", None, object()])
def test_setter_of_incompatible_items_raises(new: Any) -> None:
    episode = of_actions(np.zeros(2))
    with pytest.raises(ShapeMismatch, match="actions"):
        episode.set_actions(new_data=[new], at_indices=[0])
    assert episode.get_actions().tolist() == [0, 0]


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize("new", [np.zeros((3, 3)), np.zeros((3, 1)), ["a", "b", "c"], [None] * 3, [0.0, [1.0], 2.0]])
def test_set_rewards_to_arrays_raises(finalized: bool, new: Any) -> None:
    episode = grown().to_numpy() if finalized else grown()
    for at in (None, [0, 1, 2]):
        with pytest.raises((ShapeMismatch, WrongType), match="rewards"):
            episode.set_rewards(new_data=new, at_indices=at)
    assert list(episode.get_rewards()) == [1.0] * 3


@pytest.mark.parametrize("finalized", [False, True])
def test_setting_no_items_changes_nothing(finalized: bool) -> None:
    episode = grown().to_numpy() if finalized else grown()
    before = SingleAgentEpisode.from_state(episode.get_state())
    for nowhere in ([], slice(0, 0)):
        episode.set_observations(new_data=[], at_indices=nowhere)
        episode.set_rewards(new_data=[], at_indices=nowhere)
    assert episode.equals(before)


@pytest.mark.parametrize("fill", [1e300, -1e300, "a", None.__class__, 1j])
def test_fill_outside_dtype_raises(fill: Any) -> None:
    episode = SingleAgentEpisode.from_arrays(np.zeros((2, 3), np.float32), [0], [1.0])
    for at in (5, [5], slice(0, 5)):
        with pytest.raises(InvalidFill, match="without loss"):
            episode.get_observations(at, fill=fill)
        assert np.isinf(np.ravel(episode.get_observations(at, fill=np.inf))[-1])


def test_string_fill_is_not_cut() -> None:
    episode = SingleAgentEpisode.from_arrays(np.array(["ab", "cd"]), [0], [1.0])
    with pytest.raises(InvalidFill, match="without loss"):
        episode.get_observations([5], fill="long")


@pytest.mark.parametrize("invalid", [1e300, "1.5", 1j])
def test_values_outside_float_space_raise(invalid: Any) -> None:
    episode = SingleAgentEpisode(observation_space=spaces.Box(-np.inf, np.inf, (), np.float32))
    episode.add_env_reset(invalid)
    with pytest.raises(ShapeMismatch, match="without loss"):
        episode.to_numpy()


def test_object_arrays_and_non_numeric_rewards_raise() -> None:
    good: Any = {"observations": np.zeros(2), "actions": np.zeros(1), "rewards": np.ones(1)}
    for invalid in ({"observations": np.array([None, 1])}, {"rewards": np.array(["a"])}, {"rewards": np.array([None])}):
        with pytest.raises(WrongType, match=next(iter(invalid))):
            SingleAgentEpisode.from_arrays(**good | invalid)
        with pytest.raises(WrongType, match=next(iter(invalid))):
            EpisodePack(**good | invalid, lengths=[1])
    with pytest.raises(ShapeMismatch, match="one number"):
        EpisodePack(**good | {"rewards": np.ones((1, 1))}, lengths=[1])


def test_item_that_is_no_array_raises_with_name() -> None:
    episode = grown(0)
    episode.add_env_step(np.zeros(2), None, 1.0)
    with pytest.raises(ShapeMismatch, match=r"actions: item 0 is a NoneType; all items"):
        episode.to_numpy()


@pytest.mark.parametrize(
    ("invalid", "named"),
    [
        ({"action": np.zeros(3)}, "step 2: the action has shape"),
        ({"action": 1}, "step 2: the action has shape"),
        (
            {"extra_model_outputs": {"value": np.zeros(3), "logp": 0.0}},
            "step 2: extra_model_outputs.'value'. has shape",
        ),
        ({"reward": np.ones(1)}, r"step 2: the reward has shape \(1,\); give one number"),
        ({"reward": "1"}, "step 2: the reward is a str; give one real number"),
        ({"reward": None}, "step 2: the reward is a NoneType"),
        ({"reward": 1j}, "step 2: the reward is a complex"),
        ({"policy_version": -1}, "policy_version"),
    ],
)
def test_step_of_other_shape_raises_and_changes_nothing(invalid: Any, named: str) -> None:
    good: dict[str, Any] = {"observation": np.ones(2), "action": np.zeros(2), "reward": 1.0}
    good["extra_model_outputs"] = {"logp": 0.5, "value": np.zeros(2)}
    episode = SingleAgentEpisode("abc")
    episode.add_env_reset(np.ones(2))
    for _ in range(2):
        episode.add_env_step(**good)
    before = SingleAgentEpisode.from_state(episode.get_state())
    with pytest.raises((ShapeMismatch, WrongType, InvalidArgument), match=f"episode abc: {named}"):
        episode.add_env_step(**good | invalid)
    assert episode.equals(before)
    episode.add_env_step(**good)
    assert episode.to_numpy().get_actions().shape == (3, 2)


@pytest.mark.parametrize("reward", [1, True, np.float16(1), np.int8(1), np.bool_(True), np.array(1.0), torch.ones(())])
def test_reward_may_be_any_real_number_type(reward: Any) -> None:
    episode = grown()
    episode.add_env_step(np.zeros(2), 0, reward, extra_model_outputs={"value": 0.5})
    assert episode.to_numpy().get_return() == 4
    with pytest.raises(ShapeMismatch, match="give one number"):
        grown().add_env_step(np.zeros(2), 0, torch.ones(1), extra_model_outputs={"value": 0.5})


def test_track_set_to_other_type_raises() -> None:
    episode, second = grown(2), grown(2)
    with pytest.raises(WrongType, match=r"rewards = a list: .* set_rewards\(new_data=...\)"):
        episode.rewards = [1.0, 2.0]  # type: ignore[assignment]
    episode.rewards = second.rewards
    assert episode.get_rewards() == second.get_rewards()


def test_integer_beyond_64_bits_raises() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(2**70)
    with pytest.raises(ShapeMismatch, match="item 0 is an integer of more than 64 bits"):
        episode.to_numpy()


TENSORS = {
    "with a gradient": torch.ones(2, requires_grad=True) * 3,
    "of bfloat16": torch.full((2,), 3.0, dtype=torch.bfloat16),
    "that is a view": torch.full((2, 2), 3.0).T[1],
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_tensors_become_detached_arrays(tensor: Any) -> None:
    episode = SingleAgentEpisode("abc")
    episode.add_env_reset({"x": tensor})
    episode.add_env_step({"x": tensor}, tensor, 1.0, extra_model_outputs={"y": tensor})
    pack = EpisodePack.from_episodes([episode])
    for result in (pack.observations["x"][0], pack.actions[0], pack.extra_model_outputs["y"][0]):
        assert type(result) is np.ndarray
        assert result.tolist() == [3, 3]


@pytest.mark.parametrize("tensor", [torch.ones(2, device="meta"), torch.eye(2).to_sparse()])
def test_tensor_without_array_raises(tensor: Any) -> None:
    episode = SingleAgentEpisode("abc")
    episode.add_env_reset(0)
    episode.add_env_step(1, tensor, 1.0)
    with pytest.raises(ShapeMismatch, match=r"actions: item 0 cannot be an array: .*; give dense tensors"):
        episode.to_numpy()
    assert len(episode) == 1


@pytest.mark.parametrize("nothing", [{}, (), {"a": ()}])
def test_empty_observation_raises_on_finalize(nothing: Any) -> None:
    episode = SingleAgentEpisode("abc")
    episode.add_env_reset(nothing)
    episode.add_env_step(nothing, 0, 1.0)
    for finish in (episode.to_numpy, lambda: EpisodePack.from_episodes([episode])):
        with pytest.raises(ShapeMismatch, match=r"observations: item 0 is .*, which holds no array"):
            finish()


@pytest.mark.parametrize("tensor", [torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bfloat16)])
def test_tensor_observations_compare_and_concat(tensor: Any) -> None:
    def episode() -> SingleAgentEpisode:
        made = SingleAgentEpisode("abc")
        made.add_env_reset(tensor, {"seen": tensor})
        made.add_env_step(tensor, tensor, 1.0, {"seen": torch.zeros(3)})
        return made

    element, second = episode(), episode()
    assert element.equals(second)
    chunk = element.cut()
    chunk.add_env_step(2 * tensor, tensor, 1.0)
    element.concat_episode(chunk)
    assert not element.equals(second)
    assert element.to_numpy().get_observations()[:, 0].tolist() == [1.0, 1.0, 2.0]
    second.infos[1]["seen"] = torch.ones(3)
    assert not episode().equals(second)
