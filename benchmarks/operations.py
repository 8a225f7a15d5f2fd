"""Count of torch operations: the cost of an update of small networks, independent of the machine's load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique_dim", "_unique2")


class Operations(TorchDispatchMode):
    """Context manager that counts torch operations, and reads of values that would wait for a GPU.

    >>> with Operations() as counted:
    ...     _ = (torch.ones(3) + 1).sum().item()
    >>> counted.total, counted.num_waits
    (4, 1)
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.num_waits = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.counts[name] += 1
        self.num_waits += name in _READS or _picks_by_mask(name, args)
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        """Number of all operations."""
        return self.counts.total()


def _picks_by_mask(name: str, args: tuple[Any, ...]) -> bool:
    """Return True if the operation selects by a boolean mask, so that the size of the result depends on values."""
    picked = args[1] if name in ("index", "index_put", "index_put_") else ()
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in picked)


def operations_of(run: Callable[[], object]) -> Operations:
    """Run a function, and return the counted torch operations."""
    with Operations() as counted:
        run()
    return counted
