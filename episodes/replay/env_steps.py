"""For each env step of a multi-agent replay buffer, the stored step of each agent that acted at this env step."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from episodes.replay.ring.episode_table import NONE

Seat = tuple[Hashable, Hashable]  # an agent and the module that acted for it


class EnvSteps:
    """Index of the newest `capacity` env steps: for each agent that acted at an env step, the index of its step.

    An agent whose module differs from episode to episode has a column for each of its modules.

    Rows have numbers in the order in which they are added. Rows with numbers in [tail, head) are stored.

        env step       row     agent a    agent b
        episode 1, 0    10        37         -1       b did not act
        episode 1, 1    11        38         52

    Attributes:
        head: number of the next row.
        numbers: step indices of each agent and module by row position, int64 [capacity], NONE where it did not act.
        pieces: parts that were added: first row, number of rows, and for each module the index of its first step and
            the rows of all its steps.
        chunks: env steps of each episode: first one, one past the last, first row. The episode that was continued last
            is the last one.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.head = 0
        self.numbers: dict[Seat, np.ndarray] = {}
        self.pieces: deque[tuple[int, int, dict[Hashable, tuple[int, np.ndarray]]]] = deque()
        self.chunks: OrderedDict[str, deque[tuple[int, int, int]]] = OrderedDict()

    @property
    def tail(self) -> int:
        return max(self.head - self.capacity, 0)

    def __len__(self) -> int:
        return self.head - self.tail

    def append(self, row: int, id_: str, begin: int, end: int, steps: dict[Hashable, tuple[int, np.ndarray]]) -> None:
        """Append the env steps [begin, end) of an episode, numbered from `row` on, to the index. May be repeated.

        Args:
            row: number of the first row.
            id_: id of the episode.
            begin: first env step.
            end: one past the last env step.
            steps: for each module the index of its first step, and the rows of all its steps, int [k], ascending.
        """
        count = end - begin
        if not self.pieces or self.pieces[-1][2] is not steps:
            self.pieces.append((row, count, steps))
        new = (row + np.arange(min(count, self.capacity)) + max(count - self.capacity, 0)) % self.capacity
        for numbers in self.numbers.values():
            numbers[new] = NONE
        if count:
            chunks = self.chunks.setdefault(id_, deque())
            if not chunks or chunks[-1][2] != row:
                chunks.append((begin, end, row))
            self.chunks.move_to_end(id_)
        self.head = row + count

    def oldest_steps(self) -> dict[Hashable, int]:
        """Return for each module the index of the oldest agent step that belongs to an env step still in the index."""
        oldest: dict[Hashable, int] = {}
        for row, count, steps in self.pieces:
            oldest |= {m: first + int(rows.searchsorted(self.tail)) for m, (first, rows) in steps.items()}
            if row + count > self.tail:
                break
        return oldest

    def forget_evicted(self) -> None:
        """Remove the records of added episode parts whose env steps are no longer in the index."""
        while self.pieces and self.pieces[0][0] + self.pieces[0][1] <= self.tail:
            self.pieces.popleft()
        while self.chunks:
            chunks = next(iter(self.chunks.values()))
            while chunks and chunks[0][2] + chunks[0][1] - chunks[0][0] <= self.tail:
                chunks.popleft()
            if chunks:
                return
            del self.chunks[next(iter(self.chunks))]

    def put(self, id_: str, seat: Seat, times: np.ndarray, steps: np.ndarray) -> None:
        """Record that the steps `steps` [k] of an agent belong to the env steps `times` [k] of an episode."""
        if seat not in self.numbers:
            self.numbers[seat] = np.full(self.capacity, NONE, np.int64)
        for begin, end, row in reversed(self.chunks.get(id_, ())):
            inside = (times >= begin) & (times < end) & (times - begin + row >= self.tail)
            self.numbers[seat][(times[inside] - begin + row) % self.capacity] = steps[inside]
            if times[0] >= begin:
                break

    def usable(self, rows: np.ndarray, tails: Mapping[Seat, int]) -> np.ndarray:
        """Return for each env step whether an agent acted and all acting agents' steps are still stored, bool [n].

        Args:
            rows: positions of rows, int [n].
            tails: index of the oldest stored step, by agent and module.
        """
        any_acted = np.zeros(len(rows), bool)
        is_complete = np.ones(len(rows), bool)
        for seat, numbers in self.numbers.items():
            has_acted = numbers[rows] != NONE
            any_acted |= has_acted
            is_complete &= ~has_acted | (numbers[rows] >= tails[seat])
        return any_acted & is_complete

    def get_state(self) -> dict[str, Any]:
        """Return the index's contents as a dict of copies, for a checkpoint."""
        numbers = {seat: numbers.copy() for seat, numbers in self.numbers.items()}
        chunks = {id_: list(c) for id_, c in self.chunks.items()}
        return {"head": self.head, "numbers": numbers, "pieces": list(self.pieces), "chunks": chunks}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the index's contents from a dict that `get_state` returned."""
        self.head = state["head"]
        self.pieces = deque(state["pieces"])
        self.numbers = {seat: numbers.copy() for seat, numbers in state["numbers"].items()}
        self.chunks = OrderedDict((id_, deque(chunks)) for id_, chunks in state["chunks"].items())
