"""Count of torch operations, a cost of updates of small networks that does not depend on the machine's load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique_dim", "_unique2")


class Operations(TorchDispatchMode):
    """Context manager that counts torch operations, and those among them that would make the host wait for a GPU.

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
        self.num_waits += name in _READS or _selects_by_mask(name, args)
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        """Number of counted operations."""
        return self.counts.total()


def _selects_by_mask(name: str, args: tuple[Any, ...]) -> bool:
    """Return True if an operation indexes with a boolean mask, so that the size of its result depends on values and the
    host must wait.
    """
    picked = args[1] if name in ("index", "index_put", "index_put_") else ()
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in picked)


def count_operations(run: Callable[[], object]) -> Operations:
    """Run a function, and return the counts of its torch operations."""
    with Operations() as counted:
        run()
    return counted
