"""A rollout buffer keeps which rows are transitions, and the true last observation of truncated steps."""

from __future__ import annotations

import pytest
import torch

from connectors import RolloutBuffer
from connectors.rollout.buffer import add_advantages, add_sequence_returns, iterate_minibatches, transition_view
from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, TrackMismatch, WrongType

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FLOATS = {"obs": (2, 4, 3), "action": (2, 4, 1), "sample_log_prob": (2, 4), "value": (2, 4), "reward": (2, 4)}


@pytest.fixture(params=DEVICES)
def buffer(request: pytest.FixtureRequest) -> RolloutBuffer:
    return RolloutBuffer(num_envs=2, rollout_len=3, obs_dim=3, action_dim=1, device=request.param)


def numbered(buffer: RolloutBuffer):
    """Return a started rollout whose rewards identify environment and row."""
    rollout = buffer.start_rollout()
    rollout["reward"][:, :3] = torch.tensor([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])
    return rollout


def snapshot(rollout):
    return {name: rollout[name].clone() for name in (*FLOATS, "done", "terminated", "truncated", "valid")}


def test_storage_has_specified_columns(buffer):
    rollout = buffer.start_rollout()
    assert rollout.batch_size == (2, 4)
    for name, shape in FLOATS.items():
        assert rollout[name].shape == shape
        assert rollout[name].dtype == torch.float32
        assert rollout[name].device == buffer.device
    for name in ("done", "terminated", "truncated", "valid"):
        assert rollout[name].shape == (2, 4)
        assert rollout[name].dtype == torch.bool
    assert rollout["valid"].tolist() == [[True, True, True, False]] * 2


def test_new_rollout_has_no_values_of_the_last_rollout(buffer):
    rollout = numbered(buffer)
    rollout["truncated"][:] = True
    rollout["valid"][:, 1] = False
    rollout["reward"][:, 3] = 5
    rollout["advantage"] = torch.zeros(2, 4, device=buffer.device)
    rollout["final"].append(0, torch.tensor([1]), torch.ones(1, 3))
    buffer.add(rollout)
    buffer.get()
    rollout = buffer.start_rollout()
    assert not rollout["truncated"].any()
    assert rollout["valid"][:, :3].all()
    assert not rollout["reward"][:, 3].any()
    assert "advantage" not in rollout.keys()  # noqa: SIM118 - a TensorDict is no dict
    assert len(rollout["final"]) == 0


def test_phases_follow_in_order(buffer):
    with pytest.raises(EpisodeStateError, match="contains no rollout"):
        buffer.get()
    with pytest.raises(EpisodeStateError, match="no rollout is being filled"):
        buffer.add(buffer._rollout)
    rollout = numbered(buffer)
    with pytest.raises(EpisodeStateError, match="while one is being filled"):
        buffer.start_rollout()
    buffer.add(rollout)
    with pytest.raises(EpisodeStateError, match="has not been read"):
        buffer.start_rollout()
    assert buffer.get()["reward"].tolist() == [0, 1, 2, 10, 11, 12]
    with pytest.raises(EpisodeStateError, match="contains no rollout"):
        buffer.get()
    buffer.start_rollout()
    buffer.discard()
    buffer.start_rollout()


@pytest.mark.parametrize(
    ("name", "column", "error", "message"),
    [
        ("obs", torch.zeros(2, 4, 5), ShapeMismatch, r"column 'obs' is \[2, 4, 5\], the buffer's is \[2, 4, 3\]"),
        ("reward", torch.zeros(2, 4, dtype=torch.float64), WrongType, "column 'reward' is torch.float64"),
        ("done", torch.zeros(2, 4), WrongType, "column 'done' is torch.float32, the buffer's is torch.bool"),
        ("value", None, TrackMismatch, "no column 'value'"),
    ],
)
def test_rollout_of_wrong_shape_or_dtype_is_rejected(name, column, error, message):
    buffer = RolloutBuffer(2, 3, 3, 1, "cpu")
    rollout = numbered(buffer)
    before = snapshot(rollout)
    if column is None:
        rollout.del_(name)
    else:
        rollout[name] = column
    with pytest.raises(error, match=message):
        buffer.add(rollout)
    rollout[name] = before[name]
    buffer.add(rollout)
    assert all(torch.equal(column, before[name]) for name, column in snapshot(buffer.get(flatten=False)).items())


def test_rollout_of_other_device_or_buffer_is_rejected():
    buffer = RolloutBuffer(2, 3, 3, 1, "cpu")
    rollout = numbered(buffer)
    with pytest.raises(InvalidArgument, match="the rollout that start_rollout handed out"):
        buffer.add(rollout.clone())
    with pytest.raises(InvalidArgument, match="the rollout that start_rollout handed out"):
        buffer.add(RolloutBuffer(2, 3, 3, 1, "cpu").start_rollout())
    meta = RolloutBuffer(2, 3, 3, 1, "meta").start_rollout()["reward"]
    rollout.clear_device_()["reward"] = meta
    with pytest.raises(InvalidArgument, match="column 'reward' is on meta, the buffer on cpu"):
        buffer.add(rollout)


def test_storage_is_allocated_once_and_copied_from_and_to(buffer):
    rollout = numbered(buffer)
    address = rollout["reward"].data_ptr()
    rollout["reward"] = rollout["reward"] + 1
    buffer.add(rollout)
    rollout = buffer.get(flatten=False)
    assert rollout["reward"].data_ptr() == address
    assert rollout["reward"][0].tolist() == [1, 2, 3, 1]
    buffer.add(numbered(buffer))
    flat = buffer.get()
    rollout = buffer.start_rollout()
    assert rollout["reward"].data_ptr() == address
    rollout["reward"].zero_()
    assert flat["reward"].tolist() == [0, 1, 2, 10, 11, 12]


def test_transition_view_drops_padded_slot_and_shares_memory(buffer):
    rollout = numbered(buffer)
    view = transition_view(rollout)
    assert view.batch_size == (2, 3)
    view["reward"][0, 0] = 7
    assert rollout["reward"][0, 0] == 7
    assert "final" not in view.keys()  # noqa: SIM118


def test_row_of_ignored_action_is_not_learned_from(buffer):
    rollout = numbered(buffer)
    rollout["valid"][0, 1] = False
    flat = transition_view(rollout, flatten=True)
    assert flat["reward"].tolist() == [0, 2, 10, 11, 12]
    drawn = [r for part in iterate_minibatches(rollout, 2, "cpu") for r in part["reward"].tolist()]
    assert sorted(drawn) == [0, 2, 10, 11, 12]


def test_minibatches_have_each_transition_once(buffer):
    rollout = numbered(buffer)
    orders = []
    for seed in (0, 0, 1):
        parts = list(iterate_minibatches(rollout, 4, "cpu", torch.Generator().manual_seed(seed)))
        assert [len(part) for part in parts] == [4, 2]
        assert parts[0]["obs"].shape == (4, 3)
        orders.append([r for part in parts for r in part["reward"].tolist()])
        assert sorted(orders[-1]) == [0, 1, 2, 10, 11, 12]
    assert orders[0] == orders[1] != orders[2]
    flat = transition_view(rollout, flatten=True)
    assert len(next(iterate_minibatches(flat, 6, buffer.device))) == 6
    with pytest.raises(InvalidArgument, match="batch_size=0"):
        next(iterate_minibatches(rollout, 0, "cpu"))


@pytest.mark.gpu
def test_minibatches_move_to_the_device_asked_for():
    rollout = numbered(RolloutBuffer(2, 3, 3, 1, "cpu"))
    assert all(part.device.type == "cuda" for part in iterate_minibatches(rollout, 2, "cuda"))
    on_device = numbered(RolloutBuffer(2, 3, 3, 1, "cuda"))
    generator = torch.Generator("cuda").manual_seed(0)
    assert all(part["obs"].is_cuda for part in iterate_minibatches(on_device, 2, "cuda", generator))


def truncated_at_row_1(buffer: RolloutBuffer, *, terminated: bool = False):
    """Return a rollout with rewards 0. Environment 0 is truncated at row 1, and row 2 is another episode."""
    rollout = buffer.start_rollout()
    rollout["reward"].zero_()
    rollout["value"][:] = torch.arange(1.0, 5.0)
    rollout["truncated"][0, 1] = rollout["done"][0, 1] = True
    rollout["terminated"][0, 1] = terminated
    return rollout


@pytest.mark.parametrize(
    ("truncation", "targets"), [("final", [7, 7, 4]), ("terminate", [0, 0, 4]), ("previous", [2, 2, 4])]
)
def test_truncated_step_bootstraps_by_autoreset_mode(buffer, truncation, targets):
    rollout = truncated_at_row_1(buffer)
    rollout["final"].append(1, torch.tensor([True, False]), torch.ones(1, 3), torch.tensor([7.0]))
    add_advantages(rollout, gamma=1.0, lambda_=1.0, truncation=truncation)
    assert rollout["return"].tolist() == [[*targets, 0], [4, 4, 4, 0]]
    assert rollout["advantage"][0].tolist() == [targets[0] - 1, targets[1] - 2, targets[2] - 3, 0]


def test_both_flags_set_count_as_a_termination_in_a_rollout(buffer):
    rollout = add_advantages(truncated_at_row_1(buffer, terminated=True), gamma=1.0, lambda_=1.0)
    assert rollout["return"][0].tolist() == [0, 0, 4, 0]


def test_time_limit_without_last_observation_raises(buffer):
    rollout = truncated_at_row_1(buffer)
    with pytest.raises(TrackMismatch, match="environment 0 was truncated at step 1 and row 2 is another episode's"):
        add_advantages(rollout, gamma=1.0, lambda_=1.0)
    assert "advantage" not in rollout.keys()  # noqa: SIM118
    with pytest.raises(InvalidArgument, match="truncation='last'"):
        add_advantages(rollout, gamma=1.0, lambda_=1.0, truncation="last")  # type: ignore[arg-type]


def test_next_step_row_after_truncation_has_the_value(buffer):
    rollout = truncated_at_row_1(buffer)
    rollout["valid"][0, 2] = False
    add_advantages(rollout, gamma=1.0, lambda_=1.0)
    assert rollout["return"][0].tolist() == [3, 3, 0, 0]
    assert rollout["advantage"][0].tolist() == [2, 1, 0, 0]


def test_rows_that_are_not_valid_may_hold_anything(buffer):
    rollout = truncated_at_row_1(buffer)
    rollout["valid"][0, 2] = False
    rollout["reward"][0, 2] = rollout["value"][0, 3] = torch.nan
    add_advantages(rollout, gamma=1.0, lambda_=1.0)
    assert rollout["return"].tolist() == [[3, 3, 0, 0], [4, 4, 4, 0]]


def test_final_observations_are_sparse_and_get_values_later(buffer):
    final = buffer.start_rollout()["final"]
    final.append(2, torch.tensor([True, True]), torch.tensor([[1.0] * 3, [2.0] * 3]))
    final.append(0, torch.tensor([1]), torch.full((1, 3), 3.0))
    assert final.rows.tolist() == [2, 6, 4]
    assert final.obs[:, 0].tolist() == [1, 2, 3]
    assert final.value.tolist() == [0, 0, 0]
    final.set_value(torch.tensor([4.0, 5.0, 6.0]))
    assert final.value.tolist() == [4, 5, 6]
    assert final.obs.device == buffer.device


def test_final_observations_that_do_not_fit_are_refused(buffer):
    final = buffer.start_rollout()["final"]
    with pytest.raises(ShapeMismatch, match=r"final obs \[1, 3\] of 2 environments: give \[2, 3\]"):
        final.append(0, torch.tensor([True, True]), torch.ones(1, 3))
    with pytest.raises(ShapeMismatch, match=r"value \[2\] of 1 environments"):
        final.append(0, torch.tensor([0]), torch.ones(1, 3), torch.ones(2))
    with pytest.raises(ShapeMismatch, match=r"final value \[1\] of 0"):
        final.set_value(torch.ones(1))
    with pytest.raises(InvalidArgument, match=r"step=3: the rollout has steps 0\.\.2"):
        final.append(3, torch.tensor([0]), torch.ones(1, 3))
    assert len(final) == 0


def test_sizes_are_positive_and_repr_has_the_phase():
    with pytest.raises(InvalidArgument, match="rollout_len=0"):
        RolloutBuffer(1, 0, 1, 1, "cpu")
    assert repr(RolloutBuffer(2, 3, 4, 1, "cpu")) == "RolloutBuffer(2 x 3, obs 4, action 1, cpu, idle)"


def test_sequence_has_first_rows_of_environment(buffer):
    rollout = numbered(buffer)
    rollout["truncated"][0, 1] = rollout["done"][0, 1] = True
    rollout["terminated"][0, 2] = rollout["done"][0, 2] = True
    add_sequence_returns(rollout)
    assert rollout["seq_mask"].tolist() == [[True, True, False, False], [True, True, True, False]]
    assert rollout["seq_return"].tolist() == [[1.0, 1.0, 0.0, 0.0], [33.0, 33.0, 33.0, 0.0]]
    buffer.add(rollout)
    assert buffer.get()["seq_return"].tolist() == [1.0, 1.0, 0.0, 33.0, 33.0, 33.0]


def test_row_of_ignored_action_is_in_no_sequence(buffer):
    rollout = numbered(buffer)
    rollout["terminated"][0, 0] = rollout["done"][0, 0] = True
    rollout["valid"][0, 1] = False  # the next step of this environment was its reset
    rollout["valid"][1, 0] = False
    add_sequence_returns(rollout)
    assert rollout["seq_mask"].tolist() == [[True, False, False, False], [False, True, True, False]]
    assert rollout["seq_return"].tolist() == [[0.0, 0.0, 0.0, 0.0], [0.0, 23.0, 23.0, 0.0]]
