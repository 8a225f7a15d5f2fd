"""`TrajectoryAccumulator`: rollouts of a fixed size, written step by step into arrays that are there already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Literal

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
"""The key under which `build` says how many items of each timescale are there, with `partial="mask"`."""

_kind = attrgetter("shape", "dtype")  # of arrays and of numpy's scalars
_PYTHON = {float: "f", bool: "b", int: "iuf"}  # Python's numbers, and the kinds of arrays that take them
_SCALARS = frozenset(np.dtype(code).type for code in "?bhilqBHILQefdgFDG")  # numpy's, of which the type says all
_MOST_PLANS = 64


class TrajectoryAccumulator:
    """Arrays of a fixed size that are filled item by item, given away whole, and filled again.

    The example says what there is: a dict of timescales, each a nested value (dicts, tuples and lists) of arrays.

    - *buffered*: all leaves share a leading dimension N > 1. `add` takes an item [...] for each of N slots.
    - *single-item*: some leaf has no dimension, or all lead with 1. There is one slot, for a value of these shapes.

    An item may have a leading 1 more (or, where all leaves lead with 1, lack it), and Python's numbers go where they
    fit. Otherwise its leaves have the example's shapes and dtypes. All is checked before anything is written.

    What `build` returns is this object's own memory, containers too: read or send it before the next `add`, or copy it.
    Nothing is allocated once it is made. It is for one thread.

    Args:
        example: the timescales; only structure, shapes and dtypes count.
        partial: what `build` does when slots are empty: "raise", or "mask", which adds one more entry,
            `"valid_lengths"`, with the number of items of each timescale. What is behind them is zeros.

    Raises:
        InvalidArgument: an example that is neither buffered nor single-item, is empty, or has arrays of objects.

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
        self._timescales = {name: _Timescale(name, own) for name, own in example.items()}
        self._built: dict[str, Any] = {name: own.buffers for name, own in self._timescales.items()}
        self._lengths: dict[str, np.ndarray] | None = None
        if partial == "mask":
            if VALID_LENGTHS in example:
                raise InvalidArgument(f"a timescale is called {VALID_LENGTHS!r}, which partial='mask' adds; rename it")
            self._lengths = {name: np.zeros((), np.int64) for name in example}
            self._built[VALID_LENGTHS] = self._lengths

    @property
    def buffers(self) -> dict[str, Any]:
        """What `build` returns, as it is now: of the structure, shapes and dtypes that a receiver has to know."""
        return self._built

    @property
    def is_full(self) -> bool:
        """True when every slot of every timescale was written."""
        return all(own.index == own.capacity for own in self._timescales.values())

    def add(self, timescale: str, data: Any) -> None:
        """Write an item into the next slot of a timescale: all of it or nothing.

        Raises:
            UnknownKey: there is no such timescale.
            StepOutOfRange: all of its slots were written.
            TrackMismatch: other keys or containers than the example has.
            ShapeMismatch: a leaf of another shape.
            InvalidArgument: a leaf of another dtype, or a number that does not fit.
        """
        own = self._timescales.get(timescale)
        if own is None:
            raise UnknownKey(f"timescale {timescale!r}: there are {', '.join(map(repr, self._timescales))}")
        own.add(data)

    def build(self) -> dict[str, Any]:
        """The filled arrays, in the structure of the example; the next `add` writes into the first slot again.

        Raises:
            EpisodeStateError: slots are empty, unless `partial="mask"`; what was added stays.
        """
        if self._lengths is None:
            for own in self._timescales.values():
                own.check_full()
        else:
            for name, own in self._timescales.items():
                own.clear_rest()
                self._lengths[name][...] = own.index
        self.reset()
        return self._built

    def reset(self) -> None:
        """Forget what was added since the last `build`, as when an episode is broken off."""
        for own in self._timescales.values():
            own.index = 0


class _Timescale:
    """The arrays of one timescale, and how an item is read: once into a list of leaves, which then are written."""

    __slots__ = ("arrays", "buffers", "capacity", "index", "kinds", "name", "paths", "plans", "read", "slots", "spare")

    def __init__(self, name: str, example: Any) -> None:
        self.name = name
        self.buffers = self._zeros(example)
        leaves = _leaves(self.buffers, ())
        self.paths = ["/".join(map(str, path)) for path, _ in leaves]
        arrays = [array for _, array in leaves]
        single = any(not array.ndim for array in arrays) or all(len(array) == 1 for array in arrays)
        self.capacity = 1 if single else self._common_length(arrays)
        self.arrays = [array[None] for array in arrays] if single else arrays  # [capacity, ...]
        self.slots: list[Any] = [array.data if _is_of_numbers(array) else array for array in self.arrays]
        self.kinds = [(array.shape[1:], array.dtype) for array in self.arrays]
        self.spare = single and all(array.ndim for array in arrays)  # whether items may lack their leading 1
        self.read = _reader(self.buffers)
        self.plans: dict[tuple[type, ...], _Plan] = {}  # by the types of an item's leaves
        self.index = 0

    def _zeros(self, example: Any) -> Any:
        try:
            zeros = tree.map_structure(np.zeros_like, example)
            arrays = tree.flatten(zeros)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"example: timescale {self.name!r}: {error}") from None
        if not arrays:
            raise InvalidArgument(f"example: timescale {self.name!r} has no arrays; leave it out")
        odd = [array.dtype for array in arrays if array.dtype.kind in "OV"]
        if odd:
            raise InvalidArgument(f"example: timescale {self.name!r} has items of {odd[0]}; give numbers or bools")
        return zeros

    def _common_length(self, arrays: list[np.ndarray]) -> int:
        lengths = {path: len(array) for path, array in zip(self.paths, arrays, strict=True)}
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise InvalidArgument(
                f"example: timescale {self.name!r} has leading dimensions {lengths}; give all leaves the same N > 0, "
                "or one without dimensions to make it a single item"
            )
        return len(arrays[0])

    def add(self, data: Any) -> None:
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
        except (KeyError, _Unlike):
            items = self.fitted(data)
        for slots, item in zip(self.slots, items):  # noqa: B905 as many as there are arrays
            slots[index] = item
        self.index = index + 1

    def check_full(self) -> None:
        if self.index < self.capacity:
            raise EpisodeStateError(
                f"timescale {self.name!r} has {self.index} of {self.capacity} items; add the rest, reset(), or make it "
                "with partial='mask'"
            )

    def clear_rest(self) -> None:
        for array in self.arrays:
            array[self.index :] = np.zeros((), array.dtype)

    def fitted(self, data: Any) -> list[Any]:
        """The leaves of an item, each as the arrays take it; or an error that says what is wrong with which."""
        found: list[Any] = []
        self._collect(self.buffers, data, (), found)
        fitted = [self._fit(i, item) for i, item in enumerate(found)]
        types = tuple(map(type, found))
        if types not in self.plans and len(self.plans) < _MOST_PLANS and _PLANNED.issuperset(types):
            self.plans[types] = _plan(types, self.kinds)
        return fitted

    def _collect(self, mine: Any, given: Any, path: tuple[Any, ...], found: list[Any]) -> None:
        if isinstance(mine, np.ndarray):
            found.append(given)
            return
        of_keys = isinstance(mine, Mapping)
        alike = isinstance(given, Mapping if of_keys else (tuple, list))
        if not alike or (set(mine) != set(given) if of_keys else len(mine) != len(given)):
            where = f", at {'/'.join(map(str, path))!r}" if path else ""
            raise TrackMismatch(
                f"timescale {self.name!r}{where}: {_words(given)} was given, the example has {_words(mine)}"
            )
        for key in (*_keys(mine, of_leaves=True), *_keys(mine, of_leaves=False)):
            self._collect(mine[key], given[key], (*path, key), found)

    def _fit(self, i: int, item: Any) -> Any:
        shape, dtype = self.kinds[i]
        if dtype.kind in _PYTHON.get(type(item), "") and not shape:
            return self._number(i, item)
        where = f"timescale {self.name!r}, leaf {self.paths[i]!r}" if self.paths[i] else f"timescale {self.name!r}"
        try:
            array = np.asarray(item)
        except Exception as error:
            raise InvalidArgument(f"{where}: a {type(item).__name__} that is no array: {error}") from error
        if array.shape == (1, *shape):
            array = array[0]
        elif self.spare and (1, *array.shape) == shape:
            array = array[None]
        if array.shape != shape:
            raise ShapeMismatch(f"{where}: shape {array.shape}, an item has {shape}")
        if array.dtype != dtype:
            raise InvalidArgument(f"{where}: dtype {array.dtype}, the example has {dtype}; convert it")
        return array

    def _number(self, i: int, number: float) -> Any:
        dtype = self.kinds[i][1]
        try:
            with np.errstate(over="raise"):
                return np.array(number, dtype)
        except (OverflowError, FloatingPointError):
            raise InvalidArgument(
                f"timescale {self.name!r}, leaf {self.paths[i]!r}: {number} does not fit into {dtype}"
            ) from None


def _is_of_numbers(array: np.ndarray) -> bool:
    """Whether an item is a number that a memoryview takes: one of Python's in a quarter of numpy's time."""
    return array.ndim == 1 and array.dtype.isnative and array.dtype.char in "?bBhHiIlLqQfd"


# --- reading items ---------------------------------------------------------------------------------------------------


class _Unlike(Exception):
    """An item whose containers are not of the example's types and sizes."""


def _keys(node: Any, of_leaves: bool) -> list[Any]:
    """The keys of a container's leaves, or those of the containers in it."""
    keys = sorted(node) if isinstance(node, Mapping) else range(len(node))
    return [key for key in keys if isinstance(node[key], np.ndarray) is of_leaves]


def _leaves(node: Any, path: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], np.ndarray]]:
    """The arrays with their paths, in the order in which items are read: a container's own come first."""
    if isinstance(node, np.ndarray):
        return [(path, node)]
    keys = (*_keys(node, of_leaves=True), *_keys(node, of_leaves=False))
    return [leaf for key in keys for leaf in _leaves(node[key], (*path, key))]


def _reader(node: Any) -> Callable[[Any], Sequence[Any]]:
    """What gives the leaves of a value like this one, in the order of `_leaves`; it raises `_Unlike` for others."""
    if isinstance(node, np.ndarray):
        return lambda data: (data,)
    kind, size = type(node), len(node)
    own = _getter(_keys(node, of_leaves=True))
    inner = [(key, _reader(node[key])) for key in _keys(node, of_leaves=False)]

    def read(data: Any) -> Sequence[Any]:
        if type(data) is not kind or len(data) != size:
            raise _Unlike
        return own(data)

    def read_nested(data: Any) -> Sequence[Any]:
        if type(data) is not kind or len(data) != size:
            raise _Unlike
        found = [*own(data)]
        for key, reader in inner:
            found += reader(data[key])
        return found

    return read_nested if inner else read


def _getter(keys: list[Any]) -> Callable[[Any], Sequence[Any]]:
    """The values of so many keys, as a sequence."""
    return itemgetter(*keys) if len(keys) > 1 else lambda data: [data[key] for key in keys]


_Range = tuple[int, Any, Any]  # of a leaf: its place, and the least and the greatest number that it may be
_Plan = tuple[Callable[[Any], Sequence[Any]], list[tuple[tuple[int, ...], np.dtype]], list[_Range]]
_PLANNED = _SCALARS | _PYTHON.keys() | {np.ndarray}


def _plan(types: tuple[type, ...], kinds: list[tuple[tuple[int, ...], np.dtype]]) -> _Plan:
    """What is to be seen of leaves of these types, which fitted once: the kinds of arrays, and the range of numbers."""
    arrays = [i for i, own in enumerate(types) if own is np.ndarray]
    one = slice(arrays[0], arrays[0] + 1) if arrays else slice(0)
    get = itemgetter(*arrays) if len(arrays) > 1 else itemgetter(one)
    numbers = [i for i, own in enumerate(types) if own is int or (own is float and kinds[i][1] != np.float64)]
    ranges = [(i, *_range(kinds[i][1])) for i in numbers]
    return get, [kinds[i] for i in arrays], ranges


def _range(dtype: np.dtype) -> tuple[Any, Any]:
    """The least and the greatest number."""
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict with keys {sorted(map(str, value))}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
