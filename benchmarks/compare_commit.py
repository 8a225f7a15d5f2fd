"""Speed of this library at a commit and at present: `python -m benchmarks.compare_commit COMMIT [NAME ...]`.

Each tree runs its own benchmarks, since packages and arguments have other names in older commits. Figures are matched
by name: read both benchmarks before you trust a ratio. Two processes, one for each tree, take turns in short rounds and
count CPU time, which other processes on the machine hardly lengthen. All is repeated in fresh processes, since the
layout of memory is worth a few percent.
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
    """Duration of a measurement: rounds for each side, pairs of processes, and seconds of a round."""

    rounds: int
    pairs: int
    seconds: float = 0.008
    most: int | None = None  # of what a side prepares, see `Size`


class CannotMeasure(Exception):
    """Raised if the code of a commit cannot run a benchmark. The message is the error of the benchmark."""


class Tree:
    """Worker process that runs the benchmarks of a folder with the library of this folder."""

    def __init__(self, folder: Path, max_size: int | None) -> None:
        command = [sys.executable, str(ROOT / "benchmarks" / "worker.py"), json.dumps(max_size), str(folder)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answers: Any = self._process.stdout

    def ask(self, command: str, argument: Any = None) -> Any:
        """Send a command to the worker process, and return the answer. Raise `CannotMeasure` for an error."""
        print(json.dumps([command, argument]), file=self._process.stdin, flush=True)
        answer = json.loads(self._answers.readline() or '{"error": "its process has ended"}')
        if "error" in answer:
            raise CannotMeasure(answer["error"])
        return answer["value"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass(slots=True)
class Compared:
    """Costs of this library per item, at the commit and now, for each round."""

    names: list[str]  # of the figures whose side this is
    before: list[float] = field(default_factory=list)
    now: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def ratio(self) -> float:
        """Median over all rounds of (cost now / cost at the commit)."""
        return median(now / before for before, now in zip(self.before, self.now, strict=True))

    @property
    def ratio_of_minima(self) -> float:
        """Lowest cost of all rounds now, divided by the lowest cost at the commit."""
        return min(self.now) / min(self.before)


@contextmanager
def library_of(commit: str) -> Iterator[Path]:
    """Extract a commit to a temporary folder, and yield the folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
            tree.extractall(folder, filter="data")
        yield Path(folder)


def compare(before: Path, now: Path, chosen: list[str], pace: Pace) -> list[Compared]:
    """Measure the chosen benchmarks of the old commit with the old code and the new code."""
    rows: dict[str, Compared] = {}
    for _ in range(pace.pairs):
        with closing(Tree(before, pace.most)) as old, closing(Tree(now, pace.most)) as new:
            for names in sides_of(old, chosen):
                row = rows.setdefault(names[0], Compared(names))
                measure(row, old, new, pace)
                print(formatted(row), file=sys.stderr, flush=True)
    return list(rows.values())


def sides_of(tree: Tree, chosen: list[str]) -> list[list[str]]:
    """Return lists of benchmark names that share one measurement of this library."""
    together: dict[int, list[str]] = {}
    for name, side in tree.ask("names").items():
        if not chosen or any(name.startswith(start) for start in chosen):
            together.setdefault(side, []).append(name)
    return list(together.values())


def measure(row: Compared, old: Tree, new: Tree, pace: Pace) -> None:
    """Add rounds to a row, or a note on why the figure cannot be measured."""
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


def formatted(row: Compared) -> str:
    """Return a row of the Markdown table: median costs per item in microseconds (or bytes), and both ratios."""
    head = f"| {row.names[0]}{f' (and {len(row.names) - 1} more)' if row.names[1:] else ''} |"
    if not row.now:
        return f"{head} - | - | - | - | {row.note} |"
    factor = 1.0 if row.names[0].startswith("memory/") else 1e6
    costs = " | ".join(f"{median(costs) * factor:,.3f}" for costs in (row.before, row.now))
    return f"{head} {costs} | {row.ratio:.2f} | {row.ratio_of_minima:.2f} | {row.note} |"


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison, and print the table. Single results are printed to stderr as they arrive."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_commit", description=__doc__)
    parser.add_argument("commit", help="what to compare with, as git knows it")
    parser.add_argument("names", nargs="*", metavar="NAME", help="how figures' names begin: growing, replay/uniform")
    parser.add_argument("--rounds", type=int, default=40, help="of each pair of processes")
    parser.add_argument("--pairs", type=int, default=3, help="of processes")
    options = parser.parse_args(arguments)
    with library_of(options.commit) as before:
        rows = compare(before, ROOT, options.names, Pace(options.rounds, options.pairs))
    print(f"| figure, ours | {options.commit} | now | ratio | of minima | |\n|---|---|---|---|---|---|")
    print("\n".join(formatted(row) for row in rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
