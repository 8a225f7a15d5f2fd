"""`ContractViolation` errors of checks: what was expected, what was found, where, and advice."""

from __future__ import annotations

import numpy as np

from episodes.errors import ContractViolation
from episodes.tracks import nested


def violation(
    subject: str, expected: str, actual: str, advice: str = "", **place_of_fault: object
) -> ContractViolation:
    """Create a `ContractViolation` whose message contains the expectation, the actual value and advice.

    Args:
        subject: name of the object.
        expected: what was expected.
        actual: what was found.
        advice: what to do about it, if known.
        place_of_fault: names and numbers that describe the place; None is left out.

    >>> print(violation("Scaled", "finite obs", "NaN", "clip what you divide by", step=5, environment=1))
    Scaled (step 5, environment 1): expected finite obs, found NaN; clip what you divide by
    """
    place = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in place_of_fault.items() if value is not None
    )
    text = f"{subject} ({place})" if place else subject
    return ContractViolation(f"{text}: expected {expected}, found {actual}" + (f"; {advice}" if advice else ""))


def brief(value: object) -> str:
    """Return a short text that describes a nested value, for messages of `violation`.

    >>> brief({"a": np.zeros((2, 3)), "b": (1, None)})
    "{'a': float64 [2, 3], 'b': (1, None)}"
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {brief(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(brief, value))})"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {np.array2string(value)}" if value.ndim == 0 else f"{value.dtype} {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def differing_leaf(a: object, b: object) -> str | None:
    """Return the path of the first array in which two nested values differ, or None if they are equal.

    The path is "" if the values differ in structure.
    """
    if nested.equal(a, b):
        return None
    if not nested.same_structure(a, b):
        return ""
    pairs = zip(nested.flatten(a).items(), nested.flatten(b).values(), strict=True)
    return next(path for (path, leaf_path), leaf in pairs if not nested.equal(leaf_path, leaf))
