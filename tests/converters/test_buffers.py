"""Conversions to replay buffers of Stable-Baselines3, whose samplers must return correct transitions."""

from __future__ import annotations

from typing import Any

import law
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer

from episodes import SingleAgentEpisode
from episodes.converters import from_sb3, read, to_sb3
from episodes.errors import InvalidArgument, LostInConversion
from episodes.testing.strategies import spaces as drawn_spaces


def fits(space: Any) -> bool:
    """Return True if Stable-Baselines3 has a buffer for the space: arrays of numbers, or a Dict of such arrays."""
    return all(map(is_array, space.spaces.values() if isinstance(space, spaces.Dict) else [space]))


def is_array(space: Any) -> bool:
    one_axis = not isinstance(space, spaces.MultiDiscrete) or len(space.shape) == 1
    return one_axis and type(space) in (spaces.Box, spaces.Discrete, spaces.MultiDiscrete) and 0 not in space.shape


@settings(max_examples=15, phases=[Phase.generate])
@given(data=st.data())
def test_sb3_round_trip_of_random_episodes_reports_every_difference(data: st.DataObject) -> None:
    observations = data.draw(drawn_spaces().filter(fits))
    actions = data.draw(drawn_spaces().filter(is_array))
    original_episodes = data.draw(law.episode_lists(observations, actions))
    if not any(map(len, original_episodes)):
        return
    buffer, lost = to_sb3(original_episodes, observation_space=observations, action_space=actions)
    back, second_report = from_sb3(buffer)
    assert not second_report
    lost.join(second_report)
    spaces_given = {"observation_space", "action_space"}
    for original, restored in zip(law.convertible_episodes(original_episodes, lost), back, strict=True):
        assert law.unreported_differences(original, restored, lost) - spaces_given == set(), (
            original,
            restored,
            str(lost),
        )
    assert law.reported_without_loss(original_episodes, back, lost) == set()


def chain(steps: int, **ending: Any) -> SingleAgentEpisode:
    observations = np.arange(steps + 1, dtype=np.float32)[:, None]
    known = {"observation_space": spaces.Box(0, 99, (1,)), "action_space": spaces.Discrete(3)}
    return SingleAgentEpisode.from_arrays(
        observations, np.ones(steps, int), np.arange(steps, dtype=np.float32), **known, **ending
    )


def test_sb3_sampler_bootstraps_after_time_limit_and_cut_only() -> None:
    buffer, report = to_sb3([chain(3, terminated=True), chain(2, truncated=True), chain(4)], buffer_size=20)
    assert isinstance(buffer, ReplayBuffer)
    assert (buffer.pos, buffer.full, buffer.size()) == (9, False, 9)
    drawn = buffer.sample(500)
    pairs = {(float(a), float(b), float(d)) for a, b, d in zip(
        drawn.observations, drawn.next_observations, drawn.dones, strict=True
    )}  # fmt: skip
    assert pairs == {(0, 1, 0), (1, 2, 0), (2, 3, 0), (2, 3, 1), (3, 4, 0)}
    assert {loss.what for loss in report} == {"id_", "that the chunk goes on"}
    buffer.add(np.zeros((1, 1)), np.ones((1, 1)), np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    assert buffer.size() == 10
    episodes, _ = read(buffer)
    assert [(len(e), e.is_terminated, e.is_truncated) for e in episodes] == [
        (3, True, False), (2, False, True), (4, False, True), (1, False, False)
    ]  # fmt: skip


def test_to_sb3_reports_episode_of_other_space() -> None:
    arrays = np.zeros((3, 2), np.float32), np.zeros(2, int), np.zeros(2, np.float32)
    first, second = (
        SingleAgentEpisode.from_arrays(*arrays, observation_space=space, action_space=spaces.Discrete(2), id_=id_)
        for id_, space in (("a", spaces.Box(-9, 9, (2,))), ("b", spaces.Box(-5, 5, (2,))))
    )
    losses = [loss for loss in to_sb3([first, second])[1] if loss.what == "observation_space"]
    assert [(loss.num_episodes, loss.first) for loss in losses] == [(1, "b")]


def test_to_sb3_reports_rounded_rewards() -> None:
    episode = SingleAgentEpisode.from_arrays(np.full((3, 1), 0.1), np.ones(2, int), np.array([0.1, 1]), terminated=True)
    known = {"observation_space": spaces.Box(0, 1, (1,), np.float64), "action_space": spaces.Discrete(2)}
    _, report = to_sb3([episode], **known)
    assert {loss.what for loss in report} == {"id_", "rewards"}
    with pytest.raises(LostInConversion, match="rewards"):
        to_sb3([episode], strict=True, **known)


def test_to_sb3_of_invalid_input_raises_with_advice() -> None:
    with pytest.raises(InvalidArgument, match="give observation_space="):
        to_sb3([SingleAgentEpisode.from_arrays(np.zeros((2, 1)), [0], [0.0])])
    with pytest.raises(InvalidArgument, match="there are 3 steps"):
        to_sb3([chain(3)], buffer_size=2)
    with pytest.raises(InvalidArgument, match="no buffer for"):
        to_sb3([chain(3)], observation_space=spaces.Tuple([spaces.Discrete(2)]))
    with pytest.raises(InvalidArgument, match="no episodes with a step"):
        to_sb3([chain(0)])
