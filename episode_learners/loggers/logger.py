"""`Logger`: where a run's numbers go, at intervals of environment steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from episodes.errors import InvalidArgument

__all__ = ["SCOPES", "Logger", "MultiLogger"]

SCOPES = ("train", "test", "update", "info")


class Logger:
    """Takes metrics by scope and step; this one forgets them. Others override `write`.

    Scopes: "train" is what was sampled, "test" what a test found, "update" what an algorithm measured, "info" the rest.

    Args:
        intervals: environment steps between two rows of a scope; 0, the default, takes every row.
    """

    def __init__(self, intervals: Mapping[str, int] | None = None) -> None:
        self.intervals = dict(intervals or {})
        unknown = set(self.intervals) - set(SCOPES)
        if unknown:
            raise InvalidArgument(f"intervals has the scopes {sorted(unknown)}; there are {', '.join(SCOPES)}")
        self._last: dict[str, int] = {}

    def log(self, scope: str, metrics: Mapping[str, float], step: int) -> None:
        """Take metrics of a scope after so many environment steps, unless the last ones are too near."""
        check_scope(scope)
        last = self._last.get(scope)
        if last is None or step - last >= self.intervals.get(scope, 0) or step < last:
            self._last[scope] = step
            self.write(scope, metrics, step)

    def write(self, scope: str, metrics: Mapping[str, float], step: int) -> None:
        """Keep a row."""

    def describe(self, description: Mapping[str, Any]) -> None:
        """Keep what the run is: its configuration, versions, the command."""

    def resume(self, step: int) -> None:
        """Continue after `step`, and drop rows of later steps, which an interrupted run wrote, if that is possible."""

    def get_state(self) -> dict[str, Any]:
        """Return the step of the last row of each scope, from which intervals are counted."""
        return {"last": dict(self._last)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `get_state` returned; an empty one begins new intervals."""
        self._last = dict(state.get("last", {}))

    def flush(self) -> None:
        """Let everything be where it can be read."""

    def close(self) -> None:
        """Flush, and let go of files."""
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class MultiLogger(Logger):
    """Several loggers, each with intervals of its own.

    One that fails, on a full disk or without a network, is left out from then on, with a warning: the run and the
    others go on. The error of the last one is raised.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        super().__init__()
        self.loggers = list(loggers)  # those that work
        self._failed: list[Logger] = []
        self._names = {id(logger): f"{i} {type(logger).__name__}" for i, logger in enumerate(self.loggers)}

    def _each(self, name: str, *told: Any) -> None:
        """Call a method of all."""
        for logger in self.loggers[:]:
            try:
                getattr(logger, name)(*told)
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
    """Raise InvalidArgument where there is no such scope."""
    if scope not in SCOPES:
        raise InvalidArgument(f"{scope!r} is no scope; there are {', '.join(SCOPES)}")
