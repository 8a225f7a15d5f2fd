"""How a check tells that a part breaks its contract: whose, what was expected, what was found, where."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.errors import ContractViolation
from episodes.tracks import nested


def violation(whose: str, expected: str, found: str, advice: str = "", **where: Any) -> ContractViolation:
    """The error to raise for a part that breaks its contract.

    Args:
        whose: the part, as its user calls it.
        advice: what to do about it, where that can be said.
        where: names and numbers that lead to the place; those that are None are left out.

    >>> print(violation("Scaled", "finite obs", "NaN", "clip what you divide by", step=5, environment=1))
    Scaled (step 5, environment 1): expected finite obs, found NaN; clip what you divide by
    """
    place = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in where.items() if value is not None)
    told = f"{whose} ({place})" if place else whose
    return ContractViolation(f"{told}: expected {expected}, found {found}" + (f"; {advice}" if advice else ""))


def brief(value: Any) -> str:
    """A nested value in a few words, for the "found" of a violation.

    >>> brief({"a": np.zeros((2, 3)), "b": (1, None)})
    "{'a': float64 [2, 3], 'b': (1, None)}"
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {brief(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(brief, value))})"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {np.array2string(value)}" if value.ndim == 0 else f"{value.dtype} {list(value.shape)}"
    told = repr(value)
    return told if len(told) <= 80 else f"{told[:77]}..."


def differing_leaf(a: Any, b: Any) -> str | None:
    """The path of the first leaf at which two nested values differ ("" for the values themselves), None if equal."""
    if nested.equal(a, b):
        return None
    if not nested.same_structure(a, b):
        return ""
    pairs = zip(nested.flatten(a).items(), nested.flatten(b).values(), strict=True)
    return next(path for (path, one), other in pairs if not nested.equal(one, other))
