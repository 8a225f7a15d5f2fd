"""Planned writes to a replay ring. They are computed completely before the first one is executed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from episodes.replay.ring.episode_table import TableChange
from episodes.tracks.infos import Infos

if TYPE_CHECKING:
    pass


@dataclass(slots=True, eq=False)
class Block:
    """New steps to be written to a replay ring, with links to their neighbours and observations.

    Attributes:
        observations: nested arrays.
        observation_rows: which of the observations are written, None for all.
        num_rows: number of observations that are written.
        tracks: nested arrays by name, without the ending flags.
        endings: for each ending flag, which of the S steps have it, int [k].
        step_rows: which items of the tracks are written, None for all.
        links: int64 [6, S], see `StepLinks`.
        infos: infos of the observations that are written.
        versions: policy versions of the steps, int64 [S], or one int for all, or None if they are unknown.
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
        """Return the same steps, with their links, in the order of the indices `order` [S]."""
        rows = self.step_rows[order] if isinstance(self.step_rows, np.ndarray) else order
        versions = self.versions[order] if isinstance(self.versions, np.ndarray) else self.versions
        places = order.argsort()
        endings = {name: places[steps] for name, steps in self.endings.items()}
        return replace(self, step_rows=rows, links=self.links[:, order], versions=versions, endings=endings)


@dataclass(slots=True, eq=False)
class Reservation:
    """Part of a replay ring reserved for new steps, and the episodes that lose their oldest steps.

    Attributes:
        head: index of the first new step.
        rows_head: number of the first new observation row.
        tail: index of the oldest step afterwards.
        first: positions [k] of the first stored steps of episodes that lose their beginning.
        entries: table entries [k] of these episodes.
        closed: table entries of episodes that have no step left.
        kept_from: `LinkedRing.kept_from` afterwards.
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
    """Complete plan of the writes that add steps to a replay ring. Executing it twice has the same result as once.

    Attributes:
        reservation: indices and evictions.
        episodes: change of the table of episodes.
        block: the steps and observations, or None.
        newest: table entries [k], and positions [k] of their newest steps.
    """

    reservation: Reservation
    episodes: TableChange
    block: Block | None = None
    newest: tuple[np.ndarray, np.ndarray] | None = None


class StagedSource(Protocol):
    """Interface of a recorder that holds its newest steps in memory until they are written to the replay ring."""

    def build_addition(self, ring: Any) -> tuple[Addition, Any]:
        """Return the plan for writing all held steps to the ring, and the argument of the later call of `proceed`."""
        ...

    def proceed(self, continuation: Any) -> None:
        """Drop the staged steps, which are in the ring now, and switch to the state `continuation`.

        The call may be repeated.
        """
        ...
