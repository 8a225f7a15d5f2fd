"""One at a time: what reads or writes a buffer holds its lock, so that a thread may add while others draw."""

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
    """The method, called with the buffer's `lock` held."""

    @wraps(method)
    def alone(self: _Buffer, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with self.lock:
            return method(self, *args, **kwargs)

    return alone
