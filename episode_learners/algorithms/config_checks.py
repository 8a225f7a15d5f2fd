"""Fields of configurations with a rule for their values, such as `count(8)`, and the check of the rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass
from typing import Any

from episodes.errors import InvalidArgument

__all__ = ["check_fields", "choice", "count", "flag", "fraction", "not_negative", "positive", "whole"]

_RULE = "episode_learners.rule"  # key in the metadata of a field, which also belong to users


def check_fields(config: object) -> None:
    """Raise `InvalidArgument` if a field of a configuration has a value that its rule does not allow, such as a count
    of 0. The value None is accepted by all rules but `flag` and `choice`.

    A subclass that changes the default of a field keeps the rule of its base class.
    """
    for kind in filter(is_dataclass, type(config).__mro__):
        for declared in fields(kind):
            expected, holds = declared.metadata.get(_RULE, ("", None))
            value = getattr(config, declared.name)
            if holds is not None and not holds(value):
                raise InvalidArgument(f"{type(config).__name__}: {declared.name} is {value!r}; it must be {expected}")


def count(default: int | None) -> Any:
    """Return a field for ints of at least 1."""
    return _number(default, "an int of at least 1", lambda value: isinstance(value, int) and value >= 1)


def whole(default: int | None) -> Any:
    """Return a field for ints of at least 0."""
    return _number(default, "an int of at least 0", lambda value: isinstance(value, int) and value >= 0)


def positive(default: float | None) -> Any:
    """Return a field for finite numbers above 0."""
    return _number(default, "a finite number above 0", lambda value: value > 0)


def not_negative(default: float | None) -> Any:
    """Return a field for finite numbers of at least 0."""
    return _number(default, "a finite number of at least 0", lambda value: value >= 0)


def fraction(default: float | None) -> Any:
    """Return a field for numbers from 0 to 1."""
    return _number(default, "in 0..1", lambda value: 0 <= value <= 1)


def flag(default: bool) -> Any:
    """Return a field for bools."""
    return _field(default, "a bool", lambda value: isinstance(value, bool))


def choice(default: str | None, *others: str | None) -> Any:
    """Return a field for one of the values `default` and `others`."""
    choices = (default, *others)
    expected = f"one of {', '.join(map(repr, choices))}"
    return _field(default, expected, lambda value: isinstance(value, str | None) and value in choices)


def _number(default: object, expected: str, holds: Callable[[Any], bool]) -> Any:
    """Return a field for None and for finite ints and floats, no bools, for which `holds` returns True."""

    def holds_for(value: object) -> bool:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return value is None or (is_number and holds(value))

    return _field(default, expected, holds_for)


def _field(default: object, expected: str, holds: Callable[[Any], bool]) -> Any:
    """Return a dataclass field with a rule: a function that returns whether a value is allowed, and the allowed values
    as text for errors.
    """
    return field(default=default, metadata={_RULE: (expected, holds)})
