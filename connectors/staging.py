"""`StagingBuffer`: page-locked host memory from which many arrays are copied to a device at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from episodes.errors import InvalidArgument

ALIGNMENT = 64  # bytes; every array of the buffer starts at a multiple, so that it can be viewed in its dtype


def checked_device(device: Any) -> torch.device:
    """Return `device` as a torch device, or raise `InvalidArgument` if torch does not know this device."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(f"device={device!r}: give one of torch's, such as 'cpu' or 'cuda:0'") from error


class StagingBuffer:
    """Reusable page-locked host memory from which many arrays are copied to a device at once.

    Args:
        device: the target device. For CUDA the buffer is page-locked and copies do not block the host.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._on_cuda = device.type == "cuda"
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._copied: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return StagingBuffer, (self.device,)

    @property
    def capacity(self) -> int:
        """Size of the buffer in bytes."""
        return self._buffer.numel()

    def send(self, arrays: list[np.ndarray], dtypes: list[torch.dtype]) -> list[torch.Tensor]:
        """Return the arrays as tensors on the device, with the given dtypes. They share one allocation."""
        sizes = [array.size * dtype.itemsize for array, dtype in zip(arrays, dtypes, strict=True)]
        ends = np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]).tolist()
        starts = [0, *ends][:-1]
        total = ends[-1] if ends else 0
        self._reserve(total)
        for array, dtype, start, size in zip(arrays, dtypes, starts, sizes, strict=True):
            _view(self._buffer, start, size, dtype, array.shape).copy_(_source(array))
        on_device = torch.empty(total, dtype=torch.uint8, device=self.device)
        on_device.copy_(self._buffer[:total], non_blocking=self._on_cuda)
        if self._on_cuda:
            self._copied.record(torch.cuda.current_stream(self.device))
        spans = zip(arrays, dtypes, starts, sizes, strict=True)
        return [_view(on_device, start, size, dtype, array.shape) for array, dtype, start, size in spans]

    def _reserve(self, total: int) -> None:
        """Wait until the last copy is complete, and enlarge the memory to `total` bytes if it is smaller."""
        if self._on_cuda:
            if self._copied is None:
                self._copied = torch.cuda.Event()
            self._copied.synchronize()
        if self.capacity < total:
            self._buffer = torch.empty(max(total, 2 * self.capacity), dtype=torch.uint8, pin_memory=self._on_cuda)


def _view(buffer: torch.Tensor, start: int, size: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return buffer[start : start + size].view(dtype).view(shape)


def _source(array: np.ndarray) -> torch.Tensor:
    """Return a tensor on an array's memory, even if read-only; a copy if a stride is negative. Never write to it."""
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Alias(array)))


class _Alias:
    """Array interface to an array's memory without its read-only flag, about which torch would warn."""

    def __init__(self, array: np.ndarray) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self._array = array  # keeps the memory alive
