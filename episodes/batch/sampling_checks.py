"""Checks of arguments for sampling from replay buffers and data sets, such as counts and n-step bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.columns import Columns
from episodes.errors import InvalidArgument, ShapeMismatch, StepOutOfRange, WrongType
from episodes.tracks.validation import checked_number

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


INDICES = "indices"
LARGEST_COUNT = 1 << 40
"""Largest accepted batch size, sequence length or other count. Larger numbers are mistakes of the caller."""


def check_counts(least: int = 1, **counts: Any) -> None:
    """Raise `InvalidArgument` unless each of the counts, given by name, is an int from `least` to `LARGEST_COUNT`."""
    for name, count in counts.items():
        if type(count) is not int and not is_int(count):
            raise InvalidArgument(f"{name}={count!r}: give an int")
        if not least <= count <= LARGEST_COUNT:
            raise InvalidArgument(f"{name}={count!r}: give at least {least}, and at most {LARGEST_COUNT}")


def check_n_step(n_step: Any) -> None:
    """Raise `InvalidArgument` unless `n_step` is an int of at least 1 or a pair (lowest, highest) of such ints."""
    bounds = n_step if isinstance(n_step, tuple) else (n_step, n_step)
    if len(bounds) != 2 or not all(map(is_int, bounds)) or not 1 <= bounds[0] <= bounds[1] <= LARGEST_COUNT:
        raise InvalidArgument(
            f"n_step={n_step!r}: give at least 1, or the bounds (least, most) of random ones, both included"
        )


def check_sample(n: int, n_step: int | tuple[int, int], gamma: float, max_age: int | None = None) -> None:
    """Raise `InvalidArgument` unless these arguments for sampling transitions are valid."""
    if (
        type(n) is int
        and type(n_step) is int
        and type(gamma) is float
        and max_age is None
        and 0 < n <= LARGEST_COUNT
        and 0 < n_step <= LARGEST_COUNT
        and 0 <= gamma <= 1
    ):
        return  # in a tenth of the time
    check_counts(n=n)
    check_n_step(n_step)
    checked_number("gamma", gamma, 0.0, 1.0)
    if max_age is not None:
        check_counts(0, max_age=max_age)


def check_sequences(
    batch_size: int, length: int, burn_in: int, lookback: int, boundary: str, period: int | None = None
) -> None:
    """Raise `InvalidArgument` unless these arguments for sampling sequences are valid. `boundary="stop"` and `period`
    exclude each other.
    """
    check_counts(batch_size=batch_size, length=length)
    check_counts(0, burn_in=burn_in, lookback=lookback)
    if not isinstance(boundary, str) or boundary not in ("pad", "stop"):
        raise InvalidArgument(f"boundary={boundary!r}: give 'pad' or 'stop'")
    if period is not None:
        check_counts(period=period)
        if boundary == "stop":
            raise InvalidArgument("boundary='stop' moves sequences off the grid of a period; give one of both")


def checked_step_indices(indices: ArrayLike, ndim: int | None = None) -> np.ndarray:
    """Return step indices as an int64 array. Raise an error unless they are integers.

    Args:
        indices: ints in an array or nested lists.
        ndim: the number of axes that the indices must have.

    Raises:
        WrongType: floats, bools or anything else that is no int.
        ShapeMismatch: indices with another number of axes.
        StepOutOfRange: an index that does not fit into int64.
    """
    try:
        array = np.asarray(indices)
    except ValueError as error:
        raise WrongType(f"indices={indices!r}: {error}; give step indices, ints as in `batch.indices`") from None
    if array.dtype.kind not in "iu" and (array.size or array.dtype.kind not in "f"):
        raise WrongType(f"indices of {array.dtype}: give step indices, ints as in `batch.indices`")
    if ndim is not None and array.ndim != ndim:
        raise ShapeMismatch(f"indices have shape {array.shape}; give an array with {ndim} axis")
    if array.dtype == np.uint64 and array.size and array.max() > _LARGEST_INDEX:
        raise StepOutOfRange(f"step {array.max()}: no step has this index")
    return array.astype(np.int64, copy=False)


_LARGEST_INDEX = np.iinfo(np.int64).max


def is_int(value: object) -> bool:
    """Return True for a Python or numpy int that is not a bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def reach_of(views: Any, keys: Sequence[str], left: int = 0) -> int | None:
    """Return how many steps before a sampled step a batch reads: `left` columns, and what views look back from there.

    Args:
        views: `BoundViews`, or None.
        keys: names of the batch's columns.
        left: number of columns before the sampled step.

    Returns:
        The number of steps. None if the views look back without a limit.
    """
    if views is None or not (Columns.OBS in keys or Columns.NEXT_OBS in keys):
        return int(left)
    return None if views.lookback is None else int(left + views.lookback)


def unknown_steps(reach: int | None, advice: str) -> str:
    """Return the words of an error about steps that are read before a sampled step, and are not stored.

    Args:
        reach: number of these steps. None for all of the episode.
        advice: what to do, without the number of steps of a lookback.
    """
    needed = "all steps" if reach is None else f"the {reach} step{'' if reach == 1 else 's'}"
    lookback = "all earlier steps" if reach is None else f"{reach} steps"
    return (
        f"{needed} before it, which views, burn-in or recurrent states read; {advice} with a lookback of at least "
        f"{lookback}"
    )
