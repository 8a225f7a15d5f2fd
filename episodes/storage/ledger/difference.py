"""Find the first update and batch row at which two training runs differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from episodes.storage.ledger.ledger import UNKNOWN
from episodes.storage.ledger.ledger_reader import LedgerReader, LedgerUpdate


@dataclass(frozen=True, slots=True)
class Difference:
    """First difference between two training runs, found by comparing their ledgers (logs of training updates).

    Attributes:
        update: number of the update.
        module: of the update, "" if there is only one.
        row: of the update's batch; None if the difference is not in one row.
        what: "settings", "episode", "time", "content", "rows" (their number), "weights" or "updates" (one run has
            more).
        first, second: the values of both sides, as texts.
        num_updates: number of updates of the longer run.
    """

    update: int
    module: str
    row: int | None
    what: str
    first: str
    second: str
    num_updates: int = 0

    @property
    def cause(self) -> str:
        """Cause of the difference, given that all earlier updates are equal.

        "settings"; "sampling": the update learned from other steps (other episodes, times or numbers of rows), or one
        run has more updates; "inputs": the same steps had other contents, such as observations or actions; or
        "weights": the update began or computed with other weights.
        """
        return _CAUSES[self.what]

    def bar(self, width: int = 60) -> str:
        """Return the common part of both runs as a bar of text, such as "[====|......] equal before update 37 of 100,
        then other inputs".
        """
        num_updates = max(self.num_updates, self.update, 1)
        equal = min(width * max(self.update - 1, 0) // num_updates, width - 1)
        words = f"equal before update {self.update} of {num_updates}, then other {self.cause}"
        return f"[{'=' * equal}|{'.' * (width - equal - 1)}] {words}"

    def __str__(self) -> str:
        text = f"update {self.update}" + f" of module {self.module}" * bool(self.module)
        text += f", row {self.row}" * (self.row is not None)
        return f"{text}: {self.what} differ\n  A: {self.first}\n  B: {self.second}"


def difference(a: LedgerReader | str | Path, b: LedgerReader | str | Path) -> Difference | None:
    """Compare the ledgers of two training runs row by row, and return their first difference,
    or None if they are equal.

    Episodes are compared by the order in which a run learned from them, by time and by content, not by id.

    Raises:
        UnreadableData: there is no ledger, or it is damaged.
    """
    ledgers = [ledger if isinstance(ledger, LedgerReader) else LedgerReader(ledger) for ledger in (a, b)]
    num_updates = max((update for ledger in ledgers for update, _ in ledger.updates), default=0)
    for first, second in zip_longest(*ledgers):
        if first is None or second is None or first[:2] != second[:2]:
            update_and_module = first if first is not None else second
            update, module = (0, "") if update_and_module is None else update_and_module[:2]
            texts = _describe_update(first), _describe_update(second)
            return Difference(update, module, None, "updates", *texts, num_updates)
        result = _between(first, second, *ledgers)
        if result is not None:
            return replace(result, num_updates=num_updates)
    return None


_CAUSES = {
    **dict.fromkeys(("episode", "time", "rows", "updates"), "sampling"),
    "content": "inputs",
    "weights": "weights",
    "settings": "settings",
}


def _describe_update(update: LedgerUpdate | None) -> str:
    return "no more updates" if update is None else f"update {update.update} {update.module}".rstrip()


def _between(first: LedgerUpdate, second: LedgerUpdate, a: LedgerReader, b: LedgerReader) -> Difference | None:
    """Return the first difference between two updates: of settings, then of rows, then of weights. None if equal."""
    update, module = first.update, first.module
    if first.settings != second.settings:
        return Difference(update, module, None, "settings", f"{first.settings:016x}", f"{second.settings:016x}")
    size = min(len(first.content), len(second.content))
    columns = {"episode": (first.episode, second.episode), "time": (first.t, second.t)}
    columns["content"] = (first.content, second.content)
    unlike = {name: left[:size] != right[:size] for name, (left, right) in columns.items()}
    rows = np.flatnonzero(np.logical_or.reduce(list(unlike.values())))
    if len(rows):
        row = int(rows[0])
        column = next(name for name, differs in unlike.items() if differs[row])
        return Difference(update, module, row, column, _describe_row(first, row, a), _describe_row(second, row, b))
    if len(first.content) != len(second.content):
        first_count, second_count = (f"{len(left.content)} rows" for left in (first, second))
        return Difference(update, module, size, "rows", first_count, second_count)
    if first.weights != second.weights:
        return Difference(update, module, None, "weights", f"{first.weights:016x}", f"{second.weights:016x}")
    return None


def _describe_row(update: LedgerUpdate, row: int, ledger: LedgerReader) -> str:
    """Describe one batch row of a training update as text, by its time, its episode and the hash of its content."""
    episode = int(update.episode[row])
    step = "a step that is not known" if episode == UNKNOWN else f"t={update.t[row]} of episode {ledger.ids[episode]}"
    return f"{step}, content {update.content[row]:016x}"
