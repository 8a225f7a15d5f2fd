"""Worker process of `compare_commit`, which runs the benchmarks of one version of the library.

It is started as a plain file, so that all imports come from the given folder. It reads commands as JSON lines from
standard input, and writes the answers as JSON lines to standard output.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_MODULES = (
    ("all_figures", "rooms"),
    ("figure",),
    ("idle_process", "quiet"),
)  # current names, and those in older commits


def _benchmarks(*names: str) -> Any:
    """Return the first module of this version's benchmarks that has one of these names, which differ between
    versions.
    """
    name = next(name for name in names if find_spec(f"benchmarks.{name}"))
    return import_module(f"benchmarks.{name}")


class Bench:
    """All benchmarks of one version of the library, and the workload that was prepared last."""

    def __init__(self, max_size: int | None) -> None:
        import torch

        figures, size, idle_process = (_benchmarks(*names) for names in _MODULES)
        torch.set_num_threads(1)
        idle_process.hush()
        idle_process.settle_allocator()
        self.sides = {figure.name: figure.ours for figure in figures.FIGURES}
        self.size = size.Size(max_size)
        self.work: Any = None

    def prepare(self, name: str) -> dict[str, Any]:
        """Prepare and warm up this library's side of the benchmark `name`, and return its first cost."""
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
        """Call the prepared workload `calls` times with the garbage collector off, and return the CPU seconds per item.

        It does the same as `benchmarks.measure.cost`, which is not called, because in this version it may be
        different, for example use another clock.
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
        """Run the command "names", "prepare" or "cost", and return its result."""
        if command == "names":
            return {name: id(side) for name, side in self.sides.items()}
        return self.prepare(argument) if command == "prepare" else self.cost(argument)


def serve() -> None:
    """Read commands from stdin and write their results to stdout, as JSON lines, until stdin is closed."""
    max_size = json.loads(sys.argv[1])
    sys.path[0] = sys.argv[2]
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
