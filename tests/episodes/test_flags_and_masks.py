"""Invalid flags of endings, and masked arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import WrongType

NO_FLAGS: list[Any] = ["False", "True", "", None, [], {}, 0.5, 2, float("nan"), ..., np.array([True]), np.ma.masked]
FLAGS: list[Any] = [True, False, 1, 0, np.bool_(True), np.bool_(False), np.array(True), 1.0, torch.tensor(True)]


def stepped(**flags: Any) -> SingleAgentEpisode:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0.0)
    episode.add_env_step(0.0, 0, 1.0, **flags)
    return episode


def agents_stepped(**flags: Any) -> MultiAgentEpisode:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0})
    episode.add_env_step({"a": 0.0}, {"a": 0}, {"a": 0.0}, **flags)
    return episode


@pytest.mark.parametrize("flag", NO_FLAGS, ids=repr)
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_ending_flag_of_wrong_type_raises(name, flag):
    episode, arrays = stepped(), (np.zeros(2), np.zeros(1), np.zeros(1))
    for call in (
        lambda: episode.add_env_step(1.0, 0, 1.0, **{name: flag}),
        lambda: setattr(episode, f"is_{name}", flag),
        lambda: SingleAgentEpisode.from_arrays(*arrays, **{name: flag}),
    ):
        with pytest.raises(WrongType, match="not a flag of an ending"):
            call()
    assert (len(episode), episode.is_done) == (1, False)
    for agent_id in ("a", "__all__"):
        with pytest.raises(WrongType, match="not a flag of an ending"):
            agents_stepped(**{f"{name}s": {agent_id: flag}})


@pytest.mark.parametrize("flag", FLAGS, ids=repr)
def test_ending_flags_accept_zero_and_one(flag):
    episode = stepped(terminated=flag)
    assert episode.is_terminated is bool(flag)
    episode.is_truncated = flag
    assert episode.is_truncated is bool(flag)
    assert agents_stepped(truncateds={"a": flag}).is_truncated is bool(flag)


def test_flags_of_agents_that_are_no_dict_raise():
    with pytest.raises(WrongType, match="a dict from agent to flag"):
        agents_stepped(terminateds=True)


@pytest.mark.parametrize("flags", [["False", "True"], [None, None], [0.5, 1.0], np.ma.masked_all(2, bool)])
def test_pack_flags_of_wrong_type_raise(flags):
    columns = {"observations": np.zeros(4), "actions": np.zeros(2), "rewards": np.zeros(2), "lengths": [1, 1]}
    with pytest.raises(WrongType):
        EpisodePack(**columns, terminated=flags)
    assert EpisodePack(**columns, terminated=[0, 1]).terminated.tolist() == [False, True]


def test_episode_masked_item_raises():
    episode = stepped()
    with pytest.raises(WrongType, match="the reward is a MaskedConstant"):
        episode.add_env_step(0.0, 0, np.ma.masked)
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.ma.masked_array(np.zeros(2), mask=[True, False]))
    episode.add_env_step(np.zeros(2), 0, 1.0)
    with pytest.raises(WrongType, match="observations: item 0 is masked"):
        episode.to_numpy()
    with pytest.raises(WrongType, match="masked"):
        SingleAgentEpisode.from_arrays(np.ma.masked_array(np.zeros(2), mask=True), [0], [1.0])
