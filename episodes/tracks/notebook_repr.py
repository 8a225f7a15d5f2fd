"""How an object comes by its `_repr_html_` without knowing of drawings, which lie above all that is drawn."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def notebook_repr(module: str, name: str) -> Callable[[Any], str | None]:
    """A `_repr_html_`: what `module.name(object)` gives. The module is imported when a notebook asks.

    None without jinja2 (extra `inspect`): the notebook then shows the object's repr.
    """

    def _repr_html_(self: Any) -> str | None:
        """The object as HTML for a notebook; None where jinja2 is not installed."""
        try:
            draw = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name in ("jinja2", "markupsafe"):
                return None
            raise
        return draw(self)

    return _repr_html_
