"""A memory-mapped buffer is opened again after a normal end and after a kill: what was flushed is there, and whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from episodes.errors import EpisodeStateError, InvalidArgument, StateMismatch, UnreadableData, WrongType
from episodes.facts.policy_versions import UNKNOWN
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.single_agent import SingleAgentEpisode

KINDS = ("number", "image", "nested")


def chunk(number: int, t_started: int, length: int, *, kind: str = "number", ended: bool = False) -> SingleAgentEpisode:
    """Observations are 1000 * the episode's number + the time, rewards likewise of the time after."""
    values = 1000.0 * number + t_started + np.arange(length + 1)
    image = np.repeat(values.astype(np.float32)[:, None], 12, 1)
    observations = {"number": values, "image": image, "nested": {"a": values, "b": (image,)}}[kind]
    return SingleAgentEpisode.from_arrays(
        observations,
        np.arange(length) + t_started,
        values[1:].copy(),
        infos=[{"seen": float(value), "log": {"x": [1, "y"]}} for value in values] if number % 3 else None,
        extra_model_outputs={"wide": np.repeat(values[:-1, None], 5, 1)},
        id_=str(number),
        t_started=t_started,
        policy_versions=np.full(length, version_of(number)),
        truncated=ended,
        agent_id=("agent", number),
        custom_data={"number": number},
        observation_space=gym.spaces.Box(0, 1, (12,)) if kind == "image" else None,
    )


def version_of(number: int) -> int:
    """The version of the policy that made an episode; of some nobody told one, of the first neither."""
    return number if number % 3 else UNKNOWN


def check_whole(buffer: EpisodeReplayBuffer) -> None:
    """Every step, drawn in every way, is what was once added."""
    assert len(buffer) == sum(map(len, buffer.iter_episodes()))
    for episode in buffer.iter_episodes():
        number = int(episode.id_)
        episode.validate()
        values = 1000 * number + episode.t_started + np.arange(len(episode) + 1)
        assert np.array_equal(episode.get_rewards(), values[1:])
        assert np.array_equal(episode.get_extra_model_outputs("wide")[:, 4], values[:-1])
        leaf = episode.get_observations()
        leaf = leaf["b"][0] if isinstance(leaf, dict) else leaf
        assert np.array_equal(leaf.reshape(len(values), -1)[:, -1], values)
        assert (episode.get_policy_versions() == version_of(number)).all()
        assert (episode.agent_id, episode.custom_data) == (("agent", number), {"number": number})
        seen = (
            [{"seen": float(value), "log": {"x": [1, "y"]}} for value in values] if number % 3 else [{}] * len(values)
        )
        assert list(episode.infos) == seen
    if len(buffer):
        drawn = buffer.sample(50, n_step=3, gamma=1.0, keys=["rewards", "actions", "eps_id", "policy_version"])
        assert drawn.policy_version.tolist() == list(map(version_of, drawn.eps_id.astype(int)))
        first = 1000 * drawn.eps_id.astype(int) + drawn.actions
        assert np.allclose(drawn.rewards, drawn.n_step * first + drawn.n_step * (drawn.n_step + 1) / 2)
        sequences = buffer.sample_sequences(20, 6, burn_in=3, keys=["actions", "eps_id"])
        there = sequences.indices >= 0
        steps = np.diff(sequences.actions, axis=1)[there[:, 1:] & there[:, :-1]]
        assert (steps == 1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("maker", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_a_buffer_goes_on_where_it_was_flushed_bit_for_bit(maker: Any, kind: str, tmp_path: Path) -> None:
    buffer = maker(60, seed=0, path=tmp_path, resume=True)
    for number in range(9):
        buffer.add([chunk(number, 0, 5, kind=kind), chunk(number, 5, 4, kind=kind, ended=number % 2 == 0)])
    buffer.sample(10)
    buffer.flush()
    expected, first = list(buffer.iter_episodes()), buffer.get_state()
    expected_draw = buffer.sample(32)
    del buffer
    again = maker(60, path=tmp_path, resume=True)
    assert all(a.equals(b) for a, b in zip(again.iter_episodes(), expected, strict=True))
    drawn = again.sample(32)
    assert np.array_equal(drawn.indices, expected_draw.indices)
    assert np.array_equal(drawn.weights, expected_draw.weights)
    check_whole(again)
    assert again.num_added == 81
    again.add([chunk(7, 9, 3, kind=kind)])
    check_whole(again)
    again.set_state(first)
    assert not (tmp_path / "state.msgpack").exists()
    again.flush()
    check_whole(maker(60, path=tmp_path, resume=True))


def test_ages_of_steps_are_counted_from_the_newest_version_that_was_flushed(tmp_path: Path) -> None:
    buffer = EpisodeReplayBuffer(10, path=tmp_path, resume=True)
    buffer.add([chunk(number, 0, 5, ended=True) for number in (7, 5, 4)])  # those of 7 make way
    buffer.flush()
    resumed = EpisodeReplayBuffer(10, path=tmp_path, resume=True)
    assert set(resumed.sample(50, max_age=2, keys=["policy_version"]).policy_version.tolist()) == {5}
    resumed.add(chunk(8, 0, 5, ended=True))
    assert set(resumed.sample(50, max_age=2, keys=["policy_version"]).policy_version.tolist()) == {8}


@pytest.mark.parametrize("length", [1, 2, 30])
def test_steps_that_were_written_over_since_the_flush_are_gone_and_all_others_there(
    length: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(length)
    for at in range(5):
        path = tmp_path / str(at)
        buffer = EpisodeReplayBuffer(40, seed=0, path=path)
        for number in range(int(rng.integers(1, 60))):
            buffer.add([chunk(number, 0, length, ended=True)])
        buffer.flush()
        flushed = {(e.id_, t) for e in buffer.iter_episodes() for t in range(e.t_started, e.t_started + len(e))}
        later = int(rng.integers(0, 50)) // length
        for number in range(100, 100 + later):
            buffer.add([chunk(number, 0, length)])
        left = {(e.id_, t) for e in buffer.iter_episodes() for t in range(e.t_started, e.t_started + len(e))}
        again = EpisodeReplayBuffer(40, path=path, resume=True)
        check_whole(again)
        found = {(e.id_, t) for e in again.iter_episodes() for t in range(e.t_started, e.t_started + len(e))}
        assert found == flushed & left
        for number in range(200, 260):
            again.add([chunk(number, 0, length)])
            if number % 20 == 7:
                check_whole(again)


def test_a_recorder_feeds_a_buffer_that_was_taken_up(tmp_path: Path) -> None:
    no = np.zeros(4, bool)
    for run in range(3):
        buffer = EpisodeReplayBuffer(50, seed=0, path=tmp_path, resume=True)
        assert len(buffer) == min(run * 36, 50)
        recorder = buffer.recorder(4, autoreset_mode="NextStep")
        recorder.reset(np.zeros(4))
        for t in range(9):
            recorder.step(np.full(4, t + 1.0), np.full(4, t), np.zeros(4), no, no)
        buffer.flush()
        drawn = buffer.sample(50)
        assert np.array_equal(drawn.obs, drawn.actions)
        assert np.array_equal(drawn.new_obs, drawn.obs + 1)


def test_what_cannot_be_taken_up_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="resume=True without a path"):
        EpisodeReplayBuffer(10, resume=True)
    with pytest.raises(EpisodeStateError, match="no files; give it a path"):
        EpisodeReplayBuffer(10).flush()
    buffer = EpisodeReplayBuffer(10, path=tmp_path / "ring")
    buffer.add([chunk(1, 0, 4)])
    assert len(EpisodeReplayBuffer(10, path=tmp_path / "other", resume=True)) == 0
    buffer.flush()
    with pytest.raises(InvalidArgument, match="capacity=10, this one has capacity=11"):
        EpisodeReplayBuffer(11, path=tmp_path / "ring", resume=True)
    with pytest.raises(StateMismatch, match="without priorities"):
        PrioritizedEpisodeReplayBuffer(10, path=tmp_path / "ring", resume=True)
    later = chunk(2, 0, 2)
    later.custom_data["what"] = object()
    buffer.add([later])
    with pytest.raises(WrongType, match=r"custom_data.*'what'"):
        buffer.flush()
    assert len(EpisodeReplayBuffer(10, path=tmp_path / "ring", resume=True)) == 4
    (tmp_path / "ring" / "state.msgpack").write_bytes(b"\x93\x01")
    with pytest.raises(UnreadableData, match=r"msgpack|not the state"):
        EpisodeReplayBuffer(10, path=tmp_path / "ring", resume=True)


def fill_for_ever(path: str, seed: int) -> None:
    """Add chunks of growing episodes, flush now and then, and say after each flush how many steps there are."""
    rng, number, t = np.random.default_rng(seed), 0, 0
    buffer = PrioritizedEpisodeReplayBuffer(300, seed=seed, path=path, resume=True)
    number = max((int(e.id_) for e in buffer.iter_episodes()), default=0) + 1
    while True:
        length, ended = int(rng.integers(1, 9)), bool(rng.random() < 0.5)
        buffer.add([chunk(number, t, length, ended=ended)])
        t += length
        if ended:
            number, t = number + 1, 0
        if rng.random() < 0.2:
            buffer.flush()
            print(buffer.num_added, flush=True)


def test_a_killed_process_loses_nothing_that_it_flushed_and_nothing_torn_is_drawn(tmp_path: Path) -> None:
    rng, flushed = np.random.default_rng(0), 0
    for kill in range(4):
        code = f"from tests.replay.test_replay_resuming import fill_for_ever; fill_for_ever({str(tmp_path)!r}, {kill})"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            time.sleep(float(rng.random()) * 0.3)
            os.kill(process.pid, signal.SIGKILL)
            told = [int(line) for line in process.stdout.read().split()]
        buffer = PrioritizedEpisodeReplayBuffer(300, path=tmp_path, resume=True)
        assert buffer.num_added >= max(told, default=flushed)
        flushed = buffer.num_added
        check_whole(buffer)  # there may be none left: as many came after the last flush as there is room for


@pytest.mark.parametrize("broken_off", ["before", "while", "after"])
def test_observations_that_move_to_a_larger_file_are_found_in_one_of_both(
    broken_off: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = EpisodeReplayBuffer(40, path=tmp_path)
    for number in range(15):
        buffer.add([chunk(number, 0, 1)])
    buffer.flush()
    num_rows, put_rows = buffer.ring.num_rows, LinkedRing._put_rows

    def torn(ring: LinkedRing, observations: Any, size: int, first: int, rows: Any) -> None:
        if broken_off == "while":
            ring.links.put_rows(rows[0][:7], rows[1][:7])
        raise KeyboardInterrupt

    if broken_off != "after":
        monkeypatch.setattr(LinkedRing, "_put_rows", torn)
        with pytest.raises(KeyboardInterrupt):
            buffer.add([chunk(number, 0, 1) for number in range(100, 115)])
        monkeypatch.setattr(LinkedRing, "_put_rows", put_rows)
    else:
        buffer.add([chunk(number, 0, 1) for number in range(100, 115)])
    again = EpisodeReplayBuffer(40, path=tmp_path, resume=True)
    assert again.ring.num_rows > num_rows
    assert [episode.id_ for episode in again.iter_episodes()] == [str(number) for number in range(15)]
    check_whole(again)
    again.flush()
    check_whole(EpisodeReplayBuffer(40, path=tmp_path, resume=True))
