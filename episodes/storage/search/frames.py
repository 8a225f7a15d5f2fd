"""Conversion of Arrow tables to data frames of pandas and polars."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from episodes.errors import needing

if TYPE_CHECKING:
    import pyarrow as pa


def as_pandas(table: pa.Table) -> Any:
    """Return a `pyarrow.Table` as a `pandas.DataFrame`. Raise `MissingExtra` if pandas is not installed."""
    _needed("pandas")
    return table.to_pandas()


def as_polars(table: pa.Table) -> Any:
    """Return a `pyarrow.Table` as a `polars.DataFrame`. Raise `MissingExtra` if polars is not installed."""
    return _needed("polars").DataFrame(table)


def _needed(name: str) -> Any:
    """Import a package. Raise `MissingExtra` if it is not installed."""
    with needing(f"{name}", f"a table of {name} needs {name}"):
        return import_module(name)
