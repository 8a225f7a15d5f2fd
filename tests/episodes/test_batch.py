"""`Batch`: columns, rows, joining, arithmetic, missing values, tensors and views."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Protocol

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from episodes.batch import Batch
from episodes.batch import views as batch_views
from episodes.batch.views import BatchView, Numbers, PrioBatch, RolloutBatch
from episodes.errors import (
    InvalidArgument,
    InvalidFill,
    ShapeMismatch,
    StepOutOfRange,
    TrackMismatch,
    UnknownKey,
    WrongType,
)


def rows_of(length: int, start: int = 0) -> Batch:
    """Return a nested batch whose values encode their row."""
    row = np.arange(start, start + length)
    return Batch(
        obs={"camera": row[:, None, None] * np.ones((2, 2)), "joints": (row * 1.0, row * 2.0)},
        actions=row,
        terminateds=row % 3 == 0,
        eps_id=row.astype(str),
    )


def same(a: Batch, b: Batch) -> bool:
    return a == b and a.keys() == b.keys()


@pytest.fixture(params=["numpy", "torch"])
def batch(request: pytest.FixtureRequest) -> Batch:
    made = rows_of(6)
    del made.eps_id
    return made.to_torch() if request.param == "torch" else made


def test_batch_columns_read_by_key_and_attribute(batch):
    assert batch.obs.camera is batch["obs"]["camera"]
    assert list(batch.keys()) == ["obs", "actions", "terminateds"]
    assert ("obs" in batch, "rewards" in batch, batch.get("rewards", 3)) == (True, False, 3)
    assert (type(batch.obs), type(batch.obs.joints)) == (Batch, tuple)
    named = Batch({"keys": np.ones(2)})  # as a method
    assert named["keys"].sum() == 2
    assert list(named.keys()) == ["keys"]


def test_batch_shares_leaves_and_copies_dicts():
    array, inner = np.zeros(3), {"camera": np.ones(3)}
    batch = Batch(x=array, inner=inner)
    assert batch.x is array
    batch.inner.camera = np.zeros((3, 1))
    batch["inner"]["depth"] = [1.0, 2.0, 3.0]
    assert batch.inner.camera.shape == (3, 1)
    assert batch.inner.depth.dtype == np.float64
    del batch.inner.depth
    assert "depth" not in batch.inner
    assert inner["camera"].sum() == 3
    assert list(inner) == ["camera"]


@pytest.mark.parametrize(
    "index",
    [
        slice(1, 4),
        slice(None, None, -2),
        slice(0, 0),
        [4, 0, 0],
        np.array([5, -1]),
        np.arange(6) > 3,
        torch.tensor([2, 0]),
        torch.arange(6) > 4,
    ],
)
def test_batch_rows_index_every_leaf(batch, index):
    selected, expected = batch[index], np.arange(6)[np.asarray(index) if torch.is_tensor(index) else index]
    assert len(selected) == len(expected)
    np.testing.assert_array_equal(selected.to_numpy().actions, expected)
    np.testing.assert_array_equal(selected.to_numpy().obs.joints[1], expected * 2.0)
    assert type(selected.actions) is type(batch.actions)


def test_batch_slice_is_view_and_iter_yields_rows(batch):
    batch[1:3].obs.camera[0] = -1
    assert batch.obs.camera[1].max() == -1
    assert [int(row.actions) for row in batch] == list(range(6))
    assert batch[-1].obs.camera.shape == (2, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rows_of(6)["reward"], UnknownKey, "no column 'reward'; there are 'obs', 'actions'"),
        (lambda: rows_of(6).reward, AttributeError, "no column 'reward'"),
        (lambda: delattr(rows_of(6), "reward"), UnknownKey, "reward"),
        (lambda: setattr(rows_of(6), "split", np.ones(6)), InvalidArgument, r"batch\['split'\]"),
        (lambda: rows_of(6)[6], StepOutOfRange, "row 6: this batch has 6 rows"),
        (lambda: rows_of(6)[0, 1], WrongType, "one index for the rows"),
        (lambda: len(Batch(obs=np.zeros(2), t=np.float64(3))), TrackMismatch, "'t' is a single item"),
        (lambda: next(rows_of(6).split(0)), InvalidArgument, r"split\(0\)"),
        (lambda: Batch.stack([]), InvalidArgument, "no batches"),
        (
            lambda: Batch.cat([Batch(obs=np.zeros((2, n))) for n in (3, 4)]),
            ShapeMismatch,
            r"cat: 'obs' is float64 \[2, 3\] in one batch and float64 \[2, 4\]",
        ),
        (
            lambda: Batch.cat([Batch(obs=np.zeros(2)), Batch(obs=torch.zeros(2))]),
            TrackMismatch,
            "'obs' is an array in one batch and a tensor in another",
        ),
        (lambda: Batch.cat([Batch(n=np.ones(2, int)), Batch(x=np.ones(1))], fill=0.5), InvalidFill, r"'n': fill=0\.5"),
        (lambda: rows_of(2).to_torch(), WrongType, "'eps_id' holds <U"),
        (lambda: Batch(obs={3: np.zeros(2)}), WrongType, r"obs has the keys \[3\]"),
        (lambda: Batch(x=[[1, 2], [3]]), ShapeMismatch, "'x' cannot be an array"),
    ],
)
def test_batch_wrong_call_raises(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("join", [Batch.stack, Batch.cat, lambda batches: batches[0] + batches[1]])
def test_batch_join_of_unequal_keys_raises(join):
    a, b = Batch(obs={"x": np.zeros(2)}, r=np.zeros(2)), Batch(obs={"x": np.zeros(2), "y": np.zeros(2)})
    with pytest.raises(TrackMismatch, match=r"batch 1 lacks 'r'; batch 0 lacks 'obs/y'; .* fill="):
        join([a, b])


def test_batch_of_unequal_lengths_raises():
    batch = Batch(obs=np.zeros((4, 2)), inner={"rewards": np.zeros(3)})
    for read in (len, lambda b: b[0], lambda b: b[0:2], lambda b: list(b.split(2)), lambda b: Batch.cat([b, b])):
        with pytest.raises(TrackMismatch, match="'obs' has 4 rows, 'inner/rewards' has 3 rows"):
            read(batch)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.booleans())
def test_batch_cat_then_split_is_identity(lengths, as_tensors):
    starts = np.cumsum([0, *lengths])
    parts = [rows_of(length, int(start)) for length, start in zip(lengths, starts, strict=False)]
    if as_tensors:
        for part in parts:
            del part.eps_id
        parts = [part.to_torch() for part in parts]
    joined = Batch.cat(parts)
    assert len(joined) == sum(lengths)
    for part, start, stop in zip(parts, starts, starts[1:], strict=False):
        assert same(joined[start:stop], part)


@given(st.integers(1, 4), st.integers(0, 5))
def test_batch_stack_then_row_is_identity(count, length):
    parts = [rows_of(length, start) for start in range(count)]
    stacked = Batch.stack(parts)
    assert len(stacked) == count
    assert all(same(row, part) for row, part in zip(stacked, parts, strict=True))


@given(st.integers(0, 20), st.integers(1, 8), st.booleans(), st.integers(0, 99))
def test_batch_split_yields_each_row_once(length, size, shuffle, seed):
    batch = rows_of(length)
    parts = list(batch.split(size, shuffle=shuffle, generator=np.random.default_rng(seed)))
    assert all(len(part) == size for part in parts[:-1])
    result = [int(a) for part in parts for a in part.actions]
    assert sorted(result) == list(range(length))
    assert shuffle or result == list(range(length))


def test_batch_shuffled_split_follows_generator(batch):
    seeds = [np.random.default_rng(seed) for seed in (1, 1, 2)]
    a, b, c = ([part.to_numpy().actions.tolist() for part in batch.split(4, shuffle=True, generator=g)] for g in seeds)
    assert a == b != c


def test_batch_split_merges_last_part(batch):
    assert [len(part) for part in batch.split(4)] == [4, 2]
    assert [len(part) for part in batch.split(4, merge_last=True)] == [6]
    assert [len(part) for part in batch.split(3, merge_last=True)] == [3, 3]


def test_batch_join_fills_missing_columns_with_fill():
    a, b = Batch(obs={"x": np.ones((2, 3))}, n=np.ones(2, int)), Batch(obs={"y": torch.ones(1)})
    joined = Batch.cat([a, b], fill=7)
    np.testing.assert_array_equal(joined.obs.x, [[1] * 3, [1] * 3, [7] * 3])
    np.testing.assert_array_equal(joined.n, [1, 1, 7])
    assert joined.n.dtype == a.n.dtype
    assert torch.equal(joined.obs.y, torch.tensor([7.0, 7.0, 1.0]))
    stacked = Batch.stack([a[0], b[0]], fill=7)
    np.testing.assert_array_equal(stacked.obs.x, [[1] * 3, [7] * 3])


def test_batch_set_rows_writes_all_columns(batch):
    batch[2:4] = {
        "obs": {"camera": np.full((2, 2, 2), -1.0), "joints": (-1.0, -1.0)},
        "actions": 9,
        "terminateds": True,
    }
    changed = batch.to_numpy()
    np.testing.assert_array_equal(changed.actions, [0, 1, 9, 9, 4, 5])
    np.testing.assert_array_equal(changed.obs.camera[:, 0, 0], [0, 1, -1, -1, 4, 5])


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ({"a": 1.0, "b": 1.5}, WrongType, "'b' holds .*int64; .*float64 cannot be put into it without loss"),
        ({"a": 1.0, "b": np.ones(3, int)}, ShapeMismatch, r"'b': \[3\] cannot be put into rows of shape \[2\]"),
        ({"a": 1.0}, TrackMismatch, "setting rows: batch 1 lacks 'b'"),
        (1.0, WrongType, "rows are set from a batch"),
    ],
)
def test_batch_set_bad_rows_raises_and_changes_nothing(kind, rows, error, message):
    batch = Batch(a=np.zeros(4), b=np.zeros(4, int))
    batch = batch.to_torch() if kind == "torch" else batch
    with pytest.raises(error, match=message):
        batch[1:3] = rows
    assert batch == Batch(a=np.zeros(4), b=np.zeros(4, int))


def test_batch_set_read_only_rows_raises():
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    batch = Batch(a=np.zeros(2), b=frozen)
    with pytest.raises(WrongType, match="'b' is read-only"):
        batch[0] = {"a": 1.0, "b": 1.0}
    assert batch.a.sum() == 0


def test_batch_arithmetic_pairs_columns_by_name():
    a, b = Batch(x=np.array([1.0]), y=np.array([10.0])), Batch(y=np.array([5.0]), x=np.array([2.0]))
    assert a + b == Batch(x=np.array([3.0]), y=np.array([15.0]))
    assert a - b == Batch(x=np.array([-1.0]), y=np.array([5.0]))
    assert a * 2 == Batch(x=np.array([2.0]), y=np.array([20.0]))
    assert a / b == Batch(x=np.array([0.5]), y=np.array([2.0]))


def with_nulls() -> Batch:
    return Batch(
        obs={"x": torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [1.0, 1.0]])},
        names=np.array(["a", "b", None], object),
        n=np.arange(3),
    )


def test_batch_nulls_are_nan_and_none():
    batch = with_nulls()
    assert batch.isnull().obs.x.tolist() == [[False, False], [True, False], [False, False]]
    assert batch.isnull().names.tolist() == [False, False, True]
    assert (batch.hasnull(), batch[0:1].hasnull()) == (True, False)
    assert same(batch.dropnull(), batch[0:1])
    assert len(batch[0:0].dropnull()) == 0


def test_batch_to_torch_and_back_is_identity():
    batch, frozen = rows_of(4), np.zeros(2)
    del batch.eps_id
    tensors = batch.to_torch()
    assert isinstance(tensors.obs.joints[0], torch.Tensor)
    assert same(tensors.to_numpy(), batch)
    assert np.shares_memory(tensors.to_numpy().actions, batch.actions)
    tensors = batch.to_torch(dtype=torch.float32, device="cpu")
    dtypes = tensors.obs.camera.dtype, tensors.actions.dtype, tensors.terminateds.dtype
    assert dtypes == (torch.float32, torch.int64, torch.bool)
    frozen.flags.writeable = False
    Batch(x=frozen).to_torch().x.add_(1)
    assert frozen.sum() == 0


@pytest.mark.gpu
def test_batch_works_on_cuda_device():
    batch = rows_of(5)
    del batch.eps_id
    on_device = batch.to_torch(device="cuda")
    assert on_device.actions.device.type == "cuda"
    assert same(Batch.cat([on_device[:2], on_device[2:]]), batch)
    assert sorted(a for part in on_device.split(2, shuffle=True) for a in part.actions.tolist()) == list(range(5))
    on_device.obs.camera[1] = float("nan")
    assert on_device.hasnull()
    assert len(on_device.dropnull()) == 4


def test_batch_to_dict_shares_leaves():
    batch = rows_of(2)
    plain = batch.to_dict()
    assert type(plain["obs"]) is dict
    assert plain["obs"]["camera"] is batch.obs.camera
    plain["obs"].clear()
    assert "camera" in batch.obs


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_batch_copies_are_equal_and_independent(duplicate):
    batch = rows_of(3)
    copied = duplicate(batch)
    assert same(copied, batch)
    assert not np.shares_memory(copied.actions, batch.actions)


def test_batch_equality_compares_values_and_nan():
    assert with_nulls()[0:2] == with_nulls()[0:2]
    assert Batch(a=np.ones(2)) != Batch(a=np.zeros(2))
    assert Batch(a=np.ones(2)) != Batch(b=np.ones(2))
    assert Batch(a=np.ones(2)) == Batch(a=torch.ones(2))
    assert Batch() != 3


def test_batch_repr_lists_rows_dtypes_and_shapes():
    assert (
        repr(Batch(obs={"x": np.zeros((2, 3))}, n=torch.zeros(2)))
        == "Batch(2 rows: obs/x float64 [2, 3], n float32 [2])"
    )
    assert repr(Batch()) == "Batch(0 rows)"
    assert "no common length" in repr(Batch(a=np.zeros(2), b=np.zeros(3)))


class CameraObs(Protocol):
    camera: Numbers


class CameraBatch(BatchView, Protocol):
    obs: CameraObs


def transitions() -> Batch:
    flags = np.zeros(2, bool)
    return Batch(
        obs={"camera": np.ones(2)},
        new_obs=np.ones(2),
        actions=np.ones(2),
        rewards=np.ones(2),
        terminateds=flags,
        truncateds=flags,
    )


def test_require_returns_batch_if_view_fits():
    batch = transitions()
    assert batch.require(RolloutBatch) is batch
    assert batch.require(CameraBatch).obs.camera.sum() == 2
    assert batch.to_torch().require(RolloutBatch).terminateds.dtype == torch.bool


@pytest.mark.parametrize(
    ("changes", "view", "message"),
    [
        ({"rewards": None}, RolloutBatch, "does not match RolloutBatch: no 'rewards'; it has obs/camera, new_obs"),
        ({"terminateds": np.ones(2)}, RolloutBatch, "'terminateds' is float64, not booleans"),
        ({"rewards": {"a": np.ones(2)}}, RolloutBatch, "'rewards' is nested, not numbers"),
        ({"rewards": np.array(["a", "b"])}, RolloutBatch, "'rewards' is <U1, not numbers"),
        ({"obs": {"depth": np.ones(2)}}, CameraBatch, "no 'obs/camera'"),
        ({"obs": np.ones(2)}, CameraBatch, "'obs' is not nested"),
        ({"obs": None, "actions": None}, RolloutBatch, "no 'obs'; no 'actions'"),
        ({}, PrioBatch, "no 'weights'; no 'indices'"),
    ],
)
def test_require_error_lists_all_problems(changes, view, message):
    batch = transitions()
    for name, value in changes.items():
        del batch[name]
        if value is not None:
            batch[name] = value
    with pytest.raises(TrackMismatch, match=message):
        batch.require(view)


def test_require_of_local_view_raises():
    class Inner(Protocol):
        x: Numbers

    class Outer(Protocol):
        inner: Inner

    with pytest.raises(WrongType, match="define it at the top of a module"):
        Batch(inner={"x": np.ones(1)}).require(Outer)


@pytest.mark.parametrize("name", [name for name in vars(batch_views) if name.endswith("Batch")])
def test_empty_batch_matches_no_predefined_view(name):
    with pytest.raises(TrackMismatch, match=f"does not match {name}"):
        Batch().require(getattr(batch_views, name))


def test_batch_of_arrays_does_not_import_torch():
    code = """if True:
        import sys, numpy as np
        from episodes.batch import Batch
        Batch.cat([Batch(a=np.ones(2))]).dropnull()
        sys.exit('torch' in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
