"""Replay buffers on disk and back: whole buffers, and snapshots of which each adds the new steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer, SamplesPerInsert
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import EpisodeDataset, EpisodeWriter


def chunk(id_: str, t_started: int, length: int, *, terminated: bool = False) -> SingleAgentEpisode:
    """Return a chunk with observations and actions equal to the times of the steps."""
    times = t_started + np.arange(length + 1)
    arrays = times.astype(float), times[:-1], np.ones(length)
    return SingleAgentEpisode.from_arrays(*arrays, id_=id_, t_started=t_started, terminated=terminated)


def contents(buffer: EpisodeReplayBuffer) -> dict[str, list[int]]:
    """Return the times of the stored steps by episode."""
    stored: dict[str, list[int]] = {}
    for episode in buffer.iter_episodes():
        episode.validate()
        times = episode.t_started + np.arange(len(episode))
        assert np.array_equal(episode.get_actions(), times)
        assert np.array_equal(episode.get_observations(), [*times, times[-1] + 1])
        stored.setdefault(str(episode.id_), []).extend(times.tolist())
    return stored


def ended(buffer: EpisodeReplayBuffer) -> set[tuple[Any, int]]:
    """Return the ids of the stored episodes that have ended, with the times of their endings."""
    return {(episode.id_, episode.t) for episode in buffer.iter_episodes() if episode.is_done}


def test_second_snapshot_writes_only_new_steps(tmp_path: Path) -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add([chunk("a", 0, 5), chunk("b", 0, 3, terminated=True)])
    buffer.to_dataset(tmp_path / "data")
    buffer.to_dataset(tmp_path / "data")
    buffer.add([chunk("a", 5, 4, terminated=True), chunk("c", 0, 2)])
    buffer.to_dataset(tmp_path / "data")
    rows = EpisodeDataset(tmp_path / "data").metadata
    assert rows["length"].tolist() == [5, 3, 4, 2]
    restored = EpisodeReplayBuffer.from_dataset(tmp_path / "data")
    assert contents(restored) == contents(buffer)
    assert {e.id_: e.is_terminated for e in restored.iter_episodes()} == {"a": True, "b": True, "c": False}


def test_from_dataset_continues_snapshots(tmp_path: Path) -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add([chunk("a", 0, 5)])
    buffer.to_dataset(tmp_path / "data")
    for restored in (EpisodeReplayBuffer.from_dataset(tmp_path / "data", 50), EpisodeReplayBuffer(100)):
        if restored.capacity == 100:
            restored.set_state(buffer.get_state())
        start = restored.num_added
        restored.add([chunk("a", start, 3)])
        restored.to_dataset(tmp_path / "data")
        buffer = EpisodeReplayBuffer.from_dataset(tmp_path / "data", 100)
    assert EpisodeDataset(tmp_path / "data").metadata["length"].tolist() == [5, 3, 3]
    assert contents(buffer) == {"a": list(range(11))}


def test_from_dataset_reads_repeated_steps_once(tmp_path: Path) -> None:
    for length in (3, 3, 7):
        buffer = EpisodeReplayBuffer(100)
        buffer.add([chunk("a", 0, length, terminated=length == 7), chunk("b", 0, 2, terminated=True)])
        buffer.to_dataset(tmp_path / "data")
    restored = EpisodeReplayBuffer.from_dataset(tmp_path / "data")
    assert contents(restored) == {"a": list(range(7)), "b": [0, 1]}


def test_gap_between_snapshots_splits_episode(tmp_path: Path) -> None:
    buffer = EpisodeReplayBuffer(10, seed=0)
    buffer.add([chunk("a", 0, 4)])
    buffer.to_dataset(tmp_path / "data")
    for t in range(4, 24, 5):
        buffer.add([chunk("a", t, 5)])
    buffer.to_dataset(tmp_path / "data")
    restored = EpisodeReplayBuffer.from_dataset(tmp_path / "data")
    assert [(e.id_, e.t_started, len(e)) for e in restored.iter_episodes()] == [("a", 0, 4), ("a", 14, 10)]
    drawn = restored.sample(200, n_step=3, gamma=1.0)
    assert np.array_equal(drawn.new_obs, drawn.obs + drawn.n_step)
    assert set(drawn.n_step[drawn.actions == 3]) == {1}
    restored.add([chunk("a", 24, 2)])
    restored.set_state(restored.get_state())
    restored.add([chunk("a", 26, 1)])
    assert [(e.t_started, len(e)) for e in restored.iter_episodes()] == [(3, 1), (14, 13)]
    restored.add([chunk("a", 27, 2)])
    assert [(e.t_started, len(e)) for e in restored.iter_episodes()] == [(15, 14)]


def test_snapshot_to_emptied_directory_writes_everything(tmp_path: Path) -> None:
    import shutil

    buffer = EpisodeReplayBuffer(10, seed=0)
    buffer.add([chunk("a", 0, 4)])
    buffer.to_dataset(tmp_path / "data")
    shutil.rmtree(tmp_path / "data")
    with EpisodeWriter(tmp_path / "data") as writer:
        buffer.to_dataset(writer)
        buffer.add([chunk("a", 4, 1)])
        buffer.to_dataset(writer)
    assert EpisodeDataset(tmp_path / "data").metadata["length"].tolist() == [4, 1]


def test_from_dataset_passes_options(tmp_path: Path) -> None:
    buffer = EpisodeReplayBuffer(10, seed=0)
    buffer.add([chunk("a", 0, 4)])
    buffer.to_dataset(tmp_path / "data")
    options: dict[str, Any] = {"alpha": 0.9, "beta": 0.1, "unit": "sequence", "limit": SamplesPerInsert(2)}
    read = PrioritizedEpisodeReplayBuffer.from_dataset(tmp_path / "data", 8, seed=3, **options)
    assert (read.alpha, read.beta, read.unit, read.limit) == tuple(options.values())
    assert read.sample_sequences(5, 2).indices.shape == (5,)
    with pytest.raises(TypeError, match="alpha"):
        EpisodeReplayBuffer.from_dataset(tmp_path / "data", alpha=0.9)


@settings(max_examples=25)
@given(capacity=st.integers(3, 40), seed=st.integers(0, 1000))
def test_snapshots_together_hold_every_stored_step(
    capacity: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng, path = np.random.default_rng(seed), tmp_path_factory.mktemp("snapshots") / "data"
    buffer, going_on, expected = EpisodeReplayBuffer(capacity), {"0": 0}, set()
    for number in range(12):
        for id_ in list(going_on):
            length, ends = int(rng.integers(0 if going_on[id_] else 1, 7)), rng.random() < 0.2
            buffer.add([chunk(id_, going_on[id_], length, terminated=ends)])  # an ending may come without a step
            going_on[id_] += length
            if ends:
                del going_on[id_]
        if len(going_on) < 3:
            going_on[str(number + 1)] = 0
        if rng.random() < 0.5:
            buffer.to_dataset(path)
            expected |= {(id_, t) for id_, times in contents(buffer).items() for t in times}
            num_rows = len(EpisodeDataset(path))
            buffer.to_dataset(path)
            assert len(EpisodeDataset(path)) == num_rows  # nothing is new
            assert ended(buffer) <= ended(EpisodeReplayBuffer.from_dataset(path))
            if rng.random() < 0.3:  # it has the data set's steps, and does not know which the data set has
                buffer, state = EpisodeReplayBuffer(capacity), buffer.get_state()
                buffer.set_state(state | {"written": {}})
    if expected:
        restored = EpisodeReplayBuffer.from_dataset(path)
        times = [(id_, t) for id_, times in contents(restored).items() for t in times]
        assert len(times) == len(set(times))
        assert set(times) == expected


# --- whole buffers --------------------------------------------------------------------------------------------------


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
    state = str(buffer.get_state())
    buffer.to_dataset(tmp_path)
    assert str(buffer.get_state() | {"written": {}}) == state
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


def test_from_dataset_of_empty_data_set_needs_capacity(tmp_path: Path) -> None:
    EpisodeReplayBuffer(10).to_dataset(tmp_path)
    with pytest.raises(InvalidArgument, match="has no steps; give the buffer's capacity"):
        EpisodeReplayBuffer.from_dataset(tmp_path)
    buffer = EpisodeReplayBuffer.from_dataset(tmp_path, capacity=10)
    buffer.add([SingleAgentEpisode.from_arrays([0.0, 1.0], [0], [0.0])])
    assert len(buffer) == 1
