"""Concatenation of the infos of several episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import is_not
from typing import Any, TypeGuard

import numpy as np

from episodes.tracks.indexing import ranges
from episodes.tracks.infos.dicts import as_object_array
from episodes.tracks.infos.info_column import Column, TypedColumn
from episodes.tracks.infos.infos import Infos
from episodes.tracks.infos.joined_column import joined_column

_LONG = 100  # mean rows of a part above which copying parts is faster than gathering rows


def joined_infos(parts: Sequence[Infos]) -> Infos:
    """Concatenate the infos of several episodes to one sequence, key by key."""
    if len(parts) == 1:
        return parts[0]
    num = sum([part.num for part in parts])
    some = [part for part in parts if part.columns and part.num]
    if not some:
        return Infos({}, num)
    first = some[0]
    if sum([part.num for part in some]) == num:
        columns = _join_slices(some, num) or _join_equal_columns(some)
        if columns is not None:
            return Infos(columns, num, first.start if columns is first.columns else 0, first.keys)
    paths = dict.fromkeys(path for part in some for path in part.columns)
    places = _places(parts)
    return Infos({path: _joined(path, places, num) for path in paths}, num)


def _join_slices(parts: list[Infos], num: int) -> dict[str, Column] | None:
    """Return the columns of the joined infos if all parts are slices of the same sequence,
    whose arrays need not be concatenated.

    Returns:
        The columns by key path, or None if the parts come from different sequences or are long numeric slices.
    """
    first = parts[0]
    if any(part.columns is not first.columns for part in parts):
        return None
    if all(after.start == part.start + part.num for part, after in pairwise(parts)):
        return first.columns
    if num >= _LONG * len(parts) and not first.holds_objects:
        return None
    rows = ranges(np.array([part.start for part in parts]), np.array([part.num for part in parts]))
    return {path: column.take(rows) for path, column in first.columns.items()}


def _join_equal_columns(parts: list[Infos]) -> dict[str, Column] | None:
    """Concatenate infos key by key, and return the columns by key path, or None if keys or
    dtypes of the parts differ."""
    tables = list({id(part.columns): part.columns for part in parts}.values())  # views of one pack share their columns
    paths = list(tables[0])
    if any(list(table) != paths for table in tables):
        return None
    if not all(map(_have_one_kind, zip(*[table.values() for table in tables], strict=True))):
        return None
    spans = [slice(part.start, part.start + part.num) for part in parts]
    joined: dict[str, Column] = {}
    mask, masks = None, [None] * len(parts)  # of the previous column
    for path in paths:
        columns: list[Any] = [part.columns[path] for part in parts]
        column_masks = [column.mask for column in columns]
        if any(map(is_not, column_masks, masks)):
            mask, masks = _masks_joined(column_masks, spans), column_masks
        joined[path] = joined_column(_values_of(columns, spans), mask, columns[0].plain)
    return joined


def _values_of(columns: Sequence[TypedColumn], spans: Sequence[slice]) -> list[np.ndarray]:
    """Return the values of one info key as a list of arrays, given the key's column and the
    index range for each part."""
    parts: list[np.ndarray] = []
    for column, span in zip(columns, spans, strict=True):
        parts += column.parts if span.stop - span.start == column.num else (column.values[span],)
    return parts


def _masks_joined(masks: list[np.ndarray | None], spans: list[slice]) -> np.ndarray | None:
    """Concatenate the masks of an info key in several episodes. Return None if no episode has a mask."""
    if all(mask is None for mask in masks):
        return None
    mask_of_part = zip(masks, spans, strict=True)
    return np.concatenate([np.ones(s.stop - s.start, bool) if mask is None else mask[s] for mask, s in mask_of_part])


@dataclass(slots=True)
class _Place:
    """Part of a concatenation of infos: the part's columns, its index range in these columns,
    and its index range in the result."""

    rows: slice  # rows of the result
    span: slice  # rows of the part's columns
    columns: dict[str, Column]


def _places(parts: Sequence[Infos]) -> list[_Place]:
    """Return a `_Place` for each part with stored columns: its rows in the part and in the concatenated infos."""
    places, at = [], 0
    for part in parts:
        if part.columns and part.num:
            places.append(_Place(slice(at, at + part.num), slice(part.start, part.start + part.num), part.columns))
        at += len(part)
    return places


def _joined(path: str, places: list[_Place], num: int) -> Column:
    """Concatenate the values of one info key to a column for all `num` infos. Parts without the key are masked."""
    parts = [(place, place.columns[path]) for place in places if path in place.columns]
    columns = [column for _, column in parts]
    if not _have_one_kind(columns):
        return _joined_objects(parts, num)
    plain, everywhere = columns[0].plain, sum(place.span.stop - place.span.start for place, _ in parts) == num
    mask = None if everywhere and all(column.mask is None for column in columns) else _joined_mask(parts, num)
    if everywhere:
        return joined_column(_values_of(columns, [place.span for place, _ in parts]), mask, plain)
    spans = [column.values[place.span] for (place, _), column in zip(parts, columns, strict=True)]
    values = np.zeros((num, *spans[0].shape[1:]), np.result_type(*{span.dtype for span in spans}))
    for (place, _), span in zip(parts, spans, strict=True):
        values[place.rows] = span
    return TypedColumn(values, mask, plain)


def _have_one_kind(columns: Sequence[Column]) -> TypeGuard[Sequence[TypedColumn]]:
    """Return True if the values of all columns can be concatenated to one typed array, of numbers or of strings.

    Strings count as one kind, though each length is a dtype.
    """
    first = columns[0]
    if not isinstance(first, TypedColumn) or first.holds_objects:
        return False
    dtype, shape, plain = first.parts[0].dtype, first.parts[0].shape[1:], first.plain
    for column in columns:
        if not isinstance(column, TypedColumn) or column.plain is not plain:
            return False
        part = column.parts[0]
        if part.shape[1:] != shape:
            return False
        part_dtype = part.dtype
        if part_dtype != dtype and not part_dtype.kind == dtype.kind == "U":
            return False
    return True


def _joined_mask(parts: list[tuple[_Place, Column]], num: int) -> np.ndarray:
    """Return a mask, bool [num], of the concatenated infos that have a value under one key.

    `parts` are the parts that have this key.
    """
    mask = np.zeros(num, bool)
    for place, column in parts:
        mask_of_part = column.mask
        mask[place.rows] = True if mask_of_part is None else mask_of_part[place.span]
    return mask


def _joined_objects(parts: list[tuple[_Place, Column]], num: int) -> TypedColumn:
    """Return a column of Python objects from parts whose dtypes or shapes differ."""
    values, mask = np.full(num, None), _joined_mask(parts, num)
    for place, column in parts:
        rows = mask[place.rows].nonzero()[0]
        values[place.rows.start + rows] = as_object_array(column.list(rows + place.span.start))
    return TypedColumn(values, mask, False)
