"""`python -m benchmarks.replay_checks`: what each library's replay buffers get right, each cell from a check that runs.

Prints a Markdown table. `yes`: the check held; `no`: it did not, or raised; an empty cell: there is no check, because
the library has nothing of the kind or the question does not arise. The checks of ours run in the tests too.
"""

from benchmarks.replay_checks import drawing, keeping
from benchmarks.replay_checks.registry import LIBRARIES, ROWS, cell, table

__all__ = ["LIBRARIES", "ROWS", "cell", "drawing", "keeping", "table"]
