"""`Logger`: base class of loggers of metrics, which write at most one row per interval of steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from episodes.errors import InvalidArgument

__all__ = ["SCOPES", "Logger", "MultiLogger"]

SCOPES = ("train", "test", "update", "info")


class Logger:
    """Base class of loggers of metrics. It writes nothing: subclasses override `write`.

    Scopes: "train" has the sampled episodes, "test" the tests, "update" the algorithm's measurements, "info" everything
    else.

    Args:
        intervals: environment steps between two rows of a scope, by scope; 0, the default, writes every row.
    """

    def __init__(self, intervals: Mapping[str, int] | None = None) -> None:
        self.intervals = dict(intervals or {})
        unknown = set(self.intervals) - set(SCOPES)
        if unknown:
            raise InvalidArgument(f"intervals has the scopes {sorted(unknown)}; there are {', '.join(SCOPES)}")
        self._last: dict[str, int] = {}

    def log(self, scope: str, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics of a scope, such as "train", unless its last row is fewer steps ago than the interval."""
        check_scope(scope)
        last = self._last.get(scope)
        if last is None or step - last >= self.intervals.get(scope, 0) or step < last:
            self._last[scope] = step
            self.write(scope, metrics, step)

    def write(self, scope: str, metrics: Mapping[str, float], step: int) -> None:
        """Write a row of metrics after `step` environment steps. The base class does nothing."""

    def describe(self, description: Mapping[str, Any]) -> None:
        """Write the description of the run: configuration, versions, command."""

    def resume(self, step: int) -> None:
        """Continue a run after `step`. Later rows of the interrupted run are removed where possible."""

    def get_state(self) -> dict[str, Any]:
        """Return at which step each scope was last written."""
        return {"last": dict(self._last)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `get_state` returned. An empty state starts new intervals."""
        self._last = dict(state.get("last", {}))

    def flush(self) -> None:
        """Write buffered rows."""

    def close(self) -> None:
        """Flush and close all files."""
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class MultiLogger(Logger):
    """Logger that passes all metrics to several loggers, each with its own intervals.

    A logger that fails, for example on a full disk, is dropped with a warning, and the run continues with the others.
    If the last one fails, its error is raised.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        super().__init__()
        self.loggers = list(loggers)  # those that work
        self._failed: list[Logger] = []
        self._names = {id(logger): f"{i} {type(logger).__name__}" for i, logger in enumerate(self.loggers)}

    def _each(self, name: str, *arguments: Any) -> None:
        """Call a method of all loggers. Loggers that fail are dropped with a warning."""
        for logger in self.loggers[:]:
            try:
                getattr(logger, name)(*arguments)
            except Exception as error:
                self.loggers.remove(logger)
                self._failed.append(logger)
                if not self.loggers:
                    raise
                kind = type(logger).__name__
                warnings.warn(f"{kind}.{name} failed, it is left out from now on: {error!r}", RuntimeWarning, 3)

    def log(self, scope: str, metrics: Mapping[str, float], step: int) -> None:
        check_scope(scope)
        self._each("log", scope, metrics, step)

    def describe(self, description: Mapping[str, Any]) -> None:
        self._each("describe", description)

    def resume(self, step: int) -> None:
        self._each("resume", step)

    def get_state(self) -> dict[str, Any]:
        return {self._names[id(logger)]: logger.get_state() for logger in self.loggers}

    def set_state(self, state: Mapping[str, Any]) -> None:
        for logger in self.loggers:
            logger.set_state(state.get(self._names[id(logger)], {}))

    def flush(self) -> None:
        self._each("flush")

    def close(self) -> None:
        for logger in self._failed:
            with suppress(Exception):  # it was told of
                logger.close()
        self._each("close")


def check_scope(scope: str) -> None:
    """Raise `InvalidArgument` for a scope other than the known ones, such as "train" and "test"."""
    if scope not in SCOPES:
        raise InvalidArgument(f"{scope!r} is no scope; there are {', '.join(SCOPES)}")
