"""`counted`: iteration over episodes that shows the progress of a conversion and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Counted:
    """Iterable over episodes that calls `show` with the number of episodes and of steps after each episode.

    Attributes:
        num: number of episodes so far.
        steps: number of their steps.
    """

    def __init__(self, episodes: Iterator[Any], show: Callable[[int, int], None]) -> None:
        self._episodes, self._show = episodes, show
        self.num = self.steps = 0

    def __iter__(self) -> Iterator[Any]:
        for episode in self._episodes:
            yield episode
            self.num += 1
            self.steps += len(episode)
            self._show(self.num, self.steps)


@contextmanager
def counted(episodes: Iterator[Any], count: Callable[[], int | None]) -> Iterator[Counted]:
    """Context manager that yields the episodes as an iterable, and shows progress and the time left in a terminal.

    `count` returns the number of episodes of the source, or None. It is called only if there is a terminal.
    """
    from rich.console import Console
    from rich.progress import (
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Counted(episodes, lambda num, steps: None)
        return
    words = TextColumn("converting"), MofNCompleteColumn(), TextColumn("episodes, {task.fields[steps]} steps")
    left = TextColumn("left")
    with Progress(
        SpinnerColumn(), *words, TimeElapsedColumn(), left, TimeRemainingColumn(), console=console, transient=True
    ) as progress:
        bar = progress.add_task("", total=count(), steps=0)
        yield Counted(episodes, lambda num, steps: progress.update(bar, completed=num, steps=steps))
