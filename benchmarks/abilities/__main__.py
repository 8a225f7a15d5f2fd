"""`python -m benchmarks.abilities`: the table of what each library's replay can do."""

from __future__ import annotations

from benchmarks.abilities.questions import markdown
from benchmarks.idle_process import hush

if __name__ == "__main__":
    hush()
    print(markdown())
