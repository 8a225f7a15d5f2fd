"""Whether what draws are asked for makes sense, and errors that say what does."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.errors import InvalidArgument


def check_counts(least: int = 1, **counts: Any) -> None:
    """Raise `InvalidArgument` unless these are ints, and large enough."""
    are_ints = all(map(is_int, counts.values()))
    if not are_ints or min(counts.values()) < least:
        given = ", ".join(f"{name}={count!r}" for name, count in counts.items())
        raise InvalidArgument(f"{given}: give " + (f"at least {least}" if are_ints else "an int for each"))


def check_n_step(n_step: Any) -> None:
    """Raise `InvalidArgument` unless this is a number of steps, or the least and the most of them."""
    if type(n_step) is int and n_step >= 1:
        return
    bounds = n_step if isinstance(n_step, tuple) else (n_step, n_step)
    if len(bounds) != 2 or not all(map(is_int, bounds)) or not 1 <= bounds[0] <= bounds[1]:
        raise InvalidArgument(
            f"n_step={n_step!r}: give at least 1, or the bounds (least, most) of random ones, both included"
        )


def check_boundary(boundary: str, period: int | None) -> None:
    """Raise `InvalidArgument` unless sequences may stop like this."""
    if boundary not in ("pad", "stop"):
        raise InvalidArgument(f"boundary={boundary!r}: give 'pad' or 'stop'")
    if period is not None:
        check_counts(period=period)
    if boundary == "stop" and period is not None:
        raise InvalidArgument("boundary='stop' moves sequences off the grid of a period; give one of both")


def is_int(value: Any) -> bool:
    """Whether this is a whole number, and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
