"""A chunk of any length goes into a buffer of any capacity, and its last steps come back."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import EpisodeWriter

LARGEST_VERSION = 2**63 - 1


def chunk_of(t_started: int, versions: list[int], lookback: int, ended: bool, has_infos: bool) -> SingleAgentEpisode:
    """Return a chunk with one step per version. All values follow from the times of the steps."""
    length = len(versions)
    times = t_started - lookback + np.arange(lookback + length + 1.0)
    episode = SingleAgentEpisode(
        "id",
        observations=list(times),
        infos=[{"t": int(t)} for t in times] if has_infos else None,
        actions=list(times[:-1]),
        rewards=list(times[1:]),
        extra_model_outputs={"logp": list(-times[:-1]), "state_out": [{"h": np.full(2, t)} for t in times[:-1]]},
        t_started=t_started,
        len_lookback_buffer=lookback,
        truncated=ended,
    )
    episode.policy_versions = versions
    return episode


@pytest.mark.parametrize("maker", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
@settings(max_examples=100, deadline=None)
@given(
    capacity=st.integers(1, 12),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    lookback=st.integers(0, 3),
    t_started=st.integers(3, 9),
    versions=st.lists(st.sampled_from([-1, 1, 2, 2**31, LARGEST_VERSION]), min_size=1, max_size=5),
    in_one_call=st.booleans(),
    has_infos=st.booleans(),
    ended=st.booleans(),
)
def test_last_steps_of_chunks_come_back(
    maker: Any,
    capacity: int,
    lengths: list[int],
    lookback: int,
    t_started: int,
    versions: list[int],
    in_one_call: bool,
    has_infos: bool,
    ended: bool,
) -> None:
    total = sum(lengths)
    version_of = [versions[min(i // 3, len(versions) - 1)] for i in range(total)]
    chunks, begin = [], 0
    for k, length in enumerate(lengths):
        is_ended = ended and k == len(lengths) - 1
        chunk_versions = version_of[begin : begin + length]
        chunks.append(chunk_of(t_started + begin, chunk_versions, lookback if k else 0, is_ended, has_infos))
        begin += length
    buffer = maker(capacity, seed=0)
    for episodes in [chunks] if in_one_call else [[chunk] for chunk in chunks]:
        buffer.add(episodes)
    (episode,) = buffer.iter_episodes()
    num_left = min(total, capacity)
    times = t_started + np.arange(total - num_left, total + 1.0)
    assert (len(buffer), episode.t_started, buffer.num_added) == (num_left, times[0], total)
    assert episode.get_observations().tolist() == times.tolist()
    assert episode.get_actions().tolist() == times[:-1].tolist()
    assert episode.get_rewards().tolist() == times[1:].tolist()
    assert episode.get_extra_model_outputs("logp").tolist() == (-times[:-1]).tolist()
    assert episode.get_extra_model_outputs("state_out")["h"][:, 1].tolist() == times[:-1].tolist()
    assert [info.get("t") for info in episode.get_infos()] == [int(t) if has_infos else None for t in times]
    assert episode.get_policy_versions().tolist() == version_of[total - num_left :]
    assert (episode.is_truncated, episode.is_terminated) == (ended, False)
    first = buffer.num_added - num_left
    batch = buffer.at(np.arange(first, first + num_left), keys=["policy_version", "t", "obs"])
    assert batch.policy_version.tolist() == version_of[total - num_left :]
    assert batch.t.tolist() == times[:-1].tolist() == batch.obs.tolist()
    (pack,) = buffer.iter_packs()
    assert pack[0].equals(episode)


@pytest.mark.parametrize("capacity", [1, 15, 39, 40, 100])
def test_data_set_of_longer_episode_fills_buffer(capacity: int, tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add([chunk_of(3, [1] * 11 + [2] * 29, 0, True, True)])
    buffer = EpisodeReplayBuffer.from_dataset(tmp_path, capacity)
    (episode,) = buffer.iter_episodes()
    num_left = min(capacity, 40)
    assert episode.get_observations().tolist() == list(range(43 - num_left, 44))
    assert episode.get_policy_versions().tolist() == ([1] * 11 + [2] * 29)[40 - num_left :]


@pytest.mark.parametrize("version", [2**31, 2**40 + 5, LARGEST_VERSION])
def test_recorder_keeps_versions_beyond_32_bits(version: int) -> None:
    buffer, no = EpisodeReplayBuffer(40, seed=0), np.zeros(2, bool)
    recorder = buffer.recorder(2, autoreset_mode="NextStep")
    recorder.reset(np.zeros(2))
    recorder.step(np.ones(2), np.zeros(2), np.zeros(2), no, no)
    recorder.policy_version = version
    recorder.step(np.ones(2), np.zeros(2), np.zeros(2), no, no)
    assert set(buffer.sample(50, keys=["policy_version"]).policy_version.tolist()) == {-1, version}
    assert [e.get_policy_versions().tolist() for e in buffer.iter_episodes()] == 2 * [[-1, version]]


def test_reward_with_infinite_square_leaves_buffer_usable() -> None:
    no = np.zeros(2, bool)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer = EpisodeReplayBuffer(40, seed=0)
        recorder = buffer.recorder(2, autoreset_mode="NextStep")
        recorder.reset(np.zeros(2))
        recorder.step(np.ones(2), np.zeros(2), np.full(2, 1e25, np.float32), no, no)
        recorder.step(np.ones(2), np.zeros(2), np.full(2, np.nan, np.float32), no, no)
        assert len(buffer) == 4
        assert np.isnan(buffer.at(np.array([2, 3]), n_step=2).rewards).all()
        buffer.get_state()
        buffer.clear()


def test_clear_and_set_state_work_without_memory_for_staged_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    no = np.zeros(2, bool)
    for name in ("clear", "set_state", "close"):
        buffer = EpisodeReplayBuffer(40, seed=0)
        state = buffer.get_state()
        recorder = buffer.recorder(2, autoreset_mode="NextStep")
        recorder.reset(np.zeros(2))
        recorder.step(np.ones(2), np.zeros(2), np.zeros(2), no, no)

        def no_memory(*_: Any) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(LinkedRing, "_write_block", no_memory)
            with pytest.raises(MemoryError):
                len(buffer)
            getattr(buffer, name)(*[state] if name == "set_state" else [])
        if name != "close":
            assert len(buffer) == 0
            recorder.reset(np.zeros(2))
            recorder.step(np.ones(2), np.zeros(2), np.zeros(2), no, no)
            assert len(buffer) == 2
