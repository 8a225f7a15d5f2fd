"""`EnvUse`: use of environments by one runner: one call at a time, in turns with other runners, until closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from episode_runners.interrupts import DeferredInterrupt
from episodes.errors import EpisodeStateError
from episodes.recorder.env_turns import EnvTurns

__all__ = ["EnvUse"]


class EnvUse:
    """Use of environments by one runner: whether it may sample, its turns, a delayed Ctrl-C, and the closing.

    Args:
        envs: the environments.
        forget: cancels the closing of the environments when the runner is dropped. None: the caller closes them.

    Attributes:
        turns: the runner's turns at the environments.
        interrupts: the delayed Ctrl-C of the current call.
        needs_reset: whether all environments must be reset before the next step.
        is_sampling: whether a call of `sample` has not returned yet.
        is_closed: whether the runner was closed.
    """

    __slots__ = ("_forget", "_is_shut", "interrupts", "is_closed", "is_sampling", "needs_reset", "turns")

    def __init__(self, envs: Sequence[Any], forget: Callable[[], Any] | None) -> None:
        self.turns = EnvTurns(envs)
        self.interrupts = DeferredInterrupt()
        self.needs_reset = True
        self.is_sampling = False
        self.is_closed = False
        self._is_shut = False  # the environments are closed
        self._forget = forget

    def check_may_sample(self) -> None:
        """Raise `EpisodeStateError` if the runner is closed, or is sampling already."""
        if self.is_closed:
            raise EpisodeStateError("sample after close(); make a new runner")
        self.check_not_sampling("sample")

    def check_not_sampling(self, call: str) -> None:
        """Raise `EpisodeStateError` if the runner is sampling. `call` is the rejected call."""
        if self.is_sampling:
            raise EpisodeStateError(
                f"{call} while this runner samples: a hook, a policy or an environment called it; call it after sample "
                "has returned, or call evaluate(runner), which uses separate environments"
            )

    def begin(self) -> None:
        """Begin a call of `sample`, whose `end` must follow, also if this method fails.

        Raises:
            EpisodeStateError: another runner is sampling from the same environments.
        """
        self.is_sampling = True
        if not self.turns.begin():
            self.needs_reset = True

    def end(self) -> None:
        """End a call of `sample`."""
        self.is_sampling = False
        self.turns.end()

    def close(self, shut: Callable[[], None]) -> None:
        """Close the environments with `shut`, unless they are closed already. No call of `sample` may follow.

        If `shut` is interrupted by Ctrl-C, the next call runs it again.
        """
        self.is_closed = True
        if not self._is_shut:
            try:
                shut()
            except Exception:
                self._is_shut = True
                raise
            self._is_shut = True

    def forget(self) -> None:
        """Cancel the closing of the environments when the runner is dropped, once they are closed."""
        if self._forget is not None:
            self._forget()
