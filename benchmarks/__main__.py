"""Command line of the benchmarks: `python -m benchmarks [NAME ...] [--quick] [--json FILE] [--list]`."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path

import torch

from benchmarks import all_figures, table
from benchmarks.figure import Figure
from benchmarks.idle_process import hush, settle_allocator
from benchmarks.measure import FULL, QUICK, Effort, Row, failure, measure


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks of the command line. Return 1 if a benchmark failed, 2 for an unknown name, else 0."""
    options = parsed(arguments)
    try:
        figures = all_figures.chosen(options.names)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(figure.name for figure in figures))
        return 0
    torch.set_num_threads(1)
    hush()
    settle_allocator()
    rows = measured(figures, QUICK if options.quick else FULL)
    if options.json:
        document = {"machine": table.machine(), "rows": [table.as_json(row) for row in rows]}
        Path(options.json).write_text(json.dumps(document, indent=2) + "\n")
    return int(any(row.ours is None and "Error" in row.note for row in rows))


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a room (growing) or a figure (replay/uniform)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--json", metavar="FILE", help="write the rows and the machine there too")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    return parser.parse_args(arguments)


def measured(figures: list[Figure], effort: Effort) -> list[Row]:
    """Run the benchmarks one after another, and print the result of each at once."""
    width = table.name_width(figures)
    print(table.header(width), flush=True)
    rows = []
    for figure in figures:
        rows.append(one(figure, effort))
        print(table.formatted(rows[-1], width), flush=True)
    held = sum(row.holds is True for row in rows)
    print(f"{held} of {len(rows)} hold, {sum(row.holds is None for row in rows)} not compared")
    return rows


def one(figure: Figure, effort: Effort) -> Row:
    """Run one benchmark. If it raises, print the traceback to stderr and return a result row with the error."""
    try:
        return measure(figure, effort)
    except Exception as error:
        traceback.print_exc()
        return failure(figure, error)


if __name__ == "__main__":
    raise SystemExit(main())
