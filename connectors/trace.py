"""Recorded calls of a pipeline: columns, shapes, dtypes and times of each connector."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from connectors.column_parts import ColumnParts
from episodes.tracks import nested
from episodes.tracks.notebook_repr import notebook_repr

__all__ = ["ColumnSummary", "PieceTrace", "Trace"]


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """Kind, dtype and shape of one array in a batch. Kinds: "numpy", "torch", "parts" or the name of a type."""

    kind: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, leaf: Any) -> ColumnSummary:
        """Return kind, dtype and shape of one array or other value of a batch."""
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


def fingerprints(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a number per value of a batch, by path: a checksum of a CPU array, or else the object's id."""
    return {path: _fingerprint(leaf) for path, leaf in nested.flatten(batch).items() if path}


def _fingerprint(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.dtype != torch.bfloat16:
        leaf = leaf.detach().numpy()
    if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
        return zlib.crc32(leaf.tobytes())
    return id(leaf)


def summarise(batch: dict[str, Any]) -> dict[str, ColumnSummary]:
    """Return kind, dtype and shape of each array of a batch, by its path such as `state_in/h`."""
    return {path: ColumnSummary.of(leaf) for path, leaf in nested.flatten(batch).items() if path}


@dataclass(frozen=True, slots=True)
class PieceTrace:
    """Record of one call of a connector: its time, and the columns before and after it."""

    piece: str
    got: dict[str, ColumnSummary]
    gave: dict[str, ColumnSummary]
    milliseconds: float
    rewritten: frozenset[str] = frozenset()

    @property
    def changed(self) -> dict[str, ColumnSummary]:
        """Output columns that the connector added or changed."""
        got, rewritten = self.got, self.rewritten
        return {path: kind for path, kind in self.gave.items() if got.get(path) != kind or path in rewritten}

    def __str__(self) -> str:
        changes = [f"{path}: {'new values' if path in self.rewritten else kind}" for path, kind in self.changed.items()]
        return ", ".join(changes) or "(unchanged)"


@dataclass(slots=True)
class Trace:
    """Records of one call of a pipeline, one per connector, in order. `print(trace)` prints a table."""

    pieces: list[PieceTrace] = field(default_factory=list)
    _repr_html_ = notebook_repr("connectors.notebook_cards", "trace")

    def __len__(self) -> int:
        return len(self.pieces)

    def __iter__(self) -> Iterator[PieceTrace]:
        return iter(self.pieces)

    def __getitem__(self, index: int) -> PieceTrace:
        return self.pieces[index]

    def watcher(self, name: str, call: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """Return a function that calls the connector `call` and records the call under `name`."""

        def watched(**arguments: Any) -> dict[str, Any]:
            got, before = summarise(arguments["batch"]), fingerprints(arguments["batch"])
            start = time.perf_counter()
            batch = call(**arguments)
            milliseconds = 1e3 * (time.perf_counter() - start)
            gave, after = summarise(batch), fingerprints(batch)
            rewritten = (path for path, kind in gave.items() if got.get(path) == kind and before[path] != after[path])
            self.pieces.append(PieceTrace(name, got, gave, milliseconds, frozenset(rewritten)))
            return batch

        return watched

    def __str__(self) -> str:
        width = max((len(piece.piece) for piece in self.pieces), default=0)
        return "\n".join(f"{piece.piece:<{width}}  {piece.milliseconds:8.3f} ms  {piece}" for piece in self.pieces)
