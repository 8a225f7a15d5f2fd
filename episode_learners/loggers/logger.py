"""`Logger`: base class of loggers, which write metrics, optionally not more often than once per interval of steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from episodes.errors import InvalidArgument

__all__ = ["SCOPES", "Logger", "MultiLogger"]

SCOPES = ("train", "test", "update", "info")


class Logger:
    """Base class of loggers of a training run's metrics. Subclasses override `write`, which does nothing in this class.

    Metrics belong to scopes: "train" has statistics of sampled episodes, "test" those of tests, "update" the
    metrics of the algorithm, and "info" everything else.

    Args:
        intervals: environment steps between two rows of a scope, by scope; 0, the default, writes every row.

    Raises:
        InvalidArgument: `intervals` has an unknown scope.
    """

    def __init__(self, intervals: Mapping[str, int] | None = None) -> None:
        self.intervals = dict(intervals or {})
        unknown = set(self.intervals) - set(SCOPES)
        if unknown:
            raise InvalidArgument(f"intervals has the scopes {sorted(unknown)}; there are {', '.join(SCOPES)}")
        self._last: dict[str, int] = {}

    def log(self, scope: str, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics of a scope, such as "train", unless fewer steps than the scope's interval have passed since its
        last row.

        Raises:
            InvalidArgument: the scope does not exist.
        """
        check_scope(scope)
        last = self._last.get(scope)
        if last is None or step - last >= self.intervals.get(scope, 0) or step < last:
            self._last[scope] = step
            self.write(scope, metrics, step)

    def write(self, scope: str, metrics: Mapping[str, float], step: int) -> None:
        """Write one row of metrics of a scope, measured after `step` environment steps. Subclasses override this
        method.
        """

    def describe(self, description: Mapping[str, Any]) -> None:
        """Write the description of the run (configuration, versions, command line), by which it can be reproduced. By
        default it does nothing.
        """

    def resume(self, step: int) -> None:
        """Prepare for continuing an interrupted run after `step`.

        Loggers that can, remove the rows of later steps. By default it does nothing.
        """

    def get_state(self) -> dict[str, Any]:
        """Return the step of the last row of each scope, for checkpoints, so that a resumed run keeps the intervals."""
        return {"last": dict(self._last)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned. An empty state begins new intervals."""
        self._last = dict(state.get("last", {}))

    def flush(self) -> None:
        """Write buffered rows to disk or to the service. By default it does nothing."""

    def release(self) -> None:
        """Let other loggers write to the same place, after a run. The next row claims the place again. By default it
        does nothing.
        """

    def close(self) -> None:
        """Write buffered rows, and close all files."""
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class MultiLogger(Logger):
    """Logger that passes all metrics on to several other loggers. Each of these applies its own intervals.

    A logger that fails, for example on a full disk, is removed with a warning, and the run continues with the
    others. If the last one fails, its error is raised.

    Args:
        loggers: the loggers that get all metrics.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        super().__init__()
        self.loggers = list(loggers)  # those that work
        self._failed: list[Logger] = []
        self._names = {id(logger): f"{i} {type(logger).__name__}" for i, logger in enumerate(self.loggers)}

    def _call_all(self, name: str, *arguments: object) -> None:
        """Call the method `name` of all loggers.

        A logger that fails is removed with a warning. If all have failed, raise the last error.
        """
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
        self._call_all("log", scope, metrics, step)

    def describe(self, description: Mapping[str, Any]) -> None:
        self._call_all("describe", description)

    def resume(self, step: int) -> None:
        self._call_all("resume", step)

    def get_state(self) -> dict[str, Any]:
        return {self._names[id(logger)]: logger.get_state() for logger in self.loggers}

    def set_state(self, state: Mapping[str, Any]) -> None:
        for logger in self.loggers:
            logger.set_state(state.get(self._names[id(logger)], {}))

    def flush(self) -> None:
        self._call_all("flush")

    def release(self) -> None:
        self._call_all("release")

    def close(self) -> None:
        for logger in self._failed:
            with suppress(Exception):  # it was told of
                logger.close()
        self._call_all("close")


def check_scope(scope: str) -> None:
    """Raise `InvalidArgument` if a scope of metrics is not "train", "test", "update" or "info"."""
    if scope not in SCOPES:
        raise InvalidArgument(f"unknown scope {scope!r}; the scopes are {', '.join(SCOPES)}")
