"""Probabilities of samples, and edge cases of sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from episodes.batch import Batch
from episodes.errors import ChunkMismatch, EpisodeStateError, InvalidArgument, ShapeMismatch, TrackMismatch
from episodes.replay import EpisodeReplayBuffer, SamplesPerInsert
from episodes.single_agent import SingleAgentEpisode
from tests.reference_replay import LastObservations, chi_square_deviation


def episode(
    length: int, id_: str = "a", *, start: float = 0.0, t_started: int = 0, **options: Any
) -> SingleAgentEpisode:
    """Return an episode whose observations count up from `start`, with rewards of 1."""
    observations = np.arange(length + 1.0) + start
    actions = np.arange(length) + t_started
    return SingleAgentEpisode.from_arrays(
        observations, actions, np.ones(length), id_=id_, t_started=t_started, **options
    )


def buffer_of(*episodes: SingleAgentEpisode, capacity: int = 100) -> EpisodeReplayBuffer:
    buffer = EpisodeReplayBuffer(capacity, seed=0)
    buffer.add(episodes)
    return buffer


# --- how likely -------------------------------------------------------------------------------------------------


def uneven_buffer() -> EpisodeReplayBuffer:
    """300 steps in episodes of 1 to 24 steps, some of them evicted."""
    buffer = EpisodeReplayBuffer(300, seed=7)
    for length in range(1, 25):
        for count in range(2):
            buffer.add([episode(length, f"{length}-{count}", terminated=count == 0, truncated=count == 1)])
    assert len(buffer) == 300
    assert buffer.num_added == 600
    return buffer


def starts(batch: Batch) -> np.ndarray:
    """Return the step index of the first step to learn from of each sequence."""
    return batch.indices[np.arange(len(batch)), batch.loss_mask.argmax(1)]


@pytest.mark.parametrize(
    "draw",
    [
        lambda b: b.sample(1000, keys=["t"]).indices,
        lambda b: b.sample(1000, n_step=5, keys=["t"]).indices,
        lambda b: starts(b.sample_sequences(1000, 7, burn_in=2, keys=["t"])),
        lambda b: np.array([e.id_ for e in b.sample_episodes(100)]),
    ],
    ids=["steps", "n steps", "sequences", "episodes"],
)
def test_samples_are_uniform(draw: Any) -> None:
    buffer = uneven_buffer()
    drawn = np.concatenate([draw(buffer) for _ in range(200)])
    values, counts = np.unique(drawn, return_counts=True)
    if drawn.dtype.kind == "U":
        assert len(counts) == buffer.num_episodes
    else:  # of the oldest episode, the beginning is evicted: no sequence has its first steps as an incomplete burn-in
        oldest = next(buffer.iter_episodes()).t_started
        assert oldest > 0
        assert len(counts) in (300, 298)
        assert values[-1] - values[0] == len(counts) - 1
    assert chi_square_deviation(counts) < 3


def test_sample_from_many_envs_has_many_time_offsets() -> None:
    buffer = EpisodeReplayBuffer(64 * 100, seed=0)
    recorder = buffer.recorder(64, autoreset_mode="NextStep")
    no = np.zeros(64, bool)
    recorder.reset(np.zeros(64))
    for _ in range(100):
        recorder.step(np.zeros(64), np.zeros(64, np.int64), np.zeros(64), no, no)
    assert len(set(buffer.sample(256, keys=["t"]).t.tolist())) > 80


def test_seed_fixes_all_samples() -> None:
    first, second = uneven_buffer(), uneven_buffer()
    for _ in range(3):
        assert np.array_equal(first.sample(50).indices, second.sample(50).indices)
        assert np.array_equal(first.sample_sequences(5, 4).indices, second.sample_sequences(5, 4).indices)
        assert [e.id_ for e in first.sample_episodes(5)] == [e.id_ for e in second.sample_episodes(5)]


# --- n steps ----------------------------------------------------------------------------------------------------


def test_random_n_step_is_uniform_per_row() -> None:
    batch = buffer_of(episode(80, terminated=True)).sample(50_000, n_step=(2, 5), keys=["actions"])
    counts = np.bincount(batch.n_step[batch.actions <= 75], minlength=6)
    assert counts[:2].sum() == 0
    assert chi_square_deviation(counts[2:]) < 3


def test_frames_are_stored_once() -> None:
    steps, shape = 600, (84, 84)
    buffer = EpisodeReplayBuffer(steps, seed=0)
    for number in range(2 * steps // 100):
        frames = np.zeros((101, *shape), np.uint8)
        buffer.add([SingleAgentEpisode.from_arrays(frames, np.zeros(100, int), np.zeros(100), id_=str(number))])
    batch = buffer.sample(4, views=LastObservations(4))
    assert batch.obs.shape == batch.new_obs.shape == (4, 4, *shape)
    assert buffer.nbytes < 0.15 * steps * 2 * 4 * 84 * 84


# --- sequences --------------------------------------------------------------------------------------------------


def test_resets_at_is_first_reproduce_acting_states() -> None:
    def next_state(state: np.ndarray, obs: np.ndarray) -> np.ndarray:
        return np.tanh(0.7 * state + obs - 0.3)

    buffer, rng = EpisodeReplayBuffer(60, seed=0), np.random.default_rng(0)
    for number, length in enumerate((5, 20, 1, 9, 30)):
        observations, states = rng.standard_normal(length + 1), [np.zeros(())]
        for first_steps in observations[:-1]:
            states.append(next_state(states[-1], first_steps))
        outputs = {"state_out": np.array(states[1:])}
        arrays = observations, np.zeros(length, int), np.zeros(length)
        buffer.add([SingleAgentEpisode.from_arrays(*arrays, id_=str(number), extra_model_outputs=outputs)])
    batch = buffer.sample_sequences(200, 6, burn_in=4, keys=["obs", "state_out"])
    assert batch.is_first[:, 1:].any()
    state, unrolled = batch.state_in, []
    for column in range(10):
        state = np.where(batch.is_first[:, column], 0.0, state)
        state = next_state(state, batch.obs[:, column])
        unrolled.append(state)
    assert np.allclose(
        np.stack(unrolled, 1)[:, 4:][batch.loss_mask[:, 4:]], batch.state_out[:, 4:][batch.loss_mask[:, 4:]]
    )


def test_period_samples_grid_steps_uniformly() -> None:
    buffer = EpisodeReplayBuffer(300, seed=7)
    for length in range(1, 41):
        buffer.add([episode(length, f"{length}", terminated=True)])
        if length > 30:
            batch = buffer.sample_sequences(10, 10, period=5)
            assert (batch.actions[:, 0] % 5 == 0).all()
    begins = [
        n for n, t in zip(range(520, 820), buffer.at(np.arange(520, 820), keys=["t"]).t, strict=True) if t % 5 == 0
    ]
    drawn = np.concatenate([buffer.sample_sequences(1000, 10, period=5).indices[:, 0] for _ in range(50)])
    result, counts = np.unique(drawn, return_counts=True)
    assert result.tolist() == begins
    assert chi_square_deviation(counts) < 3


def test_period_follows_clear_and_set_state() -> None:
    buffer = buffer_of(episode(7, terminated=True))
    assert set(buffer.sample_sequences(50, 4, period=3, keys=["t"]).t[:, 0]) == {0, 3, 6}
    state = buffer.get_state()
    buffer.clear()
    with pytest.raises(EpisodeStateError, match="nothing is stored"):
        buffer.sample_sequences(1, 4, period=3)
    buffer.add([episode(2, "late", t_started=4)])
    with pytest.raises(EpisodeStateError, match="no stored step has a `t` at which a sequence begins"):
        buffer.sample_sequences(1, 4, period=3)
    buffer.add([episode(2, "late", start=2.0, t_started=6)])
    assert set(buffer.sample_sequences(50, 4, period=3, keys=["t"]).t[:, 0]) == {6}
    buffer.set_state(state)
    assert set(buffer.sample_sequences(50, 4, period=3, keys=["t"]).t[:, 0]) == {0, 3, 6}
    with pytest.raises(InvalidArgument, match="off the grid"):
        buffer.sample_sequences(1, 4, period=3, boundary="stop")


def test_boundary_stop_repeats_last_full_sequence() -> None:
    drawn = buffer_of(episode(9, terminated=True)).sample_sequences(90_000, 3, boundary="stop", keys=["t"]).t[:, 0]
    counts = np.bincount(drawn, minlength=7)
    assert chi_square_deviation(counts, np.array([1.0, 1, 1, 1, 1, 1, 3])) < 3


# --- counts -----------------------------------------------------------------------------------------------------


def test_buffer_counts_added_sampled_evicted_steps() -> None:
    buffer = buffer_of(episode(8), capacity=6)
    buffer.sample(10)
    buffer.at(np.arange(2, 8))
    assert (buffer.num_added, buffer.num_evicted, buffer.num_sampled, buffer.samples_per_insert) == (8, 2, 10, 1.25)
    learned = buffer.sample_sequences(5, 4, burn_in=3).loss_mask.sum() + sum(map(len, buffer.sample_episodes(2)))
    assert buffer.num_sampled == 10 + learned
    assert "8 added, 2 evicted" in repr(buffer)
    restored = EpisodeReplayBuffer(6)
    restored.set_state(buffer.get_state())
    assert restored.num_sampled == buffer.num_sampled


def test_limit_keeps_samples_per_insert() -> None:
    buffer = EpisodeReplayBuffer(1000, seed=0, limit=SamplesPerInsert(4, min_size=50, slack=64))
    assert (buffer.may_sample(), buffer.may_add()) == (False, True)
    for number in range(200):
        added = buffer.may_add()
        if added:
            buffer.add([episode(7, str(number))])
        drawn = buffer.may_sample(32)
        if drawn:
            buffer.sample(32)
        assert added or drawn
        assert buffer.num_sampled <= 4 * max(buffer.num_added - 50, 0) <= buffer.num_sampled + 64 + 4 * 7
    assert buffer.samples_per_insert > 3
    assert EpisodeReplayBuffer(5).may_add()
    assert not EpisodeReplayBuffer(5).may_sample()
    with pytest.raises(InvalidArgument, match="ratio > 0"):
        SamplesPerInsert(0)


# --- whole episodes ---------------------------------------------------------------------------------------------


def test_sampled_episode_is_read_only_copy() -> None:
    buffer = buffer_of(episode(5, terminated=True))
    (drawn,) = buffer.sample_episodes(1)
    ring = buffer.flush_ring()
    assert not np.shares_memory(drawn.get_observations(), ring.observations.data)
    assert not np.shares_memory(drawn.get_rewards(), ring.track("rewards"))
    assert not drawn.get_observations().flags.writeable


# --- edges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [lambda b: b.sample(1), lambda b: b.sample_sequences(1, 1), lambda b: b.sample_episodes(1)],
    ids=["steps", "sequences", "episodes"],
)
def test_sample_from_empty_buffer_raises(draw: Any) -> None:
    buffer = EpisodeReplayBuffer(5)
    with pytest.raises(EpisodeStateError, match="nothing is stored"):
        draw(buffer)
    buffer.add([episode(2)])
    draw(buffer)
    buffer.clear()
    assert len(buffer) == buffer.num_episodes == 0
    assert list(buffer.iter_episodes()) == []
    with pytest.raises(EpisodeStateError, match="nothing is stored"):
        draw(buffer)


def test_add_of_nothing_is_allowed() -> None:
    buffer = EpisodeReplayBuffer(5)
    buffer.add([])
    buffer.add([SingleAgentEpisode.from_arrays(np.zeros(1), np.zeros(0), np.zeros(0), id_="a")])
    assert len(buffer) == 0
    buffer.add([episode(2), episode(0, "b")])
    batch = buffer.sample(4)
    assert batch.actions.dtype == np.int64


UNEQUAL = {
    "a chunk that repeats steps": ([episode(2, "new"), episode(2)], ChunkMismatch, "t=0, .* continues at t=3"),
    "an overlapping chunk": ([episode(2, "new"), episode(2, t_started=2)], ChunkMismatch, "t=2, .* continues at t=3"),
    "a chunk after a gap": ([episode(2, "new"), episode(2, t_started=4)], ChunkMismatch, "t=4, .* continues at t=3"),
    "a chunk twice": ([episode(2, t_started=3)] * 2, ChunkMismatch, "t=3, .* continues at t=5"),
    "a chunk after the ending": ([episode(2, "ended", t_started=3)], ChunkMismatch, "ended at t=3"),
    "a chunk after an added ending": (
        [episode(2, "new", terminated=True), episode(2, "new", t_started=2)],
        ChunkMismatch,
        "ended at t=2",
    ),
    "another shape": (
        [SingleAgentEpisode.from_arrays(np.zeros((3, 2)), np.zeros(2, int), np.zeros(2))],
        ShapeMismatch,
        "observations",
    ),
    "another structure": (
        [SingleAgentEpisode.from_arrays({"x": np.zeros(3)}, np.zeros(2, int), np.zeros(2))],
        TrackMismatch,
        "dict",
    ),
    "a float among integers": (
        [SingleAgentEpisode.from_arrays(np.zeros(3), np.zeros(2), np.zeros(2))],
        TrackMismatch,
        "actions: items of float64",
    ),
}


@pytest.mark.parametrize(("added", "error", "match"), UNEQUAL.values(), ids=UNEQUAL)
def test_add_of_unequal_chunks_raises(added: Any, error: type[Exception], match: str) -> None:
    buffer = buffer_of(episode(3), episode(3, "ended", truncated=True))
    with pytest.raises(error, match=match):
        buffer.add(added)
    assert (len(buffer), buffer.num_added) == (6, 6)
    buffer.add([episode(2, start=3.0, t_started=3)])
    assert sorted(map(len, buffer.iter_episodes())) == [3, 5]


def test_short_episodes_need_one_more_row_each() -> None:
    buffer = EpisodeReplayBuffer(1000, seed=0)
    for number in range(4000):
        buffer.add([episode(1, str(number), start=2.0 * number, terminated=True)])
    assert buffer.num_episodes == 1000
    batch = buffer.sample(500)
    assert np.array_equal(batch.new_obs, batch.obs + 1)
    rows = len(buffer.flush_ring().observations.data)
    assert rows < 2.1 * 1000
