"""Deprecated names: they work, warn with the caller's line, and are gone in the version that they name."""

from __future__ import annotations

import importlib
import inspect

import pytest
from packaging.version import Version

from episodes import __version__
from episodes.deprecation import deprecated
from tests import code_rules


class _Old:
    @deprecated("_Old.new", "9.0")
    def old(self, x: int, *, y: int = 1) -> int:
        """Return a sum."""
        return x + y

    @classmethod
    @deprecated("_Old", "9.0")
    def make(cls) -> _Old:
        return cls()


def test_deprecated_method_works_and_warns_where_it_is_called() -> None:
    with pytest.warns(DeprecationWarning, match=r"_Old.old is deprecated .* version 9.0; use _Old.new") as caught:
        assert _Old().old(2, y=3) == 5
    assert caught[0].filename == __file__
    assert str(inspect.signature(_Old.old)) == "(self, x: 'int', *, y: 'int' = 1) -> 'int'"
    assert _Old.old.__doc__ == "Return a sum."
    with pytest.warns(DeprecationWarning, match=r"_Old.make"):
        assert isinstance(_Old.make(), _Old)


def test_no_deprecated_name_outlives_its_version() -> None:
    for path in code_rules.public_names():
        package, _, name = path.rpartition(".")
        value = getattr(importlib.import_module(package), name)
        for part in [value, *(vars(value).values() if inspect.isclass(value) else ())]:
            text = getattr(part, "__deprecated__", None)
            if isinstance(text, str) and "removed in version " in text:
                removed_in = text.partition("removed in version ")[2].partition(";")[0]
                assert Version(__version__) < Version(removed_in), path
