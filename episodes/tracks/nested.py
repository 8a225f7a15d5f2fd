"""Functions on nested values: dicts and tuples of arrays, such as the items of Gymnasium's `Dict` and `Tuple` spaces.

Observations and actions of `Dict` and `Tuple` spaces are nested. Each function handles a plain leaf first, since most
values are leaves.

dm-tree offers the same operations, but treats lists as containers and sorts dict keys, which would reorder columns and
files. It is used for error messages, and the tests compare these functions with it. Time relative to dm-tree, for a
leaf, a dict of 2 leaves and 6 leaves on two levels: mapping 0.1, 0.1, 0.2; listing leaves 0.5, 0.6, 1.0; paths 0.1,
0.2, 0.2; comparing structures 0.5, 1.2, 1.3; stacking 50 items 0.2, 0.3, 0.4; concatenating 5 arrays 0.2, 0.6, 0.6;
replacing leaves 0.9, 0.2, 0.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from episodes.errors import ShapeMismatch, TrackMismatch, WrongType
from episodes.tracks.levels import check_levels
from episodes.tracks.ragged import Ragged
from episodes.tracks.read_only import read_only

if TYPE_CHECKING:
    from episodes.data_types import NestedArrays

_WITH_NAN = frozenset(("ff", "fc", "cf", "cc", "MM", "mm"))  # pairs of dtype kinds that may hold NaN or NaT
_LEAF_TYPES = frozenset((np.ndarray, int, float, bool, str, list, type(None), Ragged))


def is_leaf(value: object) -> bool:
    """Return True unless the value is a dict or a tuple, the containers of nested values."""
    return type(value) in _LEAF_TYPES or not isinstance(value, (dict, tuple))


def is_foreign_array(leaf: object) -> bool:
    """Return True for an array of another library, such as JAX, that supports numpy functions."""
    return type(leaf) is not np.ndarray and hasattr(type(leaf), "__array_function__")


def as_any_array(leaf: object) -> Any:
    """Convert a value to a numpy array. Arrays of other libraries that support numpy
    functions are returned unchanged."""
    return leaf if hasattr(type(leaf), "__array_function__") else np.asarray(leaf)


def rebuild(container: dict[Any, Any] | Sequence[Any], values: list[Any]) -> Any:
    """Return a dict or tuple of the same form as `container`, which contains `values` instead."""
    if isinstance(container, dict):
        return dict(zip(container, values, strict=True))
    if hasattr(container, "_fields"):
        return type(container)(*values)
    return tuple(values)


def children(container: dict[Any, Any] | tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Return (name, value) pairs of the items of a dict or tuple, without those nested deeper.
    Items of tuples are named "0", "1", ..."""
    if isinstance(container, dict):
        return [(str(key), value) for key, value in container.items()]
    return [(str(i), value) for i, value in enumerate(container)]


def map_leaves(fn: Callable[..., Any], nested: Any, *parallel: Any) -> Any:
    """Apply `fn` to each leaf of a nested value, and return the results nested in the same way. Leaves of the values in
    `parallel` are further arguments of `fn`.

    Raises:
        TrackMismatch: a value in `parallel` has dicts with other keys.
    """
    if is_leaf(nested):
        return fn(nested, *parallel)
    if parallel:
        check_same_keys(nested, parallel)
    if isinstance(nested, dict):
        if parallel:
            return {key: map_leaves(fn, value, *[part[key] for part in parallel]) for key, value in nested.items()}
        return {key: fn(part) if type(part) in _LEAF_TYPES else map_leaves(fn, part) for key, part in nested.items()}
    return rebuild(nested, [map_leaves(fn, *values) for values in zip(nested, *parallel, strict=True)])


def check_same_keys(container: dict[Any, Any] | tuple[Any, ...], parallel: Sequence[Any]) -> None:
    """Raise `TrackMismatch` unless each value in `parallel` is a dict with the keys, or a tuple with
    the length, of `container`."""
    for candidate in parallel:
        same = not is_leaf(candidate) and isinstance(candidate, dict) == isinstance(container, dict)
        if same:
            same = (
                container.keys() == candidate.keys()
                if isinstance(container, dict)
                else len(container) == len(candidate)
            )
        if not same:
            both = f"{describe(container)} and {describe(candidate)}"
            raise TrackMismatch(f"nested values differ: {both}{_first_difference(container, candidate)}")


def _first_difference(a: object, b: object) -> str:
    """Return text for an error message that names a leaf which only one of two nested values has, or ""."""
    paths_of_a, paths_of_b = ({path for path, _ in tree.flatten_with_path(value) if path} for value in (a, b))
    paths = sorted("/".join(map(str, path)) for path in paths_of_a ^ paths_of_b)
    return f"; only one of them has {paths[0]!r}" if paths else ""


def describe(nested: Any) -> str:
    """Return a short description of a nested value for error messages, such as "an array of shape (3,)"."""
    if is_leaf(nested):
        shape = np.shape(nested) if isinstance(nested, np.ndarray) else ()
        return f"an array of shape {shape}" if isinstance(nested, np.ndarray) else f"a {type(nested).__name__}"
    if isinstance(nested, dict):
        return f"a dict with keys {sorted(map(str, nested))}"
    return f"a tuple of {len(nested)}"


def leaves(nested: Any) -> list[Any]:
    """Return a list of all leaves of a nested value, that is, its arrays and other values
    that are not dicts or tuples."""
    if is_leaf(nested):
        return [nested]
    result: list[Any] = []
    for part in nested.values() if isinstance(nested, dict) else nested:
        if type(part) in _LEAF_TYPES:
            result.append(part)
        else:
            result += leaves(part)
    return result


def first_leaf(nested: object) -> Any:
    """Return the first leaf of a nested value, or the value itself if it is not nested."""
    return nested if is_leaf(nested) else leaves(nested)[0]


def escape(key: str) -> str:
    """Escape a dict key, so that it can be a part of a path: "~" becomes "~0" and "/" becomes
    "~1", as in JSON pointers.

    >>> escape("a/b~c")
    'a~1b~0c'
    """
    return key.replace("~", "~0").replace("/", "~1")


def unescape(part: str) -> str:
    """Return the dict key that `escape` has turned into this part of a path."""
    return part.replace("~1", "/").replace("~0", "~")


def flatten(nested: Any, prefix: str | None = None) -> dict[str, Any]:
    """Return the leaves of a nested value as a flat dict, by paths such as "camera/left".

    A `prefix` is the first part of all paths. The path of a leaf itself is `prefix` or "".

    >>> flatten({"camera": 1, "joints": (2, 3)}, "observations")
    {'observations/camera': 1, 'observations/joints/0': 2, 'observations/joints/1': 3}
    """
    if type(nested) is np.ndarray or is_leaf(nested):
        return {prefix or "": nested}
    flat: dict[str, Any] = {}
    for name, value in children(nested):
        flat |= flatten(value, escape(name) if prefix is None else f"{prefix}/{escape(name)}")
    return flat


def skeleton(nested: object, prefix: str | None = None) -> Any:
    """Return a copy of a nested value in which each leaf is replaced by its path, such as "camera/left". A `prefix` is
    the first part of all paths.
    """
    return unflatten_like(nested, list(flatten(nested, prefix)))


def unflatten_like(nested: object, values: Sequence[Any]) -> Any:
    """Return `values`, a flat list of leaves, nested like `nested`."""
    remaining = iter(values)
    return map_leaves(lambda _: next(remaining), nested)


def same_structure(a: Any, b: Any) -> bool:
    """Return True if two nested values have the same dicts, tuples and keys. Their leaves may differ."""
    if is_leaf(a) or is_leaf(b):
        return is_leaf(a) and is_leaf(b)
    if isinstance(a, dict):
        return (
            isinstance(b, dict)
            and a.keys() == b.keys()
            and all(same_structure(part, b[key]) for key, part in a.items())
        )
    return not isinstance(b, dict) and len(a) == len(b) and all(map(same_structure, a, b))


def with_tuples_like(pattern: object, nested: object) -> Any:
    """Return `nested` with lists converted to tuples at the places where `pattern` has tuples."""
    if isinstance(pattern, dict) and isinstance(nested, dict) and pattern.keys() == nested.keys():
        return {key: with_tuples_like(part, nested[key]) for key, part in pattern.items()}
    if isinstance(pattern, tuple) and isinstance(nested, (list, tuple)) and len(pattern) == len(nested):
        return tuple(map(with_tuples_like, pattern, nested))
    return nested


def transpose(items: Sequence[Any]) -> Any:
    """Convert a list of nested items to one nested value of lists, such as [{"a": 1}, {"a": 2}] to {"a": [1, 2]}.

    Raises:
        TrackMismatch: the items have dicts with different keys.
    """
    first = items[0]
    if is_leaf(first):
        return list(items)
    check_same_keys(first, items[1:])
    if isinstance(first, dict):
        return {key: transpose([item[key] for item in items]) for key in first}
    return rebuild(first, [transpose(column) for column in zip(*items, strict=True)])


def stack(items: Sequence[Any]) -> Any:
    """Stack nested items of equal shapes to one nested value of arrays, each [len(items), ...]."""
    return map_leaves(np.array, transpose(items))


def take(nested: Any, rows: int | slice | np.ndarray) -> Any:
    """Index each array of a nested value with `rows`, and return the results nested in the same way.
    An int or a slice gives views."""
    if type(rows) is np.ndarray and rows.dtype.kind == "i":  # `take` is ten times faster for narrow rows
        if type(nested) is np.ndarray:
            return nested.take(rows, axis=0)
        return map_leaves(lambda leaf: leaf.take(rows, axis=0), nested)
    if is_leaf(nested):
        return nested[rows]
    return map_leaves(lambda leaf: leaf[rows], nested)


def with_rows(nested: NestedArrays, rows: np.ndarray, new: NestedArrays) -> Any:
    """Return a copy of nested arrays [n, ...] whose items at the indices `rows` [k] are replaced by
    the items of `new` [k, ...]."""

    def changed(leaf: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Return a copy of an array with new items at `rows`."""
        copy = leaf.copy()
        copy[rows] = items
        return copy

    return map_leaves(changed, nested, new)


def concatenate_arrays(arrays: Sequence[Any]) -> Any:
    """Concatenate arrays or `Ragged` objects. Unlike `np.concatenate`, this keeps a common non-native byte order."""
    if type(arrays[0]) is Ragged:
        return Ragged.concatenated(arrays)
    dtype = arrays[0].dtype
    if dtype.isnative or any(array.dtype != dtype for array in arrays):
        return np.concatenate(arrays)
    return np.concatenate(arrays, dtype=dtype)


def concatenate(parts: Sequence[Any]) -> Any:
    """Concatenate several equally nested values of arrays along the first axis.

    Parts without rows are ignored, since their shape and dtype are unknown.
    """
    if is_leaf(parts[0]):
        if not all(map(len, parts)):
            parts = [part for part in parts if len(part)] or parts[:1]
        return parts[0] if len(parts) == 1 else concatenate_arrays(parts)
    parts = [part for part in parts if len(first_leaf(part))] or parts[:1]
    return map_leaves(lambda *arrays: concatenate_arrays(arrays), *parts)


def equal(a: object, b: object) -> bool:
    """Return True if two nested values have the same structure and equal leaves. NaN equals NaN."""
    if not same_structure(a, b):
        return False
    return all(leaves(map_leaves(equal_arrays, a, b)))


def equal_arrays(a: Any, b: Any) -> bool:
    """Return True if two values, converted to arrays, are equal. NaN equals NaN, and NaT equals NaT."""
    if type(a) is Ragged or type(b) is Ragged:
        return a.equals(b) if type(a) is Ragged else False
    a, b = host_array(a), host_array(b)
    if a.shape != b.shape:
        return False
    kinds = a.dtype.kind + b.dtype.kind
    if kinds == "VV":  # structured items may hold NaN
        return a.dtype == b.dtype and (a.tobytes() == b.tobytes() or np.array_equal(a, b))
    return bool(np.array_equal(a, b, equal_nan=kinds in _WITH_NAN))


def host_array(value: Any) -> np.ndarray:
    """Convert a value to a numpy array. Tensors are detached and moved to the CPU."""
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError):  # from torch: a tensor with gradients, of bfloat16, or on a device
        if not hasattr(value, "detach"):
            raise
    tensor = value.detach().cpu()
    return (tensor.float() if str(tensor.dtype) in _UNKNOWN_TO_NUMPY else tensor).numpy()


_UNKNOWN_TO_NUMPY = frozenset(("torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2"))


def frozen(data: object) -> Any:
    """Return a nested value whose arrays are read-only views of the given arrays.

    Raises:
        ShapeMismatch: the value is nested too deeply, or a leaf is a list of items of several shapes.
    """
    if type(data) is np.ndarray:
        return read_only(data)
    check_levels(data, kinds=(dict, tuple))
    return map_leaves(lambda leaf: read_only(as_array(leaf)), data)


def as_arrays(value: object) -> Any:
    """Return a nested value with each leaf converted to an array.

    Raises:
        ShapeMismatch: the value is nested too deeply, or a leaf is a list of items of several shapes.
    """
    if type(value) is np.ndarray:
        return value
    check_levels(value, kinds=(dict, tuple))
    return map_leaves(as_array, value)


def as_array(leaf: object) -> Any:
    """Convert a leaf to an array, or return a `Ragged` unchanged.

    Raises:
        WrongType: the leaf is a masked array.
        ShapeMismatch: the leaf is a list of items of several shapes, or of too many levels.
    """
    if type(leaf) is Ragged:
        return leaf
    if isinstance(leaf, np.ma.MaskedArray):
        raise WrongType("a masked array would lose its mask as a track; give its data, and its mask where it matters")
    try:
        return np.asarray(leaf)
    except ValueError as error:
        check_levels(leaf)
        raise ShapeMismatch(f"a {type(leaf).__name__} cannot be an array ({error}); give items of one shape") from None
