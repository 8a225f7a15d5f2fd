"""Checks of connectors, views and policies that you write, against the rules that pipelines rely on.

Each check takes one part and returns None, or raises a `ContractViolation` with the part, the expected and the actual
value, and the place.
"""

from __future__ import annotations

from connectors.testing.connectors import check_connector
from connectors.testing.policies import check_policy
from connectors.testing.views import check_view

__all__ = ["check_connector", "check_policy", "check_view"]
