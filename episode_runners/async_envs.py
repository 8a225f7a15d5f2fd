"""Gymnasium's `AsyncVectorEnv`: what has happened to its processes, and closing that always returns."""

from __future__ import annotations

import signal
import warnings
from contextlib import suppress
from threading import Timer
from typing import Any

from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AsyncVectorEnv

from episodes.errors import EnvironmentLost

__all__ = ["close_async_env", "kill_async_env", "raise_if_died"]

_CLOSING_S = 3.0  # after which processes are killed
_REAPING_S = 1.0  # within which a process that has closed its pipe ends


def raise_if_died(env: AsyncVectorEnv, error: BaseException) -> None:
    """Raise `EnvironmentLost` if a process of the environment has died, or was given up after an error.

    Args:
        env: the environment.
        error: what the environment raised.
    """
    if not isinstance(error, (EOFError, OSError, AttributeError, AlreadyPendingCallError)):
        return
    for index, (process, pipe) in enumerate(zip(env.processes, env.parent_pipes, strict=True)):
        if pipe is None:
            reason = "Gymnasium has given it up after its error"
        else:
            if isinstance(error, (EOFError, OSError)):
                process.join(_REAPING_S / env.num_envs)
            code = process.exitcode
            if code is None:
                continue
            ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
            reason = f"its process {ended}"
        raise EnvironmentLost(
            f"environment {index}: {reason}; make a new runner, or give it a callable with vectorization='async' and "
            "restart_failed=True"
        ) from error


def close_async_env(env: Any) -> None:
    """Close the environment, which may have wrappers. Kill its processes if that fails or takes long."""
    inner: AsyncVectorEnv = env.unwrapped
    timer = Timer(_CLOSING_S, _kill, [inner])
    timer.daemon = True
    timer.start()
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # about a pending call
            env.close()
    except (AttributeError, EOFError, OSError):  # a process died before, or was killed by the timer
        pass
    finally:
        timer.cancel()
        kill_async_env(inner)


def kill_async_env(env: AsyncVectorEnv) -> None:
    """End the processes of the environment at once. Its `close` does nothing afterwards."""
    _kill(env)
    for process in env.processes:
        process.join()
    for pipe in env.parent_pipes:
        if pipe is not None:
            pipe.close()
    env.closed = True


def _kill(env: AsyncVectorEnv) -> None:
    for process in env.processes:
        with suppress(ValueError):  # it was closed
            process.kill()
