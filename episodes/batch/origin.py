"""`Origin`: the episode and step from which each row of a batch came, looked up when it is read.

A batch holds a source of steps and one integer per row, the index of its step in the source, computed lazily. The
source provides episode, agent and time, and keeps no episode alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from episodes.batch import leaves as batch_leaves
from episodes.errors import EpisodeStateError, StepOutOfRange

if TYPE_CHECKING:
    from episodes.data_types import Index

__all__ = ["Origin", "StepLocations", "StepOrigin", "StepSource", "EpisodeKey"]

PADDING = -1  # index of a row without a step


class EpisodeKey(NamedTuple):
    """Key that identifies an episode: episode id, agent id and module id."""

    id_: str  # id of the episode
    agent_id: Any = None
    module_id: Any = None


class StepLocations(NamedTuple):
    """Episodes and times of n steps, as arrays."""

    keys: list[EpisodeKey | None]  # distinct episodes; None if an episode is unknown
    episode_of_step: np.ndarray  # [n] int64, index into `keys` of each step's episode
    t: np.ndarray  # [n] int64, time of each step in its episode


class StepOrigin(NamedTuple):
    """Origin of one step: its episode, its time, and the chunk (part of the episode) that contains it."""

    id_: str  # id of the episode
    t: int  # time in the episode, 0 at the reset
    agent_id: Any
    module_id: Any
    t_started: int  # time of the chunk's first step
    t_stop: int  # time after the chunk's last step
    ending: Any  # the chunk's `Ending`
    source: str  # description of the source


class StepSource(Protocol):
    """Interface of a storage that finds the episode of a step by the step's index."""

    def step(self, number: int) -> StepOrigin: ...
    def episode(self, number: int) -> Any: ...
    def places(self, numbers: np.ndarray) -> StepLocations: ...


LazyOrigin = tuple[StepSource, Any]  # a source, and step indices int64 [B] or [B, W], or a function that returns them


class Origin:
    """Origin of a batch's rows: the episode and step from which each row came.

    Attributes:
        source: the storage of the steps.
        numbers: index of each row's step in the source, int64 [B], of sequences [B, W]; -1 for padding. A row that sums
            several steps (`n_step`) or shows earlier ones (frame stacks) has the index of the step at which it acted.

    `origin[i]` (for sequences `origin[i, column]`) is a `StepOrigin`, or None for padding. A slice or an array of rows
    gives another `Origin`.
    """

    __slots__ = ("numbers", "source")

    def __init__(self, source: StepSource, numbers: np.ndarray) -> None:
        self.source, self.numbers = source, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Index) -> Any:
        numbers = self._numbers_of(rows)
        if numbers.ndim:
            return Origin(self.source, numbers)
        return None if numbers == PADDING else self.source.step(int(numbers))

    def episode(self, row: Index = ()) -> Any:
        """Return the stored episode from which a row came. The row of a sequence belongs to its first step's episode.

        Raises:
            EpisodeStateError: the episode is not stored any more, or the row is padding.
            StepOutOfRange: there is no such row.
        """
        numbers = np.atleast_1d(self._numbers_of(row)).ravel()
        real_numbers = numbers[numbers != PADDING]
        if not len(real_numbers):
            raise EpisodeStateError(f"row {row!r} is padding: it came from no episode")
        return self.source.episode(int(real_numbers[0]))

    def _numbers_of(self, rows: Index) -> Any:
        """Return the step indices of the batch rows `rows`. Raise `StepOutOfRange` if there are no such rows."""
        try:
            return self.numbers[rows]
        except IndexError:
            raise StepOutOfRange(f"origin[{rows!r}]: this batch has rows of shape {self.numbers.shape}") from None

    @property
    def ids(self) -> np.ndarray:
        """Episode id of each row (or step), an object array shaped like `numbers`. None for padding or if unknown."""
        return self._of_episodes(lambda key: key.id_)

    @property
    def agent_ids(self) -> np.ndarray:
        """Agent id of each row (or step), an object array shaped like `numbers`. None for padding or if unknown."""
        return self._of_episodes(lambda key: key.agent_id)

    @property
    def module_ids(self) -> np.ndarray:
        """Module id of each row (or step), an object array shaped like `numbers`. None for padding or if unknown."""
        return self._of_episodes(lambda key: key.module_id)

    @property
    def t(self) -> np.ndarray:
        """Time of each row (or step) in its episode, an object array like `numbers`. None for padding or if unknown."""
        real, (keys, episode_of_step, t) = self._places
        times = t.astype(object)
        times[np.array([key is None for key in keys], bool)[episode_of_step]] = None
        return self._laid_out(real, times)

    def _of_episodes(self, fact: Callable[[EpisodeKey], Any]) -> np.ndarray:
        """Return `fact(key)` for the episode of each row, for example its id, as an object array of the batch's
        shape.

        The value is `None` for padding and unknown episodes.
        """
        real, (keys, episode_of_step, _) = self._places
        facts = np.fromiter((None if key is None else fact(key) for key in keys), object, len(keys))
        return self._laid_out(real, facts[episode_of_step])

    @property
    def _places(self) -> tuple[np.ndarray, StepLocations]:
        """Mask of the steps that are not padding, and the locations (episode and time) of these steps."""
        real = self.numbers != PADDING
        return real, self.source.places(self.numbers[real])

    def _laid_out(self, real: np.ndarray, facts: np.ndarray) -> np.ndarray:
        """Return an object array of the batch's shape with the values `facts` where `real` is True, and None for
        padding.
        """
        values = np.full(self.numbers.shape, None, object)
        values[real] = facts
        return values

    def __repr__(self) -> str:
        return f"Origin({list(self.numbers.shape)} steps of {self.source})"


def resolved(lazy_origin: LazyOrigin) -> Origin:
    """Return the `Origin` for a pair of source and step indices. The indices may be a function that computes them."""
    source, numbers = lazy_origin
    indices: Any = numbers() if callable(numbers) else numbers
    return Origin(source, indices)


def select_rows(lazy_origin: LazyOrigin | None, rows: Index) -> LazyOrigin | None:
    """Return the origin of those rows of a batch that the index `rows` selects, or None if the origin is unknown."""
    return None if lazy_origin is None else (lazy_origin[0], resolved(lazy_origin).numbers[batch_leaves.as_numpy(rows)])


def select_rows_lazily(lazy_origin: LazyOrigin | None, rows: object) -> LazyOrigin | None:
    """Return the `LazyOrigin` of selected rows, without finding their episodes and steps yet. None if `lazy_origin` is
    None.
    """
    return None if lazy_origin is None else (lazy_origin[0], _SelectedIndices(lazy_origin, rows))


class _SelectedIndices:
    """Function that computes the step indices of the selected rows of a batch, once."""

    __slots__ = ("_indices", "_lazy_origin", "_rows")

    def __init__(self, lazy_origin: LazyOrigin, rows: Any) -> None:
        self._lazy_origin, self._rows = lazy_origin, rows
        self._indices: np.ndarray | None = None

    def __call__(self) -> np.ndarray:
        if self._indices is None:
            self._indices = resolved(self._lazy_origin).numbers[batch_leaves.as_numpy(self._rows)]
        return self._indices


def concat_origins(
    lazy_origins: Sequence[LazyOrigin | None], join: Callable[[list[np.ndarray]], np.ndarray]
) -> LazyOrigin | None:
    """Return the origin of several batches joined to one, or None if the origin of a batch is unknown.

    The result is None too if the shapes of the step indices do not fit together.

    Args:
        join: the function that joins the step indices, `np.concatenate` or `np.stack`.
    """
    known = [lazy_origin for lazy_origin in lazy_origins if lazy_origin is not None]
    if len(known) < len(lazy_origins):
        return None
    numbers = [resolved(lazy_origin).numbers for lazy_origin in known]
    sources = list({id(lazy_origin[0]): lazy_origin[0] for lazy_origin in known}.values())
    try:
        if len(sources) == 1:
            return sources[0], join(numbers)
        places = {id(source): i for i, source in enumerate(sources)}
        mixed = [
            np.where(indices == PADDING, PADDING, indices * len(sources) + places[id(lazy_origin[0])])
            for indices, lazy_origin in zip(numbers, known, strict=True)
        ]
        return _CombinedSource(tuple(sources)), join(mixed)
    except ValueError:  # the shapes differ, since rows are not steps
        return None


class _CombinedSource(NamedTuple):
    """Combination of step storages. Step `number` of storage i has the index `number * len(sources) + i`."""

    sources: tuple[StepSource, ...]

    def step(self, number: int) -> StepOrigin:
        return self.sources[number % len(self.sources)].step(number // len(self.sources))

    def episode(self, number: int) -> Any:
        return self.sources[number % len(self.sources)].episode(number // len(self.sources))

    def places(self, numbers: np.ndarray) -> StepLocations:
        """Return the locations of steps of all sources, whose number is `number_in_source * num_sources + source`."""
        numbers, of_source = np.divmod(numbers, len(self.sources))
        keys: list[EpisodeKey | None] = []
        episode_of_step, t = np.empty((2, len(numbers)), np.int64)
        for i, source in enumerate(self.sources):
            is_here = of_source == i
            located = source.places(numbers[is_here])
            episode_of_step[is_here], t[is_here] = located.episode_of_step + len(keys), located.t
            keys += located.keys
        return StepLocations(keys, episode_of_step, t)

    def __repr__(self) -> str:
        return " and ".join(map(str, self.sources))
