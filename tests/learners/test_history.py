"""Whole episodes from chunks of a runner, and reports of them as text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from episode_learners.episode_history import EpisodeHistory
from episode_learners.run_summary import draw_run, episode_table
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
    assert history.returns == []
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


def test_history_without_ended_episode_is_empty():
    history = EpisodeHistory()
    history.add(EpisodePack.from_episodes(chunks(episode(4, "a"), 2)[:1]))
    assert np.isnan(history.mean_return())
    assert history.episodes() == []


def test_episode_table_has_a_line_per_episode():
    lines = episode_table([episode(9, "a"), episode(5, "bb", terminated=False)]).splitlines()
    assert lines[0].split() == ["episode", "length", "return", "ending"]
    assert [line.split()[0] for line in lines[1:]] == ["a", "bb"]
    assert [line.split()[1] for line in lines[1:]] == ["9", "5"]
    assert [line.split()[3] for line in lines[1:]] == ["terminated", "truncated"]


@pytest.mark.parametrize("num_observed", [1, 3, 20])
def test_draw_run_accepts_any_observation_size(num_observed, tmp_path: Path):
    whole = SingleAgentEpisode.from_arrays(
        np.zeros((6, num_observed), np.float32), np.zeros((5, 2), np.float32), np.ones(5), truncated=True
    )
    figure = draw_run([1.0, 2.0, 5.0], [1, 2, 5], whole, title="a run", goal=4.0)
    figure.savefig(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == 2  # returns, and the lanes of the episode
