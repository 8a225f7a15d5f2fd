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
    """Error: a requested step or item does not exist."""


class UnknownKey(EpisodeError, KeyError):
    """Error: a requested column, key, connector or agent does not exist."""


class EpisodeStateError(EpisodeError, RuntimeError):
    """Error: a call does not fit the state of the object, such as a step before the reset or after the end."""


class ShapeMismatch(EpisodeError, ValueError):
    """Error: items of one time series differ in shape, or data does not have the requested shape."""


class TrackMismatch(EpisodeError, ValueError):
    """Error: time series or columns do not fit together, because their keys, lengths or spaces differ."""


class ChunkMismatch(EpisodeError, ValueError):
    """Error: two chunks (parts of an episode) are not consecutive."""


class InvalidArgument(EpisodeError, ValueError):
    """Error: an argument has an invalid value."""


class NotExportable(EpisodeError, ValueError):
    """Error: a policy or connector cannot be exported to a file. The message names it, with file and line."""


class InvalidFill(EpisodeError, ValueError):
    """Error: a fill value does not have the shape or dtype of the items that it would replace."""


class WrongType(EpisodeError, TypeError):
    """Error: an argument has a type that is not accepted."""


class UnwiredPipeline(EpisodeError, ValueError):
    """Error: a connector of a pipeline reads a column that no earlier connector writes."""


class MissingExtra(EpisodeError, ImportError):
    """Error: an optional dependency is missing. The message names the extra to install."""


@contextmanager
def needing(extra: str, purpose: str) -> Iterator[None]:
    """Return a context manager for imports of optional packages: a failed import raises `MissingExtra`.

    Args:
        extra: name of the extra.
        purpose: what needs the extra.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{purpose}; install the extra: pip install 'rl-episodes[{extra}]'") from error


class LostInConversion(EpisodeError, ValueError):
    """Error: a strict converter would lose data. The message lists it."""


class StateMismatch(EpisodeError, ValueError):
    """Error: a state dict does not belong to the object that is to be restored from it."""


class UnreadableData(EpisodeError, ValueError):
    """Error: data from disk or a socket is damaged, of a newer version, or not of this library."""


class ContractViolation(EpisodeError, AssertionError):
    """Error: an environment, connector or policy breaks a rule for objects of its kind."""


class TransportTimeout(EpisodeError, TimeoutError):
    """Error: no message was sent or received within the timeout."""


class NotAdmitted(EpisodeError, ConnectionError):
    """Error: the other side rejected the connection, because its keys are missing or wrong."""


class RunnerLost(EpisodeError, RuntimeError):
    """Error: a runner process could not be started, or died repeatedly."""
