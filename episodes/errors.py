"""All errors of this library. A message describes the fault, the allowed values, and the remedy.

Each class derives from `EpisodeError` and from the built-in error that a caller would catch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class EpisodeError(Exception):
    """Base class of all errors of this library."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class StepOutOfRange(EpisodeError, IndexError):
    """A requested step or item does not exist."""


class UnknownKey(EpisodeError, KeyError):
    """A requested column, key, connector or agent does not exist."""


class EpisodeStateError(EpisodeError, RuntimeError):
    """A call does not fit the state of the object, for example a step before the reset or after the end."""


class ShapeMismatch(EpisodeError, ValueError):
    """Items of one track differ in shape, or data does not have the requested shape."""


class TrackMismatch(EpisodeError, ValueError):
    """Tracks do not fit each other: their keys or lengths differ."""


class ChunkMismatch(EpisodeError, ValueError):
    """Two chunks are not consecutive."""


class InvalidArgument(EpisodeError, ValueError):
    """An argument has an invalid value."""


class NotExportable(EpisodeError, ValueError):
    """A policy, a connector or a view has no form in an exported file; the message names it, with file and line."""


class InvalidFill(EpisodeError, ValueError):
    """A fill value cannot replace an item of the track."""


class WrongType(EpisodeError, TypeError):
    """An argument has a type that is not accepted."""


class UnwiredPipeline(EpisodeError, ValueError):
    """A connector of a pipeline reads a column that no earlier connector writes."""


class MissingExtra(EpisodeError, ImportError):
    """An optional dependency is missing. The message names the extra to install."""


@contextmanager
def needing(extra: str, why: str) -> Iterator[None]:
    """Return a context manager for imports of an extra's packages. A failed import raises `MissingExtra`.

    Args:
        extra: name of the extra.
        why: what needs the extra.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{why}; install the extra: pip install 'rl-episodes[{extra}]'") from error


class LostInConversion(EpisodeError, ValueError):
    """A strict converter would lose data. The message lists it."""


class StateMismatch(EpisodeError, ValueError):
    """A state does not belong to the object into which it is restored."""


class UnreadableData(EpisodeError, ValueError):
    """Data from disk or a socket is damaged, of a newer version, or not of this library."""


class ContractViolation(EpisodeError, AssertionError):
    """An environment, connector, view or policy breaks a rule for objects of its kind."""


class TransportTimeout(EpisodeError, TimeoutError):
    """No message was sent or received within the timeout."""


class NotAdmitted(EpisodeError, ConnectionError):
    """The peer rejected the connection: its keys are missing or wrong."""


class RunnerLost(EpisodeError, RuntimeError):
    """A runner process could not be started, or died repeatedly."""
