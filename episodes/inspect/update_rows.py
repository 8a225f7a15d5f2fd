"""Rows of the tables on the pages of updates that show a finding best, with their numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from episodes.inspect.formatting import brief_id
from episodes.inspect.update_measures import mean, time_ranges

Columns = Mapping[str, np.ndarray]
Mark = tuple[str, Mapping[str, str], Sequence[str]]
"""Table on the page of an update, cells that identify a row of it, and columns whose cells are marked."""
NEARLY = 0.1  # of the largest number, up to which an update with a stored step shows a finding as well
UNKNOWN = str(None)  # id of an episode, agent or worker


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """Row of a table on the page of an update.

    Attributes:
        update: number of the update.
        row: the cells that identify the row, by column.
        value: the number in the row that shows a finding.
        parts: the numbers in the row of which it is the difference, by column.
        others: the same number of other steps of the update, to compare with; NaN if there are none.
    """

    update: int
    row: Mapping[str, str]
    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    others: float = float("nan")

    @property
    def words(self) -> str:
        """The row as text, such as "of worker 2"."""
        if "time" in self.row:
            return f"at t={self.row['time']}"
        turn = f"turn {self.row['t']} of " if "t" in self.row else ""
        cells = {name: brief_id(cell) for name, cell in self.row.items() if name != "t"}
        names = (f"an unknown {name}" if cell == UNKNOWN else f"{name} {cell}" for name, cell in cells.items())
        return f"of {turn}{', '.join(names)}"


def strongest_rows(
    columns: Columns,
    group: str,
    number: Callable[[np.ndarray], float],
    among: np.ndarray,
    sign: int = 1,
    parts: Sequence[str] = (),
    beside: np.ndarray | None = None,
) -> list[UpdateRow]:
    """Return the row of `by(group)` with the largest number in each update, for the updates that have one.

    Args:
        columns: columns of the steps of all updates, as `step_columns` returns them, with their "update".
        group: "episode", "agent", "time", "turn" or "worker".
        number: function that returns the number of a group, given the indices of its steps. Groups with NaN are left
            out.
        among: whether a group with the step may be chosen, bool [n].
        sign: -1 to return the rows with the smallest numbers.
        parts: columns whose means are `UpdateRow.parts`.
        beside: whether a step is one of the others, bool [n]. None: those that `among` leaves out.
    """
    order = np.argsort(columns["update"], kind="stable")
    updates, starts = np.unique(columns["update"][order], return_index=True)
    result = []
    beside = ~among if beside is None else beside
    for update, steps in zip(updates.tolist(), np.split(order, starts[1:]), strict=True):
        keys = _keys(columns, group, steps)
        if keys is None or not among[steps].any():
            continue
        names, of_step = np.unique(keys, return_inverse=True)
        groups = np.split(steps[np.argsort(of_step, kind="stable")], np.cumsum(np.bincount(of_step))[:-1])
        numbers = {i: number(groups[i]) for i in np.unique(of_step[among[steps]]).tolist()}
        numbers = {i: value for i, value in numbers.items() if np.isfinite(value)}
        if numbers:
            best = max(numbers, key=lambda i: sign * numbers[i])
            means = {name: mean(columns[name][groups[best]]) for name in parts}
            rest = steps[beside[steps]]
            others = number(rest) if len(rest) else float("nan")
            result.append(UpdateRow(int(update), _cells(group, str(names[best])), numbers[best], means, others))
    return result


def strongest(rows: Sequence[UpdateRow], sign: int = 1, stored: Collection[int] = ()) -> UpdateRow:
    """Return the row with the largest number, or with the smallest one if `sign` is -1. Of equal ones, the newest.

    If an update in `stored`, those with steps to look at, has a row within 10 % of it, such a row is returned.
    """
    best = max(rows, key=lambda row: (sign * row.value, row.update))
    near = [row for row in rows if row.update in stored and sign * (best.value - row.value) <= NEARLY * abs(best.value)]
    return max(near, key=lambda row: (sign * row.value, row.update)) if near else best


def _keys(columns: Columns, group: str, steps: np.ndarray) -> np.ndarray | None:
    """Return a text for the group of each step of an update, as `UpdateExplanation.by` groups them. It is None if the
    page of the update has no such table.
    """
    keys: Any  # texts in an object array: an array of numpy's texts is as wide as its longest one, and drops zeros
    if group == "time":
        keys = time_ranges(columns["t"][steps], has_last=True)
    elif group == "turn":
        pairs = zip(columns["episode"][steps].tolist(), columns["t"][steps].tolist(), strict=True)
        keys = [f"{t} {id_}" for id_, t in pairs]
    elif group == "worker":
        numbers = columns["worker"][steps].tolist()
        keys = [f"{worker:.0f}" if isfinite(worker) else UNKNOWN for worker in numbers]
    else:
        keys = list(map(str, columns[group][steps].tolist()))
    keys = np.array(keys, object)
    has_table = group == "episode" or len(np.unique(keys)) > 1
    return keys if has_table else None


def _cells(group: str, key: str) -> dict[str, str]:
    """Return the cells that identify the row of a group, by column, given its key."""
    if group == "turn":
        t, _, id_ = key.partition(" ")
        return {"episode": id_, "t": t}
    return {group: key}


@dataclass(frozen=True, slots=True)
class StoredStep:
    """Step of an episode that shows a finding.

    Attributes:
        data: name of the data set that has the step, or "".
        episode: id of its episode.
        agent: its agent, or None.
        t: its time.
        row: its index in the columns.
        learned_in: the update of the row.
        stored: numbers of the updates that have a stored step that shows the finding.
    """

    data: str
    episode: str
    agent: str | None
    t: int
    row: int
    learned_in: int
    stored: Collection[int] = ()

    @property
    def place(self) -> dict[str, Any]:
        """The fields of a finding that name the step."""
        return {name: getattr(self, name) for name in ("data", "episode", "agent", "t", "learned_in")}


def strongest_step(columns: Columns, sizes: np.ndarray, data: Mapping[str, Any]) -> StoredStep:
    """Return the step with the largest size of those that are stored, or of all if none of them is.

    A page of an episode shows what the newest update with the step measured, so this is the row.

    Args:
        columns: columns of the steps of all updates.
        sizes: how well each step shows the finding [n]; NaN for steps that do not.
        data: data sets of the run by name.
    """
    ids, agents = columns["episode"], columns["agent"].tolist()
    stored: dict[str, list[tuple[str, int, int]]] = {}
    for name, dataset in data.items():
        table = dataset.metadata
        for id_, start, length in zip(*(table[key].tolist() for key in ("id", "t_started", "length")), strict=True):
            stored.setdefault(str(id_), []).append((name, start, start + length))
    known, updates = np.flatnonzero(np.isfinite(sizes)), columns["update"]
    keys = zip(map(str, ids[known].tolist()), columns["t"][known].tolist(), strict=True)
    holders = [[name for name, start, stop in stored.get(id_, ()) if start <= t < stop] for id_, t in keys]
    updates_stored = {int(updates[row]) for row, names in zip(known.tolist(), holders, strict=True) if names}
    for i in np.argsort(-sizes[known], kind="stable").tolist() if stored else ():
        row, names = int(known[i]), holders[i]
        t, agent = int(columns["t"][row]), agents[row]
        if names:
            at_time = np.flatnonzero(columns["t"] == t).tolist()
            newest = max(other for other in at_time if (ids[other], agents[other]) == (ids[row], agent))
            return StoredStep(names[0], str(ids[row]), agent, t, newest, int(updates[newest]), updates_stored)
    row = int(known[sizes[known].argmax()])
    return StoredStep("", str(ids[row]), agents[row], int(columns["t"][row]), row, int(updates[row]))
