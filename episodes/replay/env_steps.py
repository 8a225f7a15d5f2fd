"""Which step of each agent belongs to which env step: what draws of all agents at one env step go by."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from episodes.replay.ring.episode_table import NONE


class EnvSteps:
    """The newest `capacity` env steps; each has a row of step numbers, one for each agent that acted then.

    Rows are numbered by arrival; those with numbers in [tail, head) are there.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.head = 0
        self.numbers: dict[Hashable, np.ndarray] = {}  # agent -> step numbers [capacity], NONE where it did not act
        # Pieces that were appended: (first row, number of rows, for each module its first step and all steps' rows)
        self.pieces: deque[tuple[int, int, dict[Hashable, tuple[int, np.ndarray]]]] = deque()
        # episode -> (first env step, one past the last, row); the episode that went on longest ago comes first
        self.chunks: OrderedDict[str, deque[tuple[int, int, int]]] = OrderedDict()

    @property
    def tail(self) -> int:
        return max(self.head - self.capacity, 0)

    def __len__(self) -> int:
        return self.head - self.tail

    def append(self, row: int, id_: str, begin: int, end: int, steps: dict[Hashable, tuple[int, np.ndarray]]) -> None:
        """Make rows from number `row` on, the newest ones, for the env steps [begin, end) of an episode: a piece.

        `steps` are those that come with it: each module's number of the first one, and the rows in which they were
        made, int [k], ascending. Broken off, it may be called again.
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
        """Of all modules that lost some, the number of the oldest step that belongs to a row that is there."""
        oldest: dict[Hashable, int] = {}
        for row, count, steps in self.pieces:
            oldest |= {m: first + int(rows.searchsorted(self.tail)) for m, (first, rows) in steps.items()}
            if row + count > self.tail:
                break
        return oldest

    def forget_evicted(self) -> None:
        """Forget the pieces and chunks without a row that is there."""
        while self.pieces and self.pieces[0][0] + self.pieces[0][1] <= self.tail:
            self.pieces.popleft()
        while self.chunks:
            chunks = next(iter(self.chunks.values()))
            while chunks and chunks[0][2] + chunks[0][1] - chunks[0][0] <= self.tail:
                chunks.popleft()
            if chunks:
                return
            del self.chunks[next(iter(self.chunks))]

    def put(self, id_: str, agent_id: Hashable, times: np.ndarray, steps: np.ndarray) -> None:
        """The agent acted at the env steps `times` [k] of the episode: its steps of the numbers `steps` [k]."""
        if agent_id not in self.numbers:
            self.numbers[agent_id] = np.full(self.capacity, NONE, np.int64)
        for begin, end, row in reversed(self.chunks.get(id_, ())):
            inside = (times >= begin) & (times < end) & (times - begin + row >= self.tail)
            self.numbers[agent_id][(times[inside] - begin + row) % self.capacity] = steps[inside]
            if times[0] >= begin:
                break

    def usable(self, rows: np.ndarray, tails: Mapping[Hashable, int]) -> np.ndarray:
        """Where at least one agent acted and no agent's step is gone, for row positions [n]; `tails` by agent."""
        acted = np.zeros(len(rows), bool)
        whole = np.ones(len(rows), bool)
        for agent_id, numbers in self.numbers.items():
            there = numbers[rows] != NONE
            acted |= there
            whole &= ~there | (numbers[rows] >= tails[agent_id])
        return acted & whole

    def get_state(self) -> dict[str, Any]:
        """Everything, as a dict that shares no memory."""
        numbers = {agent_id: numbers.copy() for agent_id, numbers in self.numbers.items()}
        chunks = {id_: list(c) for id_, c in self.chunks.items()}
        return {"head": self.head, "numbers": numbers, "pieces": list(self.pieces), "chunks": chunks}

    def set_state(self, state: dict[str, Any]) -> None:
        """Be what it was."""
        self.head = state["head"]
        self.pieces = deque(state["pieces"])
        self.numbers = {agent_id: numbers.copy() for agent_id, numbers in state["numbers"].items()}
        self.chunks = OrderedDict((id_, deque(chunks)) for id_, chunks in state["chunks"].items())
