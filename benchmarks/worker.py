"""Worker process of `compare_commit` that runs benchmarks with one version of the library.

It is started as a plain file, so that all it imports comes from the folders that it is given. A line in is a command
as JSON, a line out the answer.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from typing import Any


class Bench:
    """Benchmarks of one version of the library, and the prepared workload."""

    def __init__(self, max_size: int | None) -> None:
        import torch

        from benchmarks.all_figures import FIGURES
        from benchmarks.figure import Size
        from benchmarks.idle_process import hush, settle_allocator

        torch.set_num_threads(1)
        hush()
        settle_allocator()
        self.sides = {figure.name: figure.ours for figure in FIGURES}
        self.size = Size(max_size)
        self.work: Any = None

    def prepare(self, name: str) -> dict[str, Any]:
        """Prepare and warm up this library's side of a benchmark, and return its cost."""
        self.work = None
        gc.unfreeze()
        gc.collect()
        self.work = self.sides[name].prepare(self.size)
        if hasattr(self.work, "amount"):
            return {"amount": float(self.work.amount)}
        self.cost(1)
        gc.collect()
        gc.freeze()
        return {"seconds": self.cost(1), "items": self.work.items}

    def cost(self, calls: int) -> float:
        """Return the CPU seconds per item of `calls` calls in a row, with the garbage collector off.

        As `benchmarks.measure.cost`, which is not called: here it is another commit's, and may count another clock.
        """
        run, make_input = self.work.run, self.work.fresh
        inputs = None if make_input is None else [make_input() for _ in range(calls)]
        gc.collect()
        gc.disable()
        try:
            start = time.process_time()
            if inputs is None:
                for _ in range(calls):
                    run()
            else:
                for value in inputs:
                    run(value)
            return (time.process_time() - start) / (calls * self.work.items)
        finally:
            gc.enable()

    def answer(self, command: str, argument: Any) -> Any:
        """Run one command: "names", "prepare" or "cost"."""
        if command == "names":
            return {name: id(side) for name, side in self.sides.items()}
        return self.prepare(argument) if command == "prepare" else self.cost(argument)


def serve() -> None:
    """Read commands from stdin and write results to stdout, as JSON lines, until stdin is closed."""
    max_size, folders = json.loads(sys.argv[1]), sys.argv[2:]
    sys.path[:1] = folders
    answers, sys.stdout = sys.stdout, sys.stderr
    warnings.simplefilter("ignore")
    bench = Bench(max_size)
    for line in sys.stdin:
        try:
            answer = {"value": bench.answer(*json.loads(line))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
