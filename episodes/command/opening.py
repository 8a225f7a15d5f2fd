"""`data_path`: what commands read. A path of another format becomes a temporary data set."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

import typer

from episodes.command.progress import counted
from episodes.command.terminal import say_wrapped


def data_path(path: str | Path) -> str:
    """Return the path of a data set with the episodes of `path`: itself, or a temporary copy of a foreign format.

    What a conversion loses is printed to stderr. The temporary data set is removed when the process ends.

    Raises:
        UnreadableData: the path is of no format that `episodes convert` reads.
    """
    if (own := _own_data_set(path)) is not None:
        return own
    from episodes.converters.formats import count_episodes, read, recognize, write

    known = recognize(path)
    episodes, report = read(path)
    folder = tempfile.mkdtemp(prefix="episodes-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = f"{folder}/data"
    with counted(episodes, lambda: count_episodes(path)) as shown:
        write(shown, target, "episodes")
    lines = [f"{path}: read as {known.name}", *(map(str, report))]
    say_wrapped("\n".join(lines), err=True)
    return target


def data_path_or_same(path: str) -> str:
    """Return `data_path(path)`, or the path itself if it is a folder of no format, such as the folder of a run."""
    from episodes.errors import UnreadableData
    from episodes.storage.files import local_path

    if _own_data_set(path) is None and not local_path(path).is_file():
        from episodes.converters.formats import recognize

        try:
            recognize(path)
        except UnreadableData:
            return str(local_path(path))
    return data_path(path)


def _own_data_set(path: str | Path) -> str | None:
    """Return the path if it is of a data set of this library, as are all URLs, or None. No converter is imported."""
    from episodes.storage.files import local_path
    from episodes.storage.header import is_data_set
    from episodes.storage.remote.remote_directory import is_remote

    if is_remote(path):
        return str(path)
    place = local_path(path)
    return str(place) if is_data_set(place) else None


def local(path: str) -> Path:
    """Return the argument of a command as a path of this machine, from a path with "~" or a `file://` URL.

    Raises:
        BadParameter: another URL.
    """
    from episodes.errors import InvalidArgument
    from episodes.storage.files import local_path

    try:
        return local_path(path)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from error
