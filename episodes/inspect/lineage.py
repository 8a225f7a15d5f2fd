"""`explain_batch`: the origin of a row of a batch, as text and as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from episodes.batch import Origin, StepOrigin
from episodes.batch import leaves as batch_leaves
from episodes.batch.train_batch import origin_of
from episodes.columns import Columns
from episodes.errors import EpisodeStateError, StepOutOfRange, WrongType
from episodes.inspect import formatting
from episodes.tracks.notebook_repr import notebook_repr

__all__ = ["Explanation", "explain_batch"]


@dataclass(frozen=True)
class Explanation:
    """Lines of name and text; printed they are formatting, in a notebook a card with the episode behind it."""

    row: int
    lines: tuple[tuple[str, str], ...]
    episode: Any  # as it is there now; None when it is gone

    def __str__(self) -> str:
        return "\n".join([f"row {self.row}", *(f"  {name}: {text}" for name, text in self.lines)])

    __repr__ = __str__

    _repr_html_ = notebook_repr("episodes.inspect.html", "explanation")


def explain_batch(batch: Any, row: int) -> Explanation:
    """Which episode, agent and steps a row is of, what is padding, and where its return ended, with which bootstrap.

    Args:
        batch: a draw from replay, a train batch of a learner pipeline (of several modules: one of them), or rows of
            these.

    Raises:
        EpisodeStateError: it is not known where the batch came from.
        StepOutOfRange: there is no such row.
        WrongType: a row that is no number.
    """
    origin: Origin = batch.origin if hasattr(batch, "origin") else origin_of(None, {})
    if not origin.numbers.ndim:
        raise WrongType(f"one row of a batch: give the batch that row {row!r} is of")
    if not isinstance(row, (int, np.integer)):
        raise WrongType(f"row {row!r}: give the number of a row")
    if not -len(origin) <= row < len(origin):
        raise StepOutOfRange(f"row {row}: this batch has {len(origin)} rows")
    row %= len(origin)
    numbers = np.atleast_1d(origin.numbers[row])
    there = np.flatnonzero(numbers >= 0)
    lines = [("source", str(origin.source))]
    if not len(there):
        return Explanation(row, (*lines, ("step", "none: this row is padding")), None)
    try:
        first, last = (origin.source.step(int(numbers[there[end]])) for end in (0, -1))
        episode = _episode(origin, row)
    except EpisodeStateError as error:
        return Explanation(row, (*lines, ("step", str(error))), None)
    lines += _whose(first)
    if origin.numbers.ndim > 1:
        lines += _sequence(batch, row, there, len(numbers), first, last)
    else:
        lines.append(("step", f"t={first.t}"))
    before = first.t - first.t_started + (episode.tracks.lookback if episode is not None else 0)
    lines.append(
        ("lookback", f"{formatting.counted(before, 'step')} before it at hand" if before else "none before it")
    )
    lines.append(("return", _return(batch, row, first, last, origin.numbers.ndim > 1)))
    lines.append(("episode now", "gone" if episode is None else repr(episode)))
    return Explanation(row, tuple(lines), episode)


def _episode(origin: Origin, row: int) -> Any:
    try:
        return origin.episode(row)
    except EpisodeStateError:
        return None


def _whose(step: StepOrigin) -> list[tuple[str, str]]:
    facts = {"episode": step.id_, "agent": step.agent_id, "module": step.module_id}
    chunk = f"t={step.t_started} … {step.t_stop}"
    return [
        *((name, formatting.clipped(value)) for name, value in facts.items() if value is not None),
        ("chunk", chunk),
    ]


def _sequence(
    batch: Any, row: int, there: np.ndarray, width: int, first: StepOrigin, last: StepOrigin
) -> list[tuple[str, str]]:
    lines = [("steps", f"t={first.t} … {last.t} in columns {there[0]} … {there[-1]} of {width}")]
    if len(there) < width:
        lines.append(("padding", f"{formatting.counted(width - len(there), 'column')} of zeros"))
    learned = _value(batch, Columns.LOSS_MASK, row)
    if learned is not None and (idle := len(there) - int(np.count_nonzero(learned))):
        lines.append(("not learned from", f"{formatting.counted(idle, 'step')} that only warm up or look back"))
    return lines


def _return(batch: Mapping[str, Any], row: int, first: StepOrigin, last: StepOrigin, is_sequence: bool) -> str:
    """Where the rewards of the row stop, and what stands for those after."""
    num_steps = _value(batch, Columns.N_STEP, row)
    if num_steps is not None:  # of a draw: its own columns say how its window ends
        stop = first.t + int(num_steps)
        terminated, truncated = (_value(batch, name, row) for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS))
        told = f"rewards of t={first.t} … {stop - 1}, then "
        if terminated is None:
            return f"{told}the value at t={stop}, unless the episode terminated there"
        if terminated:
            return f"{told}nothing: the episode terminated at t={stop}"
        why = "truncated there" if truncated else "the window ends there"
        return f"{told}the value at t={stop}, times gamma ** {int(num_steps)} ({why})"
    stop = last.t_stop
    told = f"the chunk ends at t={stop}: "
    if last.ending.is_terminated:
        return f"{told}terminated, so no value stands for what comes after"
    why = "truncated" if last.ending.is_truncated else "cut, it goes on elsewhere"
    return f"{told}{why}, so the value at t={stop} stands for what comes after"


def _value(batch: Any, name: str, row: int) -> Any:
    column = batch.get(name)
    return None if column is None else batch_leaves.as_numpy(column[row])
