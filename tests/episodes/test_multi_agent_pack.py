"""Multi-agent episodes go into packs as their agents' episodes and their clocks, and come out whole."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
from gymnasium import spaces

from episodes.errors import InvalidArgument, TrackMismatch
from episodes.multi_agent import MultiAgentEpisode, pack_agents, unpack_agents
from episodes.pack import EpisodePack
from episodes.tracks.infos import documents as encoding


def random_episode(seed: int) -> MultiAgentEpisode:
    """A chunk with lookback in which agents wait, end and come late, of two kinds: a and b see vectors, c images."""
    rng = random.Random(seed)
    shapes = {"a": (2,), "b": (2,), "c": (3, 3)}
    item = lambda agent, t: np.full(shapes[agent], t, np.float32)  # noqa: E731
    episode = MultiAgentEpisode(
        id_=f"episode {seed}",
        observation_space={a: spaces.Box(-1, 99, shape, np.float32) for a, shape in shapes.items()},
        agent_to_module_mapping_fn=lambda agent, episode: f"module of {agent}",
    )
    episode.custom_data["seed"] = seed
    episode.add_env_reset(observations={"a": item("a", 0)}, infos={"__common__": {"level": 1}})
    waiting: set[str] = set()
    for t in range(1, rng.randrange(3, 15)):
        acting = {a for a in episode.get_agents_to_act() if rng.random() < 0.8}
        observed = {a for a in waiting | acting if rng.random() < 0.7}
        waiting = (waiting | acting) - observed - ({"b"} if t == 9 else set())
        observed |= {"b", "c"} if t == 2 else set()
        episode.add_env_step(
            {a: item(a, t) for a in observed},
            dict.fromkeys(acting, t),
            dict.fromkeys(("a", "b", "c"), 0.5),
            {a: {"t": t} for a in observed if rng.random() < 0.5},
            terminateds={"b": True} if t == 9 else None,
            extra_model_outputs={a: {"vf": float(t)} for a in acting if a != "c"},
        )
        if t == 4 and seed % 2:
            episode = episode.cut(2)
    return episode


def test_random_episodes_come_out_of_packs_whole_and_in_order():
    episodes = [random_episode(seed) for seed in range(60)]
    packs = pack_agents(episodes)
    assert sum(map(len, packs)) == sum(len(episode.agent_ids) for episode in episodes)
    restored = unpack_agents(packs)
    assert [episode.id_ for episode in restored] == [episode.id_ for episode in episodes]
    for before, after in zip(episodes, restored, strict=True):
        assert not before.is_numpy
        assert after.equals(before.to_numpy())
        assert after.get_return(include_pending=True) == before.get_return(include_pending=True)
        assert {a: after.module_for(a) for a in after.agent_ids} == {a: f"module of {a}" for a in before.agent_ids}


def test_they_go_wherever_packs_go():
    episodes = [random_episode(seed) for seed in range(10)]
    packs = pickle.loads(pickle.dumps(pack_agents(episodes), protocol=5))
    for pack in packs:  # as it is on disk and on the wire
        pack.custom_data[:] = [encoding.decode(encoding.encode(data, "custom_data")) for data in pack.custom_data]
    for before, after in zip(episodes, unpack_agents(packs), strict=True):
        assert after.equals(before.to_numpy())


def test_a_waiting_agent_goes_on_after_unpacking():
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({}, {"a": 1}, {"a": 0.5}, extra_model_outputs={"a": {"vf": 2.0}})
    (restored,) = unpack_agents(pack_agents([episode]))
    going_on = restored.cut()
    going_on.add_env_step({"a": 1}, {}, {"a": 0.5})
    own = going_on.agent_episodes["a"]
    assert (own.get_actions(), own.get_rewards(), own.get_extra_model_outputs("vf")) == ([1], [1.0], [2.0])


def test_like_agents_share_a_pack_and_others_have_their_own():
    episodes = []
    for seed in range(3):
        episode = MultiAgentEpisode(id_=str(seed))
        episode.add_env_reset(observations={"a": np.zeros(2), "b": np.zeros(2), "c": np.zeros((3, 3))})
        episode.add_env_step(
            {"a": np.ones(2), "b": np.ones(2), "c": np.ones((3, 3))}, dict.fromkeys("abc", 1), dict.fromkeys("abc", 1.0)
        )
        episodes.append(episode)
    packs = pack_agents(episodes)
    assert [list(pack.agent_ids) for pack in packs] == [["a", "b"] * 3, ["c"] * 3]
    assert list(packs[0].multi_agent_episode_ids) == ["0", "0", "1", "1", "2", "2"]


def test_what_cannot_be_packed_or_unpacked_says_so():
    with pytest.raises(InvalidArgument, match="no agents"):
        pack_agents([MultiAgentEpisode()])
    packs = pack_agents([random_episode(3)])
    with pytest.raises(TrackMismatch, match="not all of its agents"):
        unpack_agents(packs[:-1])
    own = random_episode(3).agent_episodes["a"].to_numpy()
    with pytest.raises(TrackMismatch, match="of no multi-agent episode"):
        unpack_agents([EpisodePack.from_episodes([own])])
