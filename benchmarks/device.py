"""Devices of benchmarks: whether one is here, and waiting for its work."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.figure import NotHere


def usable_device(name: str) -> torch.device:
    """Return the device with a name, such as "cuda" or "cpu".

    Raises:
        NotHere: the machine has no GPU.
    """
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise NotHere("no GPU here")
    return torch.device(name)


def finish(device: Any) -> None:
    """Wait until a device has done its work. Nothing is to wait for on the CPU, or without a device."""
    if device is not None and torch.device(device).type == "cuda":
        torch.cuda.synchronize()
