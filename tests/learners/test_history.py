"""Whole episodes from chunks of a runner."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from gymnasium import spaces

from episode_learners.episode_history import EpisodeHistory
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode


def episode(length: int, id_: str, *, terminated: bool = True) -> SingleAgentEpisode:
    rng = np.random.default_rng(length)
    return SingleAgentEpisode.from_arrays(
        rng.normal(size=(length + 1, 3)).astype(np.float32),
        rng.integers(0, 2, length),
        rng.normal(size=length),
        id_=id_,
        terminated=terminated,
        truncated=not terminated,
        action_space=spaces.Discrete(2),
    )


def chunks(whole: SingleAgentEpisode, *bounds: int) -> list[SingleAgentEpisode]:
    edges = [0, *bounds, len(whole)]
    return [whole[a:b] for a, b in pairwise(edges)]


def test_history_joins_chunks_to_episodes():
    a, b = episode(9, "a"), episode(5, "b", terminated=False)
    a_chunks, b_chunks = chunks(a, 3, 6), chunks(b, 4)
    history = EpisodeHistory()
    history.add(EpisodePack.from_episodes([a_chunks[0], b_chunks[0]]))
    assert history.returns == history.episodes() == []
    assert np.isnan(history.mean_return())
    history.add(EpisodePack.from_episodes([b_chunks[1], a_chunks[1]]))
    history.add(EpisodePack.from_episodes([a_chunks[2]]))
    assert history.lengths == [5, 9]
    assert history.returns == pytest.approx([b.get_return(), a.get_return()])
    assert history.num_steps == 14
    for joined, whole in zip(history.episodes(), [b, a], strict=True):
        assert joined.id_ == whole.id_
        assert (joined.is_terminated, joined.is_truncated) == (whole.is_terminated, whole.is_truncated)
        assert np.array_equal(joined.get_observations(), whole.get_observations())
        assert np.array_equal(joined.get_rewards(), whole.get_rewards())


def test_history_stores_last_and_counts_all_episodes():
    history = EpisodeHistory(keep=2)
    for i in range(5):
        history.add(EpisodePack.from_episodes([episode(i + 1, str(i))]))
    assert [stored_episode.id_ for stored_episode in history.episodes()] == ["3", "4"]
    assert history.lengths == [1, 2, 3, 4, 5]
    assert history.mean_return(2) == pytest.approx(np.mean(history.returns[-2:]))
