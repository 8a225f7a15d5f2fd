"""Decorator that makes methods of a replay buffer thread-safe."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Buffer = TypeVar("_Buffer", bound=Any)
_Result = TypeVar("_Result")


def locked(
    method: Callable[Concatenate[_Buffer, _Parameters], _Result],
) -> Callable[Concatenate[_Buffer, _Parameters], _Result]:
    """Decorate a method of a replay buffer, so that it holds the buffer's `lock` while it runs."""

    @wraps(method)
    def alone(self: _Buffer, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        """Call the method while the buffer's lock is held."""
        with self.lock:
            return method(self, *args, **kwargs)

    return alone
