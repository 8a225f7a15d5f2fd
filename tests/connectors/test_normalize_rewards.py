"""Rewards divided by the running standard deviation of discounted returns."""

from __future__ import annotations

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

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def chunks(lengths: list[int], cuts: list[int], seed: int) -> list[list[SingleAgentEpisode]]:
    """Return episodes of the given lengths, each cut after at most `cuts` steps."""
    rng = np.random.default_rng(seed)
    episodes = []
    for i, length in enumerate(lengths):
        whole = SingleAgentEpisode.from_arrays(
            rng.normal(size=(length + 1, 2)).astype(np.float32),
            rng.integers(0, 2, length),
            rng.normal(1.0, 3.0, length),
            terminated=i % 2 == 0,
            truncated=i % 2 == 1,
            id_=f"e{i}",
        )
        at = min(cuts[i % len(cuts)], length)
        episodes.append([whole[:at], whole[at:]] if at < length else [whole])
    return episodes


@given(LENGTHS, st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 99))
def test_rewards_are_divided_by_the_deviation_of_all_returns(lengths: list[int], cuts: list[int], seed: int):
    parts = chunks(lengths, cuts, seed)
    pipeline = learner_pipeline(
        spaces.Box(-9, 9, (2,)), spaces.Discrete(2), pieces=[NormalizeRewards(gamma=0.9, clip=None)]
    )
    first = pipeline(episodes=EpisodePack.from_episodes([episode_chunks[0] for episode_chunks in parts]))
    later = [episode_chunks[1] for episode_chunks in parts if len(episode_chunks) > 1]
    batch, last = (
        (pipeline(episodes=EpisodePack.from_episodes(later)), later) if later else (first, [p[0] for p in parts])
    )
    returns = []
    for episode_chunks in parts:
        total = 0.0
        for reward in np.concatenate([np.asarray(part.get_rewards()) for part in episode_chunks]):
            total = 0.9 * total + reward
            returns.append(total)
    deviation = np.std(returns) if len(returns) > 1 else 1.0
    expected = np.concatenate([np.asarray(part.get_rewards()) for part in last]) / max(deviation, 1e-8)
    np.testing.assert_allclose(np.asarray(batch["rewards"]), expected, rtol=1e-4)
    assert [part.get_return() for part in last] == [pytest.approx(np.sum(part.get_rewards())) for part in last]


def test_normalized_rewards_are_clipped_and_statistics_are_restored():
    parts = [episode_chunks[0] for episode_chunks in chunks([8, 8], [9], 0)]
    pieces = [NormalizeRewards(clip=0.1), NormalizeRewards(clip=0.1)]
    pipelines = [learner_pipeline(spaces.Box(-9, 9, (2,)), spaces.Discrete(2), pieces=[piece]) for piece in pieces]
    batch = pipelines[0](episodes=parts)
    assert float(batch["rewards"].abs().max()) == pytest.approx(0.1)
    pipelines[1].set_state(pipelines[0].get_state())
    same = [np.asarray(pipeline(episodes=parts)["rewards"]) for pipeline in pipelines]
    assert np.array_equal(*same)
    with pytest.raises(InvalidArgument, match="clip is 0"):
        NormalizeRewards(clip=0)
