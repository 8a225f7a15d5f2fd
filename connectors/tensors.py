"""Where a batch goes to the device."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from connectors.connector import ColumnDict, Connector
from connectors.staging import StagingBuffer, checked_device
from episodes.tracks import nested

__all__ = ["NumpyToTensor"]

_KINDS = frozenset("biufc")  # dtypes of numbers; strings and objects stay as they are
_WRAPPED = frozenset("?bBhilqfeFD")  # dtypes that torch knows and that stay what they are


class NumpyToTensor(Connector):
    """Makes tensors of all numeric arrays, on a device; float64 becomes float32, everything else keeps its dtype.

    On the CPU, an array that may be written is wrapped, not copied; a read-only one (a view of a pack) is copied.
    For CUDA all arrays are laid into one page-locked buffer, used again for each batch, and moved by one copy that
    does not block the host. What is no numeric array (tensors, infos, strings) is left as it is.

    Args:
        device: where to; the CPU by default.
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
        """Move batches to this device from now on."""
        self.device = checked_device(device)
        self._staging = None if self.device.type == "cpu" else StagingBuffer(self.device)

    def __call__(self, *, batch: ColumnDict, **kwargs: Any) -> ColumnDict:
        if self._staging is not None:
            return _staged(batch, self._staging)
        for name, column in batch.items():
            batch[name] = tensor_of(column) if type(column) is np.ndarray else nested.map_leaves(tensor_of, column)
        return batch

    def to_tensors(self, values: Any) -> Any:
        """The nested value with tensors in the place of its numeric arrays."""
        return nested.map_leaves(tensor_of, values) if self._staging is None else _staged(values, self._staging)


def tensor_of(leaf: Any) -> Any:
    """A numeric array as a CPU tensor (shared memory where it may be written), anything else as it is."""
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
        leaf = leaf.copy("K")  # in the order that it has in memory: a view of swapped axes stays one
    return torch.from_numpy(leaf)


def _staged(values: Any, staging: StagingBuffer) -> Any:
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
    """The dtype of the tensor that an array of this dtype becomes."""
    return torch.float32 if dtype == np.float64 else torch.from_numpy(np.empty(0, dtype)).dtype
