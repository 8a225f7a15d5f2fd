"""A replay buffer on disk and back: the same episodes, with their beginnings and endings, and the same draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter


def some(num: int = 12) -> EpisodePack:
    """Return terminated, truncated and cut episodes of three to seven steps of two agents."""
    lengths = np.arange(num) % 5 + 3
    steps = int(lengths.sum())
    return EpisodePack(
        observations=np.arange((steps + num) * 2.0).reshape(-1, 2),
        actions=np.arange(steps),
        rewards=np.arange(steps) / 2,
        extra_model_outputs={"logp": -np.arange(steps) / 4},
        infos=[{"row": i} for i in range(steps + num)],
        lengths=lengths,
        terminated=np.arange(num) % 3 == 0,
        truncated=np.arange(num) % 3 == 1,
        agent_ids=[f"agent{i % 2}" for i in range(num)],
        custom_data=[{"number": i} for i in range(num)],
        action_space=spaces.Discrete(100),
    )


def same(a: EpisodeReplayBuffer, b: EpisodeReplayBuffer) -> bool:
    """Return True if both have equal episodes in the same order."""
    left, right = list(a.iter_episodes()), list(b.iter_episodes())
    return len(left) == len(right) and all(x.equals(y) for x, y in zip(left, right, strict=True))


@pytest.mark.parametrize("capacity", [1000, 31])
@pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_from_dataset_restores_episodes_of_to_dataset(
    tmp_path: Path, kind: type[EpisodeReplayBuffer], capacity: int
) -> None:
    buffer = kind(capacity, seed=0)
    buffer.add(some())
    buffer.to_dataset(tmp_path)
    repeated = kind.from_dataset(tmp_path, seed=0)
    assert type(repeated) is kind
    assert same(repeated, buffer)
    assert len(repeated) == repeated.capacity == len(buffer)
    dataset = EpisodeDataset(tmp_path)
    assert (dataset.metadata["t_started"][0] > 0) == (capacity == 31)
    assert dataset.num_steps == len(buffer)
    assert dataset.action_space == spaces.Discrete(100)


def test_from_dataset_takes_a_selection(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add(some())
    good = EpisodeDataset(tmp_path).select(lambda rows: rows["terminated"])
    buffer = EpisodeReplayBuffer.from_dataset(good, seed=3)
    assert len(buffer) == good.num_steps
    assert {e.id_ for e in buffer.iter_episodes()} == set(good.metadata["id"])
    assert buffer.sample(8).terminateds.dtype == bool


def test_to_dataset_of_several_buffers_by_one_writer(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path, metadata={"of": "two buffers"}) as writer:
        for _ in range(2):
            buffer = EpisodeReplayBuffer(100)
            buffer.add(some(4))
            buffer.to_dataset(writer)
    assert len(EpisodeDataset(tmp_path)) == 8
    assert EpisodeDataset(tmp_path).user_metadata == {"of": "two buffers"}


def test_to_dataset_does_not_change_the_buffer(tmp_path: Path) -> None:
    first, second = EpisodeReplayBuffer(100, seed=0), EpisodeReplayBuffer(100, seed=0)
    pack = some()
    first.add(pack)
    second.add(pack)
    first.to_dataset(tmp_path)
    assert first.sample(16).indices.tolist() == second.sample(16).indices.tolist()


def test_from_dataset_of_empty_data_set_needs_capacity(tmp_path: Path) -> None:
    EpisodeReplayBuffer(10).to_dataset(tmp_path)
    with pytest.raises(InvalidArgument, match="has no steps; give the buffer's capacity"):
        EpisodeReplayBuffer.from_dataset(tmp_path)
    buffer = EpisodeReplayBuffer.from_dataset(tmp_path, capacity=10)
    buffer.add([SingleAgentEpisode.from_arrays([0.0, 1.0], [0], [0.0])])
    assert len(buffer) == 1
