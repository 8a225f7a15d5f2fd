"""`DeferredInterrupt`: delays a first Ctrl-C until the current step of the environments is recorded."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self


class DeferredInterrupt:
    """Context manager that delays a first Ctrl-C until `raise_pending` is called. A second Ctrl-C interrupts at once.

    The code inside polls `pending` where it can stop. After the block, `raise_pending` raises the deferred one. Only
    the main thread gets signals, so in other threads this does nothing. A SIGINT handler of the user is left alone.
    The second Ctrl-C also brings back Python's handler, so none is delayed after it, wherever it interrupts.
    """

    def __init__(self) -> None:
        self.pending = False  # whether there was a Ctrl-C that was not raised yet

    def __enter__(self) -> Self:
        self.pending = False
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._defer)
        return self

    def _defer(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: note the first Ctrl-C, and raise `KeyboardInterrupt` at the second."""
        if self.pending:
            self._stop_deferring()
            self.raise_pending()
        self.pending = True

    def __exit__(self, *exception: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._defer:
            self._stop_deferring()

    def _stop_deferring(self) -> None:
        """Bring back Python's handler."""
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def raise_pending(self) -> None:
        """Raise `KeyboardInterrupt` if a Ctrl-C was delayed and not raised yet."""
        if self.pending:
            self.pending = False
            raise KeyboardInterrupt
