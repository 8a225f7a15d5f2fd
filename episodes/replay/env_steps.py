"""`EnvSteps`: maps each env step of a multi-agent replay buffer to the stored steps of the agents that acted."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from episodes.replay.ring.episode_table import NONE

AgentModule = tuple[Hashable, Hashable]  # an agent and the module that acted for it


class EnvSteps:
    """Table of the newest `capacity` env steps: for each agent that acted, the index of its step in the replay buffer.

    An agent whose module differs from episode to episode has a column for each of its modules.

    Rows have numbers in the order in which they are added. Rows with numbers in [tail, head) are stored.

        env step       row     agent a    agent b
        episode 1, 0    10        37         -1       b did not act
        episode 1, 1    11        38         52

    Attributes:
        head: number of the next row.
        numbers: step indices of each agent and module by row position, int64 [capacity], NONE where it did not act.
        parts: parts that were added: first row, number of rows, and for each module the index of its first step and
            the rows of all its steps.
        chunks: env steps of each episode: first one, one past the last, first row. The episode that was continued last
            is the last one.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.head = 0
        self.numbers: dict[AgentModule, np.ndarray] = {}
        self.parts: deque[tuple[int, int, dict[Hashable, tuple[int, np.ndarray]]]] = deque()
        self.chunks: OrderedDict[str, deque[tuple[int, int, int]]] = OrderedDict()

    @property
    def tail(self) -> int:
        return max(self.head - self.capacity, 0)

    def __len__(self) -> int:
        return self.head - self.tail

    def append(self, row: int, id_: str, begin: int, end: int, steps: dict[Hashable, tuple[int, np.ndarray]]) -> None:
        """Append a table row for each of the env steps [begin, end) of an episode. The first gets the number `row`.

        A repeated call has no further effect.

        Args:
            row: number of the first row.
            id_: id of the episode.
            begin: first env step.
            end: one past the last env step, at most `begin` + `capacity`.
            steps: for each module the index of its first step, and the rows of all its steps, int [k], ascending.
        """
        count = end - begin
        if not self.parts or self.parts[-1][2] is not steps:
            self.parts.append((row, count, steps))
        new = (row + np.arange(count)) % self.capacity
        for numbers in self.numbers.values():
            numbers[new] = NONE
        if count:
            chunks = self.chunks.setdefault(id_, deque())
            if not chunks or chunks[-1][2] != row:
                chunks.append((begin, end, row))
            self.chunks.move_to_end(id_)
        self.head = row + count

    def oldest_steps(self) -> dict[Hashable, int]:
        """Return for each module the index of the oldest agent step that a row of the table still refers to."""
        oldest: dict[Hashable, int] = {}
        for row, count, steps in self.parts:
            oldest |= {m: first + int(rows.searchsorted(self.tail)) for m, (first, rows) in steps.items()}
            if row + count > self.tail:
                break
        return oldest

    def forget_evicted(self) -> None:
        """Remove the records of episode parts whose env steps have left the table."""
        while self.parts and self.parts[0][0] + self.parts[0][1] <= self.tail:
            self.parts.popleft()
        while self.chunks:
            chunks = next(iter(self.chunks.values()))
            while chunks and chunks[0][2] + chunks[0][1] - chunks[0][0] <= self.tail:
                chunks.popleft()
            if chunks:
                return
            del self.chunks[next(iter(self.chunks))]

    def put(self, id_: str, agent_module: AgentModule, times: np.ndarray, steps: np.ndarray) -> None:
        """Record that an agent took the steps with indices `steps` [k] at the env steps `times` [k] of an episode."""
        if agent_module not in self.numbers:
            self.numbers[agent_module] = np.full(self.capacity, NONE, np.int64)
        for begin, end, row in reversed(self.chunks.get(id_, ())):
            inside = (times >= begin) & (times < end) & (times - begin + row >= self.tail)
            self.numbers[agent_module][(times[inside] - begin + row) % self.capacity] = steps[inside]
            if times[0] >= begin:
                break

    def usable(self, rows: np.ndarray, tails: Mapping[AgentModule, int]) -> np.ndarray:
        """Return True for each of the `rows` [n] in which all acting agents' steps are still stored, bool [n].

        Rows in which no agent acted get False.

        Args:
            rows: positions of rows, int [n].
            tails: index of the oldest stored step, by agent and module.
        """
        any_acted = np.zeros(len(rows), bool)
        is_complete = np.ones(len(rows), bool)
        for agent_module, numbers in self.numbers.items():
            has_acted = numbers[rows] != NONE
            any_acted |= has_acted
            is_complete &= ~has_acted | (numbers[rows] >= tails[agent_module])
        return any_acted & is_complete

    def get_state(self) -> dict[str, Any]:
        """Return the contents of the table as a dict of copies, for a checkpoint."""
        numbers = {agent_module: numbers.copy() for agent_module, numbers in self.numbers.items()}
        chunks = {id_: list(c) for id_, c in self.chunks.items()}
        return {"head": self.head, "numbers": numbers, "pieces": list(self.parts), "chunks": chunks}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the table from a dict that `get_state` returned."""
        self.head = state["head"]
        self.parts = deque(state["pieces"])
        self.numbers = {agent_module: numbers.copy() for agent_module, numbers in state["numbers"].items()}
        self.chunks = OrderedDict((id_, deque(chunks)) for id_, chunks in state["chunks"].items())
