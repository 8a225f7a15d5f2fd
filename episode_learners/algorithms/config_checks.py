"""Check of the numbers in configurations, such as hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from episodes.errors import InvalidArgument

__all__ = ["check_numbers"]


def check_numbers(
    numbers: Any,
    *,
    counts: Iterable[str] = (),
    positive: Iterable[str] = (),
    fractions: Iterable[str] = (),
    not_negative: Iterable[str] = (),
    whole: Iterable[str] = (),
    flags: Iterable[str] = (),
) -> None:
    """Raise `InvalidArgument` if a field of a configuration has a value that its kind does not allow, such as a count
    of 0. The value None is accepted for all kinds but flags.

    Args:
        numbers: the configuration object.
        counts: names of fields that must be ints of at least 1.
        positive: names of fields that must be finite numbers above 0.
        fractions: names of fields that must be numbers from 0 to 1.
        not_negative: names of fields that must be finite numbers of at least 0.
        whole: names of fields that must be ints of at least 0.
        flags: names of fields that must be bools.

    Raises:
        InvalidArgument: a field has a value that is not allowed.
    """
    rules = (
        (counts, "an int of at least 1", lambda value: isinstance(value, int) and value >= 1),
        (positive, "a finite number above 0", lambda value: value > 0),
        (fractions, "in 0..1", lambda value: 0 <= value <= 1),
        (not_negative, "a finite number of at least 0", lambda value: value >= 0),
        (whole, "an int of at least 0", lambda value: isinstance(value, int) and value >= 0),
    )
    for name in flags:
        if not isinstance(getattr(numbers, name), bool):
            raise InvalidArgument(f"{type(numbers).__name__}: {name} is {getattr(numbers, name)!r}; it must be a bool")
    for names, rule, holds in rules:
        for name in names:
            value = getattr(numbers, name)
            if value is not None and not (_is_number(value) and holds(value)):
                raise InvalidArgument(f"{type(numbers).__name__}: {name} is {value!r}; it must be {rule}")


def _is_number(value: Any) -> bool:
    """Return True if a value is a finite int or float. A bool is not a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
