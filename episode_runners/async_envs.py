"""Gymnasium's `AsyncVectorEnv`: casts of its shared memory, what has happened to its processes, and closing that always
returns.
"""

from __future__ import annotations

import signal
import warnings
from contextlib import suppress
from threading import Timer
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AsyncVectorEnv

from episodes.errors import EnvironmentLost, ShapeMismatch
from episodes.tracks.fitting import check_fits
from episodes.tracks.spaces import elementary_spaces

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

__all__ = ["check_is_not_cast", "close_async_env", "kill_async_env", "raise_if_died"]

_CLOSING_S = 3.0  # after which processes are killed
_REAPING_S = 1.0  # within which a process that has closed its pipe ends


def check_is_not_cast(env: VectorEnv) -> None:
    """Raise `ShapeMismatch` if Gymnasium's shared memory casts observations of an `AsyncVectorEnv` with loss.

    The cast takes place before anybody sees the values: floats from 0 to 1 in a space of uint8 become black images. So
    one more environment is made by `env_fns[0]`, reset, stepped once and closed. This is left out if the space has only
    floats, without shared memory, and with a `worker` of the user.

    Args:
        env: a vector environment of any kind, which may have wrappers.
    """
    inner = env.unwrapped
    if not isinstance(inner, AsyncVectorEnv) or not inner.shared_memory or inner.worker is not None:
        return
    space = inner.single_observation_space
    if not _has_whole_numbers(space):
        return
    try:
        tried = inner.env_fns[0]()
        try:
            observations = [tried.reset()[0], tried.step(tried.action_space.sample())[0]]
        finally:
            tried.close()
    except Exception as error:  # code of the user, which may need a process of its own
        warnings.warn(
            f"{env}: it is unknown whether its shared memory casts observations with loss, since an environment could "
            f"not be tried: {type(error).__name__}: {error}; give a callable with vectorization='async', which checks "
            "each observation",
            UserWarning,
            stacklevel=2,
        )
        return
    for observation in observations:
        try:
            check_fits(observation, space, lambda: str(env), "observations")
        except ShapeMismatch as error:
            raise ShapeMismatch(f"{error}: Gymnasium's shared memory would cast them with loss") from None


def _has_whole_numbers(space: gym.Space) -> bool:
    """Return True if items of a space contain integers or flags."""
    return any(part.dtype is not None and part.dtype.kind != "f" for _, part in elementary_spaces(space))


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
