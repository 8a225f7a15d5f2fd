"""`data_path`: what commands read. A path of another format becomes a temporary data set."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

import typer

from episodes.command.progress import counted
from episodes.command.terminal import say


def data_path(path: str | Path) -> str:
    """Return the path of a data set with the episodes of `path`: itself, or a temporary copy of a foreign format.

    What a conversion loses is printed to stderr. The temporary data set is removed when the process ends.

    Raises:
        UnreadableData: the path is of no format that `episodes convert` reads.
    """
    from episodes.converters import read, write
    from episodes.converters.formats import count_episodes, recognize
    from episodes.storage.files import local_path
    from episodes.storage.remote.remote_directory import is_remote

    known = recognize(path)
    if known.name == "episodes":
        return str(path) if is_remote(path) else str(local_path(path))
    episodes, report = read(path)
    folder = tempfile.mkdtemp(prefix="episodes-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = f"{folder}/data"
    with counted(episodes, lambda: count_episodes(path)) as shown:
        write(shown, target, "episodes")
    lines = [f"{path}: read as {known.name}", *(map(str, report))]
    say("\n".join(lines), err=True)
    return target


def data_path_or_same(path: str) -> str:
    """Return `data_path(path)`, or the path itself if it is a folder of no format, such as the folder of a run."""
    from episodes.converters.formats import recognize
    from episodes.errors import UnreadableData
    from episodes.storage.files import local_path
    from episodes.storage.remote.remote_directory import is_remote

    if not is_remote(path) and not local_path(path).is_file():
        try:
            recognize(path)
        except UnreadableData:
            return str(local_path(path))
    return data_path(path)


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
