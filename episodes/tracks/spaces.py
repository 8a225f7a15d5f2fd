"""Functions on items of Gymnasium spaces: structure, dtypes, shapes and one-hot encoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument, ShapeMismatch
from episodes.tracks import nested
from episodes.tracks.stacking import check_strings, object_array

if TYPE_CHECKING:
    from episodes.data_types import Space

_ONE_ARRAY = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
NESTED = (spaces.Dict, spaces.Tuple)
_IRREGULAR = (spaces.OneOf, spaces.Sequence, spaces.Graph)


def is_nested(space: spaces.Space | None) -> TypeGuard[spaces.Dict | spaces.Tuple]:
    """Return True for `Dict` and `Tuple` spaces, whose items are dicts and tuples of arrays."""
    return not isinstance(space, _ONE_ARRAY) and isinstance(space, NESTED)  # the second `isinstance` takes 1 us


def elementary_spaces(space: Space | None, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, subspace) of each subspace in nested `Dict` and `Tuple` spaces that is neither `Dict` nor `Tuple`.

    A path has the keys and indices from the outermost space down. A space that is not nested is yielded itself.

    >>> list(elementary_spaces(spaces.Dict(at=spaces.Tuple([spaces.Discrete(3)] * 2))))
    [(('at', 0), Discrete(3)), (('at', 1), Discrete(3))]
    """
    if not is_nested(space):
        yield path, space
        return
    for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
        yield from elementary_spaces(part, (*path, key))


def as_item(item: object, space: spaces.Space | None) -> Any:
    """Convert lists in an item of a space to tuples, wherever the space is a `Tuple`.
    Gymnasium accepts lists there too.

    >>> as_item({"at": [1, 2]}, spaces.Dict(at=spaces.Tuple([spaces.Discrete(3)] * 2)))
    {'at': (1, 2)}
    """
    if space is None:
        return item
    if isinstance(space, spaces.Tuple) and isinstance(item, (list, tuple)) and len(item) == len(space.spaces):
        parts = [as_item(part, sub) for part, sub in zip(item, space.spaces, strict=True)]
        same = type(item) is not list and all(map(is_, parts, item))
        return item if same else nested.rebuild(item, parts)
    if isinstance(space, spaces.Dict) and isinstance(item, dict):
        changed = {key: as_item(part, space.spaces.get(key)) for key, part in item.items()}
        return item if all(map(is_, changed.values(), item.values())) else changed
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
    if isinstance(space, spaces.Tuple) and isinstance(rows, (list, tuple)) and len(rows) == len(space.spaces):
        return tuple(map(as_rows, rows, space.spaces))
    if isinstance(space, spaces.Dict) and isinstance(rows, dict):
        return {key: as_rows(part, space.spaces.get(key)) for key, part in rows.items()}
    if isinstance(space, spaces.Text) and isinstance(rows, (list, tuple)):
        check_strings(rows, "a row of Text")
        return np.array(rows)
    if isinstance(space, _IRREGULAR) and isinstance(rows, (list, tuple)):
        return object_array(rows)
    return rows


def stacked(items: Sequence[Any], space: spaces.Space | None) -> Any:
    """Stack items of a space to nested arrays [len(items), ...]. Items without a common shape,
    such as graphs, become object arrays."""
    if isinstance(space, spaces.Tuple):
        items = as_items(list(items), space)
        return tuple(stacked([item[i] for item in items], sub) for i, sub in enumerate(space.spaces))
    if isinstance(space, spaces.Dict):
        return {key: stacked([item[key] for item in items], space.spaces.get(key)) for key in items[0]}
    return object_array(items) if isinstance(space, _IRREGULAR) else nested.stack(items)


def irregular_part(space: spaces.Space | None) -> tuple[str, spaces.Space] | None:
    """Return (path, subspace) of the first subspace whose items vary in shape, such as a `Graph`,
    or None if all subspaces are regular."""
    for path, part in elementary_spaces(space):
        if isinstance(part, _IRREGULAR):
            return "".join(f"/{nested.escape(str(key))}" for key in path), part
    return None


def varying_shapes_error(name: str, part: tuple[str, spaces.Space]) -> ShapeMismatch:
    """Return the `ShapeMismatch` error for items that vary in shape, such as graphs, and cannot be stacked to an array.
    `part` is the path and the space of the irregular part.
    """
    path, space = part
    advice = "an ObservationPreprocessor of yours make arrays of one shape of them first: pad them, say"
    if isinstance(space, spaces.OneOf):
        advice = "FlattenObservations, before all views, make vectors of them"
    return ShapeMismatch(
        f"{name}{path}: items of a {type(space).__name__} space have no shape in common, and no array holds them; let "
        f"{advice}; arrays of different lengths are stored by SingleAgentEpisode(ragged=...), see the page on ragged "
        "tracks (docs/concepts/ragged.md)"
    )


def dtypes_of(space: spaces.Space | None) -> Any:
    """Return the dtypes of a space's items, nested like the items, or None if some subspace has no dtype."""
    if space is None:
        return None
    if isinstance(space, _ONE_ARRAY):  # avoids two `isinstance` calls of 1 us each
        return space.dtype
    if isinstance(space, spaces.Dict):
        return _all_or_none({key: dtypes_of(sub) for key, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return _all_or_none(tuple(dtypes_of(sub) for sub in space.spaces))
    dtype = getattr(space, "dtype", None)
    return np.dtype(dtype) if dtype is not None and not isinstance(space, spaces.Text) else None


def _all_or_none(dtypes: object) -> Any:
    """Return nested dtypes unchanged, or None if the dtype of any part is unknown."""
    return None if any(leaf is None for leaf in nested.leaves(dtypes)) else dtypes


def empty_items(space: spaces.Space | None, num_items: int = 0) -> Any:
    """Return nested arrays of zeros [num_items, ...] with the structure, shapes and dtypes of the space's items."""
    if isinstance(space, spaces.Dict):
        return {key: empty_items(sub, num_items) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(empty_items(sub, num_items) for sub in space.spaces)
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
    if isinstance(space, spaces.Dict):
        return {key: one_hot(values[key], sub) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(one_hot(value, sub) for value, sub in zip(values, space.spaces, strict=True))
    if isinstance(space, spaces.Discrete):
        return _one_hot(np.asarray(values) - space.start, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_one_hot(np.asarray(values), space)
    return values


def _one_hot(indices: np.ndarray, size: int) -> np.ndarray:
    """Return the one-hot encoding of `indices` [...], float32 [..., size]. Raise `InvalidArgument` if out of range."""
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise InvalidArgument(
            f"one-hot of values outside the space: {indices.min()}..{indices.max()} of {size} (start taken off)"
        )
    out = np.zeros((*indices.shape, size), np.float32)
    np.put_along_axis(out, indices[..., None].astype(np.int64), 1.0, axis=-1)
    return out


def _multi_one_hot(values: np.ndarray, space: spaces.MultiDiscrete) -> np.ndarray:
    """Return items of a MultiDiscrete space as concatenated one-hot vectors, one per dimension of the space."""
    sizes = space.nvec.reshape(-1)
    batch = values.shape[: values.ndim - space.nvec.ndim]
    indices = (values - space.start).reshape(*batch, len(sizes))
    return np.concatenate([_one_hot(indices[..., i], int(size)) for i, size in enumerate(sizes)], axis=-1)
