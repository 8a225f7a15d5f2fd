"""Interruption of calls: an error at the n-th bytecode instruction of chosen packages of the library."""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any


class Breaking:
    """Trace function that raises at the n-th instruction in the packages `rooms`, and again after `later` instructions.

    Args:
        rooms: parts of the paths of their files.
        where_signals_come: count only instructions before which Python lets the handler of a signal run: at the start
            of a function, after each call of what is not written in Python, and where a loop goes round.
    """

    def __init__(
        self,
        error: type[BaseException],
        at: int,
        *later: int,
        rooms: tuple[str, ...] = ("/episodes/replay/",),
        where_signals_come: bool = False,
    ) -> None:
        self.error, self.left, self.later = error, at, list(later)
        self.rooms, self.where_signals_come = rooms, where_signals_come
        self.num_seen = 0
        self.returned = False  # a function of the rooms has just returned

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        if "/tests/" in name or not any(room in name for room in self.rooms):
            return None
        if frame.f_code.co_name == "__del__":  # Python drops an error there: it interrupts nothing
            return None
        frame.f_trace = self.instruction  # else Python 3.13 reports no instruction of the first run of a function
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.instruction

    def instruction(self, frame: FrameType, event: str, arg: Any) -> Any:
        returned, self.returned = self.returned, event == "return"
        if event == "opcode" and (
            not self.where_signals_come or (not returned and frame.f_lasti in _open_to_signals(frame.f_code))
        ):
            self.num_seen += 1
            self.left -= 1
            if self.left == 0:
                self.left = self.later.pop(0) if self.later else -1
                self.interrupt()
        return self.instruction

    def interrupt(self) -> None:
        """Raise the error. A `KeyboardInterrupt` comes from the handler of Ctrl-C, which may delay the first."""
        if self.error is KeyboardInterrupt and self.where_signals_come:
            handler = signal.getsignal(signal.SIGINT)
            assert callable(handler)
            handler(signal.SIGINT, None)
            handler(signal.SIGINT, None)
        raise self.error

    def run(self, work: Callable[[], Any]) -> bool:
        """Run `work`, and return True if the error interrupted the work."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            work()
        except self.error:
            return True
        finally:
            sys.settrace(before)
        return False


@cache
def _open_to_signals(code: CodeType) -> frozenset[int]:
    """Return the offsets of instructions before which Python runs signal handlers: after calls, at starts of loops."""
    offsets, after_call = set(), True
    for instruction in dis.get_instructions(code):
        if after_call:
            offsets.add(instruction.offset)
        after_call = instruction.opname.startswith("CALL") or instruction.opname == "RESUME"
        if "BACKWARD" in instruction.opname and isinstance(instruction.argval, int):
            offsets.add(instruction.argval)
    return frozenset(offsets)
