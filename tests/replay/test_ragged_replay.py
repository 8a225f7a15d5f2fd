"""Replay of ragged tracks: whole episodes are stored and evicted, and sampled whole or by turns."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_conversations import conversation

from episodes import EpisodePack, MultiAgentEpisode, Ragged, RaggedKind, SingleAgentEpisode
from episodes.errors import ChunkMismatch, EpisodeStateError, InvalidArgument, TrackMismatch
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.replay.ring.ragged_ring import RaggedRing
from episodes.storage import EpisodeWriter


def talks(*seeds: int, **options: Any) -> list[SingleAgentEpisode]:
    return [talk for seed in seeds if len(talk := conversation(seed, **options).to_numpy())]


def assert_same_steps(stored: SingleAgentEpisode, talk: SingleAgentEpisode) -> None:
    for path, array in talk.tracks.arrays().items():
        expected, result = array, stored.tracks.arrays()[path]
        assert result.equals(expected) if type(expected) is Ragged else (result == expected).all(), path
        assert result.dtype == expected.dtype
    assert list(stored.infos) == list(talk.infos)
    assert (stored.ending, stored.t_started, stored.custom_data) == (talk.ending, 0, talk.custom_data)
    assert stored.get_policy_versions().tolist() == talk.get_policy_versions().tolist()


@given(
    writes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(0, 400)), max_size=30),
    size=st.integers(1, 7),
    width=st.sampled_from([(), (2,)]),
)
def test_ragged_ring_equals_a_list(writes: list[tuple[int, int, int]], size: int, width: tuple[int, ...]) -> None:
    ring, items = RaggedRing(size, RaggedKind(np.dtype("i4"), width)), [np.zeros((0, *width), np.int32)] * size
    start = 0
    for number, (num, _, length) in enumerate(writes):
        new = [
            np.full((max(length * (k % 3) // 2, 0), *width), 10 * number + k, np.int32) for k in range(num % (size + 1))
        ]
        ragged = Ragged.from_arrays(new, ring.kind)
        for _ in range(1 + number % 2):  # a write may be repeated
            ring.write(start, ragged)
        for k, item in enumerate(new):
            items[(start + k) % size] = item
        start = (start + len(new)) % size
        for slots in (np.arange(size), np.arange(size)[::-1], np.array([size, 0])):
            expected = [items[slot] if slot < size else np.zeros((0, *width)) for slot in slots]
            assert [item.tolist() for item in ring.take(slots)] == [item.tolist() for item in expected]
        assert ring.size_of_values <= 8 * max(sum(map(len, items)), 1024)


@given(seeds=st.lists(st.integers(0, 60), unique=True, max_size=25), capacity=st.integers(8, 40), data=st.data())
def test_stored_episodes_are_the_newest_whole_ones(seeds: list[int], capacity: int, data: st.DataObject) -> None:
    buffer = EpisodeReplayBuffer(capacity, seed=0)
    added: list[SingleAgentEpisode] = []
    episodes = talks(*seeds)
    while episodes:
        num = data.draw(st.integers(1, 4))
        buffer.add(episodes[:num] if data.draw(st.booleans()) else EpisodePack.from_episodes(episodes[:num]))
        added, episodes = added + episodes[:num], episodes[num:]
        if data.draw(st.booleans()):
            buffer = pickle.loads(pickle.dumps(buffer))
        stored = list(buffer.iter_episodes())
        newest = added[len(added) - len(stored) :]
        assert len(buffer) == sum(map(len, newest)) <= capacity
        assert len(stored) == len(added) or len(buffer) + len(added[-len(stored) - 1]) > capacity
        for result, talk in zip(stored, newest, strict=True):
            assert_same_steps(result, talk)
    if len(buffer):
        packs = EpisodePack.concat(list(buffer.iter_packs()))
        assert [episode.id_ for episode in packs] == [talk.id_ for talk in newest]
        by_id = {talk.id_: talk for talk in newest}
        for episode in buffer.sample_episodes(5):
            assert_same_steps(episode, by_id[episode.id_])
        assert buffer._repr_html_()


@pytest.mark.parametrize("make", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
@pytest.mark.parametrize(("length", "lookback"), [(1, None), (2, 0), (3, 1), (None, None)])
def test_chunks_equal_slices(make: Callable[..., Any], length: int | None, lookback: int | None) -> None:
    episodes = talks(*range(40))
    buffer = make(60, seed=1)
    for talk in episodes:
        buffer.add(talk)
    by_id = {talk.id_: talk for talk in episodes}
    for n in (1, 30):
        sample = buffer.sample_chunks(n, length, lookback=lookback)
        assert sample.indices.shape == sample.weights.shape == (n,)
        assert len(sample.pack) == n
        for chunk, index in zip(sample.pack, sample.indices.tolist(), strict=True):
            talk, origin = by_id[chunk.id_], buffer.at([index], keys=["t", "eps_id"])
            t = int(origin["t"][0])
            assert origin["eps_id"][0] == chunk.id_
            if length is None:
                assert_same_steps(chunk, talk)
                continue
            expected = talk.slice(slice(t, t + length), len_lookback_buffer=t if lookback is None else lookback)
            assert chunk.tracks == expected.tracks
            assert (chunk.t_started, chunk.ending) == (t, expected.ending)


def test_chunks_follow_priorities_and_ages() -> None:
    buffer = PrioritizedEpisodeReplayBuffer(200, seed=0, alpha=1.0)
    buffer.add(talks(*range(30)))
    indices = np.arange(len(buffer))
    buffer.update_priorities(indices, np.where(indices == 7, 1.0, 0.0))
    counts = np.bincount(buffer.sample_chunks(200).indices, minlength=len(buffer))
    assert counts[7] > 190
    newest = buffer.at(indices, keys=["policy_version"])["policy_version"]
    aged = buffer.sample_chunks(50, max_age=0)
    assert set(newest[aged.indices].tolist()) == {newest.max()}


def test_ragged_episodes_that_cannot_be_stored_whole_are_rejected() -> None:
    talk = next(t for t in talks(*range(20)) if len(t) >= 4)
    buffer = EpisodeReplayBuffer(len(talk) - 1)
    with pytest.raises(InvalidArgument, match="stored whole or not at all"):
        buffer.add(talk)
    buffer = EpisodeReplayBuffer(100)
    head, tail = talk.slice(slice(0, 2)), talk.slice(slice(2, None), len_lookback_buffer=1)
    with pytest.raises(ChunkMismatch, match="are not the newest ones"):
        buffer.add(tail)
    assert len(buffer) == 0
    buffer.add([head, tail])
    (stored,) = buffer.iter_episodes()
    assert_same_steps(stored, talk)


@given(order=st.lists(st.integers(0, 3), min_size=1, max_size=30), capacity=st.integers(6, 20), data=st.data())
def test_chunks_between_which_other_episodes_were_added_are_rejected(
    order: list[int], capacity: int, data: st.DataObject
) -> None:
    buffer, talks_so_far, num_begun = EpisodeReplayBuffer(capacity), dict[int, SingleAgentEpisode](), 0
    stored: list[tuple[str, int]] = []
    for number in order:
        talk = talks_so_far.get(number)
        if talk is None:
            talk = SingleAgentEpisode(f"{num_begun}", ragged={"observations": "i4", "actions": "i4"})
            talk.add_env_reset([1])
            num_begun += 1
        for _ in range(data.draw(st.integers(1, 4))):
            talk.add_env_step([2], [talk.t], 0.0)
        talks_so_far[number] = talk.cut()
        fits = talk.t <= capacity
        if fits and (not talk.t_started or (stored and stored[-1][0] == talk.id_)):
            buffer.add(talk)
            stored = [*stored[: len(stored) - (talk.t_started > 0)], (talk.id_, talk.t)]
            while sum(num for _, num in stored) > capacity:
                stored.pop(0)
        else:
            with pytest.raises((ChunkMismatch, InvalidArgument), match=r"in one piece|stored whole"):
                buffer.add(talk)
            del talks_so_far[number]
        assert [(each.id_, len(each)) for each in buffer.iter_episodes()] == stored
        for each in buffer.iter_episodes():
            assert np.concatenate(list(each.get_actions())).tolist() == list(range(len(each)))


def test_rows_of_ragged_tracks_are_rejected_by_name(tmp_path: Any) -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(talks(*range(10)))
    for call in (lambda: buffer.sample(4), lambda: buffer.at([0]), lambda: buffer.sample_sequences(2, 2)):
        with pytest.raises(TrackMismatch, match=r"'observations', 'actions'.* are ragged.*sample_chunks"):
            call()
    assert buffer.sample(4, keys=["rewards", "t"])["rewards"].shape == (4,)
    with (
        EpisodeReplayBuffer(100, path=tmp_path / "ring") as mapped,
        pytest.raises(TrackMismatch, match="files cannot store ragged"),
    ):
        mapped.add(talks(*range(3)))
    with pytest.raises(EpisodeStateError, match="nothing is stored"):
        EpisodeReplayBuffer(100).sample_chunks(1)


def test_ragged_and_fixed_episodes_are_not_mixed_in_a_buffer() -> None:
    fixed = SingleAgentEpisode.from_arrays(np.zeros(3, np.int32), [0, 1], [1.0, 1.0])
    for first, second in ((talks(1, 2), [fixed]), ([fixed], talks(1, 2))):
        buffer = EpisodeReplayBuffer(100)
        buffer.add(first)
        before = buffer.num_added
        with pytest.raises((TrackMismatch, ValueError)):
            buffer.add(second)
        assert buffer.num_added == before


@pytest.mark.parametrize("capacity", [None, 7])
def test_buffer_from_data_set_joins_chunks_between_which_others_are_stored(capacity: int | None, tmp_path: Any) -> None:
    talks = {id_: SingleAgentEpisode(id_, ragged={"observations": "i4", "actions": "i4"}) for id_ in "abc"}
    with EpisodeWriter(tmp_path) as writer:
        for talk in talks.values():
            talk.add_env_reset([1])
        for t in range(3):
            for id_, talk in talks.items():
                talk.add_env_step([2], [t], 0.0, terminated=t == 2)
                writer.add(talk)
                talks[id_] = talk if talk.is_done else talk.cut()
    buffer = EpisodeReplayBuffer.from_dataset(tmp_path, capacity)
    stored = [(each.id_, each.get_actions().tolist()) for each in buffer.iter_episodes()]
    assert stored == [(id_, [[0], [1], [2]]) for id_ in ("abc" if capacity is None else "bc")]


def test_multi_agent_buffer_rejects_ragged_tracks_by_name() -> None:
    episode = MultiAgentEpisode(ragged={"a": {"observations": "i4"}})
    episode.add_env_reset(observations={"a": [1, 2]})
    episode.add_env_step({"a": [3]}, {"a": 1}, {"a": 1.0}, terminateds={"__all__": True})
    buffer = MultiAgentEpisodeReplayBuffer(100)
    with pytest.raises(TrackMismatch, match=r"\['observations'\] are ragged"):
        buffer.add(episode)
    assert len(buffer) == 0
