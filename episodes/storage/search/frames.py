"""Arrow tables as the frames of others."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from episodes.errors import needing


def as_pandas(table: Any) -> Any:
    """A `pyarrow.Table` as a `pandas.DataFrame`. `MissingExtra` without pandas."""
    _needed("pandas")
    return table.to_pandas()


def as_polars(table: Any) -> Any:
    """A `pyarrow.Table` as a `polars.DataFrame`. `MissingExtra` without polars."""
    return _needed("polars").DataFrame(table)


def _needed(name: str) -> Any:
    with needing(f"{name}", f"a table of {name} needs {name}"):
        return import_module(name)
