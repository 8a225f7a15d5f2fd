"""Conversion of users' indices, which count from step 0, to positions in stored arrays, which begin with the lookback.

A track holds `lookback` items before step 0 and `size` items from step 0 on. Position 0 is the first of all
`lookback + size` items. An index `i >= 0` counts from step 0. An index `i < 0` counts from the end and may reach into
the lookback. With `neg_index_as_lookback`, -1 is the item just before step 0.

    lookback = 2, size = 4               lookback    items from step 0 on
    position                             0   1       2   3   4   5
    index                                            0   1   2   3
    index < 0                            -6  -5      -4  -3  -2  -1
    index < 0, neg_index_as_lookback     -2  -1
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from episodes.errors import InvalidArgument, StepOutOfRange, WrongType

INTEGERS = (int, np.integer)
_FAR = 1 << 62  # beyond any item, and still an int64
Indices = int | np.integer | slice | Sequence[int] | np.ndarray | None


def span_of(slice_: slice, lookback: int, size: int, neg_index_as_lookback: bool) -> range:
    """Convert a user's slice to a range of positions in the stored items, which begin with `lookback` items.
    The range may reach outside.

    An open end means step 0 or the last item, never the lookback.

    Raises:
        InvalidArgument: the step is 0.
        WrongType: start, stop or step is not an integer.
    """
    start, stop, step = slice_.start, slice_.stop, slice_.step
    step = 1 if step is None else step
    if isinstance(step, INTEGERS) and step == 0:
        raise InvalidArgument("a slice cannot have a step of 0; give a positive or a negative one")
    try:
        if start is None:
            start = lookback if step > 0 else lookback + size - 1
        else:
            start += lookback if start >= 0 or neg_index_as_lookback else lookback + size
        if stop is None:
            stop = lookback + size if step > 0 else lookback - 1
        else:
            stop += lookback if stop >= 0 or neg_index_as_lookback else lookback + size
        return range(start, stop, step)
    except (TypeError, ValueError):
        raise WrongType(f"indices {slice_!r}: start, stop and step of a slice are integers or None") from None


def clip(span: range, total: int) -> slice:
    """Return the range of positions `span` as a slice, clipped to a sequence of `total` items
    as Python does for lists."""
    if span.step > 0:
        start, stop = max(span.start, 0), min(span.stop, total)
        return slice(start, max(stop, start), span.step)
    start, stop = min(span.start, total - 1), max(span.stop, -1)
    if start <= stop:
        return slice(0, 0, 1)
    return slice(start, None if stop < 0 else stop, span.step)


def inside(span: range, total: int) -> tuple[int, int]:
    """Return (head, tail) such that `span[head:tail]` are the elements of the range `span` that lie in [0, total).

    >>> inside(range(-3, 9, 2), 4)
    (2, 4)
    """
    start, step, size = span.start, span.step, len(span)
    if step == 1:
        head, tail = -start, total - start
    elif step > 0:
        head, tail = -(start // step), -((start - total) // step)
    else:
        head, tail = -((start - total + 1) // step), start // -step + 1
    head = 0 if head < 0 else head if head < size else size
    return head, head if tail < head else tail if tail < size else size


def positions(indices: Indices, lookback: int, size: int, neg_index_as_lookback: bool) -> int | range | np.ndarray:
    """Convert a user's index, slice or list of indices to positions in the stored items,
    without checking that these positions hold items.

    The result is an int for an int, else a range or an array.

    Raises:
        WrongType: the indices are not ints.
    """
    if isinstance(indices, slice):
        return span_of(indices, lookback, size, neg_index_as_lookback)
    if indices is None:
        return range(lookback, lookback + size)
    if isinstance(indices, INTEGERS):
        index = max(min(int(indices), _FAR), -_FAR)
        return index + (lookback if index >= 0 or neg_index_as_lookback else lookback + size)
    index_array = as_index_array(indices)
    result = index_array + lookback
    return result if neg_index_as_lookback else np.where(index_array < 0, result + size, result)


def existing_positions(
    indices: Indices, lookback: int, size: int, neg_index_as_lookback: bool, name: str
) -> int | range | np.ndarray:
    """Convert a user's indices to positions in the stored items. Raise `StepOutOfRange`,
    naming the time series `name`, if an index has no item.

    Raises:
        StepOutOfRange: names the track and the first index without an item.
        WrongType: the indices are not ints.
    """
    result = positions(indices, lookback, size, neg_index_as_lookback)
    total = lookback + size
    if isinstance(result, range):
        return result if indices is None else range(*clip(result, total).indices(total))
    if isinstance(result, int):
        if not 0 <= result < total:
            raise out_of_range(name, indices, lookback, size)
        return result
    outside = (result < 0) | (result >= total)
    if outside.any():
        raise out_of_range(name, int(as_index_array(indices)[outside.argmax()]), lookback, size)
    return result


def as_index_array(indices: object) -> np.ndarray:
    """Return a list or array of indices as an int64 array [k]. Raise `WrongType` for bools,
    floats and lists of lists."""
    if isinstance(indices, (str, bytes)) or not isinstance(indices, (Sequence, np.ndarray, range)):
        raise WrongType(
            f"indices {indices!r}: an index is an int, a slice, or a list, tuple, range or integer array of ints"
        )
    try:
        array = np.asarray(indices)
    except ValueError:
        raise WrongType(f"indices {indices!r}: they must be integers in one dimension, not a ragged list") from None
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise WrongType(f"indices {indices!r}: they must be integers in one dimension, not {array.dtype} {array.shape}")
    return array.astype(np.int64, copy=False)


def out_of_range(name: str, index: object, lookback: int, size: int) -> StepOutOfRange:
    """Return the `StepOutOfRange` error for an index without an item. Its message states the valid range."""
    valid_items = f"items 0..{size - 1}" if size else "no items from step 0 on"
    before = f" and {lookback} lookback items (-{lookback}..-1 with neg_index_as_lookback=True)" if lookback else ""
    return StepOutOfRange(f"{name}[{index}]: there are {valid_items}{before}; pass fill= to read past the ends.")


def chunk_bounds(slice_: slice, num_steps: int) -> tuple[int, int]:
    """Return the first and the stop step that a user's slice of an episode with `num_steps` steps
    selects, clipped as for lists.

    Raises:
        WrongType: `slice_` is not a slice.
        InvalidArgument: its step is not 1.
    """
    if not isinstance(slice_, slice):
        raise WrongType(
            f"episode[{slice_!r}]: an episode is sliced by steps, episode[a:b]; read one item with a getter"
        )
    start, stop, step = slice_.indices(num_steps)
    if step != 1:
        raise InvalidArgument(
            f"an episode cannot be sliced with a step of {step}; read its tracks with that step instead"
        )
    return start, max(start, stop)


def checked_lookback(length: object, unit: str = "items") -> int:
    """Return `length`, a user's number of lookback steps, as an int.

    Args:
        unit: word in the error message for what is counted, such as "env steps".

    Raises:
        InvalidArgument: the length is not an integer of at least 0.
    """
    if not isinstance(length, (int, np.integer)) or length < 0:
        raise InvalidArgument(f"len_lookback_buffer={length!r}: give the number of {unit}, 0 or more")
    return int(length)


def offsets_of(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return 0 and the cumulative sums of `sizes`: part i of n concatenated parts begins at element i, int64 [n + 1].

    >>> offsets_of([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the integers of all ranges `[start, start + size)`, concatenated, int64 [sum(sizes)].

    >>> ranges(np.array([3, 10]), np.array([2, 3])).tolist()
    [3, 4, 10, 11, 12]
    """
    ends = sizes.cumsum()
    rows = (starts - ends + sizes).repeat(sizes)
    rows += np.arange(len(rows))
    return rows
