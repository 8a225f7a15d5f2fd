"""The table of checks: rows, libraries, and what a cell says."""

from __future__ import annotations

from collections.abc import Callable

LIBRARIES = ("ours", "RLlib", "Tianshou", "SB3", "TorchRL", "cpprb")

Check = Callable[[], bool]
ROWS: dict[str, dict[str, Check]] = {}


def check(row: str, library: str) -> Callable[[Check], Check]:
    """Register a check as the cell of a row and a library."""

    def register(run: Check) -> Check:
        ROWS.setdefault(row, {})[library] = run
        return run

    return register


def cell(run: Check | None) -> str:
    """What a check says."""
    if run is None:
        return ""
    try:
        return "yes" if run() else "no"
    except ImportError:
        return "not run"
    except Exception as error:
        return f"no ({type(error).__name__})"


def table() -> str:
    """The Markdown table of all checks."""
    lines = [" | ".join(("| ", *LIBRARIES)) + " |", "|---" * (len(LIBRARIES) + 1) + "|"]
    for row, checks in ROWS.items():
        lines.append(" | ".join((f"| {row}", *(cell(checks.get(library)) for library in LIBRARIES))) + " |")
    return "\n".join(lines)
