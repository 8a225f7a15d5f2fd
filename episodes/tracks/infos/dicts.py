"""Conversion of a list of info dicts to one array (column) per key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from episodes.errors import WrongType
from episodes.tracks import nested
from episodes.tracks.casting import MOST_DIMENSIONS
from episodes.tracks.infos.info_column import WHOLE, TypedColumn, copy_mutable
from episodes.tracks.infos.infos import Infos
from episodes.tracks.levels import DEEPEST, too_deep
from episodes.tracks.stacking import object_array

_PLAIN = (bool, int, float, str)


def infos_of(dicts: Sequence[dict[str, Any]]) -> Infos:
    """Convert a list of info dicts to an immutable sequence that stores one array per key.
    Mutable values are copied.

    Raises:
        ShapeMismatch: an info is nested too deeply.
        WrongType: `dicts` is no sequence of dicts.
    """
    if type(dicts) is not list and isinstance(dicts, Infos):  # `isinstance` is slow for abstract classes like this
        return dicts
    _check_dicts(dicts)
    num = len(dicts)
    if not any(dicts):
        return Infos({}, num)
    columns: dict[str, _Values] = {}
    _collect(dicts, np.arange(num), "", columns, DEEPEST)
    try:
        return Infos({path: values.column(num) for path, values in columns.items()}, num)
    except RecursionError:  # lists, which are copied
        raise too_deep("an info") from None


def _check_dicts(dicts: Sequence[dict[str, Any]]) -> None:
    """Raise `WrongType` unless `dicts` is a sequence of mappings."""
    if isinstance(dicts, (Mapping, str, bytes)) or not hasattr(dicts, "__len__"):
        raise WrongType(
            f"infos is a {type(dicts).__name__}; give a list of dicts, one for each observation, or None for empty ones"
        )
    wrong = next((i for i, info in enumerate(dicts) if type(info) is not dict and not isinstance(info, Mapping)), None)
    if wrong is not None:
        raise WrongType(f"infos[{wrong}] is a {type(dicts[wrong]).__name__}; give a dict for each observation")


@dataclass(slots=True)
class _Values:
    """Values that several info dicts have under one key path, such as "episode/r", with the indices of these dicts."""

    rows: list[np.ndarray] = field(default_factory=list)
    values: list[Sequence[Any]] = field(default_factory=list)
    types: set[type] = field(default_factory=set)

    def add(self, rows: np.ndarray, values: Sequence[Any], types: set[type]) -> None:
        """Add the values that the info dicts with the indices `rows` have under the key path.

        `types` are the types of these values.
        """
        self.rows.append(rows)
        self.values.append(values)
        self.types |= types

    def column(self, num: int) -> TypedColumn:
        """Return the values as one array for `num` info dicts, with a mask if some dicts lack the key."""
        values = self.values[0] if len(self.values) == 1 else list(chain.from_iterable(self.values))
        rows = np.concatenate(self.rows)
        array = as_typed_array(values, self.types)
        plain = array is not None and not self.types.isdisjoint(_PLAIN)
        array = as_object_array(values) if array is None else array
        if len(values) == num:
            return TypedColumn(array if len(self.rows) == 1 else array[np.argsort(rows)], None, plain)
        mask = np.zeros(num, bool)
        mask[rows] = True
        spread = np.zeros((num, *array.shape[1:]), array.dtype) if array.dtype != object else np.full(num, None)
        spread[rows] = array
        return TypedColumn(spread, mask, plain)


def _collect(
    infos: Sequence[dict[str, Any]], rows: np.ndarray, prefix: str, columns: dict[str, _Values], levels: int
) -> None:
    """Add the values of info dicts to `columns`, by key path. `rows` [k] are the indices of these
    dicts in the whole sequence. At most `levels` dicts are in each other."""
    if not levels:
        raise too_deep("an info")
    for keys, members in _by_keys(infos).items():
        chosen, at = (infos, rows) if members is None else ([infos[i] for i in members], rows[members])
        if not keys or not all(type(key) is str for key in keys):
            if keys or prefix:
                columns.setdefault(prefix[:-1] if prefix else WHOLE, _Values()).add(at, chosen, {dict})
            continue
        for key in keys:
            _collect_key(list(map(itemgetter(key), chosen)), at, prefix + nested.escape(key), columns, levels)


def _by_keys(infos: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], list[int] | None]:
    """Group info dicts that have equal keys. Return a dict from keys to the dicts' indices,
    or to None if all have the same keys."""
    signatures = list(map(tuple, infos))
    groups: dict[tuple[Any, ...], list[int] | None] = dict.fromkeys(signatures)
    if len(groups) > 1:
        members: dict[tuple[Any, ...], list[int]] = {signature: [] for signature in groups}
        for i, signature in enumerate(signatures):
            members[signature].append(i)
        return dict(members)
    return groups


def _collect_key(values: list[Any], rows: np.ndarray, path: str, columns: dict[str, _Values], levels: int) -> None:
    """Add the values of one key to `columns`. Values that are dicts are added key by key.

    Args:
        rows: index of the info of each value.
    """
    types = set(map(type, values))
    if dict not in types:
        columns.setdefault(path, _Values()).add(rows, values, types)
        return
    is_dict = np.array([type(value) is dict for value in values])
    _collect([value for value in values if type(value) is dict], rows[is_dict], path + "/", columns, levels - 1)
    if len(types) > 1:
        other_values = [value for value in values if type(value) is not dict]
        columns.setdefault(path, _Values()).add(rows[~is_dict], other_values, types - {dict})


def as_typed_array(values: Sequence[Any], types: set[type]) -> np.ndarray | None:
    """Return a list of values as a typed array, or None if its items would not equal the values, as for mixed types."""
    if len(types) > 1:
        return None
    (kind,) = types
    if kind is str:
        return None if any(value[-1:] == "\0" for value in values) else np.array(values)
    if kind in _PLAIN:
        try:
            return np.fromiter(values, kind, len(values))
        except OverflowError:
            return None
    if kind is np.ndarray:
        first = values[0]
        same = 0 < first.ndim <= MOST_DIMENSIONS and all(
            value.dtype == first.dtype and value.shape == first.shape for value in values
        )
        return np.array(values) if same and first.dtype.kind in "biufcM" else None
    if issubclass(kind, (np.number, np.bool_)) and kind is not np.timedelta64:  # a timedelta's dtype also has a unit
        return np.fromiter(values, kind, len(values))
    return None


def as_object_array(values: Sequence[Any]) -> np.ndarray:
    """Return a list of values as an array of Python objects [k]. Mutable values are copied."""
    return object_array(list(map(copy_mutable, values)))
