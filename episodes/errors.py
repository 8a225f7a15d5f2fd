"""All errors of this library. Each message states the fault, the allowed values and the remedy.

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
    """Error raised if a requested step or item does not exist."""


class UnknownKey(EpisodeError, KeyError):
    """Error raised if a requested column, key, connector or agent does not exist."""


class EpisodeStateError(EpisodeError, RuntimeError):
    """Error raised if a call does not fit an object's state, such as a step before the reset or after the end."""


class ShapeMismatch(EpisodeError, ValueError):
    """Error raised if items of one time series differ in shape, or data does not have the required shape."""


class TrackMismatch(EpisodeError, ValueError):
    """Error raised if time series or columns do not fit together in keys, lengths or spaces."""


class ChunkMismatch(EpisodeError, ValueError):
    """Error raised if two chunks (parts of an episode) to be joined are not consecutive."""


class InvalidArgument(EpisodeError, ValueError):
    """Error raised if an argument has an invalid value."""


class NotExportable(EpisodeError, ValueError):
    """Error raised if a policy or connector cannot be exported to a file. The message gives its file and line."""


class InvalidFill(EpisodeError, ValueError):
    """Error raised if a fill value does not have the shape or dtype of the items that it replaces."""


class WrongType(EpisodeError, TypeError):
    """Error raised if an argument has a type that is not accepted."""


class UnwiredPipeline(EpisodeError, ValueError):
    """Error raised if a connector of a pipeline reads a column that no earlier connector writes."""


class MissingExtra(EpisodeError, ImportError):
    """Error raised if an optional dependency is not installed. The message names the extra to install."""


@contextmanager
def needing(extra: str, purpose: str) -> Iterator[None]:
    """Return a context manager in which a failed import of an optional package raises `MissingExtra`.

    Args:
        extra: name of the extra.
        purpose: what needs the extra.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{purpose}; {install_advice(extra)}") from error


def rejected_type(value: object, *kinds: type) -> str:
    """Return the name of the type of a value for the message that it is none of the classes `kinds`.

    After a reload of modules (`importlib.reload`, autoreload of Jupyter) there are two classes of one name, and objects
    of one are not instances of the other. The message says so then.
    """
    name = type(value).__name__
    names = {(kind.__module__, kind.__qualname__) for kind in kinds}
    twice = [kind for kind in type(value).__mro__ if (kind.__module__, kind.__qualname__) in names]
    if not twice:
        return name
    return (
        f"{name} of another {twice[0].__module__}, which was reloaded: restart Python (in Jupyter the kernel), and "
        "leave this library out of autoreload"
    )


def install_advice(extra: str) -> str:
    """Return how to install an extra, as the end of an error message."""
    return f"install the extra {extra!r}: pip install '.[{extra}]' in a clone of the repository of rl-episodes"


class LostInConversion(EpisodeError, ValueError):
    """Error raised if a conversion with `strict=True` would lose data. The message lists what."""


class StateMismatch(EpisodeError, ValueError):
    """Error raised if a state dict does not belong to the object into which it is loaded."""


class UnreadableData(EpisodeError, ValueError):
    """Error raised if data from disk or a socket is damaged, too new, or of another program."""


class ContractViolation(EpisodeError, AssertionError):
    """Error raised if an environment, connector or policy breaks a rule for objects of its kind."""


class TransportTimeout(EpisodeError, TimeoutError):
    """Error raised if no message was sent or received within the timeout."""


class NotAdmitted(EpisodeError, ConnectionError):
    """Error raised if the other side rejected the connection because of missing or wrong keys."""


class RunnerLost(EpisodeError, RuntimeError):
    """Error raised if a runner process could not be started, or died repeatedly."""


class EnvironmentLost(EpisodeError, RuntimeError):
    """Error raised if an environment's process has died or does not reply, or an environment has failed repeatedly."""
