"""`deprecated`: decorator of public names that a later version removes, see docs/stability.md."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def deprecated(replacement: str, removed_in: str) -> Callable[[Function], Function]:
    """Return a decorator that makes a function or method warn at each call.

    Args:
        replacement: what to call instead.
        removed_in: version that removes the name.

    Warns:
        DeprecationWarning: the function is called. The warning points to the caller.

    >>> @deprecated("twice", "2.0")
    ... def double(x):
    ...     return 2 * x
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     double(2)
    4
    >>> print(caught[0].message)
    double is deprecated and will be removed in version 2.0; use twice
    """

    def decorate(function: Function) -> Function:
        text = f"{function.__qualname__} is deprecated and will be removed in version {removed_in}; use {replacement}"

        @functools.wraps(function)
        def warn_and_call(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        warn_and_call.__deprecated__ = text  # type: ignore[attr-defined]  # read by type checkers and by tests
        return warn_and_call  # type: ignore[return-value]

    return decorate
