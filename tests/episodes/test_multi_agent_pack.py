"""`pack_agents` and `unpack_agents`."""

from __future__ import annotations

import pickle
import random
import tempfile

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from episodes.errors import InvalidArgument, TrackMismatch
from episodes.multi_agent import MultiAgentEpisode, pack_agents, unpack_agents
from episodes.pack import EpisodePack
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tracks.infos import msgpack_codec as encoding
from tests.episodes.test_multi_agent_histories import AGENTS, World


def random_episode(seed: int) -> MultiAgentEpisode:
    """Return a chunk with lookback and two schemas: agents a and b see vectors, c images."""
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


def test_unpack_agents_restores_episodes_in_order():
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


@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([(), ("a", "b"), AGENTS]))
def test_pack_agents_of_any_chunks_unpacks_equal(seed: int, repeats: bool, with_outputs: tuple[str, ...]) -> None:
    rng = random.Random(seed)
    world = World(rng, repeats, with_outputs)
    chunks = [MultiAgentEpisode(id_="game", missing_final_observation="repeat" if repeats else "raise")]
    chunks[0].add_env_reset(**world.reset())
    while not chunks[-1].is_done and rng.random() < 0.9:
        chunks[-1].add_env_step(**world.step())
        while not chunks[-1].is_done and rng.random() < 0.3:
            chunks.append(chunks[-1].cut(rng.randrange(4)))
    chunks = [chunk for chunk in chunks if chunk.agent_ids]
    together = unpack_agents(pickle.loads(pickle.dumps(pack_agents(chunks), 5)))
    apart = unpack_agents([pack for chunk in chunks for pack in pack_agents([chunk])])
    for restored in (together, apart):
        finished = [MultiAgentEpisode.from_state(chunk.get_state()).to_numpy() for chunk in chunks]
        for episode in restored:
            finished.remove(next(chunk for chunk in finished if episode.equals(chunk) and chunk.equals(episode)))
        assert not finished
    if with_outputs != ("a", "b") and chunks:
        with tempfile.TemporaryDirectory() as folder:
            with EpisodeWriter(folder) as writer:
                for chunk in chunks:
                    writer.add([chunk])
            stored = unpack_agents([EpisodePack.from_episodes(list(EpisodeDataset(folder)))])
        finished = [MultiAgentEpisode.from_state(chunk.get_state()).to_numpy() for chunk in chunks]
        assert len(stored) == len(finished)
        assert all(any(episode.equals(chunk) for chunk in finished) for episode in stored)


def test_packed_agents_survive_pickle_and_msgpack():
    episodes = [random_episode(seed) for seed in range(10)]
    packs = pickle.loads(pickle.dumps(pack_agents(episodes), protocol=5))
    for pack in packs:  # as it is on disk and on the wire
        pack.custom_data[:] = [encoding.decode(encoding.encode(data, "custom_data")) for data in pack.custom_data]
    for before, after in zip(episodes, unpack_agents(packs), strict=True):
        assert after.equals(before.to_numpy())


def test_unpacked_pending_action_completes():
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({}, {"a": 1}, {"a": 0.5}, extra_model_outputs={"a": {"vf": 2.0}})
    (restored,) = unpack_agents(pack_agents([episode]))
    going_on = restored.cut()
    going_on.add_env_step({"a": 1}, {}, {"a": 0.5})
    current = going_on.agent_episodes["a"]
    assert (current.get_actions(), current.get_rewards(), current.get_extra_model_outputs("vf")) == ([1], [1.0], [2.0])


def test_pack_agents_groups_by_schema():
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


def test_pack_agents_bad_input_raises():
    with pytest.raises(InvalidArgument, match="no agents"):
        pack_agents([MultiAgentEpisode()])
    packs = pack_agents([random_episode(3)])
    with pytest.raises(TrackMismatch, match="not all of its agents"):
        unpack_agents(packs[:-1])
    current = random_episode(3).agent_episodes["a"].to_numpy()
    with pytest.raises(TrackMismatch, match="not belong to a multi-agent episode"):
        unpack_agents([EpisodePack.from_episodes([current])])
