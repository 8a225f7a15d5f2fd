"""Environments that a runner makes itself, and that are closed when the runner is garbage-collected without a call of
`close`.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from gymnasium.vector import AsyncVectorEnv

from episode_runners.async_envs import kill_async_env
from episode_runners.process_envs import ProcessVectorEnv

if TYPE_CHECKING:
    from episode_runners.runner import EnvRunner


def makes_envs(env: object) -> TypeGuard[Callable[[], Any]]:
    """Return True if `env` is a class or function that makes environments, False if it is an environment."""
    return isinstance(env, type) or (callable(env) and not hasattr(env, "step"))


def close_when_dropped(runner: EnvRunner, envs: Sequence[Any]) -> Callable[[], Any]:
    """Register environments to be closed when their runner is garbage-collected or the process ends.

    Environments that run in separate processes are terminated with a `ResourceWarning`, without waiting for pending
    steps.

    Args:
        runner: the runner that created the environments.
        envs: the environments. They must not refer to the runner.

    Returns:
        A function without arguments that cancels the registration. Call it after the environments were closed.
    """
    return weakref.finalize(runner, _close_dropped, envs, type(runner).__name__, os.getpid()).detach


def _close_dropped(envs: Sequence[Any], name: str, process: int) -> None:
    """Close the environments of a garbage-collected runner of class `name`, if this process has the id `process`.

    Environments in other processes are terminated with a `ResourceWarning`. Errors become warnings.
    """
    if os.getpid() != process:  # a forked child does not own the environments
        return
    for env in envs:
        inner = getattr(env, "unwrapped", env)
        try:
            if isinstance(inner, (AsyncVectorEnv, ProcessVectorEnv)):
                if not inner.closed:
                    inner.terminate() if isinstance(inner, ProcessVectorEnv) else kill_async_env(inner)
                    warnings.warn(
                        f"a {name} with environments in {inner.num_envs} processes was dropped without close(); the "
                        "processes are terminated now",
                        ResourceWarning,
                        stacklevel=2,
                    )
            elif hasattr(env, "close"):
                env.close()
        except ResourceWarning:
            raise
        except Exception as error:
            warnings.warn(
                f"an environment of a dropped {name} failed to close: {error!r}", ResourceWarning, stacklevel=2
            )
