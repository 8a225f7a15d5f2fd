"""Comparison of the library's speed at an earlier commit and now:
`python -m benchmarks.compare_commit COMMIT [NAME ...]`.

Each version runs its own benchmarks, since packages and arguments have other names in older commits. Benchmarks are
matched by name: read both before you trust a ratio. Two processes, one for each version, take turns in short rounds and
measure CPU time, which other processes on the machine hardly change. Everything is repeated in new processes, since the
memory layout changes results by a few percent.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Pace:
    """Duration of a comparison: rounds for each side, pairs of processes, and seconds of a round."""

    rounds: int
    pairs: int
    seconds: float = 0.008
    most: int | None = None  # of what a side prepares, see `Size`


class CannotMeasure(Exception):
    """Error of a worker process that could not run a benchmark. The message is the error of the benchmark."""


class Tree:
    """Worker process that runs the benchmarks of one version of the library, whose files are in `folder`."""

    def __init__(self, folder: Path, max_size: int | None) -> None:
        command = [sys.executable, str(ROOT / "benchmarks" / "worker.py"), json.dumps(max_size), str(folder)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answers: Any = self._process.stdout

    def ask(self, command: str, argument: Any = None) -> Any:
        """Send a command to the worker process, and return its answer.

        Raises:
            CannotMeasure: the worker process returned an error, or has ended.
        """
        print(json.dumps([command, argument]), file=self._process.stdin, flush=True)
        answer = json.loads(self._answers.readline() or '{"error": "its process has ended"}')
        if "error" in answer:
            raise CannotMeasure(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """Kill the worker process."""
        self._process.kill()
        self._process.communicate()


@dataclass(slots=True)
class Compared:
    """Costs of one benchmark at the earlier commit and now, per item and round."""

    names: list[str]  # of the figures whose side this is
    before: list[float] = field(default_factory=list)
    now: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def ratio(self) -> float:
        """Median over all rounds of the cost now divided by the cost at the earlier commit."""
        return median(now / before for before, now in zip(self.before, self.now, strict=True))

    @property
    def ratio_of_minima(self) -> float:
        """Lowest cost of all rounds now, divided by the lowest cost at the earlier commit."""
        return min(self.now) / min(self.before)


@contextmanager
def extract_commit(commit: str) -> Iterator[Path]:
    """Context manager that extracts the files of a commit to a temporary folder, and yields the folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
            tree.extractall(folder, filter="data")
        yield Path(folder)


def compare(before: Path, now: Path, chosen: list[str], pace: Pace) -> list[Compared]:
    """Measure the selected benchmarks with the code in folder `before` and with the code in folder `now`, and return
    the costs.
    """
    rows: dict[str, Compared] = {}
    for _ in range(pace.pairs):
        with closing(Tree(before, pace.most)) as old, closing(Tree(now, pace.most)) as new:
            for names in group_names(old, chosen):
                row = rows.setdefault(names[0], Compared(names))
                measure(row, old, new, pace)
                print(format_row(row), file=sys.stderr, flush=True)
    return list(rows.values())


def group_names(tree: Tree, chosen: list[str]) -> list[list[str]]:
    """Return the names of the selected benchmarks in groups that share one workload of this library, and therefore need
    only one measurement.
    """
    together: dict[int, list[str]] = {}
    for name, side in tree.ask("names").items():
        if not chosen or any(name.startswith(start) for start in chosen):
            together.setdefault(side, []).append(name)
    return list(together.values())


def measure(row: Compared, old: Tree, new: Tree, pace: Pace) -> None:
    """Measure one benchmark in both worker processes in alternating rounds, and add the costs to `row`. If it cannot be
    measured, add a note.
    """
    name = row.names[0]
    try:
        first, second = old.ask("prepare", name), new.ask("prepare", name)
    except CannotMeasure as error:
        row.note = str(error)
        return
    if "amount" in first:
        row.before.append(first["amount"])
        row.now.append(second["amount"])
        return
    calls = max(1, int(pace.seconds / max(old.ask("cost", 3) * first["items"], 1e-8)))
    for turn in range(pace.rounds):
        for tree, costs in ((old, row.before), (new, row.now))[:: 1 if turn % 2 else -1]:
            costs.append(tree.ask("cost", calls))


def format_row(row: Compared) -> str:
    """Return the result as a row of a Markdown table: median costs per item in microseconds (or bytes), and both
    ratios.
    """
    head = f"| {row.names[0]}{f' (and {len(row.names) - 1} more)' if row.names[1:] else ''} |"
    if not row.now:
        return f"{head} - | - | - | - | {row.note} |"
    factor = 1.0 if row.names[0].startswith("memory/") else 1e6
    costs = " | ".join(f"{median(costs) * factor:,.3f}" for costs in (row.before, row.now))
    return f"{head} {costs} | {row.ratio:.2f} | {row.ratio_of_minima:.2f} | {row.note} |"


def main(arguments: list[str] | None = None) -> int:
    """Compare the commit named on the command line with the current code, print a table of all results, and return exit
    status 0. Single results go to stderr when they are known.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_commit", description=__doc__)
    parser.add_argument("commit", help="what to compare with, as git knows it")
    parser.add_argument("names", nargs="*", metavar="NAME", help="how figures' names begin: growing, replay/uniform")
    parser.add_argument("--rounds", type=int, default=40, help="of each pair of processes")
    parser.add_argument("--pairs", type=int, default=3, help="of processes")
    options = parser.parse_args(arguments)
    with extract_commit(options.commit) as before:
        rows = compare(before, ROOT, options.names, Pace(options.rounds, options.pairs))
    print(f"| figure, ours | {options.commit} | now | ratio | of minima | |\n|---|---|---|---|---|---|")
    print("\n".join(format_row(row) for row in rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
