"""Infos as arrays [T + 1, ...] by key, for formats that hold infos so, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_ODD = ("", ".", "..")  # keys that HDF5 understands otherwise


def info_arrays(infos: Sequence[dict[Any, Any]], lost: Callable[[str], None], prefix: str = "") -> dict[str, Any]:
    """Nested arrays (lists of str) of what every info has, of one type and shape; `lost` is told the path of the rest.

    Numbers and arrays of numbers, bools and str are kept.
    """
    arrays: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in infos for key in info):
        path = f"{prefix}[{key!r}]"
        values = [info[key] for info in infos if key in info]
        is_named = isinstance(key, str) and key not in _ODD and not set("/\0") & set(key)
        if not is_named or len(values) < len(infos):
            lost(path)
        elif all(isinstance(value, dict) for value in values):
            inner = info_arrays(values, lost, path)
            if inner:
                arrays[key] = inner
            elif not any(values):
                lost(path)
        else:
            array = _array_of(values)
            if array is None:
                lost(path)
            else:
                arrays[key] = array
    return arrays


def _array_of(values: list[Any]) -> Any:
    """The values as one array, or as they are where they are str; None unless they are of one type and shape."""
    kind = type(values[0])
    if any(type(value) is not kind for value in values):
        return None
    if kind is str:
        return None if any("\0" in value or not _is_utf8(value) for value in values) else values
    if not isinstance(values[0], (bool, int, float, np.generic, np.ndarray)):
        return None
    arrays = [np.asarray(value) for value in values]
    first = arrays[0]
    if kind is int and first.dtype != np.int64:  # of more than 63 bits
        return None
    if first.dtype.kind not in "biuf" or any((a.dtype, a.shape) != (first.dtype, first.shape) for a in arrays):
        return None
    return np.stack(arrays)


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def infos_from(arrays: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """So many infos, of the last items of nested arrays; float64, int64 and bool scalars as Python's own."""
    infos: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, array in arrays.items():
        items = infos_from(array, count) if isinstance(array, dict) else [_plain(item) for item in array]
        for info, item in zip(reversed(infos), reversed(items), strict=False):
            info[key] = item
    return infos


def _plain(item: Any) -> Any:
    if isinstance(item, bytes):
        return item.decode()
    return item.item() if type(item) in (np.float64, np.int64, np.bool_) else item
