"""Training runs on disk: their settings, results and status, as `episodes runs` and `episodes diff` show them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from episodes.errors import InvalidArgument, UnreadableData
from episodes.storage.files import put, read_file
from episodes.storage.locks import try_lock

__all__ = [
    "DESCRIPTION",
    "KEPT_AS",
    "LOCK",
    "STATUS",
    "StoredRun",
    "better",
    "differing",
    "find_runs",
    "is_run",
    "rank",
    "read_run",
    "same_environment",
    "write_status",
]

DESCRIPTION = "run.json"  # configuration, command, versions and commit, which loggers write
STATUS = "status.json"  # settings and results, which trainers write
LOCK = ".trainer.lock"  # held while a trainer writes to the folder
KEPT_AS = "custom_data/kept_as"  # column of the metadata: "worst", "best" or "random", of an `EpisodeKeeper`

_COUNTS = ("num_epochs", "num_steps", "num_updates", "best_epoch")
_NUMBERS = (*_COUNTS, "best_score", "last_score", "seconds")
_NOT_A_SETTING = "trainer.shows_progress"
_SUMMARIES = ("trainer", "algorithm", "policy", "environment")  # of a trainer's settings: `Run` has them in detail
_ENDS = {"max_epochs": "finished", "stop_fn": "stopped by stop_fn", "interrupt": "interrupted"}


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A training run in a folder.

    Attributes:
        folder: the folder.
        status: "running", "finished" (`max_epochs` was reached), "stopped by stop_fn", "interrupted" (Ctrl-C),
            "failed: <error>", "killed" (the process ended without a result), "running or killed" (the system cannot
            tell), "not begun", or "unreadable: <error>".
        settings: all settings by name, such as "algorithm.learning_rate".
        code: versions of packages and the git commit, by name.
        num_epochs, num_steps, num_updates: counts over the whole run. None if they are not known.
        best_score: highest mean return of a test, or None without tests.
        best_epoch: epoch of that test.
        last_score: mean return of the last test, or None without tests.
        seconds: duration.
    """

    folder: Path
    status: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, Any] = field(default_factory=dict)
    num_epochs: int | None = None
    num_steps: int | None = None
    num_updates: int | None = None
    best_score: float | None = None
    best_epoch: int | None = None
    last_score: float | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, folder: Path) -> StoredRun:
        """Return the run in `folder`.

        Raises:
            InvalidArgument: the folder contains no run.
            UnreadableData: a file of the run is damaged.
        """
        if not is_run(folder):
            raise InvalidArgument(
                f"{folder}: no run, which has {STATUS} or {DESCRIPTION}; give the folder of a run (train --logdir)"
            )
        status, description = (_read_table(folder / name) for name in (STATUS, DESCRIPTION))
        numbers = {name: _number(status, name, folder) for name in _NUMBERS}
        code = {name: description.get(name, {}) for name in ("versions", "git")}
        return cls(
            folder=folder,
            status=_status_of(status, folder),
            settings=_settings_of(status, description),
            code=_flat({name: table for name, table in code.items() if isinstance(table, dict)}),
            **numbers,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all attributes as JSON values."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {"folder": str(self.folder), "status": self.status, **numbers, "settings": dict(self.settings)}


def is_run(folder: Path) -> bool:
    """Return True if a trainer or the logger of one has written to `folder`."""
    return any((folder / name).is_file() for name in (STATUS, DESCRIPTION))


def find_runs(folder: Path) -> Iterator[StoredRun]:
    """Yield the runs in `folder` and in all folders below, by name. Folders inside of a run are not searched.

    A run with damaged files has the status "unreadable" and the error.

    Raises:
        InvalidArgument: `folder` is not a directory.
    """
    if not folder.is_dir():
        raise InvalidArgument(f"{folder}: no directory; give one that contains runs, such as runs/")
    for name, folders, _ in os.walk(folder):
        folders.sort()
        path = Path(name)
        if is_run(path):
            folders.clear()
            yield read_run(path)


def read_run(folder: Path) -> StoredRun:
    """Return the run in `folder`. If its files are damaged, its status is "unreadable" and the error.

    Raises:
        InvalidArgument: the folder contains no run.
    """
    try:
        return StoredRun.read(folder)
    except (UnreadableData, OSError, RecursionError) as error:
        return StoredRun(folder=folder, status=f"unreadable: {error}")


def rank(run: StoredRun) -> tuple[Any, ...]:
    """Return the sort key of a run: the environment, then the best test, highest first, then the folder."""
    environment = str(run.settings.get("env", run.settings.get("environment", "")))
    return environment, run.best_score is None, -(run.best_score or 0.0), str(run.folder)


def better(a: StoredRun, b: StoredRun) -> str | None:
    """Return "a" or "b", the run with the higher best test. Return None if they are equal, a run has no test, or the
    environments differ.
    """
    if a.best_score is None or b.best_score is None or a.best_score == b.best_score or not same_environment(a, b):
        return None
    return "a" if a.best_score > b.best_score else "b"


def same_environment(a: StoredRun, b: StoredRun) -> bool:
    """Return True if no setting of the environment differs, as far as both runs have it."""
    names = [name for name in a.settings.keys() & b.settings.keys() if name in ("env", "environment")]
    names += [name for name in a.settings.keys() | b.settings.keys() if name.startswith("env_kwargs.")]
    return all(a.settings.get(name) == b.settings.get(name) for name in names)


def differing(tables: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names whose values are not the same in all tables. A name that a table lacks differs.

    >>> differing([{"a": 1, "b": 2.0}, {"a": 1, "b": 3.0}, {"a": 1, "b": 2.0, "c": 0}])
    ['b', 'c']
    """
    tables = list(tables)
    names = dict.fromkeys(name for table in tables for name in table)
    return [name for name in names if len({str(table[name]) if name in table else None for table in tables}) > 1]


def write_status(folder: Path, *, settings: Mapping[str, Any], stopped_by: str | None, **numbers: float | None) -> None:
    """Replace the status of the run in `folder`.

    Args:
        folder: the folder of the run.
        settings: all settings by name.
        stopped_by: None for a run that is not at its end; else "max_epochs", "stop_fn", "interrupt", or the error.
        numbers: results by the names of `StoredRun`. Numbers that are not finite are stored as None.
    """
    finite = {name: value if value is None or math.isfinite(value) else None for name, value in numbers.items()}
    table = {"stopped_by": stopped_by, **finite, "settings": dict(settings)}
    put(folder / STATUS, json.dumps(table, indent=2, default=str) + "\n", fsync=True)


def _read_table(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. It is empty if there is no such file.

    Raises:
        UnreadableData: the file contains no JSON object.
    """
    try:
        table = json.loads(read_file(path))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise UnreadableData(f"{path} is not valid JSON: {error}; delete it, or restore it from a copy") from error
    if not isinstance(table, dict):
        raise UnreadableData(f"{path} contains a {type(table).__name__}, not a JSON object; delete it")
    return table


def _number(status: Mapping[str, Any], name: str, folder: Path) -> Any:
    """Return a number of a status, or None if it is not known.

    Raises:
        UnreadableData: it is something else.
    """
    value = status.get(name)
    if value is None or (type(value) is int and name in _COUNTS):
        return value
    if name not in _COUNTS and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    raise UnreadableData(f"{folder / STATUS} has {name} {value!r}, not a number; delete it")


def _settings_of(status: Mapping[str, Any], description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by name: those of the trainer, which include defaults, and those of its
    description.
    """
    configuration, of_trainer = description.get("configuration"), status.get("settings")
    settings = _flat(configuration) if isinstance(configuration, dict) else {}
    more = dict(of_trainer) if isinstance(of_trainer, dict) else {}
    if {"algo", "env"} <= settings.keys():
        more = {name: value for name, value in more.items() if name.split("/")[0] not in _SUMMARIES}
    settings |= more
    settings.pop(_NOT_A_SETTING, None)
    return settings


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested dict as a flat one, with names such as "trainer.max_epochs"."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _status_of(status: Mapping[str, Any], folder: Path) -> str:
    """Return the status of a run as text. See `StoredRun`.

    Raises:
        UnreadableData: the stored reason of the end is not a text.
    """
    if not status:
        return "not begun"
    end = status.get("stopped_by")
    if end is None:
        return {True: "running", False: "killed", None: "running or killed"}[_is_held(folder / LOCK)]
    if not isinstance(end, str):
        raise UnreadableData(f"{folder / STATUS} has stopped_by {end!r}, not a text; delete it")
    return _ENDS.get(end, f"failed: {end}")


def _is_held(path: Path) -> bool | None:
    """Return whether a trainer holds the lock file, or None if the system cannot tell."""
    try:
        with path.open("rb") as file:
            could = try_lock(file.fileno(), shared=True)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return None if could is None else not could
