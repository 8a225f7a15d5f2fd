"""What each piece of a pipeline got and gave: columns, shapes, dtypes and milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from connectors.column_parts import ColumnParts
from episodes import nested

__all__ = ["ColumnSummary", "PieceTrace", "Trace"]


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """The kind ("numpy", "torch", "parts", or a type's name), dtype and shape of one leaf of a column."""

    kind: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, leaf: Any) -> ColumnSummary:
        """The summary of a leaf."""
        if isinstance(leaf, ColumnParts):
            return cls("parts", "", (len(leaf),))
        kinds = {np.ndarray: "numpy", torch.Tensor: "torch"}
        dtype = str(getattr(leaf, "dtype", "")).removeprefix("torch.")
        shape = getattr(leaf, "shape", None)
        if shape is None:
            shape = (len(leaf),) if hasattr(leaf, "__len__") and not isinstance(leaf, str) else ()
        return cls(kinds.get(type(leaf), type(leaf).__name__), dtype, tuple(shape))

    def __str__(self) -> str:
        return f"{self.kind} {self.dtype}{list(self.shape)}"


def summarise(batch: dict[str, Any]) -> dict[str, ColumnSummary]:
    """The summaries of a batch's leaves by path (`obs`, `state_in/h`)."""
    return {path: ColumnSummary.of(leaf) for path, leaf in nested.flatten(batch).items() if path}


@dataclass(frozen=True, slots=True)
class PieceTrace:
    """One piece's call."""

    piece: str
    got: dict[str, ColumnSummary]
    gave: dict[str, ColumnSummary]
    milliseconds: float

    @property
    def changed(self) -> dict[str, ColumnSummary]:
        """The columns of `gave` that were not in `got`, or not like that."""
        return {path: summary for path, summary in self.gave.items() if self.got.get(path) != summary}


@dataclass(slots=True)
class Trace:
    """The calls of one pass through a pipeline, in order. `print(trace)` is a table."""

    pieces: list[PieceTrace] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pieces)

    def __iter__(self) -> Iterator[PieceTrace]:
        return iter(self.pieces)

    def __getitem__(self, index: int) -> PieceTrace:
        return self.pieces[index]

    def watcher(self, name: str, call: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """`call`, whose calls are noted down under the name."""

        def watched(**arguments: Any) -> dict[str, Any]:
            got = summarise(arguments["batch"])
            start = time.perf_counter()
            batch = call(**arguments)
            milliseconds = 1e3 * (time.perf_counter() - start)
            self.pieces.append(PieceTrace(name, got, summarise(batch), milliseconds))
            return batch

        return watched

    def __str__(self) -> str:
        width = max((len(piece.piece) for piece in self.pieces), default=0)
        rows = []
        for piece in self.pieces:
            changed = ", ".join(f"{path}: {summary}" for path, summary in piece.changed.items()) or "(unchanged)"
            rows.append(f"{piece.piece:<{width}}  {piece.milliseconds:8.3f} ms  {changed}")
        return "\n".join(rows)
