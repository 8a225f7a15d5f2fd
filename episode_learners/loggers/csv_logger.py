"""`CSVLogger`: writes metrics to CSV files, one file for each scope such as "train" and "test"."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from episode_learners.loggers.logger import SCOPES, Logger
from episodes.storage.files import append, local_path, put, remove_drafts, sync
from episodes.storage.ownership import Owner

__all__ = ["CSVLogger"]


class CSVLogger(Logger):
    """Logger that writes metrics to the CSV files `train.csv`, `test.csv`, `update.csv` and `info.csv`, and the
    description of the run to `run.json`.

    Each file has a column "step". A new metric adds a column, for which the file is rewritten. Missing values are
    empty cells.

    One logger writes to a folder at a time: from its first row until `close`, or until the run of its trainer ends.
    Others may read.

    Args:
        folder: folder of the files, which is created if it does not exist.
        intervals: see `Logger`.

    Raises:
        InvalidArgument: by calls that write: another logger, of this or another process, writes to the folder.
        EpisodeStateError: by calls that write: this is a process that was forked from the logger's.
    """

    def __init__(self, folder: str | Path, intervals: Mapping[str, int] | None = None) -> None:
        super().__init__(intervals)
        self.folder = local_path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._columns: dict[str, list[str]] = {}  # of the scopes that this logger has written to
        self._owner = Owner(  # from the first row until `release`
            f"CSVLogger({str(folder)!r})",
            self.folder / ".tables.lock",
            refusal=f"CSVLogger({str(folder)!r}): another logger writes there; close() it, or give another folder",
            remedy="make a CSVLogger of another folder there",
        )

    def _take(self) -> None:
        """Become the only logger that writes to the folder, and remove the drafts of killed ones."""
        if not self._owner.is_active:
            self._owner.claim()
            for name in (*(f"{scope}.csv" for scope in SCOPES), "run.json"):
                remove_drafts(self.folder / name)

    def release(self) -> None:
        self._columns.clear()  # another logger may add columns
        self._owner.release()

    def close(self) -> None:
        self.flush()
        self.release()

    def _path(self, scope: str) -> Path:
        return self.folder / f"{scope}.csv"

    def rows(self, scope: str) -> list[dict[str, str]]:
        """Return all complete rows written so far for a scope, such as "train", as dicts of strings. The list is empty
        if there is no such scope.
        """
        if not self._path(scope).exists():
            return []
        with self._path(scope).open(newline="", encoding="utf-8") as file:
            text = file.read()
        whole = text[: text.rfind("\n") + 1]  # a process that was killed may have left half a row
        return list(csv.DictReader(io.StringIO(whole, newline="")))

    def write(self, scope: str, metrics: Mapping[str, float], step: int) -> None:
        """Append a row of metrics to the CSV file of a scope. If there are new metrics, the file is rewritten with
        columns for them first.

        Raises:
            OSError: for example a full disk. The row is not written then.
        """
        self._take()
        row = {"step": step, **metrics}
        if scope not in self._columns:
            self._rewrite(scope, self.rows(scope))
        if not set(row) <= set(self._columns[scope]):
            self._rewrite(scope, self.rows(scope), list(row))
        append(self._path(scope), _text(self._columns[scope], [row]))

    def _rewrite(self, scope: str, rows: list[dict[str, str]], new_columns: list[str] | None = None) -> None:
        """Rewrite the CSV file of a scope with the rows `rows` and added columns `new_columns`."""
        before: list[str] = list(rows[0]) if rows else []
        columns = before + [name for name in new_columns or [] if name not in before]
        header = _text(columns, [dict(zip(columns, columns, strict=True))]) if columns else ""
        put(self._path(scope), header + _text(columns, rows))
        self._columns[scope] = columns

    def describe(self, description: Mapping[str, Any]) -> None:
        self._take()
        put(self.folder / "run.json", json.dumps(description, indent=2, default=str) + "\n", fsync=True)

    def resume(self, step: int) -> None:
        """Continue an interrupted run after `step`: remove the rows with later steps from all files."""
        self._take()
        for scope in SCOPES:
            rows = self.rows(scope)
            rows_before = [row for row in rows if int(row["step"]) <= step]
            if len(rows_before) < len(rows):
                self._rewrite(scope, rows_before, list(rows[0]))

    def flush(self) -> None:
        """Wait until the disk has all rows, so that they survive a crash of the machine."""
        for scope in self._columns:
            sync(self._path(scope))


def _text(columns: list[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as lines of a CSV file with the columns `columns`."""
    text = io.StringIO(newline="")
    csv.DictWriter(text, columns).writerows(rows)
    return text.getvalue()
