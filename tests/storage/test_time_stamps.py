"""Windows by time, compared with a search through the whole episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes import EpisodePack
from episodes.errors import InvalidArgument, UnknownKey
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.sampling import TimeWindows

FPS = 10


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> EpisodeDataset:
    """Write chunks of 1 to 8 steps, some with a lookback, and with an uneven, increasing `time`."""
    lengths, lookbacks, rng = np.arange(1, 9), np.arange(8) % 3, np.random.default_rng(0)
    steps = int((lengths + lookbacks).sum())
    pack = EpisodePack(
        observations={
            "camera": np.arange(steps + 8.0),
            "joints": {"left": np.arange(2.0 * (steps + 8)).reshape(-1, 2)},
        },
        actions=np.arange(steps),
        rewards=np.zeros(steps),
        extra_model_outputs={"time": np.cumsum(rng.uniform(0.05, 0.15, steps)), "word": np.full(steps, "w")},
        lengths=lengths,
        lookbacks=lookbacks,
    )
    path = tmp_path_factory.mktemp("data")
    with EpisodeWriter(path) as writer:
        writer.add(pack[:3])
        writer.flush()
        writer.add(pack[3:])
    return EpisodeDataset(path)


@given(steps=st.lists(st.integers(-9, 9), min_size=1, max_size=4), observed=st.booleans())
def test_time_windows_with_fps_equal_steps(dataset: EpisodeDataset, steps: list[int], observed: bool) -> None:
    name, column = ("observation", "obs") if observed else ("action", "actions")
    kind = TimeWindows(50, {name: [k / FPS for k in steps]}, fps=FPS)
    batch = dataset.sampler(windows=kind, order="stored").draw().to_dict()
    places = [(e, t) for e in range(len(dataset)) for t in range(len(dataset[e]))]
    for row, (e, t) in enumerate(places):
        episode = dataset[e]
        first, last = -episode.tracks.lookback, len(episode) - (not observed)
        for k, step in enumerate(steps):
            place = min(max(t + step, first), last)
            assert batch[f"{column}_is_pad"][row, k] == (place != t + step)
            tracks, at = episode.tracks, place + episode.tracks.lookback
            if observed:
                assert batch["obs"]["camera"][row, k] == tracks.observations.data["camera"][at]
                assert (batch["obs"]["joints"]["left"][row, k] == tracks.observations.data["joints"]["left"][at]).all()
            else:
                assert batch["actions"][row, k] == tracks.actions.data[at]


@given(times=st.lists(st.floats(-1, 1), min_size=1, max_size=4), tolerance=st.floats(0.08, 0.2))
def test_time_windows_by_timestamps_equal_a_search(
    dataset: EpisodeDataset, times: list[float], tolerance: float
) -> None:
    kind = TimeWindows(50, {"action": times}, timestamps="time", tolerance=tolerance)
    batch = dataset.sampler(windows=kind, order="stored").draw()
    row = 0
    for episode in dataset:
        stamps = episode.tracks.extra["time"].data
        for t in range(len(episode)):
            for k, delta in enumerate(times):
                expected = stamps[t + episode.tracks.lookback] + delta
                off = np.abs(stamps - expected)
                action = batch["actions"][row, k] - episode.tracks.actions.data[0]
                assert off[action] == off.min()
                assert batch["actions_is_pad"][row, k] == (off.min() > tolerance)
            row += 1


def test_time_windows_name_nested_parts_with_dots(dataset: EpisodeDataset) -> None:
    kind = TimeWindows(4, {"observation.joints.left": [-0.1, 0.0], "observation.camera": [0.0]}, fps=FPS)
    batch = dataset.sampler(windows=kind, seed=0).draw()
    assert batch["obs.joints.left"].shape == (4, 2, 2)
    assert batch["obs.camera"].shape == (4, 1)
    assert not batch["obs.camera_is_pad"].any()
    assert batch.origin.numbers.tolist() == batch.indices.tolist()


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"action": [0.05]}, {"fps": 10}, r"no step is at 0.05 s: the nearest is 0.05 s away.*multiples of 0.1"),
    ({"action": [0.0]}, {}, "give fps="),
    ({"action": [0.0]}, {"fps": 10, "timestamps": "time"}, "give fps="),
    ({"action": [0.0]}, {"fps": 0}, "above 0"),
    ({"action": []}, {"fps": 10}, "times for at least one name"),
    ({}, {"fps": 10}, "times for at least one name"),
    ({"camera": [0.0]}, {"fps": 10}, "no such column"),
    ({"observation.lidar": [0.0]}, {"fps": 10}, "no such column"),
    ({"action": [0.0]}, {"timestamps": "clock"}, "no such column of one number"),
    ({"action": [0.02]}, {"timestamps": "time"}, "the tolerance is 0.0001"),
    ({"action": [0.0]}, {"fps": 10, "tolerance": -1.0}, "at least 0"),
    ({"action": [0.0]}, {"fps": float("inf")}, "above 0"),
    ({"action": [1e300]}, {"fps": 10}, "give seconds in a list"),
    ({"action": [float("nan")]}, {"timestamps": "time"}, "give seconds in a list"),
    ({"action": ["now"]}, {"fps": 10}, "give seconds in a list"),
    ({"action": [0.0], "actions": [0.1]}, {"fps": 10}, "two names mean the column 'actions'"),
    ({"action": [0.0]}, {"timestamps": "word"}, "no such column of one number"),
]


@pytest.mark.parametrize(("times", "options", "message"), WRONG, ids=str)
def test_time_windows_reject_wrong_times(
    dataset: EpisodeDataset, times: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((InvalidArgument, UnknownKey), match=message):
        dataset.sampler(windows=TimeWindows(99, times, **options), order="stored").draw()
