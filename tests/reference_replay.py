"""A slow replay buffer: a list of transitions, an episode after another, no arithmetic on positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from episodes.history import History, HistorySpaces


@dataclass(eq=False)
class Transition:
    """Step of an episode, with references to the previous and the next step."""

    id_: str
    t: int
    obs: float
    action: int
    reward: float
    new_obs: float
    terminated: bool = False
    truncated: bool = False
    next: Transition | None = None
    previous: Transition | None = None


@dataclass
class ReferenceReplay:
    """The newest `capacity` transitions of all that were added."""

    capacity: int
    steps: list[Transition] = field(default_factory=list)  # all that were ever added
    contexts: dict[int, list[Transition]] = field(default_factory=dict)  # lookbacks by `id` of the step after them
    uncertain: set[int] = field(default_factory=set)  # of `contexts`: the steps before were stored

    @property
    def tail(self) -> int:
        return max(len(self.steps) - self.capacity, 0)

    def alive(self) -> list[Transition]:
        return self.steps[self.tail :]

    def add_chunk(self, transitions: list[Transition], lookback: Sequence[Transition] = ()) -> None:
        """Add successive steps of an episode, which follow its newest step if this step is still stored.

        If it is not, the steps `lookback` before them are known, too. If it is evicted later in the same call of `add`,
        a buffer may know them or not.
        """
        stored = self.steps[max(len(self.steps) + len(transitions) - self.capacity, 0) :]
        before = next((s for s in reversed(stored) if s.id_ == transitions[0].id_), None)
        for step in transitions:
            if before is not None:
                before.next, step.previous = step, before
            self.steps.append(step)
            before = step
        self.contexts[id(transitions[0])] = list(lookback)
        if transitions[0].previous is not None:
            self.uncertain.add(id(transitions[0]))
        alive = set(map(id, self.alive()))
        for step in self.alive():
            if step.previous is not None and id(step.previous) not in alive:
                step.previous = None

    def episodes(self) -> dict[str, list[Transition]]:
        """Return the stored steps by episode id."""
        result: dict[str, list[Transition]] = {}
        for step in self.alive():
            result.setdefault(step.id_, []).append(step)
        return result

    @staticmethod
    def forward(step: Transition, num: int) -> list[Transition]:
        """Return the step and its following steps, at most `num` steps."""
        result = [step]
        while len(result) < num and result[-1].next is not None:
            result.append(result[-1].next)
        return result

    @staticmethod
    def backward(step: Transition, num: int) -> list[Transition]:
        """Return at most `num` steps before the step, oldest first."""
        result: list[Transition] = []
        while len(result) < num and step.previous is not None:
            step = step.previous
            result.insert(0, step)
        return result

    def known_before(self, step: Transition, *, certain: bool = False) -> list[Transition]:
        """Return all known steps before the step, oldest first: stored ones, and the lookback before these."""
        stored = self.backward(step, 10**6)
        first = id(stored[0] if stored else step)
        lookback = [] if certain and first in self.uncertain else self.contexts.get(first, [])
        return [*lookback, *stored]

    def is_complete(self, step: Transition, reach: int, *, certain: bool = False) -> bool:
        """Return True if the `reach` steps before the step are known, or all of its episode."""
        known = self.known_before(step, certain=certain)
        return len(known) >= reach or (known[0] if known else step).t == 0

    def stack(self, step: Transition, k: int, *, after: bool) -> list[float]:
        """Return the last k observations up to the step, or up to its next observation, with zeros before the start."""
        observed = [s.obs for s in [*self.known_before(step), step]] + ([step.new_obs] if after else [])
        return ([0.0] * k + observed)[-k:]


class LastObservations:
    """Views that show the last k observations [k, ...] at each."""

    given = HistorySpaces()

    def __init__(self, k: int) -> None:
        self.k, self.lookback = k, k - 1

    def __call__(self, history: History) -> dict[str, Any]:
        return {"obs": history.observations(self.k)}


def chi_square_deviation(counts: np.ndarray, probabilities: np.ndarray | None = None) -> float:
    """Return the distance of the counts' chi-square statistic from its mean, in standard deviations (usually below 3).

    Args:
        probabilities: of each count, up to a factor; all equal when None.
    """
    weights = np.ones(len(counts)) if probabilities is None else probabilities
    expected = counts.sum() * weights / weights.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))
