"""Infos one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from episodes.tracks.indexing import ranges
from episodes.tracks.infos.columns import Column, ColumnInfos, TypedColumn
from episodes.tracks.infos.dicts import objects
from episodes.tracks.infos.kinds import EmptyInfos, Infos

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
    if sum(part.num for part in some) == num and all(part.columns is first.columns for part in some):
        starts, sizes = np.array([part.start for part in some]), np.array([part.num for part in some])
        if (starts[1:] == starts[:-1] + sizes[:-1]).all():
            return ColumnInfos(first.columns, num, first.start, first.keys)
        if num < _LONG * len(some) or first.holds_objects:
            rows = ranges(starts, sizes)
            return ColumnInfos({path: column.take(rows) for path, column in first.columns.items()}, num, 0, first.keys)
    paths = dict.fromkeys(path for part in some for path in part.columns)
    places = _places(parts)
    return ColumnInfos({path: _joined(path, places, num) for path in paths}, num)


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
    columns = [column for _, column in found if isinstance(column, TypedColumn)]
    if len(columns) < len(found) or len({_kind(column) for column in columns}) > 1 or columns[0].holds_objects:
        return _joined_objects(found, num)
    plain, everywhere = columns[0].plain, sum(place.span.stop - place.span.start for place, _ in found) == num
    spans = [column.values[place.span] for (place, _), column in zip(found, columns, strict=True)]
    mask = None if everywhere and all(column.mask is None for column in columns) else _joined_mask(found, num)
    if everywhere:
        return TypedColumn(np.concatenate(spans), mask, plain)
    values = np.zeros((num, *spans[0].shape[1:]), np.result_type(*{span.dtype for span in spans}))
    for (place, _), span in zip(found, spans, strict=True):
        values[place.rows] = span
    return TypedColumn(values, mask, plain)


def _kind(column: TypedColumn) -> tuple[object, ...]:
    """Columns of one kind can be joined; strings have as many dtypes as lengths."""
    dtype = column.values.dtype
    return ("U" if dtype.kind == "U" else dtype), column.values.shape[1:], column.plain


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
