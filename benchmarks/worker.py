"""One tree of the library in a process of its own, measured when told: `python worker.py FOLDER...`.

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
    """What a process of one tree has prepared."""

    def __init__(self, most: int | None) -> None:
        import torch

        from benchmarks.all_figures import FIGURES
        from benchmarks.figure import Size
        from benchmarks.idle_process import hush, settle_allocator

        torch.set_num_threads(1)
        hush()
        settle_allocator()
        self.sides = {figure.name: figure.ours for figure in FIGURES}
        self.size = Size(most)
        self.work: Any = None

    def prepare(self, name: str) -> dict[str, Any]:
        """Our side of a figure, built and warm: seconds of a call, or the amount of what needs no clock."""
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
        """Seconds that this process computes for an item, over so many calls, without pauses of the collector.

        As `benchmarks.measure.cost`, which is not called: here it is another commit's, and may count another clock.
        """
        run, fresh = self.work.run, self.work.fresh
        inputs = None if fresh is None else [fresh() for _ in range(calls)]
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
        """The answer to one command."""
        if command == "names":
            return {name: id(side) for name, side in self.sides.items()}
        return self.prepare(argument) if command == "prepare" else self.cost(argument)


def serve() -> None:
    """Answer until the parent says no more."""
    most, folders = json.loads(sys.argv[1]), sys.argv[2:]
    sys.path[:1] = folders
    answers, sys.stdout = sys.stdout, sys.stderr
    warnings.simplefilter("ignore")
    bench = Bench(most)
    for line in sys.stdin:
        try:
            answer = {"value": bench.answer(*json.loads(line))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
