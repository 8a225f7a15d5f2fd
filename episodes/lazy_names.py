"""Lazy imports of a package's public names, each at its first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that import a public name when it is first used.

    Submodules are attributes of the package too, as if they were imported.

    Args:
        package: name of the package.
        homes: the module that defines each name.
    """
    members = vars(sys.modules[package])

    def get_attribute(name: str) -> Any:
        """Import and return a public name or a submodule of the package. A public name is then stored in the
        package.

        Raises:
            AttributeError: there is no such name or submodule.
        """
        if name in homes:
            members[name] = value = getattr(import_module(homes[name]), name)
            return value
        if not name.startswith("_") and find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get_attribute, lambda: sorted({*members, *members["__all__"]})
