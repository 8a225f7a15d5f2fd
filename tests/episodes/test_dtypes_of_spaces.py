"""Finished observations whose values the dtype of their space cannot hold are rejected wherever they enter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import ShapeMismatch
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter

SPACE = spaces.Box(0, 255, (2,), np.uint8)


def pack(value: float) -> EpisodePack:
    arrays = {"observations": np.full((4, 2), value), "actions": np.zeros(3, np.int64), "rewards": np.zeros(3)}
    return EpisodePack(**arrays, lengths=[3], ids=["a"], observation_space=SPACE)


def finished(value: float) -> SingleAgentEpisode:
    arrays = np.full((4, 2), value), np.zeros(3, np.int64), np.zeros(3)
    return SingleAgentEpisode.from_arrays(*arrays, observation_space=SPACE)


def grown(value: float) -> SingleAgentEpisode:
    episode = SingleAgentEpisode(observation_space=SPACE)
    episode.add_env_reset(np.zeros(2))  # fits in any case
    episode.add_env_step(np.full(2, value), 0, 0.0)
    return episode.to_numpy()


def written(value: float, path: Path, source: Callable[[float], Any]) -> Any:
    with EpisodeWriter(path) as writer:
        writer.add(source(value))
    return EpisodeDataset(path, verify=True)


def replayed(value: float, path: Path, source: Callable[[float], Any]) -> Any:
    EpisodeReplayBuffer(10).add(source(value))


@pytest.mark.parametrize("source", [pack, finished, grown])
@pytest.mark.parametrize("place", [written, replayed])
def test_values_that_the_dtype_of_a_space_cannot_hold_are_rejected(place: Any, source: Any, tmp_path: Path) -> None:
    place(7.0, tmp_path, source)
    with pytest.raises(ShapeMismatch, match=r"float64.* the space.*uint8"):
        place(0.5, tmp_path, source)
