"""Replay buffers that are larger than the machine's memory: an error that names the capacity, and nothing changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from episodes import SingleAgentEpisode
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

BUFFERS = [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer]


def episode_of(shape: tuple[int, ...]) -> SingleAgentEpisode:
    observations = np.zeros((3, *shape), np.float32)
    return SingleAgentEpisode.from_arrays(observations, np.zeros(2), np.ones(2), terminated=True)


@pytest.mark.parametrize("capacity", [10**13, 2**60])
@pytest.mark.parametrize("kind", BUFFERS)
def test_capacity_that_no_machine_has_is_named(kind: Any, capacity: int) -> None:
    with pytest.raises(MemoryError, match=f"needs .* GiB for {capacity:,} rows .* smaller capacity"):
        kind(capacity).add(episode_of((2,)))


@pytest.mark.parametrize("kind", BUFFERS)
def test_observations_too_large_for_the_capacity_are_named_and_change_nothing(kind: Any) -> None:
    buffer = kind(10**6)
    large = episode_of((4096, 4096))
    for _ in range(2):
        with pytest.raises(
            MemoryError,
            match=r"needs .* GiB for [\d,]+ rows of shape \(4096, 4096\) and dtype float32.*smaller capacity",
        ):
            buffer.add(large)
        assert len(buffer) == buffer.num_added == 0
    small = episode_of((2,))
    buffer.add(small)
    assert buffer.sample(1).obs.shape == (1, 2)
