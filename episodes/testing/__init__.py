"""Checks that users run on their own parts, and `strategies` that draw what a part may meet.

Each check takes one part and returns None, or raises a `ContractViolation` that says whose part it is, what was
expected, what was found, and where.
"""

from __future__ import annotations

from episodes.errors import ContractViolation
from episodes.testing.environments import check_vector_env

__all__ = ["check_vector_env", "ContractViolation"]
