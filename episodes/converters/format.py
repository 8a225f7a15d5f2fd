"""`Format`: the shape of all formats. Each module of a format has a constant `FORMAT`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from episodes.converters.contents import Contents


class Recognition(NamedTuple):
    """Whether contents are of a format.

    Attributes:
        is_ours: True if the format can read them.
        missing: what the contents lack, in words. "" if they are of another kind, such as a table in place of HDF5.
    """

    is_ours: bool
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """Format of episodes in files: how it is recognized, read and written.

    A new format is one module with a constant `FORMAT`, and one line in `formats.py`.

    Attributes:
        name: name for `read(format=)` and `--from`.
        about: what it is, in a few words.
        recognize: function from `Contents` to a `Recognition`. It looks at names of arrays, columns and files.
        read: function from (path, report, prefix, **options) to an iterator of episodes. It streams. `report` is the
            `LossReport` to which it adds what gets lost, and `prefix` the first part of the ids or None.
        write: function from (episodes, target, strict=, ...) to a report, or to a result and a report. None: the format
            cannot be written.
        options: names of the options of `read`.
        count: function from `Contents` to the number of episodes, or None if it is only known after reading.
        has_ids: whether the path may also be an id of the format's own library.
    """

    name: str
    about: str
    recognize: Callable[[Contents], Recognition]
    read: Callable[..., Iterator[Any]]
    write: Callable[..., Any] | None = None
    options: tuple[str, ...] = ()
    count: Callable[[Contents], int | None] = lambda contents: None
    has_ids: bool = False


YES = Recognition(True)
OTHER_KIND = Recognition(False)


def needs(contents: Contents, kind: str, names: Iterable[str]) -> Recognition:
    """Return a positive recognition if contents are of this kind and have all `names`, or else what they lack."""
    if contents.kind != kind:
        return OTHER_KIND
    missing = contents.lacking(names)
    return Recognition(False, f"no {', '.join(map(repr, missing))}") if missing else YES
