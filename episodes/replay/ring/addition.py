"""What is about to be written into a ring: worked out as a whole before the first byte of it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from episodes.replay.ring.episode_table import TableChange
from episodes.tracks.infos import Infos


@dataclass(slots=True, eq=False)
class Block:
    """Steps about to be written: the data, and how they hang together.

    Attributes:
        observations: nested arrays; `observation_rows` of them (all when None) are written.
        tracks: nested arrays by name, but for the flags of endings; `step_rows` of them (all when None) are written.
        endings: by flag, which of the S steps have it [k].
        links: [6, S] int64, see `StepLinks`.
        infos: of the observations that are written.
        versions: of the policies that made the steps, [S] or one for all; None where nobody told any.
    """

    observations: Any
    observation_rows: Any
    num_rows: int
    tracks: dict[str, Any]
    endings: dict[str, np.ndarray]
    step_rows: Any
    links: np.ndarray
    infos: Infos
    versions: Any = None

    def in_order(self, order: np.ndarray) -> Block:
        """The same steps in another order, their places [S]."""
        rows = self.step_rows[order] if isinstance(self.step_rows, np.ndarray) else order
        versions = self.versions[order] if isinstance(self.versions, np.ndarray) else self.versions
        places = order.argsort()
        endings = {name: places[steps] for name, steps in self.endings.items()}
        return replace(self, step_rows=rows, links=self.links[:, order], versions=versions, endings=endings)


@dataclass(slots=True, eq=False)
class Reservation:
    """Room for new steps, worked out before anything is written; see `LinkedRing.reservation`.

    Attributes:
        head, rows_head: numbers that the first new step and the first new observation row get.
        tail: number of the oldest step afterwards.
        first, entries: of episodes that lose their beginning, the positions [k] of their first steps now, and entries.
        closed: entries of episodes that have no step left.
        kept_from: what `LinkedRing.kept_from` becomes.
    """

    head: int
    rows_head: int
    tail: int
    first: np.ndarray
    entries: np.ndarray
    closed: np.ndarray
    kept_from: int


@dataclass(slots=True, eq=False)
class Addition:
    """All that an addition writes, and nothing that depends on what is there: it can be written twice.

    Attributes:
        newest: the newest steps of entries, (entries [k], positions [k]).
    """

    reservation: Reservation
    episodes: TableChange
    block: Block | None = None
    newest: tuple[np.ndarray, np.ndarray] | None = None


class StagedSource(Protocol):
    """Steps that a recorder has, and that are not in the ring yet."""

    def build_addition(self, ring: Any) -> tuple[Addition, Any]:
        """Return the addition that writes the steps, and the argument of `proceed`. Nothing is changed."""
        ...

    def proceed(self, continuation: Any) -> None:
        """Drop the steps, which are written. May be called twice."""
        ...
