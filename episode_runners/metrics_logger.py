"""`MetricsLogger`: collects and reduces numbers that callbacks log while a runner samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from episodes.errors import InvalidArgument

__all__ = ["MetricsLogger"]

Key = str | tuple[str, ...]  # a tuple leads into nested dicts

_WINDOW = 100  # values of a mean or of percentiles, unless a window is given
_PERCENTILES = (0, 50, 75, 90, 95, 99, 100)

_REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "ema": lambda values: values[-1],
    "min": min,
    "max": max,
    "sum": sum,
    "lifetime_sum": sum,
    "item": lambda values: values[-1],
    "item_series": list,
    "percentiles": list,
}
_WITH_ALL_VALUES = ("mean", "item_series", "percentiles")  # others need one number only, unless there is a window


@dataclass(slots=True)
class _Series:
    """Values that were logged under one key of a `MetricsLogger`, with the settings for their reduction."""

    reduction: str  # a key of `_REDUCTIONS`
    values: deque[Any]
    clears: bool  # whether `MetricsLogger.reduce` drops the values
    ema_coeff: float
    percentiles: Sequence[float]
    has_throughput: bool
    total: float = 0.0  # sum since `since`, for the throughput
    since: float = field(default_factory=perf_counter)

    def add(self, value: float) -> None:
        """Add a value. If the reduction does not need all values, they are replaced by the reduced one, so that memory
        is limited.
        """
        values = self.values
        if self.has_throughput:
            self.total += value
        if self.reduction == "ema" and values:
            value = values[-1] + self.ema_coeff * (value - values[-1])
        values.append(value)
        if len(values) > 1 and values.maxlen is None and self.reduction not in _WITH_ALL_VALUES:
            reduced = self.reduced()
            values.clear()
            values.append(reduced)

    def reduced(self) -> Any:
        """Return the reduced value of the series. For percentiles it is a dict from percentile to value."""
        if self.reduction == "percentiles":
            return dict(zip(self.percentiles, np.percentile(self.values, self.percentiles).tolist(), strict=True))
        return _REDUCTIONS[self.reduction](self.values)

    def throughput(self) -> float:
        return self.total / max(perf_counter() - self.since, 1e-9)

    def start_interval(self) -> None:
        """Start a new interval for the throughput (the sum per second), and drop the values if `clears` is set."""
        if self.clears:
            self.values.clear()
        self.total, self.since = 0.0, perf_counter()


class MetricsLogger:
    """Logger that reduces the values of each key to a number, such as a mean or a sum. Its interface is RLlib's.

    >>> logger = MetricsLogger()
    >>> for total in (1, 3, 5):
    ...     logger.log_value("return", total, reduce="max")
    >>> logger.log_value(("games", "won"), 1, reduce="sum")
    >>> logger.peek("return"), logger.peek()
    (5, {'return': 5, 'games': {'won': 1}})
    """

    def __init__(self) -> None:
        self._series: dict[tuple[str, ...], _Series] = {}

    def log_value(
        self,
        key: Key,
        value: float,
        *,
        reduce: str | None = None,
        window: int | None = None,
        ema_coeff: float | None = None,
        percentiles: Sequence[float] | bool | None = None,
        clear_on_reduce: bool | None = None,
        with_throughput: bool | None = None,
    ) -> None:
        """Log a value under a key. The first call for a key sets how the key's values are reduced.

        Args:
            key: a name, or a tuple of names that leads into nested dicts.
            value: a number; any value for "item" and "item_series".
            reduce: "ema" (an exponential moving average), "mean", "min", "max", "sum", "lifetime_sum", "item" (the last
                value), "item_series" (a list of all values) or "percentiles" (a dict). None: "mean" if a window is
                given, else "ema".
            window: number of newest values that count; 100 by default for "mean" and "percentiles".
            ema_coeff: weight of a new value in an "ema", 0.01 by default.
            percentiles: which percentiles, 0 to 100; (0, 50, 75, 90, 95, 99, 100) by default.
            clear_on_reduce: whether `reduce()` drops the values; by default it does, except for "mean", "ema",
                "percentiles" and "lifetime_sum".
            with_throughput: measure the sum per second too, for `peek(key, throughput=True)`; for sums only.

        Raises:
            InvalidArgument: `reduce` is unknown, an option cannot be combined with `reduce`, or the key is a part of
                the path of an existing key, or the reverse.
        """
        path = _path(key)
        if path not in self._series:
            options = (window, ema_coeff, percentiles, clear_on_reduce, bool(with_throughput))
            reduction = reduce or ("ema" if window is None else "mean")
            self._series[path] = self._new(path, reduction, *options)
        self._series[path].add(value)

    def _new(
        self,
        path: tuple[str, ...],
        reduction: str,
        window: int | None,
        ema_coeff: float | None,
        percentiles: Sequence[float] | bool | None,
        clears: bool | None,
        has_throughput: bool,
    ) -> _Series:
        """Return an empty series for the key `path`, after a check that its options fit together.

        The options are those of `log_value`. None means the default of the reduction.

        Raises:
            InvalidArgument: an option does not go with `reduction`, or a key is the beginning of another one.
        """
        location = f"log_value({path}, reduce={reduction!r})"
        if reduction not in _REDUCTIONS:
            raise InvalidArgument(f"{location}: give one of {', '.join(_REDUCTIONS)}")
        wrong = {
            "percentiles=": bool(percentiles) and reduction != "percentiles",
            "ema_coeff=": ema_coeff is not None and reduction != "ema",
            "with_throughput=": has_throughput and reduction not in ("sum", "lifetime_sum"),
        }
        for option in (name for name, is_wrong in wrong.items() if is_wrong):
            raise InvalidArgument(
                f"{location}: {option} cannot be combined with this reduction; leave it out or change reduce="
            )
        for known in self._series:
            if known[: len(path)] == path or path[: len(known)] == known:
                raise InvalidArgument(
                    f"{location}: the key {known} exists, and a key has either a number or further keys; rename a key"
                )
        if clears is None:
            clears = reduction not in ("mean", "ema", "percentiles", "lifetime_sum")
        if window is None and reduction in ("mean", "percentiles"):
            window = _WINDOW
        chosen = _PERCENTILES if percentiles is None or isinstance(percentiles, bool) else tuple(percentiles)
        coefficient = 0.01 if ema_coeff is None else ema_coeff
        return _Series(reduction, deque(maxlen=window), clears, coefficient, chosen, has_throughput)

    def log_dict(
        self, value_dict: Mapping[str, Any], *, key: Key | None = None, reduce: str | None = "mean", **options: Any
    ) -> None:
        """Log all values of a nested dict. The key of a value is its path of names in the dict.

        Args:
            value_dict: values by name, or dicts of them.
            key: the path of the dict itself; None for the top level.
            reduce: as in `log_value`, but "mean" by default.
            options: the other options of `log_value`.

        Raises:
            InvalidArgument: as in `log_value`.
        """
        for name, value in value_dict.items():
            path = (*_path(key or ()), name)
            if isinstance(value, Mapping):
                self.log_dict(value, key=path, reduce=reduce, **options)
            else:
                self.log_value(path, value, reduce=reduce, **options)

    @contextmanager
    def log_time(self, key: Key, *, reduce: str = "ema", **options: Any) -> Iterator[None]:
        """Return a context manager that measures the duration of its block in seconds, and logs it under a key.
        `reduce` and `options` are those of `log_value`.

        Raises:
            InvalidArgument: as in `log_value`.
        """
        start = perf_counter()
        try:
            yield
        finally:
            self.log_value(key, perf_counter() - start, reduce=reduce, **options)

    def peek(self, key: Key | None = None, default: object = None, *, throughput: bool = False) -> Any:
        """Return the reduced value of a key or, for `key=None`, the reduced values of all keys as nested dicts.

        Args:
            key: None for all keys.
            default: returned if nothing was logged under the key.
            throughput: return the sum per second since the last `reduce()`, for keys logged `with_throughput=True`.
        """
        if key is not None:
            series = self._series.get(_path(key))
            if series is None or not series.values:
                return default
            return series.throughput() if throughput else series.reduced()
        numbers: dict[str, Any] = {}
        for (*parents, name), series in self._series.items():
            parent_dict = numbers
            for parent in parents:
                parent_dict = parent_dict.setdefault(parent, {})
            if series.values:
                parent_dict[name] = series.throughput() if throughput else series.reduced()
        return numbers

    def reduce(self) -> dict[str, Any]:
        """Return the reduced values of all keys as nested dicts,
        and drop the logged values of keys with `clear_on_reduce`.
        """
        numbers = self.peek()
        for series in self._series.values():
            series.start_interval()
        return numbers


def _path(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
