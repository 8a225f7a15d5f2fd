"""Draws by priority follow the priorities, and priorities live and die with their steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, StepOutOfRange, WrongType
from episodes.replay import PrioritizedEpisodeReplayBuffer
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


# --- priorities -------------------------------------------------------------------------------------------------


class Priorities(RuleBasedStateMachine):
    """Random additions, updates and restores, compared with a dict from stored step to priority.

    Priorities are read now and then only: those of new steps do not depend on it.
    """

    @initialize(
        capacity=st.integers(4, 30), alpha=st.sampled_from([0.0, 0.6, 1.0]), beta=st.sampled_from([0.0, 0.4, 2.0])
    )
    def begin(self, capacity: int, alpha: float, beta: float) -> None:
        self.buffer = PrioritizedEpisodeReplayBuffer(capacity, alpha=alpha, beta=beta, seed=0)
        self.alpha, self.beta = alpha, beta
        self.priorities: dict[int, float] = {}
        self.highest = 1.0
        self.num_added = self.num_stale = 0

    def evict(self, oldest: int) -> None:
        self.priorities = {step: priority for step, priority in self.priorities.items() if step >= oldest}

    @rule(length=st.integers(1, 35))
    def add(self, length: int) -> None:
        first = self.buffer.flush_ring().head
        self.buffer.add([episode(length, str(self.num_added))])
        self.num_added += length
        oldest = first + length - self.buffer.capacity
        self.evict(oldest)
        self.priorities |= dict.fromkeys(range(max(first, oldest), first + length), self.highest)

    @precondition(lambda self: self.num_added > 0)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        head = self.buffer.flush_ring().head
        steps = st.integers(max(head - 40, 0), head - 1)
        given = data.draw(st.lists(st.tuples(steps, st.sampled_from([0.0, 0.25, 3.0, 8.0])), max_size=8))
        self.buffer.update_priorities(np.array([step for step, _ in given], int), np.array([p for _, p in given]))
        self.num_stale += sum(step not in self.priorities for step, _ in given)
        for step, priority in given:
            if step in self.priorities:
                self.priorities[step] = priority
                self.highest = max(self.highest, priority)

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.priorities, self.highest = {}, 1.0

    @rule(beta=st.sampled_from([0.0, 0.5, 1.0]))
    def set_beta(self, beta: float) -> None:
        self.buffer.set_beta(beta)
        self.beta = beta

    @rule()
    def restore(self) -> None:
        restored = PrioritizedEpisodeReplayBuffer(self.buffer.capacity, seed=9)
        restored.set_state(self.buffer.get_state())
        if self.priorities:
            first, second = self.buffer.sample(9), restored.sample(9)
            assert all(np.array_equal(values, second[key]) for key, values in first.items())
        self.buffer = restored

    def powers(self, steps: list[int]) -> np.ndarray:
        return np.maximum([self.priorities[step] for step in steps], 1e-6) ** self.alpha

    @precondition(lambda self: bool(self.priorities))
    @rule()
    def sample(self) -> None:
        batch = self.buffer.sample(16, keys=["t"])
        powers = self.powers(batch.indices.tolist())
        assert np.allclose(batch.weights, (powers / powers.min()) ** -self.beta, rtol=1e-5)

    @rule()
    def read(self) -> None:
        steps = sorted(self.priorities)
        assert self.buffer.priorities(np.array(steps, int)).tolist() == self.powers(steps).tolist()
        assert (len(self.buffer), self.buffer.num_added) == (len(steps), self.num_added)
        assert self.buffer.num_stale == self.num_stale

    def teardown(self) -> None:
        if hasattr(self, "buffer"):
            self.read()


TestPriorities = Priorities.TestCase
TestPriorities.settings = settings(max_examples=50, stateful_step_count=30)


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
    ("unit", "shape", "advice"),
    [("transition", (6,), "create the buffer with unit='sequence'"), ("sequence", (6, 4), "mean or the maximum")],
)
def test_priorities_of_the_other_unit_are_refused_with_the_remedy(unit: str, shape: Any, advice: str) -> None:
    buffer = filled(unit=unit)
    with pytest.raises(ShapeMismatch, match=advice):
        buffer.update_priorities(buffer.sample_sequences(6, 4).indices, np.ones(shape))


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


def test_state_written_by_hand_is_restored() -> None:
    # The names and forms are those of all earlier versions.
    buffer = filled(10, capacity=16)
    state, given_priorities, shares = buffer.get_state(), np.zeros(16), np.zeros(16)
    given_priorities[:10] = np.arange(1.0, 11)
    shares[:10] = given_priorities[:10] ** 0.5
    written = {"alpha": 0.5, "beta": 0.3, "unit": "transition", "period": None, "min_priority": 1e-6, "num_stale": 3}
    written |= {"_num_known": 10, "_num_gone": 0, "tree": [shares], "given": given_priorities}
    assert state["priorities"].keys() == written.keys()
    buffer.set_state(state | {"priorities": written})
    buffer.add([episode(3, "new")])
    assert buffer.priorities(np.arange(13)).tolist() == [*shares[:10], *[10**0.5] * 3]
    assert (buffer.alpha, buffer.beta, buffer.num_stale) == (0.5, 0.3, 3)


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


@pytest.mark.parametrize("alpha", [1.0, 60.0])
def test_zero_priorities_are_sampled_for_every_alpha(alpha: float) -> None:
    buffer = filled(20, alpha=alpha)
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
