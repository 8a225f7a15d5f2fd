"""HTML display of objects in notebooks. The package `episodes.inspect` is imported only when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def notebook_repr(module: str, name: str) -> Callable[[Any], str | None]:
    """Return a method `_repr_html_` for a class: it displays an object by calling `module.name(object)`.

    The method returns None if jinja2 (extra `inspect`) is not installed. A notebook then shows the object's repr.
    """

    def _repr_html_(self: Any) -> str | None:
        """Return the object as HTML for a notebook, or None if jinja2 is not installed."""
        try:
            draw = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name in ("jinja2", "markupsafe"):
                return None
            raise
        return draw(self)

    return _repr_html_
