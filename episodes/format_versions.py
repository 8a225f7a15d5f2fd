"""Versions of all formats that the library writes, and checks of the numbers that files and messages contain.

A version rises when the content changes so that an older reader would fail or read something else. docs/stability.md
says for each format how long it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from episodes.errors import EpisodeError, UnreadableData

DATA_SET: Final = 3  # 3: several kinds of agents, 2: ragged tracks; other data sets are written as version 1
CHECKPOINT: Final = 2
ACTOR: Final = 1
EXPORTED_MODEL: Final = 1  # `serve.py`, which imports nothing of this library, has the same number
REPLAY_FILES: Final = 2
REPLAY_STATE: Final = 1
LEDGER: Final = 2  # also rises when hashes of rows, weights or settings change; 2: measurements and agents of rows
JOURNAL: Final = 2
MESSAGE: Final = 1
PICKLE: Final = 1

_ELSEWHERE = "store episodes with EpisodeWriter in the version that made it, and open that data set here"


def check_version(
    version: object,
    newest: int,
    source: str,
    remedy: str,
    *,
    oldest: int = 1,
    error: type[EpisodeError] = UnreadableData,
) -> int:
    """Return the format version that was read from `source`.

    Args:
        version: the value that was read.
        newest, oldest: versions that are read here.
        source: name of the file or object, for the error.
        remedy: what to do with data of a version that is not read here, for the error.
        error: class of the error.

    Raises:
        EpisodeError: of class `error`: `version` is not an int from `oldest` to `newest`.
    """
    if type(version) is int and oldest <= version <= newest:
        return version
    known = f"format {newest}" if oldest == newest else f"formats {oldest} to {newest}"
    given = f"format {version!r}" if version is not None else "a format without a number"
    newer = "update this library" if type(version) is int and version > newest else remedy
    raise error(f"{source}: {given}; this version of rl-episodes reads {known}; {newer}")


def check_magic(data: bytes, kind: bytes, newest: int, source: str, remedy: str) -> bool:
    """Check the first line of a file, which is `kind` and the format version. Return False if it is of another kind.

    Raises:
        UnreadableData: the version is not `newest`; the error names `source` and contains `remedy`.
    """
    if not data.startswith(kind):
        return False
    number = data[len(kind) :].partition(b"\n")[0][:20]
    check_version(
        int(number) if number.isdigit() else number.decode(errors="replace"), newest, source, remedy, oldest=newest
    )
    return True


def check_pickle(version: object, kind: str) -> None:
    """Raise `UnreadableData` if a pickled object of class `kind` is of another format version, `version`."""
    version = version if type(version) is int else None  # of an old pickle: an array, for example
    check_version(version, PICKLE, f"pickled {kind}", _ELSEWHERE, oldest=PICKLE)


class PickleVersion:
    """Format version at the beginning of a pickle. It is compared before the objects after it are unpickled."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __reduce__(self) -> Any:
        return _unpickled, (PICKLE, self.kind)


def check_mark(mark: object, kind: str) -> None:
    """Raise `UnreadableData` unless `mark` is the `PickleVersion` of a pickled object of class `kind`."""
    if not isinstance(mark, PickleVersion):
        check_pickle(None, kind)


def _unpickled(version: object, kind: str) -> PickleVersion:
    check_pickle(version, kind)
    return PickleVersion(kind)


def checked_integer(value: object, name: str, least: int | None = 0) -> int:
    """Return an integer that was read. Raise `UnreadableData` if it is a bool, another type, or below `least`."""
    if type(value) is not int or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise UnreadableData(f"{name} is {value!r}, not an integer{bound}")
    return value


def checked_shape(shape: object, name: str, *, ragged: bool = False) -> tuple[int, ...]:
    """Return an array's shape that was read.

    Args:
        shape: a sequence of sizes.
        name: for the error.
        ragged: whether the first size may be -1, which stands for items of different lengths.

    Raises:
        UnreadableData: it is not a list or tuple of integers that are at least 0.
    """
    if not isinstance(shape, Sequence) or isinstance(shape, (str, bytes)):
        raise UnreadableData(f"{name} is {shape!r}, not a list of integers")
    return tuple(
        checked_integer(size, f"size {i} of {name}", -1 if ragged and not i else 0) for i, size in enumerate(shape)
    )
