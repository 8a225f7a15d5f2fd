"""Replacement of failed environments: which failures count, how often, and with which seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from episode_runners.seeds import independent_seed
from episodes.errors import (
    EnvironmentLost,
    EpisodeStateError,
    InvalidArgument,
    ShapeMismatch,
    TrackMismatch,
    UnknownKey,
    WrongType,
)

__all__ = ["MAX_FAILURES", "EnvPlace", "EnvReplacement", "RestartedEnv", "advised"]

MAX_FAILURES = 10  # of one environment without an ended episode between them

# Values that do not fit, or wrong calls, are mistakes in a program: a new environment would repeat them.
_MISTAKES = (ShapeMismatch, TrackMismatch, WrongType, UnknownKey, EpisodeStateError, InvalidArgument)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnvReplacement:
    """Record of an environment that failed and was replaced, and why.

    Attributes:
        index: index of the environment in its runner.
        reason: what happened: the error of the environment, or how its process ended.
    """

    index: int
    reason: str


class EnvPlace:
    """Place of one environment among N, in which a failed environment is replaced.

    The k-th replacement since the last seeded reset is seeded from the seed of that reset, the index and k, so that a
    seeded run with the same failures can be repeated, and continued from a checkpoint.

    Args:
        index: index of the environment.
        make: makes the environment. An error of it counts as a failure.
        replacements: list of all replacements, to which this place adds its own.
    """

    def __init__(self, index: int, make: Callable[[], Any], replacements: list[EnvReplacement]) -> None:
        self.index, self._make, self._replacements = index, make, replacements
        self._seed: int | None = None  # of the last seeded reset
        self._num_failures = 0  # since the last ended episode
        self._num_replacements = 0  # since the last seeded reset

    def note_reset(self, seed: int | None) -> None:
        """Note that the environment is reset, with a seed or without one."""
        if seed is not None:
            self._seed, self._num_replacements = seed, 0

    def note_end(self) -> None:
        """Note that an episode ended, after which `MAX_FAILURES` failures are accepted again."""
        self._num_failures = 0

    def replace(
        self, error: Exception, discard: Callable[[], Any], reset: Callable[[Any, int | None], Any]
    ) -> tuple[Any, Any]:
        """Replace the environment, which failed with `error`, until a new environment has been reset.

        Args:
            error: what the environment raised.
            discard: closes the failed environment. Its errors are ignored.
            reset: resets a new environment with a seed.

        Returns:
            The new environment, and the result of its reset.

        Raises:
            EpisodeError: `error` is one of this library, about values that do not fit or a wrong call.
            EnvironmentLost: the environment failed more than `MAX_FAILURES` times without an ended episode.
        """
        while True:
            if isinstance(error, _MISTAKES):
                raise error
            with suppress(Exception):
                discard()
            reason = str(error) if isinstance(error, EnvironmentLost) else f"{type(error).__name__}: {error}"
            self._num_failures += 1
            if self._num_failures > MAX_FAILURES:
                raise EnvironmentLost(
                    f"environment {self.index} failed {self._num_failures} times without an ended episode, at last "
                    f"with {reason}; restart_failed= replaces environments that fail rarely: mend the cause"
                ) from error
            self._num_replacements += 1
            self._replacements.append(EnvReplacement(self.index, reason))
            _log.warning("environment %d is replaced: %s", self.index, reason)
            seed = None if self._seed is None else independent_seed(self._seed, self.index, self._num_replacements)
            try:
                env = self._make()
            except Exception as failure:
                error, discard = failure, _nothing
                continue
            try:
                return env, reset(env, seed)
            except Exception as failure:
                error, discard = failure, env.close


def advised(error: Exception) -> Exception:
    """Return the error of an environment that is not replaced, with advice if its process was lost."""
    if not isinstance(error, EnvironmentLost):
        return error
    return EnvironmentLost(f"{error}; restart_failed=True replaces such environments")


def _nothing() -> None:
    """Do nothing: there is no environment to close."""


class RestartedEnv(gym.Wrapper):
    """Environment that is replaced by a new one if its reset fails, or if the caller says that its step failed.

    Args:
        make: makes the environment.
        place: the environment's place among the others.
    """

    def __init__(self, make: Callable[[], gym.Env], place: EnvPlace) -> None:
        super().__init__(make())
        self.place = place

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment, or a new one in its place."""
        self.place.note_reset(seed)
        try:
            return self.env.reset(seed=seed, options=options)
        except Exception as error:
            return self.replace(error, options)

    def replace(self, error: Exception, options: dict[str, Any] | None = None) -> Any:
        """Replace the environment, which failed with `error`, and return the result of the new one's reset."""
        self.env, result = self.place.replace(
            error, self.env.close, lambda env, seed: env.reset(seed=seed, options=options)
        )
        return result
