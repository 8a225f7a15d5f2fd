"""Traces of pipelines: a record of one call, with the time of each connector and the columns before and after it."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sized
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
    """Kind, dtype and shape of one array in a batch, for traces.

    The kind is "numpy", "torch", "parts" (a column under construction), or the name of another type.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, leaf: object) -> ColumnSummary:
        """Return a summary (kind, dtype, shape) of one array or other value of a batch."""
        if isinstance(leaf, ColumnParts):
            return cls("parts", "", (len(leaf),))
        kinds = {np.ndarray: "numpy", torch.Tensor: "torch"}
        dtype = str(getattr(leaf, "dtype", "")).removeprefix("torch.")
        shape = getattr(leaf, "shape", None)
        if shape is None:
            shape = (len(leaf),) if isinstance(leaf, Sized) and not isinstance(leaf, str) else ()
        return cls(kinds.get(type(leaf), type(leaf).__name__), dtype, tuple(shape))

    def __str__(self) -> str:
        return f"{self.kind} {self.dtype}{list(self.shape)}"


def fingerprints(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a checksum of each array in a batch, by its path such as `state_in/h`, to detect changed values. Values
    without a checksum get their object id.
    """
    return {path: _fingerprint(leaf) for path, leaf in nested.flatten(batch).items() if path}


def _fingerprint(leaf: object) -> Any:
    """Return the checksum (CRC-32) of an array or CPU tensor, or the object id of any other value."""
    if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.dtype != torch.bfloat16:
        leaf = leaf.detach().numpy()
    if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
        return zlib.crc32(leaf.tobytes())
    return id(leaf)


def summarise(batch: dict[str, Any]) -> dict[str, ColumnSummary]:
    """Return the kind, dtype and shape of each array in a batch, by its path such as `state_in/h`."""
    return {path: ColumnSummary.of(leaf) for path, leaf in nested.flatten(batch).items() if path}


@dataclass(frozen=True, slots=True)
class PieceTrace:
    """Record of one call of a connector: its duration, and summaries of all columns before and after the call."""

    piece: str
    got: dict[str, ColumnSummary]
    gave: dict[str, ColumnSummary]
    milliseconds: float
    rewritten: frozenset[str] = frozenset()

    @property
    def changed(self) -> dict[str, ColumnSummary]:
        """Summaries of the output columns that the connector added or changed, by path."""
        got, rewritten = self.got, self.rewritten
        return {path: kind for path, kind in self.gave.items() if got.get(path) != kind or path in rewritten}

    def __str__(self) -> str:
        changes = [f"{path}: {'new values' if path in self.rewritten else kind}" for path, kind in self.changed.items()]
        return ", ".join(changes) or "(unchanged)"


@dataclass(slots=True)
class Trace:
    """Record of one pipeline call: the duration of each connector and the columns before and after it. `print(trace)`
    prints a table.
    """

    pieces: list[PieceTrace] = field(default_factory=list)
    _repr_html_ = notebook_repr("connectors.notebook_cards", "trace")

    def __len__(self) -> int:
        return len(self.pieces)

    def __iter__(self) -> Iterator[PieceTrace]:
        return iter(self.pieces)

    def __getitem__(self, index: int) -> PieceTrace:
        return self.pieces[index]

    def watcher(self, name: str, call: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """Return a function that calls a connector (`call`) and adds a record of the call to this trace, under
        `name`.
        """

        def call_and_record(**arguments: Any) -> dict[str, Any]:
            """Call the connector, and add a record of its duration and columns to the trace."""
            got, before = summarise(arguments["batch"]), fingerprints(arguments["batch"])
            start = time.perf_counter()
            batch = call(**arguments)
            milliseconds = 1e3 * (time.perf_counter() - start)
            gave, after = summarise(batch), fingerprints(batch)
            rewritten = (path for path, kind in gave.items() if got.get(path) == kind and before[path] != after[path])
            self.pieces.append(PieceTrace(name, got, gave, milliseconds, frozenset(rewritten)))
            return batch

        return call_and_record

    def __str__(self) -> str:
        width = max((len(piece.piece) for piece in self.pieces), default=0)
        return "\n".join(f"{piece.piece:<{width}}  {piece.milliseconds:8.3f} ms  {piece}" for piece in self.pieces)
