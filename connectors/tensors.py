"""`NumpyToTensor`: connector that converts a batch of numpy arrays to torch tensors on a device."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from connectors.connector import ColumnDict, Connector
from connectors.ragged_checks import check_policy_columns
from connectors.staging import StagingBuffer, checked_device
from episodes.batch.train_batch import TrainBatch
from episodes.data_types import NestedArrays
from episodes.tracks import nested

__all__ = ["NumpyToTensor"]

_KINDS = frozenset("biufc")  # dtypes of numbers; strings and objects stay as they are
_WRAPPED = frozenset("?bBhilqfeFD")  # dtypes that torch supports and that are not converted


class NumpyToTensor(Connector):
    """Connector that converts the numeric numpy arrays of a batch to torch tensors on a device. float64 becomes
    float32. Other dtypes are kept.

    On the CPU, a writeable array is wrapped and a read-only one is copied. For CUDA, all arrays are written into one
    page-locked buffer, which is reused, and moved by one copy that does not block the host. Other values (tensors,
    infos, strings) stay unchanged, but ragged observations or actions raise `TrackMismatch`.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        device: the target device; the CPU by default.
        name: name of the connector in its pipeline.

    Raises:
        InvalidArgument: torch does not know the device.
    """

    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        device: str | torch.device | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(input_observation_space, input_action_space, name=name)
        self.to("cpu" if device is None else device)

    def to(self, device: str | torch.device) -> None:
        """Set the device to which later calls move their batch.

        Raises:
            InvalidArgument: torch does not know the device.
        """
        self.device = checked_device(device)
        self._staging = None if self.device.type == "cpu" else StagingBuffer(self.device)

    def __call__(self, *, batch: ColumnDict, **kwargs: object) -> ColumnDict:
        if {*map(type, batch.values())} != {np.ndarray}:
            check_policy_columns(batch)
        if self._staging is not None:
            moved = _copy_to_device(batch, self._staging)
            return TrainBatch(moved, batch.lazy_origin) if isinstance(batch, TrainBatch) else moved
        for name, column in batch.items():
            batch[name] = tensor_of(column) if type(column) is np.ndarray else nested.map_leaves(tensor_of, column)
        return batch

    def to_tensors(self, values: NestedArrays) -> Any:
        """Return nested values with all numeric numpy arrays converted to tensors on this connector's device."""
        return nested.map_leaves(tensor_of, values) if self._staging is None else _copy_to_device(values, self._staging)


def tensor_of(leaf: object) -> Any:
    """Return a numeric numpy array as a CPU tensor, which shares the array's memory where possible. Return other values
    unchanged.
    """
    if type(leaf) is not np.ndarray:
        return leaf
    flags = leaf.flags
    if flags.c_contiguous and leaf.dtype.char in _WRAPPED and leaf.dtype.isnative:
        return torch.from_numpy(leaf if flags.writeable else leaf.copy())
    if leaf.dtype.kind not in _KINDS:
        return leaf
    if leaf.dtype.type is np.float64:  # of either byte order
        return torch.from_numpy(leaf.astype(np.float32))
    if not leaf.dtype.isnative:
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))
    if not flags.writeable or any(stride < 0 for stride in leaf.strides):
        leaf = leaf.copy("K")  # keeps the memory order of transposed arrays
    return torch.from_numpy(leaf)


def _copy_to_device(values: object, staging: StagingBuffer) -> Any:
    """Return nested values with all numeric numpy arrays as tensors on the device, copied in one transfer. Tensors are
    moved there too.
    """
    leaves = nested.leaves(values)
    numeric = [type(leaf) is np.ndarray and leaf.dtype.kind in _KINDS for leaf in leaves]
    arrays = [leaf for leaf, is_numeric in zip(leaves, numeric, strict=True) if is_numeric]
    sent = iter(staging.send(arrays, [torch_dtype(array.dtype) for array in arrays]))
    moved = [
        next(sent) if is_numeric else leaf.to(staging.device) if isinstance(leaf, torch.Tensor) else leaf
        for leaf, is_numeric in zip(leaves, numeric, strict=True)
    ]
    return nested.unflatten_like(values, moved)


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """Return the torch dtype of the tensor to which `NumpyToTensor` converts an array of this numpy dtype."""
    return torch.float32 if dtype == np.float64 else torch.from_numpy(np.empty(0, dtype)).dtype
