"""Conversion of batches to tensors, and the copy to a device."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from connectors.batch_items import BatchItems
from connectors.staging import ALIGNMENT, StagingBuffer
from connectors.tensors import NumpyToTensor
from episodes.errors import TrackMismatch


def readonly(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def mixed_batch() -> dict:
    rng = np.random.default_rng(0)
    return {
        "obs": {"image": rng.integers(0, 255, (3, 5, 5), np.uint8), "joints": readonly(rng.normal(size=(3, 2)))},
        "actions": rng.integers(0, 4, 3),
        "half": rng.normal(size=3).astype(np.float16),
        "flags": np.array([True, False, True]),
        "reversed": np.arange(3.0, dtype=np.float32)[::-1],
        "strided": np.moveaxis(rng.normal(size=(3, 2, 4)).astype(np.float32), 1, 2),
        "empty": np.zeros((3, 0), np.float32),
        "number": np.array(7, np.int32),
    }


def check(batch: dict, tensors: dict, device: str) -> None:
    for name, column in batch.items():
        pairs = [(column, tensors[name])] if name != "obs" else [(column[k], tensors[name][k]) for k in column]
        for array, tensor in pairs:
            expected = np.float32 if array.dtype == np.float64 else array.dtype
            assert tensor.device.type == device
            assert tensor.shape == array.shape
            assert np.array_equal(tensor.cpu().numpy(), array.astype(expected))
            assert tensor.cpu().numpy().dtype == expected


def test_float64_becomes_float32_and_others_keep_their_dtype() -> None:
    batch = mixed_batch()
    check(batch, NumpyToTensor()(batch=dict(batch)), "cpu")


def test_writable_arrays_are_wrapped_and_read_only_copied() -> None:
    writable, view = np.zeros(3, np.float32), readonly(np.zeros(3, np.float32))
    out = NumpyToTensor()(batch={"fresh": writable, "view": view})
    out["fresh"] += 1
    out["view"] += 1
    assert writable.tolist() == [1, 1, 1]
    assert view.tolist() == [0, 0, 0]


def test_values_without_numeric_array_are_unchanged() -> None:
    tensor, infos, names = torch.ones(2), [{}, {"a": 1}], np.array(["x", "y"])
    out = NumpyToTensor()(batch={"tensor": tensor, "infos": infos, "names": names})
    assert out["tensor"] is tensor
    assert out["infos"] is infos
    assert out["names"] is names


def test_staged_arrays_share_an_allocation_and_keep_values() -> None:
    staging = StagingBuffer(torch.device("cpu"))
    arrays = [
        np.arange(3, dtype=np.uint8),
        np.arange(4.0),
        readonly(np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::-1]),
    ]
    tensors = staging.send(arrays, [torch.uint8, torch.float32, torch.int64])
    assert [tensor.tolist() for tensor in tensors] == [array.tolist() for array in arrays]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    assert all(tensor.data_ptr() % tensor.itemsize == 0 for tensor in tensors)
    assert staging.capacity == 3 * ALIGNMENT


def test_staging_buffer_is_reused_and_sent_tensors_stay() -> None:
    staging = StagingBuffer(torch.device("cpu"))
    (first,) = staging.send([np.zeros(100, np.float32)], [torch.float32])
    capacity = staging.capacity
    staging.send([np.ones(90, np.float32)], [torch.float32])
    assert staging.capacity == capacity
    assert not first.any()
    staging.send([np.ones(1000, np.float32)], [torch.float32])
    assert staging.capacity >= 4000
    assert pickle.loads(pickle.dumps(staging)).capacity == 0
    assert staging.send([], []) == []


@pytest.mark.gpu
def test_batch_is_copied_to_gpu_at_once() -> None:
    piece, batch = NumpyToTensor(device="cuda"), mixed_batch()
    for _ in range(3):
        batch["actions"] = batch["actions"] + 1
        tensors = piece(batch={**batch, "tensor": torch.ones(2)})
        torch.cuda.synchronize()
        check(batch, tensors, "cuda")
        assert tensors["tensor"].is_cuda
    storages = {tensors[name].untyped_storage().data_ptr() for name in ("actions", "half", "flags")}
    assert len(storages) == 1


@pytest.mark.gpu
def test_batch_on_gpu_is_not_overwritten_by_next() -> None:
    piece = NumpyToTensor(device="cuda")
    sent = [piece(batch={"x": np.full(1_000_000, i, np.float32)})["x"] for i in range(8)]
    torch.cuda.synchronize()
    assert [float(x.mean()) for x in sent] == list(range(8))


def test_columns_of_different_lengths_raise_with_their_names() -> None:
    with pytest.raises(TrackMismatch, match="column 'b' has 3 rows, 'a' has 2"):
        BatchItems()(batch={"a": np.zeros(2), "b": np.zeros(3)})


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i8", ">i2"])
def test_arrays_of_other_byte_order_become_equal_tensors(dtype: str) -> None:
    batch = NumpyToTensor()(batch={"obs": np.arange(3).astype(dtype)}, episodes=[])
    assert batch["obs"].tolist() == [0, 1, 2]
