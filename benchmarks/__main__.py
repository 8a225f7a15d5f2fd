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
from benchmarks.measure import FULL, QUICK, Effort, Row, failure_row, measure


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks named on the command line, and print a table of results. Return 1 if a benchmark failed, 2 for
    an unknown name, else 0.
    """
    options = parse_arguments(arguments)
    try:
        figures = all_figures.select_figures(options.names)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(figure.name for figure in figures))
        return 0
    torch.set_num_threads(1)
    hush()
    settle_allocator()
    rows = run_figures(figures, QUICK if options.quick else FULL)
    if options.json:
        document = {"machine": table.machine(), "rows": [table.as_json(row) for row in rows]}
        Path(options.json).write_text(json.dumps(document, indent=2) + "\n")
    return int(any(row.ours is None and "Error" in row.note for row in rows))


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the parsed command-line arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a group (growing) or a figure (replay/uniform)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--json", metavar="FILE", help="write the rows and the machine there too")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    return parser.parse_args(arguments)


def run_figures(figures: list[Figure], effort: Effort) -> list[Row]:
    """Run benchmarks one after another, print the result of each when it is known, and return all results."""
    width = table.name_width(figures)
    print(table.header(width), flush=True)
    rows = []
    for figure in figures:
        rows.append(run_figure(figure, effort))
        print(table.format_row(rows[-1], width), flush=True)
    held = sum(row.holds is True for row in rows)
    print(f"{held} of {len(rows)} hold, {sum(row.holds is None for row in rows)} not compared")
    return rows


def run_figure(figure: Figure, effort: Effort) -> Row:
    """Run one benchmark, and return its result. If the benchmark raises an error, print the traceback to stderr and
    return a row with the error.
    """
    try:
        return measure(figure, effort)
    except Exception as error:
        traceback.print_exc()
        return failure_row(figure, error)


if __name__ == "__main__":
    raise SystemExit(main())
