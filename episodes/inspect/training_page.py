"""Live web page of training runs, with curves from CSV files and links to notable episodes."""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
from markupsafe import Markup

from episodes.errors import EpisodeError, InvalidArgument
from episodes.inspect.downsampling import downsample
from episodes.inspect.formatting import clipped, finite_or_text, page_id
from episodes.inspect.html import template_file, templates
from episodes.inspect.html_report import open_for_page, repetitions
from episodes.inspect.text_difference import SHORT, differing_parts, shortened_parts
from episodes.storage.header import NAME as DATASET_FILE
from episodes.storage.ledger import LedgerReader
from episodes.storage.runs import KEPT_AS, StoredRun, differing, read_run
from episodes.storage.runs import is_run as has_status

SCOPES = ("train", "test", "update", "info")
KEPT_AT = "custom_data/num_steps"  # environment steps of the run when an episode was kept
MOST_CELLS = 400  # of a curve
MOST_EPISODES = 5  # of each list
MOST_SETTINGS, MOST_OF_SETTING = 500, 300  # number, and characters of one, or of a part that differs
SCRIPTS = ("decode.js", "dom.js", "training.js")
BYTES_COMPARED = 4096  # before the rows that a table has got, to know that it is the same table


def is_run(path: Path) -> bool:
    """Return True if the directory has files of a training run: run.json or CSV files of metrics."""
    return has_status(path) or any((path / f"{scope}.csv").exists() for scope in SCOPES)


def training_page(paths: Sequence[Path]) -> str:
    """Return the HTML page of training runs without data, which the page requests from a `PageServer`."""
    title = "Training " + ", ".join(path.name for path in paths)
    script = Markup("\n").join(map(template_file, SCRIPTS))
    return (
        templates()
        .get_template("training.html")
        .render(title=clipped(title, 100), style=template_file("page.css"), script=script)
    )


def file_sizes(folder: Path) -> list[tuple[str, int]]:
    """Return the paths and sizes of the files below a folder, which differ whenever one of them has grown. Files that
    are removed meanwhile are left out.
    """
    sizes = []
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            status = file.stat()
            if S_ISREG(status.st_mode):
                sizes.append((str(file), status.st_size))
    return sorted(sizes)


class CSVFile:
    """Growing CSV file of numbers, of which only new rows are parsed. A file that was replaced is parsed anew.

    Attributes:
        columns: the numbers of each column, all of the same length; NaN for empty and missing cells, for texts and for
            rows from before the column. Of columns with the same name, the first.
        problem: why the file cannot be read, "" if it can. It is not read further until it is replaced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: dict[str, list[float]] = {}
        self.problem = ""
        self._places: list[int] = []  # of the columns in a row
        self._offset = 0
        self._before = b""  # what the file had before the offset: a new column replaces the file
        self._file: tuple[int, int] | None = None  # device and inode

    def read(self) -> bool:
        """Parse rows added since the last call, and return True if there were any, if the file was replaced, or if
        there is a new problem.
        """
        was_replaced = False
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                file.seek(self._offset - len(self._before))
                if self._file != (stat.st_dev, stat.st_ino) or file.read(len(self._before)) != self._before:
                    was_replaced = bool(self.columns)
                    self.columns, self._offset, self._before = {}, 0, b""
                    self.problem, self._file = "", (stat.st_dev, stat.st_ino)
                if self.problem:
                    return False
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return False
        except OSError as error:
            return self._note(error)
        data = data[: data.rfind(b"\n") + 1]  # the last line may be incomplete
        self._offset, self._before = self._offset + len(data), (self._before + data)[-BYTES_COMPARED:]
        try:
            rows = [row for row in csv.reader(io.StringIO(data.decode(errors="replace"))) if row]
        except csv.Error as error:
            return self._note(error)
        if rows and not self.columns:
            names = rows.pop(0)
            self.columns = {name: [] for name in names}
            self._places = list(map(names.index, self.columns))
        for row in rows:
            for place, column in zip(self._places, self.columns.values(), strict=True):
                column.append(_number(row[place]) if place < len(row) else math.nan)
        return bool(rows) or was_replaced

    def _note(self, error: Exception) -> bool:
        """Set the problem, and return True if it is a new one."""
        problem = f"{self.path.name}: {clipped(error)}"
        is_new, self.problem = problem != self.problem, problem
        return is_new


def _number(cell: str) -> float:
    """Return a cell of a CSV file as a number, or NaN if it is empty or text."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


class RunFiles:
    """Files of one training run: its status and settings, CSV files of metrics, and data sets of episodes.

    Attributes:
        stored: status and settings, as `episodes runs` shows them. None if the folder has CSV files only.
        episodes: the newest, best and worst episodes of each data set, by the name of its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = {scope: CSVFile(path / f"{scope}.csv") for scope in SCOPES}
        self.stored: StoredRun | None = None
        self.episodes: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self._shards: dict[str, Any] = {}

    def dataset_paths(self) -> dict[str, Path]:
        """Return the paths of the data sets in the directory of the run by the names of their folders."""
        return {path.parent.name: path.parent for path in sorted(self.path.glob(f"*/{DATASET_FILE}"))}

    def status(self) -> str:
        """Return the run's status as `episodes runs` prints it, or "" if the folder has CSV files only."""
        return clipped(read_run(self.path).status, 200) if has_status(self.path) else ""

    def read(self) -> bool:
        """Read new metrics, the status and episodes, and return True if anything changed."""
        has_new = [file.read() for file in self.files.values()]
        has_new += [self._read_episodes(name, path) for name, path in self.dataset_paths().items()]
        before, self.stored = self.stored, read_run(self.path) if has_status(self.path) else None
        return any(has_new) or before != self.stored

    def _read_episodes(self, name: str, path: Path) -> bool:
        """List the best, worst and newest episodes of a data set of the run in `episodes`, if it has changed. Return
        True if it has.

        A data set of few episodes has one list. No episode is in two lists. If a file disappears meanwhile, the next
        call tries again.
        """
        try:
            shards = file_sizes(path)
            if shards == self._shards.get(name):
                return False
            table = open_for_page(path).metadata
        except (OSError, EpisodeError):  # a file was removed meanwhile: the next call reads the new ones
            return False
        self._shards[name], returns = shards, np.asarray(table["return"], np.float64)
        order = np.argsort(np.where(np.isnan(returns), np.inf, returns), kind="stable")
        order = order[~np.isnan(returns[order])]
        newest = np.arange(len(returns))[::-1]
        if len(returns) <= 3 * MOST_EPISODES:
            chosen = {"newest": newest}
        else:
            chosen = {"best": order[::-1][:MOST_EPISODES], "worst": order[:MOST_EPISODES]}
            chosen["newest other"] = newest[~np.isin(newest, np.concatenate(list(chosen.values())))][:MOST_EPISODES]
        if KEPT_AS in table:  # one list for each reason, since episodes were kept at different times
            kinds = np.array([_kept_as(str(words)) for words in table[KEPT_AS].tolist()], object)
            ranked = {"best": np.append(order[::-1], np.flatnonzero(np.isnan(returns)))}
            ranked["worst"] = np.append(order, np.flatnonzero(np.isnan(returns)))
            most = MOST_EPISODES if len(returns) > 3 * MOST_EPISODES else len(returns)
            chosen = {}
            for kind in sorted(set(kinds.tolist())):
                rows = ranked["worst" if kind == "worst" else "best"]
                title = f"{kind} of their interval" if kind in ("best", "worst") else kind
                chosen[title] = rows[kinds[rows] == kind][:most]
        nth = repetitions(table)
        self.episodes[name] = {
            kind: [_row(table, i, int(nth[i])) for i in rows.tolist()] for kind, rows in chosen.items() if len(rows)
        }
        return True

    def _best_test(self) -> float | None:
        """Return the highest mean return of a test, as `episodes runs` prints it, or None without tests.

        Without a status, it is that of the CSV file.
        """
        if self.stored is not None and self.stored.best_score is not None:
            return self.stored.best_score
        return max(filter(math.isfinite, self.files["test"].columns.get("mean_return", ())), default=None)

    def _unit(self) -> str:
        """Return what the column "step" of the CSV files counts, which is known of runs of this library's trainers."""
        columns = self.files["train"].columns
        return "environment steps" if {"num_steps", "num_env_steps"} & columns.keys() else "logged steps"

    def message(self) -> dict[str, Any]:
        """Return the run's description and its curves as data for the page."""
        stored = self.stored
        settings = {} if stored is None else stored.settings
        metrics = {}
        for scope, file in self.files.items():
            steps = np.array(file.columns.get("step", ()), np.float64)
            rows = _rows_in_order(steps)
            for name, numbers in file.columns.items():
                if name != "step" and len(rows):
                    metrics[f"{scope}/{name}"] = _curve(steps[rows], np.array(numbers)[rows])
        last_steps = (file.columns["step"][-1] for file in self.files.values() if file.columns.get("step"))
        times = [file.path.stat().st_mtime for file in self.files.values() if file.path.exists()]
        return {
            "name": clipped(self.path.name, 80),
            "algorithm": clipped(settings.get("algo", settings.get("algorithm", "")), 40),
            "environment": clipped(_environment(settings), 100),
            "place": sha256(_environment(settings).encode()).hexdigest(),
            "seed": clipped(settings.get("seed", ""), 20),
            "status": "" if stored is None else clipped(stored.status, 200),
            "best": self._best_test(),
            "steps": int(max(filter(math.isfinite, last_steps), default=0)),
            "unit": self._unit(),
            "age": max(time.time() - max(times), 0.0) if times else None,
            "problem": "; ".join(file.problem for file in self.files.values() if file.problem),
            "metrics": metrics,
            "clock": _clock(with_updates(self.path, self.files["update"].columns)),
            "episodes": {name: lists for name, lists in self.episodes.items() if lists},
        }


def _environment(settings: Mapping[str, Any]) -> str:
    """Return the environment of a run with its keyword arguments as text, in the order of their names, or its spaces
    if it has no name. It is "" if neither is known.

    >>> _environment({"env": "CartPole-v1", "env_kwargs.length": 2, "seed": 0})
    'CartPole-v1 with length=2'
    """
    name = settings.get("env", settings.get("environment"))
    given = sorted(
        f"{key.partition('.')[2]}={value}" for key, value in settings.items() if key.startswith("env_kwargs.")
    )
    return " with ".join(filter(None, ("" if name is None else str(name), ", ".join(given))))


def _kept_as(reasons: str) -> str:
    """Return the name of the list of an episode, given why it was kept: "best", "worst", "random", or "kept" if it was
    the best and the worst one of its interval.

    >>> [_kept_as(reasons) for reasons in ("best", "best, random", "worst, best", "")]
    ['best', 'best', 'kept', 'kept']
    """
    known = {"best", "worst"}.intersection(reasons.split(", ")) or {"random"}.intersection(reasons.split(", "))
    return known.pop() if len(known) == 1 else "kept"


def _whole(value: Any) -> int | None:
    """Return a count as an integer, or None if it is not finite."""
    try:
        return int(value) if math.isfinite(value) else None
    except TypeError:
        return None


def _row(table: Mapping[str, np.ndarray], i: int, nth: int) -> dict[str, Any]:
    """Return the data of a link to an episode: id, start, agent, return, length, and at which environment step
    it was kept.
    """
    return {
        "id": page_id(table["id"][i]),
        "t": int(table["t_started"][i]),
        "agent": page_id(table["agent_id"][i] if "agent_id" in table else None),  # a game has several
        "nth": nth,
        "return": finite_or_text(table["return"][i]),
        "length": int(table["length"][i]),
        "at": _whole(table[KEPT_AT][i]) if KEPT_AS in table and KEPT_AT in table else None,
    }


def _rows_in_order(steps: np.ndarray) -> np.ndarray:
    """Return the indices of the rows with finite steps [n], ordered by step, as int64 [k]. Others have no place on an
    axis.
    """
    rows = np.flatnonzero(np.isfinite(steps))
    return rows[np.argsort(steps[rows], kind="stable")]


def _curve(steps: np.ndarray, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Downsample the curve of a metric to cells, with last step, mean, lowest and highest value of each."""
    cells = downsample(numbers[:, None], MOST_CELLS)
    starts = cells.starts()
    is_finite = np.isfinite(numbers)
    counts = np.add.reduceat(is_finite, starts, dtype=np.int64)
    lasts = np.append(starts[1:], len(numbers)) - 1
    shares = np.where(is_finite, numbers, 0.0) / np.maximum(np.repeat(counts, np.diff(lasts, prepend=-1)), 1)
    mean = np.where(counts, np.add.reduceat(shares, starts), np.nan)  # without overflow
    return {"step": steps[lasts], "mean": mean, "low": cells.low[:, 0].copy(), "high": cells.high[:, 0].copy()}


def with_updates(run: Path, columns: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the columns of the table "update" of a run with the numbers of its updates, "num_updates".

    If the table lacks them, they are those of the ledger, provided that it has as many updates as the table has rows.
    """
    if "num_updates" in columns or not columns:
        return columns
    try:
        numbers = sorted({number for number, _ in LedgerReader(run).updates})
    except (OSError, EpisodeError):  # there is none, or it is damaged, which the findings tell
        return columns
    is_each = len(numbers) == len(next(iter(columns.values())))
    return columns | {"num_updates": list(map(float, numbers))} if is_each else columns


def _clock(columns: dict[str, list[float]]) -> dict[str, np.ndarray]:
    """Return at which update and second of the run each step was reached, at most `MOST_CELLS` points of equal length.

    A quantity that the table lacks is left out.
    """
    names = {"step": "step", "update": "num_updates", "time": "run_seconds"}
    present = {name: np.array(columns[column]) for name, column in names.items() if column in columns}
    if "step" not in present:
        return {}
    known = np.flatnonzero(np.all([np.isfinite(numbers) for numbers in present.values()], 0))
    known = known[np.argsort(present["step"][known], kind="stable")]
    chosen = known[np.unique(np.linspace(0, len(known) - 1, MOST_CELLS).astype(int))] if len(known) else known
    return {name: numbers[chosen] for name, numbers in present.items()}


def seed_groups(settings: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the number of each run's group: the first run whose settings differ in seeds only. A run without settings
    is a group of its own.

    >>> seed_groups([{"seed": 0, "gamma": 0.9}, {"seed": 0, "gamma": 0.8}, {"seed": 1, "gamma": 0.9}, {}, {}])
    [0, 1, 0, 3, 4]
    """
    groups: dict[Any, int] = {}
    numbers = []
    for n, table in enumerate(settings):
        others = sorted((name, str(value)) for name, value in table.items() if name.rpartition(".")[2] != "seed")
        numbers.append(groups.setdefault(tuple(others) or n, n))
    return numbers


class TrainingFiles:
    """Files of several training runs, with a version number that increases when a file grows.

    Raises:
        InvalidArgument: a path is not a directory.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if not path.is_dir():
                raise InvalidArgument(f"{path}: no such folder of a run")
        self.runs = [RunFiles(path) for path in paths]
        self.version = 0

    def message(self, known: int | None) -> dict[str, Any] | None:
        """Return the curves of all runs, or None if nothing changed since the version `known`."""
        changes = [run.read() for run in self.runs]  # all runs are read
        if any(changes) or not self.version:
            self.version += 1
        if known == self.version:
            return None
        settings = [{} if run.stored is None else run.stored.settings for run in self.runs]
        are_different = differing(settings) if all(settings) else []
        names = [*are_different, *(name for table in settings for name in table)]
        names = list(dict.fromkeys(names))[:MOST_SETTINGS]
        marked = {}
        for name in are_different:
            texts = tuple(str(table.get(name, "")) for table in settings)
            if max(map(len, texts)) > SHORT:
                rows = [shortened_parts(parts, MOST_OF_SETTING) for parts in differing_parts(texts)]
                marked[clipped(name)] = [[[text, differs] for text, differs in row] for row in rows]
        return {
            "version": self.version,
            "runs": [run.message() for run in self.runs],
            "groups": seed_groups(settings),
            "differing": len(are_different),
            "marked": marked,
            "settings": {
                clipped(name): [clipped(table[name], MOST_OF_SETTING) if name in table else "" for table in settings]
                for name in names
            },
        }
