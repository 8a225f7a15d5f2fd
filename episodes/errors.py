"""Every error of this library: what was asked, what is there, what to do.

Each class derives from `EpisodeError` and from the built-in kind that a caller would catch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class EpisodeError(Exception):
    """The root of this library's errors."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class StepOutOfRange(EpisodeError, IndexError):
    """A step or an item was asked for that is not there."""


class UnknownKey(EpisodeError, KeyError):
    """A column, key, piece or agent was named that is not there."""


class EpisodeStateError(EpisodeError, RuntimeError):
    """An episode is in the wrong phase: not reset yet, ended, or finalized."""


class ShapeMismatch(EpisodeError, ValueError):
    """Items of one track differ in shape, or data does not have the shape asked for."""


class TrackMismatch(EpisodeError, ValueError):
    """Tracks do not go together: keys or lengths differ."""


class ChunkMismatch(EpisodeError, ValueError):
    """Two chunks do not follow each other."""


class InvalidArgument(EpisodeError, ValueError):
    """An argument has a value that makes no sense here."""


class InvalidFill(EpisodeError, ValueError):
    """A fill value cannot stand in for an item of the track."""


class WrongType(EpisodeError, TypeError):
    """An argument has a type that is not taken here."""


class UnwiredPipeline(EpisodeError, ValueError):
    """A pipeline's piece reads a column that no piece before it writes."""


class MissingExtra(EpisodeError, ImportError):
    """An optional dependency is needed; the message names the extra to install."""


@contextmanager
def needing(extra: str, why: str) -> Iterator[None]:
    """Where imports of an extra's packages stand: `MissingExtra` where one fails, with why it is needed."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{why}; install the extra: pip install 'rl-episodes[{extra}]'") from error


class LostInConversion(EpisodeError, ValueError):
    """A converter that was to keep all could not; the message lists what would be lost."""


class StateMismatch(EpisodeError, ValueError):
    """A state was saved by something else than what it is restored into."""


class UnreadableData(EpisodeError, ValueError):
    """What was read from disk or a socket is damaged, of a newer version, or something else altogether."""


class ContractViolation(EpisodeError, AssertionError):
    """A part does not keep what parts of its kind promise; the checks of `episodes.testing` and others find it."""


class TransportTimeout(EpisodeError, TimeoutError):
    """Nothing came, or nothing went, within the time that was given."""


class NotAdmitted(EpisodeError, ConnectionError):
    """The other side does not let this one in: its keys are missing or wrong."""


class RunnerLost(EpisodeError, RuntimeError):
    """A process that samples cannot be made, or dies again and again."""
