"""`Origin`: from which step of which episode each row of a batch came, looked up when somebody asks.

A batch carries a source of steps and, lazily, one integer a row: the number of its step there. All else (episode,
agent, time) is asked of the source, which keeps no episode alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from episodes.batch import leaves as batch_leaves
from episodes.errors import EpisodeStateError, StepOutOfRange

__all__ = ["Origin", "StepLocations", "StepOrigin", "StepSource", "EpisodeKey"]

PADDING = -1  # stands where a row has no step


class EpisodeKey(NamedTuple):
    """Whose episode it is."""

    id_: str  # of the episode
    agent_id: Any = None
    module_id: Any = None


class StepLocations(NamedTuple):
    """Steps by episode and time."""

    whose: list[EpisodeKey | None]  # distinct episodes; None for what nobody knows any more
    which: np.ndarray  # [n] int64, of these
    t: np.ndarray  # [n] int64


class StepOrigin(NamedTuple):
    """A step: whose it is, when it was, and how its chunk stops."""

    id_: str  # of the episode
    t: int  # of its episode, from 0 at its reset
    agent_id: Any
    module_id: Any
    t_started: int  # where the chunk that is there begins
    t_stop: int  # after its last step
    ending: Any  # `Ending` of the chunk
    source: str  # in words


class StepSource(Protocol):
    """Where steps with numbers lie. `step` and `episode` raise EpisodeStateError for one that is gone."""

    def step(self, number: int) -> StepOrigin: ...
    def episode(self, number: int) -> Any: ...
    def places(self, numbers: np.ndarray) -> StepLocations: ...


LazyOrigin = tuple[StepSource, Any]  # a source, and numbers int64 [B] or [B, W], or a function that gives them


class Origin:
    """Where the rows of a batch came from.

    Attributes:
        source: of the steps.
        numbers: of each row's step in the source, int64 [B], of sequences [B, W]; -1 on padding. A row that sums up
            several steps (`n_step`) or shows earlier ones (frame stacks) has the number of the step it was acted at.

    `origin[i]` (of sequences `origin[i, column]`) is a `StepOrigin`, None on padding; a slice or an array of rows is
    another `Origin`.
    """

    __slots__ = ("numbers", "source")

    def __init__(self, source: StepSource, numbers: np.ndarray) -> None:
        self.source, self.numbers = source, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Any) -> Any:
        numbers = self._numbers_of(rows)
        if numbers.ndim:
            return Origin(self.source, numbers)
        return None if numbers == PADDING else self.source.step(int(numbers))

    def episode(self, row: Any = ()) -> Any:
        """The episode that a row came from, as it is there now; of a sequence's row, that of its first step.

        Raises:
            EpisodeStateError: it is gone, or the row is padding.
            StepOutOfRange: there is no such row.
        """
        numbers = np.atleast_1d(self._numbers_of(row)).ravel()
        there = numbers[numbers != PADDING]
        if not len(there):
            raise EpisodeStateError(f"row {row!r} is padding: it came from no episode")
        return self.source.episode(int(there[0]))

    def _numbers_of(self, rows: Any) -> Any:
        try:
            return self.numbers[rows]
        except IndexError:
            raise StepOutOfRange(f"origin[{rows!r}]: this batch has rows of shape {self.numbers.shape}") from None

    @property
    def ids(self) -> np.ndarray:
        """The episodes' ids, objects of the shape of `numbers`; None on padding and where nobody knows any more."""
        return self._of_episodes(lambda whose: whose.id_)

    @property
    def agent_ids(self) -> np.ndarray:
        """The agents' ids, likewise."""
        return self._of_episodes(lambda whose: whose.agent_id)

    @property
    def module_ids(self) -> np.ndarray:
        """The modules' ids, likewise."""
        return self._of_episodes(lambda whose: whose.module_id)

    @property
    def t(self) -> np.ndarray:
        """The steps' times in their episodes, likewise."""
        real, (whose, which, t) = self._places
        times = t.astype(object)
        times[np.array([own is None for own in whose], bool)[which]] = None
        return self._laid_out(real, times)

    def _of_episodes(self, fact: Callable[[EpisodeKey], Any]) -> np.ndarray:
        real, (whose, which, _) = self._places
        facts = np.fromiter((None if own is None else fact(own) for own in whose), object, len(whose))
        return self._laid_out(real, facts[which])

    @property
    def _places(self) -> tuple[np.ndarray, StepLocations]:
        """Which rows are no padding, and where these are from."""
        real = self.numbers != PADDING
        return real, self.source.places(self.numbers[real])

    def _laid_out(self, real: np.ndarray, facts: np.ndarray) -> np.ndarray:
        found = np.full(self.numbers.shape, None, object)
        found[real] = facts
        return found

    def __repr__(self) -> str:
        return f"Origin({list(self.numbers.shape)} steps of {self.source})"


def resolved(came: LazyOrigin) -> Origin:
    """The origin, its numbers worked out."""
    source, numbers = came
    found: Any = numbers() if callable(numbers) else numbers
    return Origin(source, found)


def taken(came: LazyOrigin | None, rows: Any) -> LazyOrigin | None:
    """Where the rows of a batch that an index picks came from."""
    return None if came is None else (came[0], resolved(came).numbers[batch_leaves.as_numpy(rows)])


def select_rows_lazily(came: LazyOrigin | None, rows: Any) -> LazyOrigin | None:
    """As `taken`; the index, an array or tensor that nobody writes to, is looked at when the origin is asked for."""
    return None if came is None else (came[0], _Taken(came, rows))


class _Taken(NamedTuple):
    """Numbers of the rows that an index picks."""

    came: LazyOrigin
    rows: Any

    def __call__(self) -> np.ndarray:
        return resolved(self.came).numbers[batch_leaves.as_numpy(self.rows)]


def joined(cames: Sequence[LazyOrigin | None], join: Callable[[list[np.ndarray]], np.ndarray]) -> LazyOrigin | None:
    """Where the rows of several batches that are joined came from; None where it is not known of all."""
    known = [came for came in cames if came is not None]
    if len(known) < len(cames):
        return None
    numbers = [resolved(came).numbers for came in known]
    sources = list({id(came[0]): came[0] for came in known}.values())
    try:
        if len(sources) == 1:
            return sources[0], join(numbers)
        places = {id(source): i for i, source in enumerate(sources)}
        mixed = [
            np.where(own == PADDING, PADDING, own * len(sources) + places[id(came[0])])
            for own, came in zip(numbers, known, strict=True)
        ]
        return _CombinedSource(tuple(sources)), join(mixed)
    except ValueError:  # of other shapes: their columns are not joined either, or each row is not one step
        return None


class _CombinedSource(NamedTuple):
    """Several sources as one: step `number` of source i is `number * len(sources) + i`."""

    sources: tuple[StepSource, ...]

    def step(self, number: int) -> StepOrigin:
        return self.sources[number % len(self.sources)].step(number // len(self.sources))

    def episode(self, number: int) -> Any:
        return self.sources[number % len(self.sources)].episode(number // len(self.sources))

    def places(self, numbers: np.ndarray) -> StepLocations:
        numbers, of_source = np.divmod(numbers, len(self.sources))
        whose: list[EpisodeKey | None] = []
        which, t = np.empty((2, len(numbers)), np.int64)
        for i, source in enumerate(self.sources):
            own = of_source == i
            found = source.places(numbers[own])
            which[own], t[own] = found.which + len(whose), found.t
            whose += found.whose
        return StepLocations(whose, which, t)

    def __repr__(self) -> str:
        return " and ".join(map(str, self.sources))
