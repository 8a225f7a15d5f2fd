"""Rewards divided by the running standard deviation of discounted returns."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from connectors import learner_pipeline
from connectors.learner import NormalizeRewards
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode

SPACES = spaces.Box(-9, 9, (2,)), spaces.Discrete(2)
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def make_episodes(lengths: list[int], seed: int) -> list[SingleAgentEpisode]:
    rng = np.random.default_rng(seed)
    return [
        SingleAgentEpisode.from_arrays(
            rng.normal(size=(length + 1, 2)).astype(np.float32),
            rng.integers(0, 2, length),
            rng.normal(1.0, 3.0, length),
            terminated=i % 2 == 0,
            truncated=i % 2 == 1,
            id_=f"e{i}",
        )
        for i, length in enumerate(lengths)
    ]


def deviation_of(episodes: list[SingleAgentEpisode], gamma: float) -> float:
    """Return the standard deviation of the running returns of all steps of whole episodes."""
    returns = []
    for episode in episodes:
        total = 0.0
        for reward in np.asarray(episode.get_rewards()):
            total = gamma * total + reward
            returns.append(total)
    return float(np.std(returns)) if len(returns) > 1 else 1.0


def divisor(pipeline: Any, episode: SingleAgentEpisode) -> float:
    """Return the number by which the pipeline divides rewards, from a pack that it has seen already."""
    rewards = np.asarray(pipeline(episodes=[episode])["rewards"], np.float64)
    return float(np.abs(episode.get_rewards()).max() / np.abs(rewards).max())


@given(LENGTHS, st.integers(0, 99), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.data())
def test_packs_in_any_order_and_repeated_give_the_deviation_of_all_returns(
    lengths: list[int], seed: int, gamma: float, data: st.DataObject
):
    episodes = make_episodes(lengths, seed)
    chunks = []
    for episode in episodes:
        cuts = sorted(data.draw(st.sets(st.integers(0, len(episode)))) | {0, len(episode)})
        chunks += [episode[low:high] for low, high in itertools.pairwise(cuts)]
        low, high = sorted(data.draw(st.tuples(st.integers(0, len(episode)), st.integers(0, len(episode)))))
        chunks += [episode[low:high]] * (high > low)  # a range that other chunks have, too
    chunks = data.draw(st.permutations(chunks + data.draw(st.lists(st.sampled_from(chunks), max_size=3))))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=len(chunks), max_size=len(chunks)))
    pipeline = learner_pipeline(*SPACES, pieces=[NormalizeRewards(gamma=gamma, clip=None)])
    for size in sizes:
        pack, chunks = chunks[:size], chunks[size:]
        if pack:
            pipeline(episodes=EpisodePack.from_episodes(pack))
            if data.draw(st.booleans()):
                pipeline.set_state(pipeline.get_state())
    assert divisor(pipeline, episodes[0]) == pytest.approx(deviation_of(episodes, gamma), rel=1e-4)
    assert [episode.get_return() for episode in episodes] == [np.sum(episode.get_rewards()) for episode in episodes]


def test_chunks_of_episodes_that_never_end_or_begin_take_bounded_memory():
    piece = NormalizeRewards(gamma=0.5)
    pipeline = learner_pipeline(*SPACES, pieces=[piece])
    whole = make_episodes([400], 0)[0]
    for low in range(1, 400, 2):  # every second step, as random windows leave gaps
        pipeline(episodes=[whole[low : low + 1]])
    assert len(piece.get_state()["ranges"]) < 100
    for batch in range(12):
        pipeline(episodes=[SingleAgentEpisode.from_arrays(whole[:1].get_observations(), [0], [1.0], id_=f"{batch} {i}")
                           for i in range(1000)])  # fmt: skip
    assert len(piece.get_state()["ranges"]) == 10_000
    assert piece.get_state()["count"] == 12_000 + 200


def test_a_reward_that_is_not_finite_is_refused_and_changes_nothing():
    piece = NormalizeRewards()
    pipeline = learner_pipeline(*SPACES, pieces=[piece])
    good, bad = make_episodes([3, 4], 1)
    pipeline(episodes=[good])
    before = piece.get_state()
    rewards = np.array(bad.get_rewards())
    rewards[2] = np.nan
    bad = SingleAgentEpisode.from_arrays(bad.get_observations(), bad.get_actions(), rewards, id_="bad", t_started=5)
    with pytest.raises(InvalidArgument, match="episode bad has the reward nan at step 7"):
        pipeline(episodes=[good, bad])
    after = piece.get_state()
    assert after["count"] == before["count"]
    assert after["squares"] == before["squares"]


def test_normalized_rewards_are_clipped_and_statistics_are_restored():
    parts = make_episodes([8, 8], 0)
    pieces = [NormalizeRewards(clip=0.1), NormalizeRewards(clip=0.1)]
    pipelines = [learner_pipeline(*SPACES, pieces=[piece]) for piece in pieces]
    batch = pipelines[0](episodes=parts)
    assert float(batch["rewards"].abs().max()) == pytest.approx(0.1)
    pipelines[1].set_state(pipelines[0].get_state())
    same = [np.asarray(pipeline(episodes=parts)["rewards"]) for pipeline in pipelines]
    assert np.array_equal(*same)
    with pytest.raises(InvalidArgument, match="clip is 0"):
        NormalizeRewards(clip=0)


def test_agents_with_one_id_are_several_episodes():
    """Rewards of the second agent count, in one pack and in two, also after the state was written to a file."""
    agents = [
        SingleAgentEpisode.from_arrays(
            np.zeros((4, 2), np.float32), [0, 1, 0], rewards, id_="x", agent_id=agent, multi_agent_episode_id="m"
        )
        for agent, rewards in (("a", [1.0, 1.0, 1.0]), ("b", [9.0, 8.0, 7.0]))
    ]
    expected = 1 / deviation_of(agents, 0.99)
    together = learner_pipeline(*SPACES, pieces=[NormalizeRewards(clip=None)])
    assert together(episodes=EpisodePack.from_episodes(agents))["rewards"][0] == pytest.approx(expected)
    first, second = NormalizeRewards(clip=None), NormalizeRewards(clip=None)
    learner_pipeline(*SPACES, pieces=[first])(episodes=EpisodePack.from_episodes(agents))
    second.set_state(json.loads(json.dumps(first.get_state(), default=float)))
    batch = learner_pipeline(*SPACES, pieces=[second])(episodes=EpisodePack.from_episodes(agents))
    assert batch["rewards"][0] == pytest.approx(expected)
