"""Rollout buffer: arrays of a fixed size that are allocated once and then filled step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Literal, TypeAlias

import numpy as np
import tree

from episodes.errors import (
    EpisodeStateError,
    InvalidArgument,
    ShapeMismatch,
    StepOutOfRange,
    TrackMismatch,
    UnknownKey,
)

VALID_LENGTHS = "valid_lengths"
"""Key of the number of items of each timescale, which `build` adds with `partial="mask"`."""

Example: TypeAlias = "np.ndarray | Mapping[Any, Example] | Sequence[Example]"
"""An array, or dicts, tuples and lists of arrays."""

_kind = attrgetter("shape", "dtype")  # of arrays and of numpy's scalars
_PYTHON = {float: "f", bool: "b", int: "iuf"}  # Python numbers, and the kinds of arrays that accept them
_SCALARS = frozenset(np.dtype(code).type for code in "?bhilqBHILQefdgFDG")  # numpy's scalars without parameters
_MOST_PLANS = 64


class TrajectoryAccumulator:
    """Rollout buffer of preallocated arrays, which is filled item by item, read when it is full, and then filled again.

    `example` is a dict of timescales, each a nested value (dicts, tuples and lists) of arrays:

    - *buffered*: all leaves have the same leading dimension N > 1. `add` writes an item [...] into one of N slots.
    - *single-item*: a leaf has no dimensions, or all have a leading dimension of 1. There is one slot for an item.

    An item may have one more leading dimension of 1 (or may lack it, if all leaves have it). Python numbers are
    accepted if they fit. Otherwise the leaves of an item need the example's shapes and dtypes. Everything is checked
    before anything is written.

    `build` returns the object's own arrays, which are allocated once: read or send them before the next `add`, or copy
    them. An object is for one thread.

    Args:
        example: the timescales; only structure, shapes and dtypes matter.
        partial: what `build` does if slots are empty: "raise" an error, or "mask": add an entry `"valid_lengths"` with
            the number of items of each timescale, and fill the empty slots with zeros.

    Raises:
        InvalidArgument: the example is neither buffered nor single-item, is empty, or has arrays of objects.

    >>> example = {"step": {"obs": np.zeros((2, 3)), "reward": np.zeros(2)}, "end": {"obs": np.zeros((1, 3))}}
    >>> accumulator = TrajectoryAccumulator(example)
    >>> for t in range(2):
    ...     accumulator.add("step", {"obs": np.zeros(3), "reward": float(t)})
    >>> accumulator.add("end", {"obs": np.ones(3)})
    >>> accumulator.build()["step"]["reward"]
    array([0., 1.])
    """

    def __init__(self, example: Mapping[str, Any], *, partial: Literal["raise", "mask"] = "raise") -> None:
        if partial not in ("raise", "mask"):
            raise InvalidArgument(f"partial={partial!r}; give 'raise' or 'mask'")
        if not isinstance(example, Mapping) or not example:
            raise InvalidArgument(f"example={example!r}; give a dict of timescales, with one at least")
        self._timescales = {name: _Timescale(name, arrays) for name, arrays in example.items()}
        self._built: dict[str, Any] = {name: part.buffers for name, part in self._timescales.items()}
        self._lengths: dict[str, np.ndarray] | None = None
        if partial == "mask":
            if VALID_LENGTHS in example:
                raise InvalidArgument(f"a timescale is called {VALID_LENGTHS!r}, which partial='mask' adds; rename it")
            self._lengths = {name: np.zeros((), np.int64) for name in example}
            self._built[VALID_LENGTHS] = self._lengths

    @property
    def buffers(self) -> dict[str, Any]:
        """Preallocated arrays of the buffer, nested like `example`. `build` returns the same arrays.

        A receiver of the arrays needs their structure, shapes and dtypes.
        """
        return self._built

    @property
    def is_full(self) -> bool:
        """Whether all arrays are completely filled, for every timescale (such as steps and episodes)."""
        return all(part.index == part.capacity for part in self._timescales.values())

    def add(self, timescale: str, data: object) -> None:
        """Write one item, such as a step, into the next free slot of the arrays of `timescale`.

        Args:
            timescale: a key of the example.
            data: the item, nested as the timescale.

        Raises:
            UnknownKey: there is no such timescale.
            StepOutOfRange: all of its slots were written.
            TrackMismatch: the item has other keys or containers than the example.
            ShapeMismatch: a leaf has another shape.
            InvalidArgument: a leaf has another dtype, or a number does not fit.
        """
        part = self._timescales.get(timescale)
        if part is None:
            raise UnknownKey(f"timescale {timescale!r}: there are {', '.join(map(repr, self._timescales))}")
        part.add(data)

    def build(self) -> dict[str, Any]:
        """Return the filled arrays, nested like `example`, and start again: later items overwrite the same arrays.

        Raises:
            EpisodeStateError: slots are empty and `partial="raise"`; the items are kept.
        """
        if self._lengths is None:
            for part in self._timescales.values():
                part.check_full()
        else:
            for name, part in self._timescales.items():
                part.clear_rest()
                self._lengths[name][...] = part.index
        self.reset()
        return self._built

    def reset(self) -> None:
        """Discard all items added since the last `build`, for example if an episode was aborted."""
        for part in self._timescales.values():
            part.index = 0


class _Timescale:
    """Arrays of one timescale, such as steps, with slots for `capacity` items, and cached checks that make `add` fast.

    A plan reads an item into a list of leaves, which are then written.
    """

    __slots__ = ("arrays", "buffers", "capacity", "index", "kinds", "name", "paths", "plans", "read", "spare")

    def __init__(self, name: str, example: object) -> None:
        self.name = name
        self.buffers = self._zeros(example)
        leaves = _leaves(self.buffers, ())
        self.paths = ["/".join(map(str, path)) for path, _ in leaves]
        arrays = [array for _, array in leaves]
        single = any(not array.ndim for array in arrays) or all(len(array) == 1 for array in arrays)
        self.capacity = 1 if single else self._common_length(arrays)
        self.arrays = [array[None] for array in arrays] if single else arrays  # [capacity, ...]
        self.kinds = [(array.shape[1:], array.dtype) for array in self.arrays]
        self.spare = single and all(array.ndim for array in arrays)  # whether items may lack the leading dimension of 1
        self.read = _reader(self.buffers)
        self.plans: dict[tuple[type, ...], _Plan] = {}  # by the types of an item's leaves
        self.index = 0

    def _zeros(self, example: object) -> Any:
        """Return arrays of zeros with the shapes and dtypes of an example.

        Raises:
            InvalidArgument: the example has no arrays, or arrays of objects.
        """
        try:
            zeros = tree.map_structure(np.zeros_like, example)
            arrays = tree.flatten(zeros)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"example: timescale {self.name!r}: {error}") from None
        if not arrays:
            raise InvalidArgument(f"example: timescale {self.name!r} has no arrays; leave it out")
        invalid = [array.dtype for array in arrays if array.dtype.kind in "OV"]
        if invalid:
            raise InvalidArgument(f"example: timescale {self.name!r} has items of {invalid[0]}; give numbers or bools")
        return zeros

    def _common_length(self, arrays: list[np.ndarray]) -> int:
        """Return the first dimension N that all arrays of the example share. Raise `InvalidArgument` if they differ or
        N is 0.
        """
        lengths = {path: len(array) for path, array in zip(self.paths, arrays, strict=True)}
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise InvalidArgument(
                f"example: timescale {self.name!r} has leading dimensions {lengths}; give all leaves the same N > 0, "
                "or one without dimensions to make it a single item"
            )
        return len(arrays[0])

    def add(self, data: object) -> None:
        """Write one item into the next row. Nothing changes if an error is raised.

        Raises:
            StepOutOfRange: all rows are filled.
            TrackMismatch: the item is nested otherwise than the example.
            ShapeMismatch: an array has another shape.
            InvalidArgument: an array has another dtype, or a number does not fit into it.
        """
        index = self.index
        if index == self.capacity:
            raise StepOutOfRange(
                f"timescale {self.name!r}: item {index} of a capacity of {self.capacity}; build() or reset() first"
            )
        try:
            items = self.read(data)
            arrays, kinds, ranges = self.plans[tuple(map(type, items))]
            if list(map(_kind, arrays(items))) != kinds:
                items = self.fitted(data)
            for i, low, high in ranges:
                if not low <= items[i] <= high:
                    items = self.fitted(data)
                    break
        except (KeyError, _OtherNesting):
            items = self.fitted(data)
        for array, item in zip(self.arrays, items):  # noqa: B905 both have one entry for each array
            array[index] = item
        self.index = index + 1

    def check_full(self) -> None:
        """Raise `EpisodeStateError` if rows are not filled."""
        if self.index < self.capacity:
            raise EpisodeStateError(
                f"timescale {self.name!r} has {self.index} of {self.capacity} items; add the rest, reset(), or make it "
                "with partial='mask'"
            )

    def clear_rest(self) -> None:
        """Set the rows that are not filled to zero."""
        for array in self.arrays:
            array[self.index :] = np.zeros((), array.dtype)

    def fitted(self, data: object) -> list[Any]:
        """Validate an item, and return its leaves as a list of arrays with the shapes and dtypes of the example.

        Raises:
            TrackMismatch: the item is nested otherwise.
            ShapeMismatch: an array has another shape.
            InvalidArgument: an array has another dtype, or a number does not fit into it.
        """
        leaves: list[Any] = []
        self._collect(self.buffers, data, (), leaves)
        fitted = [self._fit(i, item) for i, item in enumerate(leaves)]
        types = tuple(map(type, leaves))
        if types not in self.plans and len(self.plans) < _MOST_PLANS and _PLANNED.issuperset(types):
            self.plans[types] = _make_checks(types, self.kinds)
        return fitted

    def _collect(self, expected: Any, item: Any, path: tuple[Any, ...], leaves: list[Any]) -> None:
        """Append the leaves of an item to `leaves`, in the order of the example `expected`.

        Args:
            path: keys of the part in the whole item, for errors.

        Raises:
            TrackMismatch: the item is nested otherwise.
        """
        if isinstance(expected, np.ndarray):
            leaves.append(item)
            return
        of_keys = isinstance(expected, Mapping)
        alike = isinstance(item, Mapping if of_keys else (tuple, list))
        if not alike or (set(expected) != set(item) if of_keys else len(expected) != len(item)):
            place = f", at {'/'.join(map(str, path))!r}" if path else ""
            raise TrackMismatch(
                f"timescale {self.name!r}{place}: {_words(item)} was given, the example has {_words(expected)}"
            )
        for key in (*_keys(expected, of_leaves=True), *_keys(expected, of_leaves=False)):
            self._collect(expected[key], item[key], (*path, key), leaves)

    def _fit(self, i: int, item: Any) -> Any:
        """Return leaf `i` of an item in the form that can be written: a missing or additional first axis of length 1 is
        adapted.

        Raises:
            ShapeMismatch: it has another shape.
            InvalidArgument: it has another dtype, or is not an array.
        """
        shape, dtype = self.kinds[i]
        if dtype.kind in _PYTHON.get(type(item), "") and not shape:
            return self._number(i, item)
        name = f"timescale {self.name!r}, leaf {self.paths[i]!r}" if self.paths[i] else f"timescale {self.name!r}"
        try:
            array = np.asarray(item)
        except Exception as error:
            raise InvalidArgument(f"{name}: a {type(item).__name__} that is not an array: {error}") from error
        if array.shape == (1, *shape):
            array = array[0, ...]  # an array, since a single string would have the dtype of its length
        elif self.spare and (1, *array.shape) == shape:
            array = array[None]
        if array.shape != shape:
            raise ShapeMismatch(f"{name}: shape {array.shape}, an item has {shape}")
        if array.dtype.newbyteorder("=") != dtype.newbyteorder("="):  # numpy's scalars have the machine's byte order
            raise InvalidArgument(f"{name}: dtype {array.dtype}, the example has {dtype}; convert it")
        return array

    def _number(self, i: int, number: float) -> Any:
        """Return a Python number as an array of the dtype of leaf `i`. Raise `InvalidArgument` if it does not fit."""
        dtype = self.kinds[i][1]
        try:
            with np.errstate(over="raise"):
                return np.array(number, dtype)
        except (OverflowError, FloatingPointError):
            raise InvalidArgument(
                f"timescale {self.name!r}, leaf {self.paths[i]!r}: {number} does not fit into {dtype}"
            ) from None


# --- reading items ---------------------------------------------------------------------------------------------------


class _OtherNesting(Exception):
    """Internal signal that an item is not nested exactly like the example, so that the slower,
    thorough check must be used."""


def _keys(node: Example, of_leaves: bool) -> list[Any]:
    """Return those keys of a dict or sequence `node` whose values are arrays, or if `of_leaves` is False, whose values
    are not."""
    keys = sorted(node) if isinstance(node, Mapping) else range(len(node))
    return [key for key in keys if isinstance(node[key], np.ndarray) is of_leaves]


def _leaves(node: Example, path: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], np.ndarray]]:
    """Return the arrays of a nested value as a list of (path, array). Arrays come before nested containers, in the
    order of their keys."""
    if isinstance(node, np.ndarray):
        return [(path, node)]
    keys = (*_keys(node, of_leaves=True), *_keys(node, of_leaves=False))
    return [leaf for key in keys for leaf in _leaves(node[key], (*path, key))]


def _reader(node: Example) -> Callable[[Any], Sequence[Any]]:
    """Return a fast function that lists the leaves of a value nested exactly like `node`.
    It raises `_OtherNesting` for other values."""
    if isinstance(node, np.ndarray):
        return lambda data: (data,)
    kind, size = type(node), len(node)
    get_leaves = _getter(_keys(node, of_leaves=True))
    inner = [(key, _reader(node[key])) for key in _keys(node, of_leaves=False)]

    def read(data: object) -> Sequence[Any]:
        """Return the leaves of an item that has no nested parts. Raise `_OtherNesting` if the example differs."""
        if type(data) is not kind or len(data) != size:
            raise _OtherNesting
        return get_leaves(data)

    def read_nested(data: object) -> Sequence[Any]:
        """Return the leaves of an item. Raise `_OtherNesting` if it is nested otherwise than the example."""
        if type(data) is not kind or len(data) != size:
            raise _OtherNesting
        leaves = [*get_leaves(data)]
        for key, reader in inner:
            leaves += reader(data[key])
        return leaves

    return read_nested if inner else read


def _getter(keys: list[Any]) -> Callable[[Any], Sequence[Any]]:
    """Return a function that takes a container and returns a tuple of its values at `keys`."""
    return itemgetter(*keys) if len(keys) > 1 else lambda data: [data[key] for key in keys]


_Range = tuple[int, Any, Any]  # of a leaf: its index, and the lowest and highest number that fits
_Plan = tuple[Callable[[Any], Sequence[Any]], list[tuple[tuple[int, ...], np.dtype]], list[_Range]]
_PLANNED = _SCALARS | _PYTHON.keys() | {np.ndarray}


def _make_checks(types: tuple[type, ...], kinds: list[tuple[tuple[int, ...], np.dtype]]) -> _Plan:
    """Return the quick checks for items whose leaves have the given types:
    expected shapes and dtypes of arrays, and ranges of numbers."""
    arrays = [i for i, type_ in enumerate(types) if type_ is np.ndarray]
    first = slice(arrays[0], arrays[0] + 1) if arrays else slice(0)
    get = itemgetter(*arrays) if len(arrays) > 1 else itemgetter(first)
    numbers = [i for i, type_ in enumerate(types) if type_ is int or (type_ is float and kinds[i][1] != np.float64)]
    ranges = [(i, *_range(kinds[i][1])) for i in numbers]
    return get, [kinds[i] for i in arrays], ranges


def _range(dtype: np.dtype) -> tuple[Any, Any]:
    """Return the lowest and the highest number that a dtype can represent."""
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _words(value: object) -> str:
    """Describe a value for an error: its keys, length or shape."""
    if isinstance(value, Mapping):
        return f"a dict with keys {sorted(map(str, value))}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
