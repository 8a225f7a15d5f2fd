"""Conversions to and from Minari data sets: restored episodes are equal or losses are reported."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import count
from typing import Any

import law
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from episodes import SingleAgentEpisode
from episodes.converters import from_minari, to_minari
from episodes.errors import InvalidArgument, LostInConversion
from episodes.testing.strategies import episodes as drawn
from episodes.testing.strategies import spaces as drawn_spaces
from episodes.tracks import nested

minari = pytest.importorskip("minari")
numbers = count()


@pytest.fixture(scope="module", autouse=True)
def _temporary_minari_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("minari")
        patch.setenv("MINARI_DATASETS_PATH", str(path))
        yield


def name() -> str:
    return f"some/test-v{next(numbers)}"


BOX = spaces.Box(-9, 9, (2,))
STEP_INFOS = st.sampled_from(
    [{}, {"a": 1, "s": "ä", "ok": True}, {"d": {"x": np.arange(3, dtype=np.int16)}, "v": 0.5}, {"f": np.float32(2)}]
)


def some(steps: int = 3, **options: Any) -> SingleAgentEpisode:
    made: dict[str, Any] = {"observation_space": BOX, "action_space": spaces.Discrete(9, start=2)}
    arrays = np.arange(2.0 * steps + 2, dtype=np.float32).reshape(-1, 2), np.arange(steps), np.arange(steps) / 4
    return SingleAgentEpisode.from_arrays(*arrays, **{"id_": "a", "terminated": True, **made, **options})


def whole(episode: SingleAgentEpisode, infos: dict[str, Any], custom: dict[str, Any]) -> SingleAgentEpisode:
    """Return the episode without its lookback, with the infos and custom data."""
    tracks = episode.finalized_tracks()
    parts = nested.map_leaves(
        lambda leaf: np.asarray(leaf.tolist()) if leaf.dtype.kind == "U" else leaf,  # as wide as its own longest
        (tracks.observations.get(), tracks.actions.get(), tracks.rewards.get()),
    )
    return SingleAgentEpisode.from_arrays(
        *parts,
        infos=[infos] * (len(episode) + 1),
        terminated=episode.is_terminated,
        truncated=episode.is_truncated,
        t_started=episode.t_started,
        id_=episode.id_,
        observation_space=episode.observation_space,
        action_space=episode.action_space,
        custom_data=custom,
    )


@settings(max_examples=6, phases=[Phase.generate])
@given(st.data())
def test_minari_round_trip_of_supported_episodes_is_equal(data: st.DataObject) -> None:
    without_slashes = drawn_spaces(text=True).filter(lambda space: "a/b" not in str(space))
    observations, actions = data.draw(without_slashes), data.draw(without_slashes)
    options: dict[str, Any] = {"min_steps": 1, "extra_outputs": [], "with_spaces": True}
    custom = st.sampled_from([{}, {"seed": 3}, {"seed": 2**40, "options": {"level": [1, 2]}}])
    original_episodes = [
        whole(data.draw(drawn(observations, actions, **options)), data.draw(STEP_INFOS), data.draw(custom))
        for _ in range(2)
    ]
    dataset, lost = to_minari(original_episodes, name(), strict=True)
    assert not lost
    back, lost = from_minari(dataset)
    assert not lost
    for original, restored in zip(original_episodes, back, strict=True):
        assert original.equals(restored), (original, restored)


@settings(max_examples=6, phases=[Phase.generate])
@given(data=st.data())
def test_minari_round_trip_of_random_episodes_reports_every_difference(data: st.DataObject) -> None:
    without_slashes = drawn_spaces(text=True).filter(lambda space: "a/b" not in str(space))
    observations, actions = data.draw(without_slashes), data.draw(without_slashes)
    original_episodes = data.draw(
        law.episode_lists(observations, actions).filter(lambda episodes: any(map(len, episodes)))
    )
    known = {"observation_space": observations, "action_space": actions}
    dataset, lost = to_minari(original_episodes, name(), **known)
    back, second_report = from_minari(dataset)
    lost.join(second_report)
    for original, restored in zip(law.convertible_episodes(original_episodes, lost), back, strict=True):
        assert law.unreported_differences(original, restored, lost) - known.keys() == set(), (
            original,
            restored,
            str(lost),
        )
    assert law.reported_without_loss(original_episodes, back, lost) == set()


def test_minari_round_trip_keeps_images() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), np.uint8)
    episode = SingleAgentEpisode.from_arrays(frames, np.arange(3), np.zeros(3), **_spaces(frames), id_="a")
    back, _ = from_minari(to_minari([episode], name())[0].id)
    np.testing.assert_array_equal(back[0].get_observations(), frames)


def _spaces(frames: np.ndarray) -> dict[str, Any]:
    return {"observation_space": spaces.Box(0, 255, frames.shape[1:], np.uint8), "action_space": spaces.Discrete(3)}


def test_to_minari_reports_every_loss_with_first_episode() -> None:
    lossy = some(
        id_="b",
        infos=[{"late": 1, "none": None}, {}, {"t": (1,), "a/b": 0}, {"empty": {}}],
        extra_model_outputs={"action_logp": np.zeros(3)},
        custom_data={"note": np.zeros(1), "seed": 1},
        agent_id=("a", 0),
    )
    longer = some(5, id_="c", truncated=True)
    _, report = to_minari([some(), lossy, longer.slice(slice(2, 5), len_lookback_buffer=1), some(0, id_="d")], name())
    losses = {loss.what: (loss.num_episodes, loss.first) for loss in report}
    infos = {f"infos[{key!r}]" for key in ("late", "none", "t", "a/b", "empty")}
    assert losses.keys() == infos | {
        "extra_model_outputs['action_logp']",
        "custom_data['note']",
        "agent_id",
        "lookback",
        "the episode",
    }
    assert (losses["lookback"], losses["the episode"], losses["agent_id"]) == ((1, "c"), (1, "d"), (1, "b"))


def test_to_minari_leaves_out_values_that_minari_would_change() -> None:
    big = [{"n": 2**63 + i, "m": i} for i in range(3)]
    custom = {"pair": (1, 2), "list": [1, {"a": None}]}
    first_episode, second_episode = (
        SingleAgentEpisode.from_arrays(
            np.zeros((3, 2), np.float32),
            [0, 1],
            [0.0, 1.0],
            infos=big,
            custom_data=custom,
            observation_space=space,
            action_space=spaces.Discrete(2),
            terminated=True,
            id_=str(space),
        )
        for space in (BOX, spaces.Box(-5, 5, (2,)))
    )
    dataset, lost = to_minari([first_episode, second_episode], name())
    back, _ = from_minari(dataset)
    assert [episode.custom_data for episode in back] == [{"list": [1, {"a": None}]}] * 2
    assert [*back[0].get_infos()] == [{"m": i} for i in range(3)]
    losses = {loss.what: (loss.num_episodes, loss.first) for loss in lost}
    first = (2, first_episode.id_)
    assert losses == {"custom_data['pair']": first, "infos['n']": first, "observation_space": (1, second_episode.id_)}


def test_to_minari_of_invalid_id_raises() -> None:
    with pytest.raises(InvalidArgument, match="Malformed dataset ID: no id"):
        to_minari([], "no id")


def test_to_minari_strict_raises_and_leaves_no_data_set() -> None:
    dataset_id = name()
    with pytest.raises(LostInConversion, match=r"extra_model_outputs\['vf'\].*first is a"):
        to_minari([some(extra_model_outputs={"vf": np.zeros(3)})], dataset_id, strict=True)
    with pytest.raises(LostInConversion, match="agent_id"):
        to_minari([some(agent_id=("a", 1))], dataset_id, strict=True)
    assert dataset_id not in minari.list_local_datasets()


def test_from_minari_of_foreign_data_keeps_seeds_and_infos() -> None:
    def buffer(seed: int) -> Any:
        arrays = {"observations": np.zeros((4, 2), np.float32), "actions": np.arange(3), "rewards": np.zeros(3)}
        flags = {"terminations": np.zeros(3, bool), "truncations": np.array([False, False, True])}
        infos = {"text": list("abcd"), "deep": {"x": np.arange(4)}}
        return minari.data_collector.EpisodeBuffer(seed=seed, options={"level": [1, 2]}, infos=infos, **arrays, **flags)

    with warnings.catch_warnings(action="ignore", category=UserWarning):
        dataset = minari.create_dataset_from_buffers(
            name(), [buffer(3), buffer(4)], observation_space=BOX, action_space=spaces.Discrete(4)
        )
    back, lost = from_minari(dataset, strict=True)
    assert not lost
    assert [e.custom_data["seed"] for e in back] == [3, 4]
    assert all(e.is_truncated and not e.is_terminated for e in back)
    assert back[1].id_ == f"{dataset.id}/1"
    assert back[1].get_infos(-1) == {"text": "d", "deep": {"x": 3}}


def test_from_minari_reports_episode_with_two_endings() -> None:
    flags = np.array([False, True, False, True])
    buffer = minari.data_collector.EpisodeBuffer(
        observations=np.zeros((5, 2), np.float32),
        actions=np.zeros(4, int),
        rewards=np.zeros(4),
        terminations=flags,
        truncations=~flags & False,
        infos={"t": np.arange(4)},
    )
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        dataset = minari.create_dataset_from_buffers(
            name(), [buffer], observation_space=BOX, action_space=spaces.Discrete(2)
        )
    back, report = from_minari(dataset)
    assert [loss.what for loss in report] == ["endings"]
    assert back[0].get_infos() == [{}, {"t": 0}, {"t": 1}, {"t": 2}, {"t": 3}]


def test_to_minari_of_many_episodes_keeps_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("episodes.converters.bounded_packs.MOST_EPISODES", 2)
    original_episodes = [some(1, id_=f"e{i}") for i in range(5)]
    dataset, _ = to_minari(iter(original_episodes), name())
    assert [e.id_ for e in from_minari(dataset)[0]] == [e.id_ for e in original_episodes]


def test_to_minari_without_episodes_or_spaces_raises_with_advice() -> None:
    with pytest.raises(InvalidArgument, match="no episodes with a step"):
        to_minari([], name())
    with pytest.raises(InvalidArgument, match="give observation_space="):
        to_minari([some(observation_space=None)], name())
    with pytest.raises(InvalidArgument, match="'a/b'"):
        to_minari([some(observation_space=spaces.Dict({"a/b": BOX}))], name())
