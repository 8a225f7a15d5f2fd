"""`Queued`: what waits to be written, such that an interrupted write neither loses nor doubles an item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

State = TypeVar("State")


class Queued(Generic[State]):
    """Value that describes what an object has queued, and that changes together with a write to a file.

    An interrupt (Ctrl-C) can come between any two instructions, so also after the write and before the queue is
    emptied. Therefore the new value is noted before the write. If the write did not return, the next access looks at
    the file and takes the value that is true:

        state, None   ->   state, (after, is_written)   ->  write  ->   after, None
                                       |
                                       next access: after if is_written() else state

    One attribute holds both, so that each change is a single assignment. Values must not be changed in place, except
    that items may be appended to their lists.

    Args:
        state: the first value.
    """

    def __init__(self, state: State) -> None:
        self._now: tuple[State, tuple[State, Callable[[], bool]] | None] = state, None

    @property
    def state(self) -> State:
        """The current value, after an interrupted write was looked at."""
        state, writing = self._now
        if writing is not None:
            after, is_written = writing
            state = after if is_written() else state
            self._now = state, None
        return state

    def replace(self, state: State) -> None:
        """Set the value, without a write."""
        self._now = state, None

    def hand_on(self, after: State, write: Callable[[], Any], is_written: Callable[[], bool]) -> None:
        """Call `write`, and set the value to `after`. If `write` raises an error, the next access decides.

        Args:
            after: the value once the items are written.
            write: writes the items.
            is_written: returns whether the file has them. It is called only if `write` did not return.
        """
        self._now = self.state, (after, is_written)
        write()
        self._now = after, None
