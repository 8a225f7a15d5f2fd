"""`locked`: a decorator for methods that hold the buffer's lock, so that one thread may add while others sample."""

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
    """Return the method, wrapped so that it holds the buffer's `lock`."""

    @wraps(method)
    def alone(self: _Buffer, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with self.lock:
            return method(self, *args, **kwargs)

    return alone
