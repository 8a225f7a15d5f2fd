"""`EnvProcess`: an object in a process of its own, whose death, hanging and errors are told by name."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import traceback
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from gymnasium.vector.utils import CloudpickleWrapper

from episodes.errors import EnvironmentLost

__all__ = ["EnvProcess", "close_processes", "kill_processes"]

_LOOK_S = 1.0  # interval at which a silent process is checked
_CLOSING_S = 3.0  # after which processes that are closed are killed

_processes: weakref.WeakSet[EnvProcess] = weakref.WeakSet()  # that were started and not closed


class EnvProcess:
    """An object in a process of its own, with one call at a time: `send` starts a call, `receive` returns its result.

    Replies have the number of their request, so that the reply of a call that was interrupted is dropped. The process
    ends when this one ends, and leaves Ctrl-C to this one.

    Args:
        make: makes the object, in the process.
        label: name of the object in errors.
        timeout_s: seconds after which `receive` kills a process that does not reply. None: it waits.
        extra: argument for `make` that may only be passed to a new process, such as shared memory.

    The result of the first `receive` is None: the object was made.
    """

    def __init__(
        self, make: Callable[..., Any], label: str, timeout_s: float | None = None, extra: tuple[Any, ...] = ()
    ) -> None:
        self._label, self._timeout_s = label, timeout_s
        self._number = 0  # of the newest request
        self._is_torn = False  # a message was interrupted
        self._lost: str | None = None  # why no call is possible any more
        self._owner = os.getpid()
        self._pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(
            target=_serve, args=(CloudpickleWrapper(make), extra, theirs, self._pipe), daemon=True, name=label
        )
        self.process.start()
        theirs.close()
        self._deadline = self._new_deadline()
        _processes.add(self)

    def _new_deadline(self) -> float | None:
        return None if self._timeout_s is None else monotonic() + self._timeout_s

    @property
    def is_torn(self) -> bool:
        """Whether a message was interrupted, by a second Ctrl-C for example."""
        return self._is_torn

    @property
    def is_usable(self) -> bool:
        """Whether calls are possible: the process is not known to be dead, and no message was interrupted."""
        return self._lost is None and not self._is_torn

    def call(self, method: str, *args: object) -> Any:
        """Call a method of the object, and return its result. Errors are those of `receive`."""
        self.send(method, *args)
        return self.receive()

    def send(self, method: str, *args: object) -> None:
        """Start a call of a method. If the process has died, `receive` raises the error."""
        self._number += 1
        self._deadline = self._new_deadline()
        if not self.is_usable:
            return
        self._is_torn = True  # until the message is complete
        try:
            self._pipe.send((self._number, method, args))
        except OSError:
            self._find_out()
        self._is_torn = False

    def receive(self) -> Any:
        """Return the result of the last call.

        Raises:
            EnvironmentLost: the process has died, or was killed because it did not reply.
            Exception: the error that the method has raised, with its traceback as a note.
        """
        if self._is_torn:
            self.kill("a message was interrupted")
        while self._lost is None:
            if self._pipe.poll(self._seconds_to_wait()):
                reply = self._read()
                if reply is None or reply[0] != self._number:
                    continue
                if reply[1]:
                    return reply[2]
                raise reply[2]
            if self.process.exitcode is not None and not self._pipe.poll(0):  # a child of it may hold the pipe open
                self._find_out()
            elif self._deadline is not None and monotonic() >= self._deadline and not self._pipe.poll(0):
                self.kill(f"it did not reply within {self._timeout_s:g} s, and was killed")
        raise EnvironmentLost(f"{self._label}: {self._lost}")

    def _seconds_to_wait(self) -> float:
        """Return for how long to wait for a reply before the process is looked at."""
        return _LOOK_S if self._deadline is None else min(_LOOK_S, max(0.0, self._deadline - monotonic()))

    def _read(self) -> tuple[int, bool, Any] | None:
        """Return the next reply (number, whether the call succeeded, result or error), or None if there is none."""
        self._is_torn = True  # until the message is complete
        try:
            reply = self._pipe.recv()
        except (EOFError, OSError):
            self._find_out()
            reply = None
        self._is_torn = False
        return reply

    def _find_out(self) -> None:
        """Find out how the process has ended."""
        self.process.join(_LOOK_S)
        code = self.process.exitcode
        if code is None:
            self.kill("it has closed its pipe")
        elif code < 0:
            self._lost = f"its process was ended by {signal.Signals(-code).name}"
        else:
            self._lost = f"its process has ended with exit code {code}"

    def kill(self, reason: str = "it was closed") -> None:
        """End the process at once. A stopped process ends too."""
        self._lost, self._is_torn = self._lost or reason, False
        if self._owner == os.getpid():
            self.process.kill()
            self.process.join()
            self._pipe.close()

    def close(self) -> None:
        """Close the object and end its process, within a few seconds."""
        close_processes([self])

    def ask_to_close(self) -> None:
        """Ask the object to close, after the call in progress."""
        if self.is_usable and self._owner == os.getpid():
            self.send("close")


def close_processes(processes: Sequence[EnvProcess]) -> None:
    """Let the objects in the processes close, and kill those that have not done so within a few seconds."""
    try:
        for process in processes:
            process.ask_to_close()
        until = monotonic() + _CLOSING_S
        for process in processes:
            if process.is_usable:
                process.process.join(max(0.0, until - monotonic()))
    finally:
        kill_processes(processes)


def kill_processes(processes: Sequence[EnvProcess]) -> None:
    """End the processes at once."""
    for process in processes:
        process.kill()


@atexit.register
def _kill_all() -> None:
    """Kill the processes before multiprocessing waits for them, which a stopped one would make wait for ever."""
    kill_processes(list(_processes))


# --- in the process ----------------------------------------------------------------------------------------------


def _serve(make: CloudpickleWrapper, extra: tuple[Any, ...], pipe: Connection, parent_pipe: Connection) -> None:
    """Make the object, and execute its calls until it is closed or the other side is gone."""
    parent_pipe.close()
    signal.signal(signal.SIGINT, lambda number, frame: None)  # the other process decides what Ctrl-C ends
    number, served = 0, None
    try:
        served = make.fn(*extra)
        reply: tuple[int, bool, Any] = (number, True, None)
    except Exception as error:
        reply = (number, False, _portable(error))
    while _answered(pipe, reply):
        try:
            number, method, args = pipe.recv()
        except (EOFError, OSError):
            break
        if method == "close":
            break
        try:
            reply = (number, True, getattr(served, method)(*args))
        except Exception as error:
            reply = (number, False, _portable(error))
    if served is not None:
        served.close()


def _answered(pipe: Connection, reply: tuple[int, bool, Any]) -> bool:
    """Send a reply, or the error of one that cannot be pickled. Return False if the other side is gone."""
    try:
        try:
            pipe.send(reply)
        except OSError:
            raise
        except Exception as error:
            pipe.send((reply[0], False, _portable(error)))
    except OSError:
        return False
    return True


def _portable(error: Exception) -> Exception:
    """Return the error with its traceback as a note, or a `RuntimeError` of it if it cannot be pickled."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"In the process of the environment:\n{trace}")
    return error
