"""Functions on items of Gymnasium spaces: structure, dtypes, shapes and one-hot encoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument, ShapeMismatch
from episodes.tracks import nested
from episodes.tracks.space_kinds import (
    SpaceKind,
    choices_of,
    is_dict,
    is_nested,
    joined_parts,
    kind_of,
    map_items,
    parts_of,
    rejected_space,
)
from episodes.tracks.stacking import check_strings, object_array
from episodes.tracks.validation import checked_space

if TYPE_CHECKING:
    from episodes.data_types import Space


def elementary_spaces(space: Space | None, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, subspace) of each subspace in nested `Dict` and `Tuple` spaces that is neither `Dict` nor `Tuple`.

    A path has the keys and indices from the outermost space down. A space that is not nested is yielded itself.

    >>> list(elementary_spaces(spaces.Dict(at=spaces.Tuple([spaces.Discrete(3)] * 2))))
    [(('at', 0), Discrete(3)), (('at', 1), Discrete(3))]
    """
    if not is_nested(space):
        yield path, space
        return
    for key, part in parts_of(space).items():
        yield from elementary_spaces(part, (*path, key))


def has_text(space: spaces.Space | None) -> bool:
    """Return True if a space, or a part of it, is a space of text."""
    parts = getattr(space, "spaces", ())
    return kind_of(space) is SpaceKind.TEXT or any(
        map(has_text, parts.values() if isinstance(parts, Mapping) else parts)
    )


def keys_of(space: spaces.Space | None) -> Iterator[Any]:
    """Yield the keys of all `Dict` spaces in a nested space.

    >>> list(keys_of(spaces.Tuple([spaces.Dict(at=spaces.Discrete(3)), spaces.Discrete(2)])))
    ['at']
    """
    if is_dict(space):
        yield from space.spaces
    for part in parts_of(space).values():
        yield from keys_of(part)


def as_item(item: object, space: spaces.Space | None) -> Any:
    """Convert lists in an item of a space to tuples, wherever the space is a `Tuple`.
    Gymnasium accepts lists there too.

    >>> as_item({"at": [1, 2]}, spaces.Dict(at=spaces.Tuple([spaces.Discrete(3)] * 2)))
    {'at': (1, 2)}
    """
    if not is_nested(space):
        return item
    if is_dict(space):
        if not isinstance(item, dict):
            return item
        changed = {key: as_item(part, space.spaces.get(key)) for key, part in item.items()}
        return item if all(map(is_, changed.values(), item.values())) else changed
    known: Any = space.spaces
    if isinstance(item, (list, tuple)) and len(item) == len(known):
        parts = [as_item(part, sub) for part, sub in zip(item, known, strict=True)]
        same = type(item) is not list and all(map(is_, parts, item))
        return item if same else nested.rebuild(item, parts)
    return item


def as_items(items: object, space: spaces.Space | None) -> Any:
    """Convert lists to tuples in each item of a list, if `space` is a `Dict` or `Tuple`.
    Items of other spaces are returned unchanged."""
    return [as_item(item, space) for item in items] if type(items) is list and is_nested(space) else items


def as_rows(rows: Any, space: spaces.Space | None) -> Any:
    """Convert a batch of N observations or actions, as a vector environment returns them, to nested arrays [N, ...].

    `Text` parts become arrays of strings. Items of `OneOf`, `Sequence` and `Graph` parts, which have no common shape,
    become arrays of objects.
    """
    kind = kind_of(space)
    if kind.is_array:
        return rows
    if is_dict(space):
        parts = space.spaces
        return {key: as_rows(part, parts.get(key)) for key, part in rows.items()} if isinstance(rows, dict) else rows
    if not isinstance(rows, (list, tuple)):
        return rows
    if is_nested(space):
        known: Any = space.spaces
        return tuple(map(as_rows, rows, known)) if len(rows) == len(known) else rows
    if kind is SpaceKind.TEXT:
        check_strings(rows, "a row of Text")
        return np.array(rows)
    return object_array(rows) if kind.is_irregular else rows


def regular_rows(name: str, rows: Any, space: spaces.Space | None) -> Any:
    """Return a batch of N observations or actions as `as_rows` does.

    Raises:
        ShapeMismatch: the items vary in shape. `name` is the track.
    """
    rows, part = as_rows(rows, space), irregular_part(space)
    if part is not None and any(np.asarray(leaf).dtype.kind == "O" for leaf in nested.leaves(rows)):
        raise varying_shapes_error(name, part)
    return rows


def stacked(items: Sequence[Any], space: spaces.Space | None) -> Any:
    """Stack items of a space to nested arrays [len(items), ...]. Items without a common shape,
    such as graphs, become object arrays."""
    if not is_nested(space):
        return object_array(items) if kind_of(space).is_irregular else nested.stack(items)
    if is_dict(space):
        return {key: stacked([item[key] for item in items], space.spaces.get(key)) for key in items[0]}
    items = as_items(list(items), space)
    known: Any = space.spaces
    return tuple(stacked([item[i] for item in items], part) for i, part in enumerate(known))


def irregular_part(space: spaces.Space | None) -> tuple[str, spaces.Space] | None:
    """Return (path, subspace) of the first subspace whose items vary in shape, such as a `Graph`,
    or None if all subspaces are regular."""
    for path, part in elementary_spaces(space):
        if kind_of(part).is_irregular:
            return "".join(f"/{nested.escape(str(key))}" for key in path), part
    return None


def checked_row_space(name: str, space: Any) -> Any:
    """Return the space of the rows that a recorder records, or None for None.

    Args:
        name: the argument, for errors.
        space: the space.

    Raises:
        InvalidArgument: items of the space hold no array, as those of a `Dict` or `Tuple` without parts.
        WrongType: it is not a Gymnasium space.
    """
    space = checked_space(name, space)
    if next(elementary_spaces(space), None) is None:
        advice = "a constant Discrete(1) can stand for nothing"
        raise rejected_space(name, space, "a space whose items hold an array", advice)
    return space


def varying_shapes_error(name: str, part: tuple[str, spaces.Space]) -> ShapeMismatch:
    """Return the `ShapeMismatch` error for items that vary in shape, such as graphs, and cannot be stacked to an array.
    `name` is the track or argument, such as "actions" or "action_space", and `part` the path and the space of the
    irregular part.
    """
    path, space = part
    advice = "an ObservationPreprocessor of yours make arrays of one shape of them first: pad them, say"
    if name.startswith("action"):  # which no connector of observations changes
        advice = "a wrapper of the environment take arrays of one shape, and make its actions of them"
    elif kind_of(space) is SpaceKind.ONE_OF:
        advice = "FlattenObservations, before all views, make vectors of them"
    return ShapeMismatch(
        f"{name}{path}: items of a {type(space).__name__} space have no shape in common, and no array holds them; let "
        f"{advice}; arrays of different lengths are stored by SingleAgentEpisode(ragged=...), see the page on ragged "
        "tracks (docs/concepts/ragged.md)"
    )


def dtypes_of(space: spaces.Space | None) -> Any:
    """Return the dtypes of a space's items, nested like the items, or None if some subspace has no dtype."""
    kind = kind_of(space)
    if kind.is_array:
        return space.dtype  # type: ignore[union-attr]
    if is_nested(space):
        dtypes = [dtypes_of(part) for part in parts_of(space).values()]
        return None if any(dtype is None for dtype in dtypes) else joined_parts(space, dtypes)
    dtype = getattr(space, "dtype", None)
    return np.dtype(dtype) if dtype is not None and kind is not SpaceKind.TEXT else None


def empty_items(space: spaces.Space | None, num_items: int = 0) -> Any:
    """Return nested arrays of zeros [num_items, ...] with the structure, shapes and dtypes of the space's items."""
    if is_nested(space):
        return joined_parts(space, [empty_items(part, num_items) for part in parts_of(space).values()])
    if space is None or space.shape is None or dtypes_of(space) is None:
        return np.zeros(num_items, np.float32)
    return np.zeros((num_items, *space.shape), space.dtype)


def one_hot(values: Any, space: spaces.Space | None) -> Any:
    """Encode the values [..., *item] of `Discrete` and `MultiDiscrete` subspaces as float32 one-hot vectors.

    A `MultiDiscrete` part becomes the concatenated one-hot vectors of its choices. Other parts stay as they are.

    Raises:
        InvalidArgument: `space` is None.
    """
    if space is None:
        raise InvalidArgument(
            "one_hot_discrete=True needs the episode's space; give observation_space and action_space"
        )
    return map_items(_one_hot_part, values, space)


def _one_hot_part(values: Any, space: spaces.Space) -> Any:
    """Return items of a space that is not nested as concatenated one-hot vectors, one per choice."""
    if not kind_of(space).has_choices:
        return values
    firsts, counts = choices_of(space)
    indices = np.asarray(values) - firsts
    indices = indices.reshape(*indices.shape[: indices.ndim - counts.ndim], counts.size)
    parts = [_one_hot(indices[..., i], int(count)) for i, count in enumerate(counts.ravel())]
    return np.concatenate(parts, axis=-1)


def _one_hot(indices: np.ndarray, size: int) -> np.ndarray:
    """Return the one-hot encoding of `indices` [...], float32 [..., size]. Raise `InvalidArgument` if out of range."""
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise InvalidArgument(
            f"one-hot of values outside the space: {indices.min()}..{indices.max()} of {size} (start taken off)"
        )
    out = np.zeros((*indices.shape, size), np.float32)
    np.put_along_axis(out, indices[..., None].astype(np.int64), 1.0, axis=-1)
    return out
