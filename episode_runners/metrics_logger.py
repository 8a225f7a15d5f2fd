"""`MetricsLogger`: numbers that callbacks log while a runner samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from episodes.errors import InvalidArgument

__all__ = ["MetricsLogger"]

Key = str | tuple[str, ...]  # a tuple leads into nested dicts

_WINDOW = 100  # of means

_REDUCED: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "ema": lambda values: values[-1],
    "min": min,
    "max": max,
    "sum": sum,
    "lifetime_sum": sum,
    "item": lambda values: values[-1],
    "item_series": list,
}
_KEPT_WHOLE = ("mean", "item_series")  # of all others without a window one number is enough


@dataclass(slots=True)
class _Logged:
    """The values of one key."""

    way: str  # of `_REDUCED`
    values: deque[Any]
    clears: bool
    ema_coeff: float

    def add(self, value: Any) -> None:
        values = self.values
        if self.way == "ema" and values:
            value = values[-1] + self.ema_coeff * (value - values[-1])
        values.append(value)
        if len(values) > 1 and values.maxlen is None and self.way not in _KEPT_WHOLE:
            reduced = self.reduced()
            values.clear()
            values.append(reduced)

    def reduced(self) -> Any:
        return _REDUCED[self.way](self.values)


class MetricsLogger:
    """Values by key, each with a way to make one number of many. Names and arguments are those that RLlib has.

    >>> logger = MetricsLogger()
    >>> for total in (1, 3, 5):
    ...     logger.log_value("return", total, reduce="max")
    >>> logger.log_value(("games", "won"), 1, reduce="sum")
    >>> logger.peek("return"), logger.peek()
    (5, {'return': 5, 'games': {'won': 1}})
    """

    def __init__(self) -> None:
        self._logged: dict[tuple[str, ...], _Logged] = {}

    def log_value(
        self,
        key: Key,
        value: Any,
        *,
        reduce: str | None = "mean",
        window: int | None = None,
        ema_coeff: float = 0.01,
        clear_on_reduce: bool | None = None,
    ) -> None:
        """Note a value. The first call with a key decides how its values become one.

        Args:
            reduce: "mean" (and None), "ema", "min", "max", "sum", "lifetime_sum", "item" (the last one) or
                "item_series" (all of them).
            window: only the last so many count; 100 for a mean.
            ema_coeff: the weight of a new value in an "ema".
            clear_on_reduce: begin anew after `reduce()`; by default all do but means, "ema" and "lifetime_sum".

        Raises:
            InvalidArgument: another word for `reduce`; a key that leads into another one's number.
        """
        path = _path(key)
        if path not in self._logged:
            self._logged[path] = self._new(path, reduce or "mean", window, ema_coeff, clear_on_reduce)
        self._logged[path].add(value)

    def _new(self, path: tuple[str, ...], way: str, window: int | None, coeff: float, clears: bool | None) -> _Logged:
        """The empty values of a new key."""
        if way not in _REDUCED:
            raise InvalidArgument(f"log_value({path}, reduce={way!r}): give one of {', '.join(_REDUCED)}")
        for other in self._logged:
            if other[: len(path)] == path or path[: len(other)] == other:
                raise InvalidArgument(
                    f"log_value({path}): there is {other}, and a key is a number or a dict; rename one"
                )
        if clears is None:
            clears = way not in ("mean", "ema", "lifetime_sum")
        return _Logged(way, deque(maxlen=_WINDOW if way == "mean" and window is None else window), clears, coeff)

    def log_dict(self, values: Mapping[str, Any], *, key: Key = (), **options: Any) -> None:
        """Note the values of nested dicts, each under its path; `options` are those of `log_value`."""
        for name, value in values.items():
            path = (*_path(key), name)
            if isinstance(value, Mapping):
                self.log_dict(value, key=path, **options)
            else:
                self.log_value(path, value, **options)

    def peek(self, key: Key | None = None, default: Any = None) -> Any:
        """The number of a key, `default` where nothing was logged; without a key, nested dicts of all."""
        if key is not None:
            logged = self._logged.get(_path(key))
            return logged.reduced() if logged and logged.values else default
        found: dict[str, Any] = {}
        for (*parents, name), logged in self._logged.items():
            place = found
            for parent in parents:
                place = place.setdefault(parent, {})
            if logged.values:
                place[name] = logged.reduced()
        return found

    def reduce(self) -> dict[str, Any]:
        """All numbers, as `peek()` gives them; those that clear begin anew."""
        found = self.peek()
        for logged in self._logged.values():
            if logged.clears:
                logged.values.clear()
        return found


def _path(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
