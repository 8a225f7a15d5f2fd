"""Explanation of where the rows of a batch came from, as text and HTML: `explain_batch` and `link_batch`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import numpy as np

from episodes.batch import leaves as batch_leaves
from episodes.batch.origin import Origin, StepOrigin
from episodes.batch.train_batch import origin_of
from episodes.columns import Columns
from episodes.errors import EpisodeStateError, StepOutOfRange, WrongType
from episodes.inspect import formatting
from episodes.storage.files import local_path
from episodes.tracks.notebook_repr import notebook_repr

if TYPE_CHECKING:
    from episodes.batch.batch import Batch
    from episodes.batch.train_batch import TrainBatch

__all__ = ["BatchLinks", "Explanation", "explain_batch", "link_batch"]


@dataclass(frozen=True)
class Explanation:
    """Explanation of the origin of a batch row: text for `print`, and HTML with the row's episode in notebooks."""

    row: int
    lines: tuple[tuple[str, str], ...]
    episode: Any  # None if the episode does not exist any more

    def __str__(self) -> str:
        return "\n".join([f"row {self.row}", *(f"  {name}: {text}" for name, text in self.lines)])

    __repr__ = __str__

    _repr_html_ = notebook_repr("episodes.inspect.html", "explanation")


class RowSteps(NamedTuple):
    """Episode and range of steps from which a batch row came."""

    id_: Any
    agent_id: Any
    first: int  # time of the first step
    last: int  # of the last step, which differs in rows of sequences

    @property
    def times(self) -> str:
        """First and last time step of the row, as text."""
        return str(self.first) if self.first == self.last else f"{self.first} … {self.last}"


def row_steps(origin: Origin) -> list[RowSteps | None]:
    """Return the `RowSteps` (episode and steps) of each batch row, None for padding and unknown episodes."""
    if not len(origin):
        return []
    columns = (column.reshape(len(origin), -1) for column in (origin.ids, origin.agent_ids, origin.t))
    result: list[RowSteps | None] = []
    for ids, agents, times in zip(*columns, strict=True):
        known = [k for k, t in enumerate(times) if t is not None]
        result.append(RowSteps(ids[known[0]], agents[known[0]], times[known[0]], times[known[-1]]) if known else None)
    return result


@dataclass(frozen=True)
class BatchLinks:
    """Links from batch rows to their steps on the HTML page of a data set. Notebooks display the batch with links."""

    page: str  # address
    rows: tuple[RowSteps | None, ...]
    batch: Any = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> str | None:
        """Return the URL of a batch row's steps on the page, or None for padding and unknown episodes."""
        steps = self.rows[row]
        return None if steps is None else self.link(steps)

    def link(self, steps: RowSteps) -> str:
        """Return the URL of the first of the given steps on the HTML page."""
        parts = {"id": formatting.page_id(steps.id_), "t": steps.first}
        if steps.agent_id is not None:
            parts["agent"] = formatting.page_id(steps.agent_id)
        return f"{self.page}#{urlencode(parts, quote_via=quote)}"

    def __str__(self) -> str:
        return "\n".join(f"row {row}: {self[row] or 'unknown'}" for row in range(len(self)))

    _repr_html_ = notebook_repr("episodes.inspect.html", "batch_links")


def link_batch(batch: Batch | TrainBatch, page: str | Path) -> BatchLinks:
    """Create links from the rows of a batch to their steps on the HTML page of a data set.

    Args:
        batch: a sample from replay or from disk, a train batch or minibatch, or rows of one of them.
        page: the file that `episodes report` wrote, or the address that `episodes watch` printed.

    Raises:
        EpisodeStateError: the batch has no origin.
        WrongType: `batch` is a single row.
    """
    address = str(page) if "://" in str(page) else local_path(page).resolve().as_uri()
    return BatchLinks(address.split("#")[0], tuple(row_steps(_origin_of(batch))), batch)


def _origin_of(batch: Batch | TrainBatch) -> Origin:
    """Return the `Origin` (episode and step of each row) of a batch.

    Raises:
        EpisodeStateError: the batch has no origin.
        WrongType: a single row was given.
    """
    origin: Origin = batch.origin if hasattr(batch, "origin") else origin_of(None, {})
    if not origin.numbers.ndim:
        raise WrongType("one row of a batch: give the batch of this row")
    return origin


def explain_batch(batch: Batch | TrainBatch, row: int) -> Explanation:
    """Explain from which episode, agent and steps a batch row came, and how its return was bootstrapped.

    Args:
        batch: a sample from replay, a train batch of a learner pipeline (of one module), or rows of either.

    Raises:
        EpisodeStateError: the batch has no origin.
        StepOutOfRange: the batch has no such row.
        WrongType: `row` is no integer.
    """
    origin = _origin_of(batch)
    if not isinstance(row, (int, np.integer)):
        raise WrongType(f"row {row!r}: give the number of a row")
    if not -len(origin) <= row < len(origin):
        raise StepOutOfRange(f"row {row}: this batch has {len(origin)} rows")
    row %= len(origin)
    numbers = np.atleast_1d(origin.numbers[row])
    places = np.flatnonzero(numbers >= 0)
    lines = [("source", str(origin.source))]
    if not len(places):
        return Explanation(row, (*lines, ("step", "none: this row is padding")), None)
    try:
        first, last = (origin.source.step(int(numbers[places[end]])) for end in (0, -1))
        episode = _episode(origin, row)
    except EpisodeStateError as error:
        return Explanation(row, (*lines, ("step", str(error))), None)
    lines += _identity(first)
    if origin.numbers.ndim > 1:
        lines += _sequence(batch, row, places, len(numbers), first, last)
    else:
        lines.append(("step", f"t={first.t}"))
    before = first.t - first.t_started + (episode.tracks.lookback if episode is not None else 0)
    lines.append(("lookback", f"{formatting.counted(before, 'step')} before it" if before else "none"))
    lines.append(("return", _return(batch, row, first, last, origin.numbers.ndim > 1)))
    lines.append(("episode now", "not stored any more" if episode is None else repr(episode)))
    return Explanation(row, tuple(lines), episode)


def _episode(origin: Origin, row: int) -> Any:
    """Return the episode of a row, or None if it no longer exists."""
    try:
        return origin.episode(row)
    except EpisodeStateError:
        return None


def _identity(step: StepOrigin) -> list[tuple[str, str]]:
    """Return names and values that identify the step's chunk. Ids that are `None` are left out."""
    facts = {"episode": step.id_, "agent": step.agent_id, "module": step.module_id}
    chunk = f"t={step.t_started} … {step.t_stop}"
    return [
        *((name, formatting.clipped(value)) for name, value in facts.items() if value is not None),
        ("chunk", chunk),
    ]


def _sequence(
    batch: Batch | TrainBatch, row: int, places: np.ndarray, width: int, first: StepOrigin, last: StepOrigin
) -> list[tuple[str, str]]:
    """Return names and texts on a row that is a sequence: its steps, and the numbers of padded and masked columns, if
    any.

    Args:
        places: columns of the row's steps.
        width: number of columns.
    """
    lines = [("steps", f"t={first.t} … {last.t} in columns {places[0]} … {places[-1]} of {width}")]
    if len(places) < width:
        lines.append(("padding", f"{formatting.counted(width - len(places), 'column')} of zeros"))
    learned = _value(batch, Columns.LOSS_MASK, row)
    if learned is not None and (idle := len(places) - int(np.count_nonzero(learned))):
        lines.append(("masked", f"{formatting.counted(idle, 'step')} of burn-in or lookback"))
    return lines


def _return(batch: Batch | TrainBatch, row: int, first: StepOrigin, last: StepOrigin, is_sequence: bool) -> str:
    """Describe in words the rewards in the return of a batch row, and the bootstrap value that follows."""
    num_steps = _value(batch, Columns.N_STEP, row)
    if num_steps is not None:  # of a sample from replay, whose columns describe the end of its window
        stop = first.t + int(num_steps)
        terminated, truncated = (_value(batch, name, row) for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS))
        text = f"rewards of t={first.t} … {stop - 1}, then "
        if terminated is None:
            return f"{text}the value at t={stop}, unless the episode terminated there"
        if terminated:
            return f"{text}no value: the episode terminated at t={stop}"
        reason = "truncated there" if truncated else "the window ends there"
        return f"{text}the value at t={stop}, times gamma ** {int(num_steps)} ({reason})"
    stop = last.t_stop
    text = f"the chunk ends at t={stop}: "
    if last.ending.is_terminated:
        return f"{text}terminated, so the value after it is 0"
    reason = "truncated" if last.ending.is_truncated else "cut, and continues in the next chunk"
    return f"{text}{reason}, so the value at t={stop} is added"


def _value(batch: Batch | TrainBatch, name: str, row: int) -> Any:
    """Return a row of a column as a numpy array, or None if the batch has no such column."""
    column = batch.get(name)
    return None if column is None else batch_leaves.as_numpy(column[row])
