"""Items of spaces: lists for tuples, strings, and parts without a common shape."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode, VectorRecorder
from episodes.errors import ShapeMismatch
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tracks import nested

TUPLE = spaces.Tuple([spaces.Discrete(9), spaces.Box(-1, 1, (2,))])
TUPLES = [
    (TUPLE, lambda t: [t, np.full(2, t / 9, np.float32)]),
    (spaces.Tuple([spaces.Discrete(9)] * 2), lambda t: [t, t]),
    (spaces.Dict(a=TUPLE), lambda t: {"a": [t, np.full(2, t / 9, np.float32)]}),
    (spaces.Tuple([TUPLE, TUPLE]), lambda t: ([t, np.zeros(2, np.float32)], [t, np.ones(2, np.float32)])),
]
MODES = ["NextStep", "SameStep", "Disabled"]


def tupled(item: Any) -> Any:
    """Return the item with tuples for lists."""
    if isinstance(item, dict):
        return {key: tupled(part) for key, part in item.items()}
    return tuple(map(tupled, item)) if isinstance(item, (list, tuple)) else item


def check_items(items: Any, expected: list[Any]) -> None:
    """Assert that the items, a list or nested arrays, equal `expected`."""
    for t, item in enumerate(expected):
        assert nested.equal(items[t] if isinstance(items, list) else nested.take(items, t), item)


@pytest.mark.parametrize(("space", "listed"), TUPLES)
def test_episode_stores_lists_as_tuples_of_space(space: Any, listed: Any) -> None:
    expected = [tupled(listed(t)) for t in range(5)]
    grown = SingleAgentEpisode("a", observation_space=space, action_space=space)
    grown.add_env_reset(listed(0))
    for t in range(1, 5):
        item = listed if t % 2 else lambda t: tupled(listed(t))
        grown.add_env_step(item(t), item(t - 1), 1.0)
    items: Any = {"observations": [listed(t) for t in range(5)], "actions": [listed(t) for t in range(4)]}
    spaces_of_episode = {"observation_space": space, "action_space": space}
    constructed = SingleAgentEpisode("a", **items, rewards=[1.0] * 4, **spaces_of_episode, len_lookback_buffer=0)
    for episode in (grown, constructed):
        for _ in range(2):
            check_items(episode.get_observations(), expected)
            check_items(episode.get_actions(), expected[:4])
            episode.to_numpy()
    assert EpisodePack.from_episodes([grown]) == EpisodePack.from_episodes([constructed])


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize(("space", "listed"), TUPLES)
def test_setters_accept_lists_for_tuples(space: Any, listed: Any, finalized: bool) -> None:
    episode = SingleAgentEpisode(observation_space=space, action_space=space)
    episode.add_env_reset(listed(0))
    for _ in range(2):
        episode.add_env_step(listed(0), listed(0), 1.0)
    if finalized:
        episode.to_numpy()
    episode.set_observations(new_data=listed(3), at_indices=-1)
    episode.set_observations(new_data=[listed(1), listed(2)], at_indices=[0, 1])
    episode.set_actions(new_data=[listed(4), listed(5)])
    check_items(episode.get_observations(), [tupled(listed(t)) for t in (1, 2, 3)])
    check_items(episode.get_actions(), [tupled(listed(t)) for t in (4, 5)])


@pytest.mark.parametrize(("space", "listed"), TUPLES)
def test_multi_agent_episode_accepts_lists_for_tuples(space: Any, listed: Any) -> None:
    by_agent = {"a": space, "b": space}
    episode = MultiAgentEpisode("m", observation_space=by_agent, action_space=by_agent)
    episode.add_env_reset(observations={"a": tupled(listed(0)), "b": listed(0)})
    for t in range(1, 4):
        actions = {"a": listed(t), "b": listed(t)}
        episode.add_env_step({"a": listed(t), "b": tupled(listed(t))}, actions, {"a": 1, "b": 1})
    expected = [tupled(listed(t)) for t in range(4)]
    for _ in range(2):
        for agent_episode in episode.agent_episodes.values():
            check_items(agent_episode.get_observations(), expected)
            check_items(agent_episode.get_actions(), expected[1:])
        episode.to_numpy()


def test_list_of_wrong_length_raises_and_changes_nothing() -> None:
    episode = SingleAgentEpisode("a", observation_space=TUPLE)
    for invalid in ([[[1], [1, 2]], 0], ([[1], [1, 2]], 0)):
        with pytest.raises(ShapeMismatch, match=r"the reset: (the item is ragged|observations\[0\] are 2 items)"):
            episode.add_env_reset(invalid)
    episode.add_env_reset([0, np.zeros(2)])
    for invalid in ([0], [0, np.zeros(3)], [0, np.zeros(2), 1], [[0], [1, 2]], np.zeros(2), "ab"):
        with pytest.raises(ShapeMismatch, match="step 0: the "):
            episode.add_env_step(invalid, 0, 1.0)
    assert len(episode) == 0
    several = MultiAgentEpisode("m", observation_space={"a": TUPLE})
    several.add_env_reset(observations={"a": [0, np.zeros(2)]})
    with pytest.raises(ShapeMismatch, match="agent 'a' at env step 1: the observation has shape"):
        several.add_env_step({"a": [0, np.zeros(3)]}, {"a": 0}, {"a": 1})
    assert len(several) == 0


def recorded(space: Any, rows: Any, mode: str, into: Any = None) -> Any:
    """Return the pack of a recorder for two environments with episodes of 2 steps. `rows(t)` is a row."""
    recorder = into or VectorRecorder(2, space, space, autoreset_mode=mode)
    recorder.reset(rows(0))
    ended = np.array([False, True])
    for t in range(1, 7):
        done = ended & (t % 3 == 2)
        infos = {"final_obs": rows(9)} if mode == "SameStep" and done.any() else {}
        recorder.step(rows(t), rows(t), np.ones(2), done, np.zeros(2, bool), infos)
        if mode == "Disabled" and done.any():
            recorder.reset(rows(8), {}, done)
    return recorder.take() if into is None else None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("space", "listed"), TUPLES)
def test_recorders_accept_lists_for_tuples(space: Any, listed: Any, mode: str) -> None:
    def rows(t: int) -> Any:
        return nested.stack([tupled(listed(t % 9))] * 2)

    def as_lists(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: as_lists(part) for key, part in value.items()}
        return list(map(as_lists, value)) if isinstance(value, tuple) else value

    tracks, samples = [], []
    for make in (rows, lambda t: as_lists(rows(t))):
        tracks.append([episode.tracks for episode in recorded(space, make, mode)])
        buffer = EpisodeReplayBuffer(100, seed=0)
        options = {"autoreset_mode": mode, "observation_space": space, "action_space": space}
        recorded(space, make, mode, buffer.recorder(2, **options))
        samples.append(dict(buffer.sample(8)))
    assert tracks[0] == tracks[1]
    assert nested.equal(*samples)


@pytest.mark.parametrize("mode", MODES)
def test_strings_round_trip_through_recorder_and_disk(mode: str, tmp_path: Path) -> None:
    words = ["a", "bcd", "ef", "ghij", "k", "l", "mn", "", "o", "last"]
    space = spaces.Dict(say=spaces.Text(4), at=spaces.Discrete(10))

    def rows(t: int) -> Any:
        return {"say": (words[t], "other"), "at": np.array([t, 0])}

    recorder = VectorRecorder(2, space, autoreset_mode=mode)
    recorder.reset(rows(0))
    for t in range(1, 7):
        recorder.step(rows(t), np.zeros(2), np.ones(2), np.zeros(2, bool), np.zeros(2, bool))
    pack = recorder.take()
    assert pack[0].get_observations()["say"].tolist() == words[:7]
    with EpisodeWriter(tmp_path) as writer:
        writer.add(pack)
    for repeated in (pickle.loads(pickle.dumps(pack)), EpisodeDataset(tmp_path).pack()):
        assert repeated == pack


ONE_OF = spaces.OneOf([spaces.Discrete(3), spaces.Box(-1, 1, (2,))])


@pytest.mark.parametrize(
    ("space", "items", "name"),
    [
        (ONE_OF, [(0, 1), (1, np.zeros(2)), (0, 2)], "FlattenObservations"),
        (spaces.Sequence(spaces.Discrete(3)), [(0, 1), (), (2,)], "ObservationPreprocessor"),
        (spaces.Dict(x=spaces.Sequence(spaces.Discrete(3))), [{"x": (0, 1)}, {"x": ()}, {"x": (2,)}], "pad"),
    ],
)
def test_irregular_items_grow_and_raise_on_finalize(space: Any, items: list[Any], name: str) -> None:
    episode = SingleAgentEpisode("a", observation_space=space)
    episode.add_env_reset(items[0])
    for item in items[1:]:
        episode.add_env_step(item, 0, 1.0)
    repeated = pickle.loads(pickle.dumps(episode))
    assert repeated.equals(episode)
    check_items(repeated[1:].get_observations(), items[1:])
    for make in (repeated.to_numpy, lambda: EpisodePack.from_episodes([repeated])):
        with pytest.raises(ShapeMismatch, match=f"observations.*no shape in common.*{name}"):
            make()
    assert repeated.equals(episode)
    steady: Any = {"x": np.zeros(3)} if isinstance(space, spaces.Dict) else np.zeros(3)
    repeated.set_observations(new_data=[steady] * 3)
    assert nested.equal(repeated.to_numpy().get_observations(), nested.stack([steady] * 3))
