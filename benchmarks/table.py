"""Output of benchmark results, as an aligned table that is printed row by row, and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.figure import Figure
from benchmarks.measure import Row

PEERS = ("ray", "tianshou", "stable-baselines3", "torchrl", "cpprb", "minari")
PACKAGES = ("numpy", "torch", "gymnasium", "tensordict", *PEERS)

# unit -> (factor of the cost in seconds or bytes per item, digits); a negative factor: the rate, 1 / cost, instead
UNITS = {
    "ns": (1e9, 0),
    "us": (1e6, 3),
    "ms": (1e3, 3),
    "s": (1.0, 1),
    "steps/s": (-1.0, 0),
    "GB/s": (-1e-9, 2),
    "bytes": (1.0, 0),
    "operations": (1.0, 0),
    "calls": (1.0, 1),
}
WIDTHS = (16, 28, 9, 20)


def format_cost(cost: float | None, unit: str) -> str:
    """Return a cost per item as text in its unit, such as `0.312 us` or `12,800 steps/s`."""
    if cost is None:
        return "-"
    factor, digits = UNITS[unit]
    value = cost * factor if factor > 0 else -factor / cost
    return f"{value:,.{digits}f} {unit}"


def name_width(figures: Sequence[Figure]) -> int:
    """Return the width of the table's column for names of benchmarks."""
    return max((len(figure.name) for figure in figures), default=4)


def header(width: int) -> str:
    """Return the header of the table of results, with a line below."""
    ours, reference, ratio, bar = WIDTHS
    sides = f"{'ours':>{ours}}  {'the other side':>{reference}}"
    line = f"{'figure':<{width}}  {sides}  {'ratio':>{ratio}}  {'bar':<{bar}}  holds"
    return f"{line}\n{'-' * len(line)}"


def format_row(row: Row, width: int) -> str:
    """Return a result as a row of the table."""
    figure = row.figure
    ours, reference, ratio, bar = WIDTHS
    opposite = f"{figure.other.name} {format_cost(row.other, figure.unit)}"
    verdict = row.note if row.holds is None else ("yes" if row.holds else "NO")
    times = "-" if row.ratio is None else f"{row.ratio:.2f}x"
    cells = f"{format_cost(row.ours, figure.unit):>{ours}}  {opposite:>{reference}}  {times:>{ratio}}"
    return f"{figure.name:<{width}}  {cells}  {figure.bar!s:<{bar}}  {verdict}"


def as_json(row: Row) -> dict[str, Any]:
    """Return a result as a dict for JSON, with costs in seconds or bytes per item."""
    figure = row.figure
    return {
        "name": figure.name,
        "ours": row.ours,
        "other_side": figure.other.name,
        "other": row.other,
        "unit": figure.unit,
        "ratio": row.ratio,
        "bar": str(figure.bar),
        "holds": row.holds,
        "note": row.note,
    }


def machine() -> dict[str, Any]:
    """Return a description of this machine: Python version, architecture, number of cores, and versions of libraries
    (None if not installed).
    """
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": {package: installed_version(package) for package in PACKAGES},
    }


def installed_version(package: str) -> str | None:
    """Return the version of a package, or None if the package is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
