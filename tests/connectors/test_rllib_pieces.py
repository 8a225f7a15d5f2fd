"""Connectors written for RLlib's documented interface work after a change of imports.

In RLlib their base classes are `ray.rllib.connectors.connector_v2.ConnectorV2` and
`ray.rllib.connectors.env_to_module.observation_preprocessor.SingleAgentObservationPreprocessor`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from connectors import Connector as ConnectorV2
from connectors import env_to_module_pipeline, learner_pipeline
from episodes import EpisodePack, SingleAgentEpisode, VectorRecorder
from episodes.errors import InvalidArgument, ShapeMismatch, UnknownKey
from tests.moving.test_learner_pieces import CountBasedCuriosity
from tests.moving.test_preprocessors import OneHot


def two_episodes() -> list[SingleAgentEpisode]:
    observations = [np.array([[0], [1], [1]], np.float32), np.array([[1], [2]], np.float32)]
    return [SingleAgentEpisode.from_arrays(o, [0] * (len(o) - 1), [0.0] * (len(o) - 1)) for o in observations]


def test_reward_shaping_affects_later_connectors_only() -> None:
    for episodes in (two_episodes(), EpisodePack.from_episodes(two_episodes())):
        pipeline = learner_pipeline(pieces=[CountBasedCuriosity()])
        assert pipeline(episodes=episodes)["rewards"].tolist() == [1.0, 0.5, 1.0]
        assert [episode.get_return() for episode in episodes] == [0.0, 0.0]
        state = pipeline.get_state()
        assert state == {"CountBasedCuriosity": {"counts": {(1.0,): 2, (2.0,): 1}}}
        pipeline.set_state(state)
        assert pipeline(episodes=episodes)["rewards"].tolist() == pytest.approx([1 / 3, 1 / 4, 1 / 2])


def test_preprocessor_rewrites_last_observation_once() -> None:
    pipeline = env_to_module_pipeline(spaces.Discrete(3), spaces.Discrete(2), pieces=[OneHot()])
    episodes = [SingleAgentEpisode(), SingleAgentEpisode()]
    for i, episode in enumerate(episodes):
        episode.add_env_reset(i)
    for _ in range(2):  # the second call finds everything rewritten
        assert pipeline(episodes=episodes)["obs"].tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    assert episodes[1].get_observations(-1).tolist() == [0.0, 1.0, 0.0]
    episodes[1].add_env_step(2, 0, 1.0)
    assert pipeline(episodes=episodes)["obs"].tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


def test_preprocessor_in_learner_rewrites_all_observations() -> None:
    episode = SingleAgentEpisode.from_arrays(np.array([0, 2, 1]), [0, 0], [0.0, 0.0])
    pipeline = learner_pipeline(spaces.Discrete(3), pieces=[OneHot()], next_observations=True)
    batch = pipeline(episodes=[episode])
    assert batch["new_obs"].argmax(-1).tolist() == [2, 1]
    assert episode.get_observations().tolist() == [0, 2, 1]


def test_writing_to_recorded_episode_raises() -> None:
    recorder = VectorRecorder(
        1, spaces.Box(0, 1, (1,)), spaces.Discrete(2), autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP
    )
    recorder.reset(np.zeros((1, 1), np.float32), {})
    recorder.step(np.ones((1, 1), np.float32), np.zeros(1, int), np.ones(1), np.zeros(1, bool), np.zeros(1, bool), {})
    pipeline = env_to_module_pipeline(spaces.Box(0, 1, (1,)), spaces.Discrete(2), pieces=[CountBasedCuriosity()])
    with pytest.raises(InvalidArgument, match=r"CountBasedCuriosity wrote .* put it into the learner pipeline"):
        pipeline(batch={"obs": np.zeros((1, 1), np.float32)}, episodes=recorder.episodes)


class Bare(ConnectorV2):
    """Connector that does not call the constructor of its base class."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        batch["rewards"] = batch["rewards"] * self.factor
        return batch


def test_connector_without_base_constructor_works() -> None:
    pipeline = learner_pipeline(spaces.Box(0, 9, (1,)), spaces.Discrete(2))
    pipeline.insert_after("AddColumns", Bare(2.0))
    assert pipeline["Bare"].observation_space == spaces.Box(0, 9, (1,))
    episode = SingleAgentEpisode.from_arrays(np.zeros((2, 1)), [0], [4.0])
    assert pipeline(episodes=[episode])["rewards"].tolist() == [8.0]


def test_items_are_changed_with_the_ids_of_their_episode() -> None:
    episode = SingleAgentEpisode("E1", agent_id="left", module_id="net")
    batch: dict[str, Any] = {}
    ConnectorV2.add_batch_item(batch, "c", 1, episode)
    ConnectorV2.add_n_batch_items(batch, "c", [2, 3], 2, episode)
    ConnectorV2.add_n_batch_items(batch, "d", np.array([10, 20, 30]), 3, episode)
    calls = []

    def change(items: tuple[int, int], *ids: str) -> tuple[int, int]:
        calls.append((tuple(map(int, items)), ids))
        return items[0] + 1, items[1] + 1

    ConnectorV2.foreach_batch_item_change_in_place(batch, ["c", "d"], change)
    assert calls == [
        ((1, 10), ("E1", "left", "net")),
        ((2, 20), ("E1", "left", "net")),
        ((3, 30), ("E1", "left", "net")),
    ]
    assert batch["c"].joined().tolist() == [2, 3, 4]
    assert batch["d"].joined().tolist() == [11, 21, 31]
    assert batch["c"].row_owners() == batch["d"].row_owners()
    with pytest.raises(UnknownKey, match="no column 'e' in the batch, which has c, d"):
        ConnectorV2.foreach_batch_item_change_in_place(batch, "e", change)


def test_adding_wrong_number_of_items_raises() -> None:
    for items in ([1, 2], np.zeros((2, 3)), {"a": np.zeros(2), "b": np.zeros(3)}):
        with pytest.raises(ShapeMismatch, match=r"add_n_batch_items\('c', num_items=3\)"):
            ConnectorV2.add_n_batch_items({}, "c", items, 3)


def test_items_are_appended_to_existing_column() -> None:
    batch: dict[str, Any] = {"c": np.array([1.0, 2.0])}
    ConnectorV2.add_batch_item(batch, "c", 3.0)
    assert batch["c"].joined().tolist() == [1.0, 2.0, 3.0]


def test_episodes_are_paired_with_the_rows_of_a_column() -> None:
    episodes = two_episodes()
    pairs = ConnectorV2.single_agent_episode_iterator(episodes, zip_with_batch_column=np.array([5, 6]))
    assert [(episode.id_, item) for episode, item in pairs] == [(episodes[0].id_, 5), (episodes[1].id_, 6)]


def test_columns_by_module_become_modules_of_columns() -> None:
    switched = ConnectorV2.switch_batch_from_column_to_module_ids({"c": {"a": 1, "b": 2}, "d": {"a": 3}})
    assert switched == {"a": {"c": 1, "d": 3}, "b": {"c": 2}}
