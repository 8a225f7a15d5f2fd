"""Draws by priority follow the priorities, and priorities live and die with their steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, StepOutOfRange, WrongType
from episodes.replay import PrioritizedEpisodeReplayBuffer
from episodes.replay.max_priority import PrioritiesWithMax
from episodes.replay.sum_tree import SumTree
from episodes.single_agent import SingleAgentEpisode
from tests.reference_replay import chi_square_deviation


def episode(length: int, id_: str = "a", *, start: float = 0.0, t_started: int = 0) -> SingleAgentEpisode:
    observations = np.arange(length + 1.0) + start
    actions = np.arange(length) + t_started
    return SingleAgentEpisode.from_arrays(observations, actions, np.ones(length), id_=id_, t_started=t_started)


def filled(
    num_steps: int = 100,
    *,
    capacity: int = 100,
    alpha: float = 1.0,
    beta: float = 0.5,
    unit: str = "transition",
    period: int | None = None,
) -> PrioritizedEpisodeReplayBuffer:
    buffer = PrioritizedEpisodeReplayBuffer(capacity, alpha=alpha, beta=beta, unit=unit, period=period, seed=0)
    for number in range(num_steps // 10):
        buffer.add([episode(10, str(number), start=100.0 * number)])
    return buffer


# --- the tree ---------------------------------------------------------------------------------------------------

sizes = st.sampled_from([1, 2, 15, 16, 17, 255, 600, 8192, 9000, 140_000])


@given(size=sizes, seed=st.integers(0, 9))
def test_sum_tree_find_equals_search_in_sums(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree, values = SumTree(size), np.zeros(size)
    for _ in range(4):
        leaves = rng.integers(0, size, 20)
        given_values = rng.integers(0, 4, 20).astype(float)
        tree.set(leaves, given_values)
        values[leaves] = given_values
        start, stop = sorted(rng.integers(0, size + 1, 2).tolist())
        if start < stop:
            tree.fill(start, stop, 2.0)
            values[start:stop] = 2.0
    assert tree.leaves().tolist() == values.tolist()
    assert tree.total == values.sum()
    if tree.total:
        amounts = rng.random(50) * tree.total
        assert tree.find(amounts).tolist() == np.cumsum(values).searchsorted(amounts, "right").tolist()
        drawn, shares = tree.draw(50, rng)
        assert np.array_equal(shares, values[drawn])
        assert (shares > 0).all()


def test_sum_tree_find_at_edges_returns_nonzero_leaves() -> None:
    tree = SumTree(10_000)
    tree.set(np.array([3, 7, 9_000]), np.array([0.1, 0.2, 0.3]))
    edges = np.array([0.0, np.nextafter(0.1, 0), 0.1, np.nextafter(tree.total, 0)])
    assert tree.find(edges).tolist() == [3, 3, 7, 9_000]


def test_sum_tree_set_state_restores_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    tree, restored = SumTree(20_000), SumTree(20_000)
    for _ in range(30):
        tree.set(rng.integers(0, 20_000, 100), rng.random(100))
    restored.set_state(tree.get_state())
    first, second = (t.draw(1000, np.random.default_rng(1))[0] for t in (tree, restored))
    assert np.array_equal(first, second)


# --- draws ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_prioritized_sample_follows_priorities(alpha: float) -> None:
    buffer = filled(alpha=alpha)
    priorities = np.random.default_rng(0).random(100) + 0.01
    buffer.update_priorities(np.arange(100), priorities)
    drawn = np.concatenate([buffer.sample(1000, keys=["t"]).indices for _ in range(200)])
    assert chi_square_deviation(np.bincount(drawn, minlength=100), priorities**alpha) < 3


def test_prioritized_sample_follows_priorities_after_eviction() -> None:
    buffer = filled(100, capacity=64)
    priorities = np.random.default_rng(1).random(64) + 0.01
    buffer.update_priorities(np.arange(36, 100), priorities)
    buffer.add([episode(10, "new")])
    expected = np.concatenate([priorities[10:], np.ones(10)])
    drawn = np.concatenate([buffer.sample(1000, keys=["t"]).indices for _ in range(200)])
    assert chi_square_deviation(np.bincount(drawn - 46, minlength=64), expected) < 3


def test_prioritized_sequences_follow_priority_of_first_step() -> None:
    buffer = filled(unit="sequence")
    priorities = np.random.default_rng(5).random(100) + 0.01
    buffer.update_priorities(np.arange(100), priorities)
    drawn = np.concatenate([buffer.sample_sequences(1000, 5, boundary="stop", keys=["t"]).indices for _ in range(200)])
    assert chi_square_deviation(np.bincount(drawn, minlength=100), priorities) < 3


def test_prioritized_sample_includes_last_steps_of_episodes() -> None:
    buffer = filled()
    batch = buffer.sample(3000, n_step=20)
    assert set((batch.indices % 10).tolist()) == set(range(10))
    assert set(batch.n_step.tolist()) == set(range(1, 11))


@given(beta=st.floats(0, 2), alpha=st.floats(0, 2))
def test_importance_weights_equal_formula(beta: float, alpha: float) -> None:
    buffer = filled(alpha=alpha, beta=beta)
    priorities = np.random.default_rng(3).random(100) + 0.1
    buffer.update_priorities(np.arange(100), priorities)
    batch = buffer.sample(64)
    probabilities = priorities**alpha / (priorities**alpha).sum()
    weights = (100 * probabilities[batch.indices]) ** -beta
    assert np.allclose(batch.weights, weights / weights.max(), rtol=1e-5)


def test_set_beta_changes_later_weights() -> None:
    buffer = filled(beta=0.0)
    buffer.update_priorities(np.arange(50), np.full(50, 0.1))
    assert set(buffer.sample(200).weights.tolist()) == {1.0}
    buffer.set_beta(1.0)
    assert {round(float(w), 5) for w in buffer.sample(200).weights} == {0.1, 1.0}


# --- priorities -------------------------------------------------------------------------------------------------


def test_new_steps_get_highest_priority() -> None:
    buffer = filled(50)
    assert set(buffer.priorities(np.arange(50)).tolist()) == {1.0}
    buffer.update_priorities(np.array([3, 4]), np.array([7.0, 0.5]))
    buffer.add([episode(5, "new")])
    assert set(buffer.priorities(np.arange(50, 55)).tolist()) == {7.0}
    assert buffer.priorities(np.array([3, 4])).tolist() == [7.0, 0.5]


def test_update_priorities_of_evicted_steps_counts_stale() -> None:
    buffer = filled(100, capacity=30)
    before = buffer.priorities(np.arange(70, 100))
    buffer.update_priorities(np.array([5, 69, 70]), np.array([50.0, 60.0, 2.0]))
    assert buffer.num_stale == 2
    after = buffer.priorities(np.arange(70, 100))
    assert (after[0], after[1:].tolist()) == (2.0, before[1:].tolist())
    buffer.update_priorities(np.array([1]), np.array([1.0]))
    assert buffer.num_stale == 3


def test_eviction_removes_priorities() -> None:
    buffer = filled(30, capacity=30)
    buffer.update_priorities(np.arange(30), np.full(30, 1e-3))
    buffer.update_priorities(np.array([0]), np.array([1.0]))
    buffer.add([episode(10, "new")])
    assert (buffer.sample(500).indices >= 10).all()
    assert set(buffer.priorities(np.arange(30, 40)).tolist()) == {1.0}


def test_clear_removes_priorities() -> None:
    buffer = filled()
    buffer.update_priorities(np.arange(100), np.full(100, 9.0))
    buffer.clear()
    with pytest.raises(EpisodeStateError, match="nothing is stored"):
        buffer.sample(1)
    buffer.add([episode(10, "new")])
    new = np.unique(buffer.sample(200).indices)
    assert new.tolist() == list(range(new[0], new[0] + 10))
    assert set(buffer.priorities(new).tolist()) == {1.0}
    buffer.update_priorities(np.arange(100), np.full(100, 9.0))  # of steps that are gone
    assert buffer.num_stale == 100
    assert set(buffer.priorities(new).tolist()) == {1.0}
    assert buffer.num_added == 110


def test_zero_priority_is_still_sampled() -> None:
    buffer = filled(10)
    buffer.update_priorities(np.arange(10), np.zeros(10))
    assert set(buffer.sample(500).indices.tolist()) == set(range(10))


def test_unit_sets_shape_of_sequence_indices() -> None:
    steps, whole = filled(), filled(unit="sequence")
    batch = steps.sample_sequences(6, 4)
    assert batch.indices.shape == (6, 4)
    steps.update_priorities(batch.indices, np.full((6, 4), 3.0))
    real = batch.indices[batch.indices >= 0]
    assert set(steps.priorities(real).tolist()) == {3.0}
    assert steps.num_stale == 0
    batch = whole.sample_sequences(6, 4, burn_in=2)
    assert batch.indices.shape == (6,)
    assert np.array_equal(batch.indices % 10, batch.actions[np.arange(6), batch.loss_mask.argmax(1)])
    whole.update_priorities(batch.indices, np.full(6, 3.0))


@pytest.mark.parametrize(
    ("indices", "priorities", "error", "match"),
    [
        ([1, 2], [1.0], ShapeMismatch, "one for each"),
        ([1, 2], [1.0, -1.0], InvalidArgument, "finite and >= 0"),
        ([1, 2], [1.0, np.nan], InvalidArgument, "finite and >= 0"),
        ([1, 2], [1.0, np.inf], InvalidArgument, "finite and >= 0"),
        ([1, 100], [1.0, 1.0], StepOutOfRange, r"step 100: .* numbers 0\.\.99"),
    ],
)
def test_update_priorities_with_invalid_values_raises(
    indices: list[int], priorities: list[float], error: type[Exception], match: str
) -> None:
    buffer = filled()
    with pytest.raises(error, match=match):
        buffer.update_priorities(np.array(indices), np.array(priorities))
    assert set(buffer.priorities(np.arange(100)).tolist()) == {1.0}


def test_prioritized_buffer_with_invalid_arguments_raises() -> None:
    all_bad: list[dict[str, Any]] = [{"alpha": -1.0}, {"beta": -1.0}, {"unit": "episode"}, {"min_priority": 0.0}]
    for bad in [*all_bad, {"alpha": float("nan")}]:
        with pytest.raises(InvalidArgument, match=next(iter(bad))):
            PrioritizedEpisodeReplayBuffer(10, **bad)
    with pytest.raises(InvalidArgument):
        filled().set_beta(-0.1)


def test_prioritized_set_state_continues_bit_for_bit() -> None:
    buffer = filled(90, capacity=64, alpha=0.7)
    rng = np.random.default_rng(0)
    for _ in range(5):
        buffer.update_priorities(buffer.sample(16).indices, rng.random(16))
    restored = PrioritizedEpisodeReplayBuffer(64, seed=1)
    restored.set_state(buffer.get_state())
    for number in range(5):
        for buffer_state in (buffer, restored):
            buffer_state.add([episode(7, f"new {number}", start=1000.0)])
        first, second = buffer.sample(32), restored.sample(32)
        assert all(np.array_equal(values, second[key]) for key, values in first.items())
        for buffer_state in (buffer, restored):
            buffer_state.update_priorities(first.indices, first.rewards * number)
    assert restored.num_stale == buffer.num_stale


def test_prioritized_period_samples_only_grid() -> None:
    buffer = filled(90, capacity=64, unit="sequence", period=4, alpha=1.0)
    batch = buffer.sample_sequences(200, 8, keys=["t"])
    assert (batch.t[:, 0] % 4 == 0).all()
    begins = np.unique(batch.indices)
    buffer.update_priorities(begins, np.arange(len(begins)) + 1.0)
    counts = np.zeros(len(begins))
    for _ in range(50):
        counts += np.bincount(begins.searchsorted(buffer.sample_sequences(500, 8, keys=["t"]).indices))
    assert chi_square_deviation(counts, np.arange(len(begins)) + 1.0) < 3
    restored = PrioritizedEpisodeReplayBuffer(64, unit="sequence")
    restored.set_state(buffer.get_state())
    assert np.array_equal(restored.sample_sequences(9, 8).indices, buffer.sample_sequences(9, 8).indices)
    for wrong in (lambda: buffer.sample(3), lambda: buffer.sample_sequences(3, 8, period=5)):
        with pytest.raises(InvalidArgument, match="period=4"):
            wrong()
    with pytest.raises(InvalidArgument, match="begin no sequence of period=4"):
        buffer.update_priorities(begins + 1, np.ones(len(begins)))
    with pytest.raises(InvalidArgument, match="unit='sequence'"):
        PrioritizedEpisodeReplayBuffer(64, period=4)
    with pytest.raises(InvalidArgument, match="period=4 of a buffer with period=None"):
        filled().sample_sequences(3, 8, period=4)
    buffer.clear()
    buffer.add([episode(2, "late", t_started=5)])
    with pytest.raises(EpisodeStateError, match="at which a sequence begins"):
        buffer.sample_sequences(3, 8)


def test_recorded_steps_have_priorities() -> None:
    buffer = PrioritizedEpisodeReplayBuffer(20, seed=0)
    recorder = buffer.recorder(2, autoreset_mode="NextStep")
    no = np.zeros(2, bool)
    recorder.reset(np.zeros(2))
    for step in range(25):
        recorder.step(np.full(2, step + 1.0), np.zeros(2, int), np.zeros(2), no, no)
        batch = buffer.sample(5)
        assert np.array_equal(batch.new_obs, batch.obs + 1)
        buffer.update_priorities(batch.indices, batch.obs + 1)
    assert (buffer.sample(200).indices >= 30).all()


def test_new_steps_get_highest_stored_priority() -> None:
    buffer = filled(100, capacity=100)
    buffer.update_priorities(np.array([5, 7, 9]), np.array([1e30, 4.0, 2.0]))
    buffer.add([episode(1, "as high")])
    assert buffer.priorities(np.array([100])).tolist() == [1e30]
    buffer.update_priorities(np.array([5]), np.array([3.0]))
    buffer.add([episode(1, "lowered")])
    assert buffer.priorities(np.array([101])).tolist() == [4.0]
    buffer.add([episode(10, "evicts them")])
    assert buffer.priorities(np.array([111])).tolist() == [1.0]


@given(seed=st.integers(0, 99), capacity=st.sampled_from([5, 64, 300]))
def test_priorities_with_max_equals_reference(seed: int, capacity: int) -> None:
    rng, peaks, known = np.random.default_rng(seed), PrioritiesWithMax(capacity), np.zeros(capacity)
    for _ in range(20):
        positions, values = rng.integers(0, capacity, 6), rng.random(6) + 0.1
        peaks.set(positions, values)
        for position, value in zip(positions, values, strict=True):
            known[position] = value
        start = int(rng.integers(0, capacity))
        stop = min(start + int(rng.integers(1, 9)), capacity)
        peaks.unset(start, stop)
        known[start:stop] = 0
        assert peaks.highest == known.max()
    restored = PrioritiesWithMax(capacity)
    restored.set_state(peaks.get_state())
    assert restored.highest == peaks.highest


def test_zero_priorities_are_sampled_for_every_alpha() -> None:
    buffer = filled(20, alpha=60.0)
    buffer.update_priorities(np.arange(20), np.zeros(20))
    drawn = buffer.sample(400)
    assert len(set(drawn.indices.tolist())) == 20
    assert (drawn.weights == 1).all()
    buffer.add([episode(10, "new")])
    assert buffer.sample(5).indices.min() >= 20


@pytest.mark.parametrize("min_priority", [1e-6, 1e-300, 5.0, 1e250])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0, 60.0])
def test_priorities_return_powers_or_update_raises(alpha: float, min_priority: float) -> None:
    buffer = PrioritizedEpisodeReplayBuffer(100, alpha=alpha, min_priority=min_priority, seed=0)
    buffer.add(episode(40))
    given_priorities = np.geomspace(1e-300, 1e150, 40)
    with np.errstate(over="ignore"):
        expected = np.maximum(np.maximum(given_priorities, min_priority) ** alpha, 1e-290)
    if np.isfinite(expected.max() * 100):
        buffer.update_priorities(np.arange(40), given_priorities)
        assert buffer.priorities(np.arange(40)).tolist() == expected.tolist()
    else:
        with pytest.raises(InvalidArgument, match="no finite sum"):
            buffer.update_priorities(np.arange(40), given_priorities)


def test_update_priorities_with_float_indices_raises() -> None:
    buffer = filled(20)
    before = buffer.priorities(np.arange(20)).tolist()
    for wrong in (np.array([1.5]), np.array([1.0]), np.array([True]), np.array(["1"])):
        with pytest.raises(WrongType, match="ints"):
            buffer.update_priorities(wrong, np.array([9.0]))
        with pytest.raises(WrongType, match="ints"):
            buffer.priorities(wrong)
    buffer.update_priorities(np.array([]), np.array([]))
    buffer.add([episode(1, "next")])
    assert buffer.priorities(np.arange(21)).tolist() == [*before, 1.0]
    assert buffer.num_stale == 0
