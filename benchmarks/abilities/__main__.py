"""Command that prints a table of replay features in several libraries: `python -m benchmarks.abilities`."""

from __future__ import annotations

from benchmarks.abilities.questions import markdown
from benchmarks.idle_process import hush

if __name__ == "__main__":
    hush()
    print(markdown())
