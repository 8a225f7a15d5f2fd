"""`Ragged`: n arrays of different lengths, stored as one array of values and one array of offsets.

Item i is `values[offsets[i]:offsets[i + 1]]`. An empty item has equal offsets:

    items       [7, 8]   []   [9]   [4, 5, 6]
    values      7  8  9  4  5  6
    offsets     0  2  2  3  6

A slice of items shares `values` and has a slice of `offsets`, so the first offset need not be 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import InvalidArgument, InvalidFill, ShapeMismatch, WrongType
from episodes.tracks.indexing import offsets_of, ranges
from episodes.tracks.read_only import read_only

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

LENGTH = -1
"""Stands for the length of an item in shapes: `ragged.shape == (n, LENGTH, ...)`."""
_FEW = 24  # values per range of items; below it one gather is faster than a slice for each range
_KINDS = "biufc"


@dataclass(frozen=True, slots=True)
class RaggedKind:
    """Dtype and shape of the values in items of different lengths: an item of length L is an array [L, *value_shape].

    Args:
        dtype: dtype of the values: numbers or bools.
        value_shape: shape of one value, by default that of a number.
    """

    dtype: np.dtype
    value_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        try:
            if self.dtype is None:  # numpy's default dtype
                raise TypeError
            dtype = np.dtype(np.dtype(self.dtype).type)  # the dtype object that native arrays have
            shape = tuple(map(int, self.value_shape))
        except (TypeError, ValueError):
            raise WrongType(f"ragged: {self.dtype!r} with values of shape {self.value_shape!r} is no dtype") from None
        if dtype.kind not in _KINDS or min(shape, default=1) < 1:
            raise WrongType(f"ragged: values of {dtype} and shape {shape}; ragged tracks hold numbers or bools")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "value_shape", shape)

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(map(str, ('L', *self.value_shape)))}]"


class Ragged:
    """Immutable sequence of n arrays of different lengths: item i is `values[offsets[i]:offsets[i + 1]]`.

    A finalized ragged track has a `Ragged` in place of an array. `len`, `shape`, `dtype`, `nbytes`, `[i]` and `[a:b]`
    (views), `[indices]` and `take` (copies) work as those of an array. There is no arithmetic: use `values`, or
    `padded`.

    Args:
        values: array [V, ...] of numbers or bools; the values of all items.
        offsets: int64 [n + 1], not decreasing. The first one need not be 0, since slices share the values.

    Raises:
        ShapeMismatch: the offsets decrease or exceed the values.
        WrongType: the values are not numbers or bools, or the offsets are not integers.

    >>> tokens = Ragged([1, 2, 3], [0, 2, 2, 3])
    >>> len(tokens), tokens[0].tolist(), tokens[1:].tolist()
    (3, [1, 2], [[], [3]])
    """

    __slots__ = ("offsets", "values")
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    values: np.ndarray
    offsets: np.ndarray

    def __init__(self, values: ArrayLike, offsets: ArrayLike) -> None:
        values, offsets = np.asarray(values), np.asarray(offsets)
        if values.dtype.kind not in _KINDS or not values.ndim or 0 in values.shape[1:]:
            raise WrongType(f"Ragged: values of {values.dtype} {list(values.shape)}; give numbers or bools [V, ...]")
        if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or not len(offsets):
            raise WrongType(f"Ragged: offsets of {offsets.dtype} {list(offsets.shape)}; give integers [n + 1]")
        offsets = offsets.astype(np.int64, copy=False)
        if offsets[0] < 0 or offsets[-1] > len(values) or (offsets[1:] < offsets[:-1]).any():
            raise ShapeMismatch(
                f"Ragged: offsets from {offsets[0]} to {offsets[-1]} for {len(values)} values; they must not decrease "
                "or exceed the values"
            )
        self.values, self.offsets = read_only(values), read_only(offsets)

    @classmethod
    def of(cls, values: np.ndarray, offsets: np.ndarray) -> Ragged:
        """Create a `Ragged` from concatenated values [V, ...] and offsets int64 [n + 1] without any check."""
        ragged = cls.__new__(cls)
        ragged.values, ragged.offsets = read_only(values), read_only(offsets)
        return ragged

    @classmethod
    def from_lengths(cls, values: np.ndarray, lengths: ArrayLike) -> Ragged:
        """Create a `Ragged` from the concatenated values [V, ...] of n items and the items' lengths [n].

        Raises:
            InvalidArgument: a length is negative.
            ShapeMismatch: the sum of the lengths is not the number of values.
        """
        lengths = np.asarray(lengths)
        if lengths.size and lengths.min() < 0:
            raise InvalidArgument(f"Ragged: a length of {lengths.min()}; give 0 or more")
        offsets = offsets_of(lengths)
        if offsets[-1] != len(values):
            raise ShapeMismatch(f"Ragged: lengths with a sum of {offsets[-1]} for {len(values)} values")
        return cls(values, offsets)

    @classmethod
    def from_arrays(cls, arrays: Sequence[np.ndarray], kind: RaggedKind) -> Ragged:
        """Create a `Ragged` from a list of arrays of the same dtype and value shape, without any check. `kind` is used
        if all are empty.
        """
        values = [array for array in arrays if len(array)]
        joined = np.concatenate(values) if values else np.zeros((0, *kind.value_shape), kind.dtype)
        return cls.of(joined, offsets_of(list(map(len, arrays))))

    # --- attributes of an array ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the values in the items."""
        return self.values.dtype

    @property
    def kind(self) -> RaggedKind:
        """Dtype and shape of the values in the items, as a `RaggedKind`."""
        return RaggedKind(self.values.dtype, self.values.shape[1:])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape `(n, -1, ...)`: n items, -1 for their different lengths, and the shape of one value."""
        return (len(self), LENGTH, *self.values.shape[1:])

    @property
    def ndim(self) -> int:
        """Number of dimensions: the axis of items, the axis of lengths, and the axes of one value."""
        return self.values.ndim + 1

    @property
    def size(self) -> int:
        """Total number of numbers in all items."""
        return self.flat.size

    @property
    def flags(self) -> Any:
        """Flags of the numpy array of values, which is read-only. It makes a `Ragged` similar to an array."""
        return self.values.flags

    @property
    def flat(self) -> np.ndarray:
        """Values of all items, concatenated to one array [V, ...], without a copy."""
        return self.values[self.offsets.item(0) : self.offsets.item(-1)]

    @property
    def bounds(self) -> np.ndarray:
        """Bounds of the items in `flat`: item i is `flat[bounds[i]:bounds[i + 1]]`, int64 [n + 1]."""
        return self.offsets - self.offsets[0] if self.offsets.item(0) else self.offsets

    @property
    def lengths(self) -> np.ndarray:
        """Length of each item, int64 [n]."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def nbytes(self) -> int:
        """Size of the values and offsets in bytes."""
        return self.flat.nbytes + self.offsets.nbytes

    def __getitem__(self, index: Any) -> Any:
        if type(index) is slice:
            start, stop, step = index.indices(len(self))
            if step == 1:
                return Ragged.of(self.values, self.offsets[start : max(start, stop) + 1])
            return self.take(np.arange(start, stop, step))
        if isinstance(index, (int, np.integer)):
            num = len(self)
            i = index + num if index < 0 else index
            if not 0 <= i < num:
                raise IndexError(f"item {index} of {num} ragged items")
            return self.values[self.offsets.item(i) : self.offsets.item(i + 1)]
        if isinstance(index, tuple):
            raise WrongType("ragged items have one index: ragged[i] is an array, which has its own")
        index = np.asarray(index)
        return self.take(np.arange(len(self))[index if index.size else index.astype(np.int64)])

    def take(self, indices: ArrayLike, axis: int = 0) -> Ragged:
        """Return a new `Ragged` with copies of the items at `indices` [k]. `axis`, an argument of numpy's `take`, has
        no effect.
        """
        indices = np.asarray(indices, np.int64)
        starts, lengths = self.offsets[:-1].take(indices), self.lengths.take(indices)
        offsets = offsets_of(lengths)
        total = offsets.item(-1)
        if not total:
            return Ragged.of(self.values[:0], offsets)
        begins = np.flatnonzero(starts[1:] != starts[:-1] + lengths[:-1]) + 1  # of ranges without a gap
        if total < _FEW * len(begins):
            return Ragged.of(self.values[ranges(starts, lengths)], offsets)
        firsts, lasts = np.append(0, begins), np.append(begins, len(indices)) - 1
        spans = zip(starts[firsts].tolist(), (starts[lasts] + lengths[lasts]).tolist(), strict=True)
        parts = [self.values[start:stop] for start, stop in spans]
        return Ragged.of(np.concatenate(parts), offsets)

    def copy(self) -> Ragged:
        """Return a copy whose values and offsets are in new memory."""
        return Ragged.of(self.flat.copy(), self.bounds.copy())

    def astype(self, dtype: DTypeLike, copy: bool = True) -> Ragged:
        """Return a `Ragged` of the same items with their values cast to `dtype`. With `copy=False`, values that have
        this dtype are shared.
        """
        return Ragged.of(self.flat.astype(dtype, copy=copy), self.bounds)

    def tolist(self) -> list[Any]:
        """Return the items as a list of lists."""
        return [item.tolist() for item in self]

    def __iter__(self) -> Iterator[np.ndarray]:
        offsets = self.offsets.tolist()
        return (self.values[start:stop] for start, stop in pairwise(offsets))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        raise ShapeMismatch(
            "ragged items are no array, since their lengths differ; read them one by one, or as .values, .lengths or "
            ".padded(fill)"
        )

    def padded(self, fill: ArrayLike = 0, length: int | None = None) -> np.ndarray:
        """Return the items as one array [n, length, ...], padded with `fill` after the end of each item.

        Args:
            fill: a number that the dtype can hold.
            length: length of the second axis, by default that of the longest item.

        Raises:
            InvalidFill: the dtype cannot hold `fill`.
            ShapeMismatch: an item is longer than `length`.
        """
        number = np.asarray(fill)
        fits = number.dtype.kind in _KINDS and not number.ndim
        if fits and self.dtype.kind in "biu":
            with np.errstate(invalid="ignore"):
                fits = number.astype(self.dtype) == number
        if not fits:
            raise InvalidFill(f"padded(fill={fill!r}): the values are {self.dtype}; give a number that it can hold")
        lengths = self.lengths
        longest = int(lengths.max(initial=0))
        if length is not None and length < longest:
            raise ShapeMismatch(f"padded(length={length}): an item has a length of {longest}")
        width = longest if length is None else length
        out = np.full((len(self), width, *self.values.shape[1:]), number.astype(self.dtype))
        out[np.arange(width) < lengths[:, None]] = self.flat
        return out

    # --- comparing, joining ----------------------------------------------------------------------------------------

    def equals(self, compared: object) -> bool:
        """Return True if both `Ragged` objects have equal items. NaN equals NaN, and dtypes may differ."""
        if not isinstance(compared, Ragged) or len(self) != len(compared) or self.shape[1:] != compared.shape[1:]:
            return False
        if not self.has_lengths_of(compared):
            return False
        has_nan = {self.dtype.kind, compared.dtype.kind} <= {"f", "c"}
        return bool(np.array_equal(self.flat, compared.flat, equal_nan=has_nan))

    def __eq__(self, other: object) -> bool:
        return self.equals(other) if isinstance(other, Ragged) else NotImplemented

    def has_lengths_of(self, compared: Ragged) -> bool:
        """Return True if the items of both `Ragged` objects have the same lengths."""
        return self.offsets is compared.offsets or bool(np.array_equal(self.bounds, compared.bounds))

    def with_bounds_of(self, pattern: Ragged) -> Ragged:
        """Return the same items, but sharing the offsets array of `pattern`, a `Ragged` with
        equal lengths, to save memory.

        Offsets that are counted differently stay.
        """
        if self.offsets is pattern.offsets or self.offsets.item(0) != pattern.offsets.item(0):
            return self
        return Ragged.of(self.values, pattern.offsets)

    @staticmethod
    def concatenated(parts: Sequence[Any]) -> Ragged:
        """Concatenate the items of several `Ragged` objects.

        Raises:
            ValueError: a part is an array, or has values of another shape, as of `np.concatenate`.
        """
        if any(type(part) is not Ragged for part in parts):
            raise ValueError("ragged items and items of one shape")
        flats = [part.flat for part in parts]
        if len({flat.shape[1:] for flat in flats}) > 1:
            raise ValueError("values of several shapes")
        values = np.concatenate([flat for flat in flats if len(flat)] or flats[:1])
        return Ragged.of(values, offsets_of(np.concatenate([part.lengths for part in parts])))

    def __reduce__(self) -> Any:
        return Ragged.of, (np.ascontiguousarray(self.flat), np.ascontiguousarray(self.bounds))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} items of {self.kind}, {len(self.flat)} values)"
