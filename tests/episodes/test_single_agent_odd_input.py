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


WRONG_DATA: list[tuple[str, Any, Any]] = [
    *(("actions", [new], [0]) for new in ("a", None, object())),
    *(("rewards", new, None) for new in (0.0, (1.0, 2.0, 3.0), np.zeros((3, 3)), np.zeros((3, 1)))),
    *(("rewards", new, at) for new in (["a"] * 3, [None] * 3, [0.0, [1.0], 2.0]) for at in (None, [0, 1, 2])),
    ("rewards", np.zeros((3, 1)), [0, 1, 2]),
]


@pytest.mark.parametrize(("name", "new", "at"), WRONG_DATA)
def test_setter_of_wrong_items_raises(name: str, new: Any, at: Any) -> None:
    for episode in (grown().to_numpy(), grown())[: 1 if name == "actions" else 2]:  # a list has actions of any kind
        before = SingleAgentEpisode.from_state(episode.get_state())
        with pytest.raises((ShapeMismatch, WrongType), match=name):
            getattr(episode, f"set_{name}")(new_data=new, at_indices=at)
        if isinstance(new, float | tuple):
            with pytest.raises(ShapeMismatch, match="give a list of items"):
                episode.set_extra_model_outputs(key="new", new_data=new)
        assert episode.equals(before)


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


def test_object_arrays_and_non_numeric_rewards_raise() -> None:
    good: Any = {"observations": np.zeros(2), "actions": np.zeros(1), "rewards": np.ones(1)}
    for invalid in ({"observations": np.array([None, 1])}, {"rewards": np.array(["a"])}, {"rewards": np.array([None])}):
        with pytest.raises(WrongType, match=next(iter(invalid))):
            SingleAgentEpisode.from_arrays(**good | invalid)
        with pytest.raises(WrongType, match=next(iter(invalid))):
            EpisodePack(**good | invalid, lengths=[1])
    with pytest.raises(ShapeMismatch, match="one number"):
        EpisodePack(**good | {"rewards": np.ones((1, 1))}, lengths=[1])


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


SPACE = spaces.Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize("steps_before", [1, 3])
@pytest.mark.parametrize(
    ("space", "first", "then", "action", "named"),
    [
        (None, np.zeros(2), np.array(["a", "b"]), 0, "the observation has dtype <U1"),
        (None, np.zeros(2, np.uint8), np.array([None, 1]), 0, "the observation has dtype object"),
        (SPACE, np.zeros(2, np.uint8), np.full(2, 0.5), 0, "cannot hold 0.5"),
        (SPACE, np.zeros(2, np.uint8), np.full(2, -1), 0, "cannot hold -1"),
        (None, np.zeros(2), np.zeros(2), "up", "the action has dtype <U2"),
    ],
)
def test_step_of_another_kind_raises_at_once_and_changes_nothing(
    space: Any, first: Any, then: Any, action: Any, named: str, steps_before: int
) -> None:
    episode = SingleAgentEpisode(observation_space=space)
    episode.add_env_reset(first)
    for _ in range(steps_before):
        episode.add_env_step(first, 0, 1.0)
    with pytest.raises(ShapeMismatch, match=named):
        episode.add_env_step(then, action, 1.0)
    assert len(episode) == steps_before
    episode.add_env_step(first.astype(np.float32) if space is None else first, 0, 1.0)
    assert len(episode.to_numpy()) == steps_before + 1
