"""Checks for users' own environments, and Hypothesis strategies that generate episodes for tests.

Each check takes one object and returns None, or raises a `ContractViolation` that names the object, what was expected,
what was found, and the place.
"""

from __future__ import annotations

from episodes.testing.environments import check_vector_env

__all__ = ["check_vector_env"]
