"""Replay buffers of Stable-Baselines3 and Tianshou that are filled here: their own samplers give right transitions."""

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
    """Whether SB3 has a buffer for it: an array of numbers, or a Dict of these."""
    return all(map(is_array, space.spaces.values() if isinstance(space, spaces.Dict) else [space]))


def is_array(space: Any) -> bool:
    one_axis = not isinstance(space, spaces.MultiDiscrete) or len(space.shape) == 1
    return one_axis and type(space) in (spaces.Box, spaces.Discrete, spaces.MultiDiscrete) and 0 not in space.shape


@settings(max_examples=15, phases=[Phase.generate])
@given(data=st.data())
def test_a_buffer_of_sb3_gives_back_what_it_was_given_or_it_was_named(data: st.DataObject) -> None:
    observed = data.draw(drawn_spaces().filter(fits))
    acted = data.draw(drawn_spaces().filter(is_array))
    given_ = data.draw(law.lists(observed, acted))
    if not any(map(len, given_)):
        return
    buffer, lost = to_sb3(given_, observation_space=observed, action_space=acted)
    back, more = from_sb3(buffer)
    assert not more
    lost.join(more)
    spaces_given = {"observation_space", "action_space"}
    for one, other in zip(law.kept(given_, lost), back, strict=True):
        assert law.unnamed(one, other, lost) - spaces_given == set(), (one, other, str(lost))
    assert law.told_for_nothing(given_, back, lost) == set()


def chain(steps: int, **ending: Any) -> SingleAgentEpisode:
    seen = np.arange(steps + 1, dtype=np.float32)[:, None]
    known = {"observation_space": spaces.Box(0, 99, (1,)), "action_space": spaces.Discrete(3)}
    return SingleAgentEpisode.from_arrays(
        seen, np.ones(steps, int), np.arange(steps, dtype=np.float32), **known, **ending
    )


def test_a_sampler_of_sb3_bootstraps_after_a_time_limit_and_a_cut_and_not_after_a_termination() -> None:
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
    found, _ = read(buffer)
    assert [(len(e), e.is_terminated, e.is_truncated) for e in found] == [
        (3, True, False), (2, False, True), (4, False, True), (1, False, False)
    ]  # fmt: skip


def test_a_space_that_is_not_that_of_the_buffer_is_named() -> None:
    arrays = np.zeros((3, 2), np.float32), np.zeros(2, int), np.zeros(2, np.float32)
    one, other = (
        SingleAgentEpisode.from_arrays(*arrays, observation_space=space, action_space=spaces.Discrete(2), id_=id_)
        for id_, space in (("a", spaces.Box(-9, 9, (2,))), ("b", spaces.Box(-5, 5, (2,))))
    )
    found = [loss for loss in to_sb3([one, other])[1] if loss.what == "observation_space"]
    assert [(loss.num_episodes, loss.first) for loss in found] == [(1, "b")]


def test_what_sb3_rounds_is_named() -> None:
    episode = SingleAgentEpisode.from_arrays(np.full((3, 1), 0.1), np.ones(2, int), np.array([0.1, 1]), terminated=True)
    known = {"observation_space": spaces.Box(0, 1, (1,), np.float64), "action_space": spaces.Discrete(2)}
    _, report = to_sb3([episode], **known)
    assert {loss.what for loss in report} == {"id_", "rewards"}
    with pytest.raises(LostInConversion, match="rewards"):
        to_sb3([episode], strict=True, **known)


def test_bad_input_is_said_with_what_to_do() -> None:
    with pytest.raises(InvalidArgument, match="give observation_space="):
        to_sb3([SingleAgentEpisode.from_arrays(np.zeros((2, 1)), [0], [0.0])])
    with pytest.raises(InvalidArgument, match="there are 3 steps"):
        to_sb3([chain(3)], buffer_size=2)
    with pytest.raises(InvalidArgument, match="no buffer for"):
        to_sb3([chain(3)], observation_space=spaces.Tuple([spaces.Discrete(2)]))
    with pytest.raises(InvalidArgument, match="no episodes with a step"):
        to_sb3([chain(0)])
