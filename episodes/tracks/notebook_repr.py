"""HTML display of objects in notebooks, which imports the package `episodes.inspect` only
when an object is displayed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def notebook_repr(module: str, name: str) -> Callable[[Any], str | None]:
    """Return a `_repr_html_` method for a class, by which notebooks display objects.
    It calls the function `name` of the module `module`.

    The method returns None if jinja2 (extra `inspect`) or the package `episodes.inspect` is not installed. A notebook
    then shows the object's repr.
    """

    def _repr_html_(self: Any) -> str | None:
        """Return the HTML that a notebook displays for this object, or None if it cannot be drawn."""
        try:
            draw = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name in ("jinja2", "markupsafe", "episodes.inspect"):
                return None
            raise
        return draw(self)

    return _repr_html_
