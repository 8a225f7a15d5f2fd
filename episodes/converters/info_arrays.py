"""Conversion of info dicts to arrays, one array [T + 1, ...] per key, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_ODD = ("", ".", "..")  # keys with another meaning in HDF5


def info_arrays(infos: Sequence[dict[Any, Any]], lost: Callable[[str], None], prefix: str = "") -> dict[str, Any]:
    """Convert info dicts to a nested dict of arrays. Keys that some dicts lack, or of mixed types, are left out.

    Args:
        infos: the infos, dicts of numbers, bools, str, arrays and nested dicts.
        lost: called with the path of each other key.
        prefix: the path of the infos themselves.
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
    """Stack values to one array, or return a list of str unchanged. Returns None if types or shapes differ."""
    kind = type(values[0])
    if any(type(value) is not kind for value in values):
        return None
    if kind is str:
        return None if any("\0" in value or not _is_utf8(value) for value in values) else values
    if not isinstance(values[0], (bool, int, float, np.generic, np.ndarray)):
        return None
    arrays = [np.asarray(value) for value in values]
    first = arrays[0]
    if kind is int and first.dtype != np.int64:  # ints of more than 63 bits
        return None
    if first.dtype.kind not in "biuf" or any((a.dtype, a.shape) != (first.dtype, first.shape) for a in arrays):
        return None
    return np.stack(arrays)


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def infos_from(arrays: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Convert nested arrays back to `count` info dicts. An array with fewer items fills the last dicts only.

    Scalars of float64, int64 and bool become Python's own.
    """
    infos: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, array in arrays.items():
        items = infos_from(array, count) if isinstance(array, dict) else [_plain(item) for item in array]
        for info, item in zip(reversed(infos), reversed(items), strict=False):
            if not isinstance(item, dict) or item:  # not a dict without any of its keys
                info[key] = item
    return infos


def _plain(item: Any) -> Any:
    """Return text for bytes, a Python number for a numpy float64, int64 or bool, and any other value unchanged."""
    if isinstance(item, bytes):
        return item.decode()
    return item.item() if type(item) in (np.float64, np.int64, np.bool_) else item
