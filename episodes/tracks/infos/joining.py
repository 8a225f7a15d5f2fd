"""Infos one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import is_not
from typing import Any, TypeGuard

import numpy as np

from episodes.tracks.indexing import ranges
from episodes.tracks.infos.dicts import objects
from episodes.tracks.infos.info_columns import Column, ColumnInfos, TypedColumn
from episodes.tracks.infos.infos import EmptyInfos, Infos
from episodes.tracks.infos.joined_column import joined_column

_LONG = 100  # rows of a part from which on copying it costs less than gathering its rows


def joined_infos(parts: Sequence[Infos]) -> Infos:
    """The parts one after another, one concatenate a path; a view or a gather where they are parts of the same."""
    if len(parts) == 1:
        return parts[0]
    num = sum([part.num for part in parts])
    some = [part for part in parts if type(part) is ColumnInfos and part.num]
    if not some:
        return EmptyInfos(num)
    first = some[0]
    if sum([part.num for part in some]) == num:
        columns = _of_the_same(some, num) or _side_by_side(some)
        if columns is not None:
            return ColumnInfos(columns, num, first.start if columns is first.columns else 0, first.keys)
    paths = dict.fromkeys(path for part in some for path in part.columns)
    places = _places(parts)
    return ColumnInfos({path: _joined(path, places, num) for path in paths}, num)


def _of_the_same(parts: list[ColumnInfos], num: int) -> dict[str, Column] | None:
    """The columns that all parts are of, where they follow one another; or their rows, where gathering is cheap."""
    first = parts[0]
    if any(part.columns is not first.columns for part in parts):
        return None
    if all(after.start == part.start + part.num for part, after in pairwise(parts)):
        return first.columns
    if num >= _LONG * len(parts) and not first.holds_objects:
        return None
    rows = ranges(np.array([part.start for part in parts]), np.array([part.num for part in parts]))
    return {path: column.take(rows) for path, column in first.columns.items()}


def _side_by_side(parts: list[ColumnInfos]) -> dict[str, Column] | None:
    """One concatenate a path, and one for masks that columns share; None where parts have other columns."""
    tables = list({id(part.columns): part.columns for part in parts}.values())  # views of one pack share theirs
    paths = list(tables[0])
    if any(list(table) != paths for table in tables):
        return None
    if not all(map(_of_one_kind, zip(*[table.values() for table in tables], strict=True))):
        return None
    spans = [slice(part.start, part.start + part.num) for part in parts]
    joined: dict[str, Column] = {}
    mask, masks = None, [None] * len(parts)  # of the columns before
    for path in paths:
        columns: list[Any] = [part.columns[path] for part in parts]
        own = [column.mask for column in columns]
        if any(map(is_not, own, masks)):
            mask, masks = _masks_joined(own, spans), own
        joined[path] = joined_column(_values_of(columns, spans), mask, columns[0].plain)
    return joined


def _values_of(columns: Sequence[TypedColumn], spans: Sequence[slice]) -> list[np.ndarray]:
    """The arrays of the columns' values in the spans, one after another."""
    found: list[np.ndarray] = []
    for column, span in zip(columns, spans, strict=True):
        found += column.parts if span.stop - span.start == column.num else (column.values[span],)
    return found


def _masks_joined(masks: list[np.ndarray | None], spans: list[slice]) -> np.ndarray | None:
    if all(mask is None for mask in masks):
        return None
    there = zip(masks, spans, strict=True)
    return np.concatenate([np.ones(s.stop - s.start, bool) if mask is None else mask[s] for mask, s in there])


@dataclass(slots=True)
class _Place:
    """Where the infos of one part go."""

    rows: slice  # of all infos
    span: slice  # of the part's columns
    columns: dict[str, Column]


def _places(parts: Sequence[Infos]) -> list[_Place]:
    places, at = [], 0
    for part in parts:
        if isinstance(part, ColumnInfos) and part.num:
            places.append(_Place(slice(at, at + part.num), slice(part.start, part.start + part.num), part.columns))
        at += len(part)
    return places


def _joined(path: str, places: list[_Place], num: int) -> Column:
    found = [(place, place.columns[path]) for place in places if path in place.columns]
    columns = [column for _, column in found]
    if not _of_one_kind(columns):
        return _joined_objects(found, num)
    plain, everywhere = columns[0].plain, sum(place.span.stop - place.span.start for place, _ in found) == num
    mask = None if everywhere and all(column.mask is None for column in columns) else _joined_mask(found, num)
    if everywhere:
        return joined_column(_values_of(columns, [place.span for place, _ in found]), mask, plain)
    spans = [column.values[place.span] for (place, _), column in zip(found, columns, strict=True)]
    values = np.zeros((num, *spans[0].shape[1:]), np.result_type(*{span.dtype for span in spans}))
    for (place, _), span in zip(found, spans, strict=True):
        values[place.rows] = span
    return TypedColumn(values, mask, plain)


def _of_one_kind(columns: Sequence[Column]) -> TypeGuard[Sequence[TypedColumn]]:
    """Whether one array can hold the columns' values, and is no array of objects.

    Strings have as many dtypes as lengths.
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
        other = part.dtype
        if other != dtype and not other.kind == dtype.kind == "U":
            return False
    return True


def _joined_mask(found: list[tuple[_Place, Column]], num: int) -> np.ndarray:
    mask = np.zeros(num, bool)
    for place, column in found:
        there = column.mask
        mask[place.rows] = True if there is None else there[place.span]
    return mask


def _joined_objects(found: list[tuple[_Place, Column]], num: int) -> TypedColumn:
    values, mask = np.full(num, None), _joined_mask(found, num)
    for place, column in found:
        rows = mask[place.rows].nonzero()[0]
        values[place.rows.start + rows] = objects(column.list(rows + place.span.start))
    return TypedColumn(values, mask, False)
