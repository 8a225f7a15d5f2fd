"""`StagingBuffer`: host memory from which many numpy arrays are copied to a device in one transfer.

    arrays      obs [B, 4] | actions [B] | rewards [B]
    buffer      | obs ......... | actions .. | rewards .. |      one copy to the device; the tensors are views of it

Each array begins at a multiple of `ALIGNMENT` bytes. A copy has a high fixed cost, which is paid once here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from episodes.errors import InvalidArgument

ALIGNMENT = 64  # bytes; every array of the buffer starts at a multiple, so that it can be viewed in its dtype


def checked_device(device: str | int | torch.device) -> torch.device:
    """Return `device`, for example "cuda:0", as a `torch.device`.

    Raises:
        InvalidArgument: torch does not know the device.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(f"device={device!r}: give one of torch's, such as 'cpu' or 'cuda:0'") from error


class StagingBuffer:
    """Reusable host memory from which many numpy arrays are copied to a device in one transfer.

    Args:
        device: the target device. For CUDA the buffer is page-locked and copies do not block the host.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._on_cuda = device.type == "cuda"
        self._buffer = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._copied: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return StagingBuffer, (self.device,)

    @property
    def capacity(self) -> int:
        """Size of the host memory in bytes."""
        return self._buffer.numel()

    def send(self, arrays: list[np.ndarray], dtypes: list[torch.dtype]) -> list[torch.Tensor]:
        """Copy numpy arrays to the device in one transfer, and return them as tensors of the given dtypes. The tensors
        share one allocation.
        """
        sizes = [array.size * dtype.itemsize for array, dtype in zip(arrays, dtypes, strict=True)]
        ends = np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]).tolist()
        starts = [0, *ends][:-1]
        total = ends[-1] if ends else 0
        self._reserve(total)
        for array, dtype, start, size in zip(arrays, dtypes, starts, sizes, strict=True):
            _view(self._buffer, start, size, dtype, array.shape).copy_(_tensor_on(array))
        on_device = torch.empty(total, dtype=torch.uint8, device=self.device)
        on_device.copy_(self._buffer[:total], non_blocking=self._on_cuda)
        if self._on_cuda:
            self._copied.record(torch.cuda.current_stream(self.device))
        spans = zip(arrays, dtypes, starts, sizes, strict=True)
        return [_view(on_device, start, size, dtype, array.shape) for array, dtype, start, size in spans]

    def _reserve(self, total: int) -> None:
        """Wait until the previous transfer has read the host memory, and enlarge the memory to at least `total`
        bytes.
        """
        if self._on_cuda:
            if self._copied is None:
                self._copied = torch.cuda.Event()
            self._copied.synchronize()
        if self.capacity < total:
            self._buffer = torch.empty(
                max(total, 2 * self.capacity), dtype=torch.uint8, device="cpu", pin_memory=self._on_cuda
            )


def _view(buffer: torch.Tensor, start: int, size: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return `size` bytes of a buffer as a tensor of this dtype and shape, which shares its memory."""
    return buffer[start : start + size].view(dtype).view(shape)


def _tensor_on(array: np.ndarray) -> torch.Tensor:
    """Return a CPU tensor on the memory of `array`, for reading only. An array with a negative stride is copied."""
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Alias(array)))


class _Alias:
    """Array interface on an array's memory that hides its read-only flag, so that torch does not warn."""

    def __init__(self, array: np.ndarray) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self._array = array  # keeps the memory alive
