"""Relabelled steps have goals that their own episode reached, and the matching rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from connectors.learner import AddColumns, AddNextObservations, AddObservations, HindsightRelabel, LearnerPipeline
from episodes.errors import InvalidArgument, UnknownKey
from episodes.history import History
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode


def goal_episode(number: int, length: int) -> SingleAgentEpisode:
    """Return an episode whose achieved goals are 1000 * number + t. The desired goal is -1."""
    times = np.arange(length + 1.0)[:, None]
    observations = {
        "observation": times,
        "achieved_goal": times + 1000 * number,
        "desired_goal": np.full((length + 1, 1), -1.0),
    }
    infos = [{"place": 1000 * number + t} for t in range(length + 1)]
    return SingleAgentEpisode.from_arrays(
        observations, np.zeros(length, int), np.full(length, -1.0), infos=infos, terminated=True
    )


def reward(achieved: np.ndarray, goals: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
    """Return the distance from the goal, and check that the infos belong to the achieved goals."""
    assert [info["place"] for info in infos] == achieved[:, 0].astype(int).tolist()
    return np.abs(achieved - goals)[:, 0]


def relabelled(episodes: Any, **arguments: Any) -> dict[str, Any]:
    piece = HindsightRelabel(**{"compute_reward": reward, "seed": 0, "fraction": 1.0, **arguments})
    pipeline = LearnerPipeline(connectors=[AddObservations(), AddNextObservations(), AddColumns(), piece])
    return pipeline(episodes=episodes)


EPISODES = [goal_episode(number, length) for number, length in enumerate((5, 1, 8, 3))]
LENGTHS = np.array([5, 1, 8, 3])
NUMBER = np.repeat(np.arange(4), LENGTHS)
TIME = np.concatenate([np.arange(length) for length in LENGTHS])


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_were_reached_by_the_episode(strategy: str) -> None:
    goal_rows = []
    for seed in range(30):
        batch = relabelled(EPISODES, strategy=strategy, seed=seed)
        goals = batch["obs"]["desired_goal"][:, 0]
        assert np.array_equal(goals, batch["new_obs"]["desired_goal"][:, 0])
        assert np.array_equal(goals // 1000, NUMBER)
        assert np.array_equal(batch["rewards"], np.abs(goals % 1000 - TIME - 1))
        goal_rows.append(goals % 1000)
    times = np.array(goal_rows)
    lowest = {"future": TIME + 1, "final": LENGTHS[NUMBER], "episode": np.ones(len(TIME))}[strategy]
    assert np.array_equal(times.max(0), LENGTHS[NUMBER])
    assert (times >= lowest).all()
    assert (times.min(0) == lowest).mean() > 0.8


def test_only_a_fraction_is_relabelled_and_the_rest_stays() -> None:
    batch = relabelled([goal_episode(0, 4000)], fraction=0.3)
    old = batch["obs"]["desired_goal"][:, 0] == -1
    assert 0.25 < 1 - old.mean() < 0.35
    assert (batch["rewards"][old] == -1).all()
    assert (batch["rewards"][~old] >= 0).all()


def test_relabel_leaves_stored_episodes_unchanged() -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(EPISODES)
    before = EpisodePack.from_episodes(list(buffer.iter_episodes()))
    batch = relabelled(buffer.sample_episodes(6))
    assert (batch["obs"]["desired_goal"] >= 0).all()
    assert EpisodePack.from_episodes(list(buffer.iter_episodes())) == before


def test_chunk_with_lookback_takes_goals_from_its_steps() -> None:
    grown = SingleAgentEpisode("g")
    for t in range(7):
        observation = {"observation": np.zeros(1), "achieved_goal": np.full(1, t), "desired_goal": np.full(1, -1)}
        if t:
            grown.add_env_step(observation, 0, 0.0, {"place": t})
        else:
            grown.add_env_reset(observation, {"place": t})
    chunk = grown.slice(slice(3, 6), len_lookback_buffer=2).to_numpy()
    for strategy in ("future", "final", "episode"):
        goals = np.array([relabelled([chunk], strategy=strategy, seed=s)["obs"]["desired_goal"] for s in range(20)])
        assert set(goals.ravel().tolist()) <= {3, 4, 5, 6}


def test_reaching_the_goal_can_end_a_step() -> None:
    def reached(achieved: np.ndarray, goals: np.ndarray, infos: Any) -> np.ndarray:
        return (achieved == goals)[:, 0]

    batch = relabelled(EPISODES, strategy="final", compute_terminated=reached)
    assert np.array_equal(batch["terminateds"], LENGTHS[NUMBER] == TIME + 1)


def test_its_draws_can_be_repeated() -> None:
    piece = HindsightRelabel(compute_reward=reward, seed=3)
    pipeline = LearnerPipeline(connectors=[AddObservations(), AddNextObservations(), AddColumns(), piece])
    state = piece.get_state()
    first = pipeline(episodes=EPISODES)["rewards"]
    piece.set_state(state)
    assert np.array_equal(pipeline(episodes=EPISODES)["rewards"], first)


def test_observations_without_goals_are_an_error() -> None:
    plain = SingleAgentEpisode.from_arrays(np.zeros((3, 2)), np.zeros(2), np.zeros(2))
    with pytest.raises(UnknownKey, match="'achieved_goal' and 'desired_goal'"):
        relabelled([plain])


def test_arguments_that_make_no_sense_are_errors() -> None:
    with pytest.raises(InvalidArgument, match="fraction"):
        HindsightRelabel(compute_reward=reward, fraction=1.5)
    with pytest.raises(InvalidArgument, match="strategy"):
        HindsightRelabel(compute_reward=reward, strategy="past")


def test_views_see_the_other_goal_in_every_frame() -> None:
    def frames(history: History) -> dict[str, Any]:
        window = history.observations(2)
        parts = [window[name].reshape(len(history), -1) for name in ("observation", "desired_goal")]
        return {"obs": np.concatenate(parts, 1)}

    piece = HindsightRelabel(compute_reward=reward, strategy="final", fraction=1.0, seed=0)
    space = spaces.Dict({name: spaces.Box(-1, 1e4, (1,)) for name in ("observation", "achieved_goal", "desired_goal")})
    pipeline = LearnerPipeline(
        space, spaces.Discrete(2), connectors=[frames, AddObservations(), AddNextObservations(), AddColumns(), piece]
    )
    batch = pipeline(episodes=[goal_episode(1, 3)])
    assert batch["obs"].tolist() == [[0, 0, 0, 1003], [0, 1, 1003, 1003], [1, 2, 1003, 1003]]
    assert batch["new_obs"].tolist() == [[0, 1, 1003, 1003], [1, 2, 1003, 1003], [2, 3, 1003, 1003]]
