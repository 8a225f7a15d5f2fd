"""`CSVLogger`: writes metrics to CSV files, one file for each scope such as "train" and "test"."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from episode_learners.loggers.logger import SCOPES, Logger

__all__ = ["CSVLogger"]


class CSVLogger(Logger):
    """Logger that writes metrics to the CSV files `train.csv`, `test.csv`, `update.csv` and `info.csv`, and the
    description of the run to `run.json`.

    Each file has a column "step". A new metric adds a column, for which the file is rewritten. Missing values are
    empty cells.

    Args:
        folder: folder of the files, which is created if it does not exist.
        intervals: see `Logger`.
    """

    def __init__(self, folder: str | Path, intervals: Mapping[str, int] | None = None) -> None:
        super().__init__(intervals)
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._columns: dict[str, list[str]] = {}
        self._files: dict[str, Any] = {}

    def _path(self, scope: str) -> Path:
        return self.folder / f"{scope}.csv"

    def rows(self, scope: str) -> list[dict[str, str]]:
        """Return all complete rows written so far for a scope, such as "train", as dicts of strings. The list is empty
        if there is no such scope.
        """
        self.flush()
        if not self._path(scope).exists():
            return []
        with self._path(scope).open(newline="") as file:
            text = file.read()
        whole = text[: text.rfind("\n") + 1]  # a process that was killed may have left half a row
        return list(csv.DictReader(io.StringIO(whole, newline="")))

    def write(self, scope: str, metrics: Mapping[str, float], step: int) -> None:
        """Append a row of metrics to the CSV file of a scope. If there are new metrics, the file is rewritten with
        columns for them first.
        """
        row = {"step": step, **metrics}
        if scope not in self._files:
            self._open(scope, self.rows(scope))
        if not set(row) <= set(self._columns[scope]):
            rows = self.rows(scope)
            self._files.pop(scope).close()
            self._open(scope, rows, list(row))
        csv.DictWriter(self._files[scope], self._columns[scope]).writerow(row)

    def _open(self, scope: str, rows: list[dict[str, str]], new_columns: list[str] | None = None) -> None:
        """Rewrite the CSV file of a scope with the rows `rows` and added columns `new_columns`, and keep it open for
        appending.
        """
        before: list[str] = list(rows[0]) if rows else []
        columns = before + [name for name in new_columns or [] if name not in before]
        self._columns[scope] = columns
        path, new = self._path(scope), self.folder / f"{scope}.csv.new"
        with new.open("w", newline="") as file:
            if columns:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(rows)
        os.replace(new, path)  # a table is there as it was, or whole
        self._files[scope] = path.open("a", newline="", buffering=1)  # `episodes watch` reads each row

    def describe(self, description: Mapping[str, Any]) -> None:
        new = self.folder / "run.json.new"
        new.write_text(json.dumps(description, indent=2, default=str) + "\n")
        os.replace(new, self.folder / "run.json")

    def resume(self, step: int) -> None:
        """Continue an interrupted run after `step`: remove the rows with later steps from all files."""
        for scope in SCOPES:
            rows = self.rows(scope)
            rows_before = [row for row in rows if int(row["step"]) <= step]
            if len(rows_before) < len(rows):
                if scope in self._files:
                    self._files.pop(scope).close()
                self._open(scope, rows_before, list(rows[0]))

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
