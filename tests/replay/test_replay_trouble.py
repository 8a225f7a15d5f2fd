"""Unusual uses of replay buffers: several recorders, copies, wrong rows, odd dtypes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from episodes.errors import (
    ChunkMismatch,
    EpisodeStateError,
    StateMismatch,
    TrackMismatch,
    UnknownKey,
    WrongType,
)
from episodes.multi_agent import MultiAgentEpisode
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.replay.replay_recorder import ReplayRecorder
from episodes.single_agent import SingleAgentEpisode


def episode(id_: str, length: int, first: float = 0.0, **options: Any) -> SingleAgentEpisode:
    """Return an episode with observations `first`, `first` + 1, ... and rewards equal to the next observations."""
    observations = first + np.arange(length + 1.0)
    return SingleAgentEpisode.from_arrays(
        observations, np.zeros(length, int), observations[1:].copy(), id_=id_, **options
    )


def recorder_of(buffer: EpisodeReplayBuffer, num_envs: int, **options: Any) -> ReplayRecorder:
    return buffer.recorder(num_envs, autoreset_mode="NextStep", **options)


def step(recorder: ReplayRecorder, observations: Any, **changes: Any) -> None:
    count = recorder.num_envs
    row = {
        "observations": observations,
        "actions": np.zeros(count, int),
        "rewards": np.zeros(count),
        "terminateds": np.zeros(count, bool),
        "truncateds": np.zeros(count, bool),
    }
    recorder.step(**(row | changes))


def test_step_after_other_recorder_evicted_episodes_raises() -> None:
    buffer = EpisodeReplayBuffer(64)
    slow, fast = recorder_of(buffer, 1), recorder_of(buffer, 8)
    slow.reset(np.zeros(1))
    step(slow, np.zeros(1))
    fast.reset(np.full(8, 1.0))
    for _ in range(8):
        step(fast, np.full(8, 1.0))
    assert not slow.is_reset
    with pytest.raises(EpisodeStateError, match="evicted the ongoing episodes; call reset"):
        step(slow, np.full(1, -1.0))
    slow.reset(np.zeros(1))
    step(slow, np.full(1, -1.0))
    assert (buffer.at(np.arange(2, 65), n_step=20).new_obs[:-1] == 1.0).sum() == 62
    assert len(buffer) == sum(map(len, buffer.iter_episodes()))


@pytest.mark.parametrize("counts", [(1, 8), (3, 5), (1, 1)])
def test_two_recorders_keep_episodes_apart(counts: tuple[int, int]) -> None:
    buffer, rng = EpisodeReplayBuffer(40, seed=0), np.random.default_rng(0)
    writers = [(recorder_of(buffer, count), sign) for count, sign in zip(counts, (1.0, -1.0), strict=True)]
    for recorder, sign in writers:
        recorder.reset(np.full(recorder.num_envs, sign))
    for number in range(400):
        recorder, sign = writers[int(rng.integers(2))]
        if not recorder.is_reset:
            recorder.reset(np.full(recorder.num_envs, sign))
        done = rng.random(recorder.num_envs) < 0.1
        outputs = {} if number % 2 else None
        row = np.full(recorder.num_envs, sign * (number + 2))
        step(recorder, row, terminateds=done, extra_model_outputs=outputs)
        assert len(buffer) == sum(map(len, buffer.iter_episodes()))
        drawn = buffer.sample(20, n_step=6)
        assert (np.sign(drawn.obs) == np.sign(drawn.new_obs)).all()
    for stored_episode in buffer.iter_episodes():
        assert len(set(np.sign(stored_episode.get_observations()))) == 1


def test_overwritten_reset_observation_is_not_used() -> None:
    buffer = EpisodeReplayBuffer(64)
    waits = recorder_of(buffer, 1)
    waits.reset(np.full(1, 1000.0))
    buffer.add([episode("x", 64)])
    buffer.add([episode("y", 10)])
    recorder_of(buffer, 16).reset(np.zeros(16))
    if waits.is_reset:
        step(waits, np.full(1, 1001.0))
        assert buffer.at(np.array([buffer.num_added - 1])).obs.tolist() == [1000.0]
    else:
        with pytest.raises(EpisodeStateError, match="evicted the ongoing episodes"):
            step(waits, np.full(1, 1001.0))


def test_kept_reset_observation_has_its_info() -> None:
    buffer = EpisodeReplayBuffer(64)
    waits = recorder_of(buffer, 1)
    waits.reset(np.full(1, 1000.0), {"seen": np.array([7]), "_seen": np.array([True])})
    buffer.add([episode("x", 60)])
    buffer.add([episode("x", 5, first=60.0, t_started=60)])
    assert waits.is_reset
    step(waits, np.full(1, 1001.0))
    *_, stored_episode = buffer.iter_episodes()
    assert stored_episode.get_observations().tolist() == [1000.0, 1001.0]
    assert list(stored_episode.infos) == [{"seen": 7}, {}]


def test_many_recorders_reset_before_first_step() -> None:
    buffer = EpisodeReplayBuffer(64, seed=0)
    recorders = [recorder_of(buffer, count) for count in (4, 8, 16)]
    for recorder in recorders:
        recorder.reset(np.full(recorder.num_envs, float(recorder.num_envs)))
    for recorder in recorders:
        step(recorder, np.full(recorder.num_envs, float(-recorder.num_envs)))
    drawn = buffer.sample(100)
    assert np.array_equal(drawn.obs, -drawn.new_obs)


def test_small_buffer_accepts_repeated_resets() -> None:
    recorder = recorder_of(EpisodeReplayBuffer(8), 4)
    for _ in range(9):
        recorder.reset(np.zeros(4))
    step(recorder, np.ones(4))


def test_first_reset_accepts_full_mask() -> None:
    buffer = EpisodeReplayBuffer(32)
    buffer.add([episode("there", 10)])
    recorder = recorder_of(buffer, 2)
    recorder.reset(np.zeros(2), {}, np.ones(2, bool))
    step(recorder, np.ones(2))
    assert len(buffer) == 12


def test_step_after_add_continued_episode_raises() -> None:
    buffer = EpisodeReplayBuffer(32, seed=0)
    recorder = recorder_of(buffer, 1)
    recorder.reset(np.zeros(1))
    step(recorder, np.ones(1))
    id_ = next(buffer.iter_episodes()).id_
    buffer.add([episode(id_, 3, first=1.0, t_started=1, terminated=True)])
    with pytest.raises(EpisodeStateError, match="continues an episode of this recorder; call reset"):
        step(recorder, np.ones(1))
    (stored_episode,) = buffer.iter_episodes()
    assert stored_episode.get_observations().tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ChunkMismatch, match="ended at t=4"):
        buffer.add([episode(id_, 1, t_started=4)])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
@pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_copy_is_independent_of_original(kind: type, copied: Any) -> None:
    def filled_with(value: float) -> SingleAgentEpisode:
        return SingleAgentEpisode.from_arrays(np.full((3, 4), value, np.float32), [0, 1], [1.0, 1.0])

    original = kind(10, seed=0)
    original.add([filled_with(3.0)])
    with original.lock:
        second = copied(original)
    assert second.lock is not original.lock
    assert np.array_equal(original.sample(5).indices, second.sample(5).indices)
    second.add([filled_with(7.0)])
    assert second.at(np.array([0, 2, 3])).obs[:, 0].tolist() == [3.0, 7.0, 7.0]
    assert (len(original), len(second)) == (2, 4)
    assert type(second) is kind


def test_copy_of_multi_agent_buffer_shares_one_generator() -> None:
    stored_episode = MultiAgentEpisode(id_="one")
    stored_episode.add_env_reset(observations={"a": 0.0, "b": 0.0})
    for t in range(5):
        stored_episode.add_env_step({"a": t + 1.0, "b": t + 1.0}, {"a": 0, "b": 1}, {"a": 1.0, "b": 1.0})
    buffer = MultiAgentEpisodeReplayBuffer(20, seed=0)
    buffer.add(stored_episode)
    second = copy.deepcopy(buffer)
    assert all(module_buffer.generator is second.generator for module_buffer in second.modules.values())
    for batch, copied in zip(buffer.sample(4).values(), second.sample(4).values(), strict=True):
        assert np.array_equal(batch.indices, copied.indices)


def test_multi_agent_sample_skips_modules_without_steps() -> None:
    stored_episode = MultiAgentEpisode(id_="turns", agent_to_module_mapping_fn=lambda agent_id, _: agent_id)
    stored_episode.add_env_reset(observations={"first": 0.0})
    stored_episode.add_env_step({"second": 1.0}, {"first": 0}, {"first": 1.0})
    stored_episode.add_env_step({"first": 2.0}, {"second": 0}, {"second": 1.0})
    buffer = MultiAgentEpisodeReplayBuffer(20, seed=0)
    buffer.add(stored_episode)
    assert list(buffer.sample(3)) == ["first"]
    with pytest.raises(EpisodeStateError, match="nothing is stored"):
        buffer.sample(3, module_ids=["second"])


def test_step_that_raises_evicts_nothing() -> None:
    buffer = EpisodeReplayBuffer(4)
    recorder = buffer.recorder(2, autoreset_mode="SameStep")
    recorder.reset(np.zeros(2))
    for _ in range(2):
        step(recorder, np.ones(2))
    infos = {"final_obs": np.array([np.float64(5), None], object), "final_info": np.array([{}, None], object)}
    with pytest.raises(ValueError, match="truth value"):
        step(recorder, np.ones(2), terminateds=np.array([True, False]), infos=infos)
    assert (len(buffer), buffer.num_added) == (4, 4)
    assert sum(map(len, buffer.iter_episodes())) == 4


@pytest.mark.parametrize("kind", [int, float])
def test_recorder_converts_flags_to_bool(kind: type) -> None:
    buffer = EpisodeReplayBuffer(8)
    recorder = recorder_of(buffer, 2)
    recorder.reset(np.zeros(2))
    flags = np.array([0, 1]).astype(kind)
    step(recorder, np.ones(2), terminateds=flags, truncateds=np.zeros(2, kind))
    drawn = buffer.at(np.arange(2))
    assert drawn.terminateds.dtype == drawn.truncateds.dtype == bool
    assert (~drawn.terminateds).tolist() == [True, False]


def test_set_state_deletes_old_files(tmp_path: Any) -> None:
    with EpisodeReplayBuffer(8, seed=0, path=tmp_path / "ring") as buffer:
        buffer.add([episode("a", 4)])
        before, state = len(list((tmp_path / "ring").iterdir())), buffer.get_state()
        for _ in range(3):
            buffer.set_state(state)
        assert len(list((tmp_path / "ring").iterdir())) <= before
        assert buffer.at(np.arange(4)).obs.tolist() == [0, 1, 2, 3]


def test_step_indices_are_never_reused() -> None:
    buffer = EpisodeReplayBuffer(10, seed=0)
    buffer.add([episode("a", 7)])
    old = buffer.sample(20).indices
    buffer.clear()
    buffer.add([episode("b", 4, first=50.0)])
    drawn = buffer.sample(50)
    assert not set(drawn.indices) & set(old)
    assert set(drawn.obs) == {50.0, 51.0, 52.0, 53.0}
    assert (len(buffer), buffer.num_added) == (4, 11)
    for number in range(6):
        buffer.add([episode(f"c{number}", 3, first=100.0 * number)])
    assert len(buffer) == 10
    assert np.array_equal((drawn := buffer.sample(50)).new_obs, drawn.obs + 1)


def test_reused_entries_of_episodes_have_new_ids() -> None:
    buffer = EpisodeReplayBuffer(4, seed=0)
    for id_, length in (("a", 2), ("b", 2), ("c", 4)):
        buffer.add([episode(id_, length)])
    buffer.set_state(buffer.get_state())
    recorder = recorder_of(buffer, 1)
    recorder.reset(np.zeros(1))
    for _ in range(4):
        step(recorder, np.zeros(1))
    buffer.add([episode("d", 4)])
    assert [stored_episode.id_ for stored_episode in buffer.iter_episodes()] == ["d"]


def test_empty_id_is_valid() -> None:
    buffer = EpisodeReplayBuffer(4)
    buffer.add([episode("", 2)])
    buffer.add([episode("", 1, first=2.0, t_started=2)])
    assert [(stored_episode.id_, len(stored_episode)) for stored_episode in buffer.iter_episodes()] == [("", 3)]
    buffer.add([episode("b", 4)])
    buffer.add([episode("", 1)])
    assert [stored_episode.id_ for stored_episode in buffer.iter_episodes()] == ["b", ""]


def test_state_is_independent_of_added_data() -> None:
    buffer, custom_data, info = EpisodeReplayBuffer(8), {"x": 1}, {"a": 1}
    buffer.add([episode("a", 2, custom_data=custom_data, infos=[info, {}, {}])])
    state = buffer.get_state()
    custom_data["x"] = info["a"] = 99
    buffer.add([episode("b", 8, first=50.0, infos=[{"a": 2}] * 9)])
    buffer.set_state(state)
    (stored_episode,) = buffer.iter_episodes()
    assert (stored_episode.custom_data, stored_episode.infos[0]) == ({"x": 1}, {"a": 1})
    assert stored_episode.get_observations().tolist() == [0, 1, 2]
    assert stored_episode.get_rewards().tolist() == [1, 2]


def test_set_state_of_other_class_raises() -> None:
    plain, by_priority = EpisodeReplayBuffer(8), PrioritizedEpisodeReplayBuffer(8)
    for buffer in (plain, by_priority):
        buffer.add([episode("a", 4)])
    with pytest.raises(StateMismatch, match="without priorities"):
        by_priority.set_state(plain.get_state())
    with pytest.raises(StateMismatch, match="with priorities"):
        plain.set_state(by_priority.get_state())
    assert len(plain) == len(by_priority) == 4


def test_add_accepts_one_episode_or_a_generator() -> None:
    buffer = EpisodeReplayBuffer(10)
    buffer.add(episode("a", 3, terminated=True))
    buffer.add(episode(f"b{number}", 2) for number in range(2))
    assert (len(buffer), buffer.num_episodes) == (7, 3)


@pytest.mark.parametrize(
    ("kind", "other", "message"),
    [
        (EpisodeReplayBuffer, MultiAgentEpisode(), "takes a SingleAgentEpisode, .* this is a MultiAgentEpisode"),
        (MultiAgentEpisodeReplayBuffer, SingleAgentEpisode(), "takes a MultiAgentEpisode, .* this is a SingleAgentEp"),
    ],
)
def test_add_of_other_objects_raises(kind: Any, other: Any, message: str) -> None:
    with pytest.raises(WrongType, match=message):
        kind(10).add(other)
    for wrong in (None, {}, 5, "episodes", [5]):
        with pytest.raises(WrongType):
            kind(10).add(wrong)


def test_add_with_keys_stores_chosen_outputs() -> None:
    outputs = {"vf_preds": np.arange(3.0), "action_logp": np.zeros(3)}
    episode = SingleAgentEpisode.from_arrays(np.arange(4.0), [0, 1, 0], [1.0, 1.0, 1.0], extra_model_outputs=outputs)
    buffer = EpisodeReplayBuffer(10)
    buffer.add(episode, keys=["vf_preds"])
    assert buffer.sample(3, keys=["vf_preds"]).vf_preds.max() < 3
    both = {"vf_preds": [1.0], "a": [1]}
    other_episode = SingleAgentEpisode.from_arrays(np.arange(2.0), [0], [1.0], extra_model_outputs=both)
    with pytest.raises(TrackMismatch, match="keys="):
        buffer.add(other_episode, keys=["vf_preds", "a"])
    EpisodeReplayBuffer(10).add(other_episode)
    assert buffer.extra_model_outputs == ("vf_preds",)
    with pytest.raises(UnknownKey, match="no_such"):
        buffer.add(episode, keys=["no_such"])
    with pytest.raises(WrongType, match="names of extra model outputs in a list"):
        buffer.add(episode, keys="vf_preds")
    assert len(buffer) == 3
