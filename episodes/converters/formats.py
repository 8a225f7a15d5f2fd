"""Reading and writing of episodes in all supported formats, named by the user or recognized from the contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from episodes.converters import (
    aloha,
    d3rlpy,
    d4rl,
    imitation,
    lerobot_reading,
    minari,
    npz,
    own_data_sets,
    parquet,
    rlds,
    rllib_files,
    rllib_json,
    robomimic,
    tables,
    tianshou_files,
    zarr_stores,
)
from episodes.converters.bounded_packs import Given
from episodes.converters.contents import TABLES, Contents
from episodes.converters.format import Format
from episodes.converters.loss_report import LossReport
from episodes.converters.rllib import rllib_episodes
from episodes.converters.sb3 import from_sb3
from episodes.converters.source_ids import checked_prefix, prefixed
from episodes.converters.tensordicts import from_tensordict
from episodes.converters.tianshou import from_tianshou
from episodes.errors import EpisodeError, InvalidArgument, UnreadableData
from episodes.storage.files import local_path
from episodes.storage.remote.remote_directory import is_remote

FORMATS: dict[str, Format] = {
    module.FORMAT.name: module.FORMAT
    for module in (  # the first one that recognizes a source reads it
        own_data_sets,
        lerobot_reading,
        minari,
        parquet,
        rllib_files,
        robomimic,
        aloha,
        d3rlpy,
        tianshou_files,
        d4rl,
        imitation,
        rlds,
        npz,
        zarr_stores,
        rllib_json,
        tables,
    )
}
"""Formats of `read` and `write`, by name. The target of "minari" is an id, such as "cartpole/mine-v0"."""
_MOST_INNER = 20  # folders and files of a folder that are looked at for advice


def read(
    source: object, format: str | None = None, *, prefix: str | None = None, **options: Any
) -> tuple[Iterator[Any], LossReport]:
    """Open a source in any supported format. Return an iterator over its episodes and the report of what gets lost.

    The format of a path is recognized from its contents. The name of the file has no effect.

    Args:
        source: a path or `file://` URL (of one of `FORMATS`), the URL of a remote data set of this library, the id of a
            Minari data set (with `format="minari"`), or an object of another library: a Minari data set, a buffer of
            Stable-Baselines3, Tianshou or d3rlpy, RLlib's episodes, or a TensorDict.
        format: one of `FORMATS`. None: recognized from the source.
        prefix: first part of the episodes' ids, "PREFIX/ID". None: ids that the source stores stay as they are, and
            others begin with a digest of the source. So two sources have different ids, and a source that is converted
            twice has the same ids.
        options: options of the format.

    Raises:
        InvalidArgument: an unknown format, an option that the format does not have, a format or an option for an object
            of another library, or an empty prefix.
        UnreadableData: the path does not exist, cannot be read, is empty, truncated, or of no known format.

    >>> import tempfile, numpy as np
    >>> from episodes import SingleAgentEpisode
    >>> path = tempfile.mkdtemp() + "/steps"
    >>> episode = SingleAgentEpisode.from_arrays(np.zeros(3), [0, 1], [1.0, 1.0], id_="a", truncated=True)
    >>> print(write([episode], path, "parquet"))
    nothing was lost
    >>> episodes, report = read(path)
    >>> next(episodes), len(report)
    (SingleAgentEpisode(a: 2 steps, return 2, truncated), 0)
    """
    report = LossReport()
    checked_prefix(prefix)
    options = {name: value for name, value in options.items() if value is not None}
    if not isinstance(source, (str, Path)):
        given = [*options] if format is None else ["format", *options]
        if given:
            raise InvalidArgument(f"read({type(source).__name__}): {given[0]}= is for files; leave it out")
        return _held(source, report, prefix), report
    known = recognize(source, format, *options)
    for name in options:
        if name not in known.options:
            allowed = f"its options: {', '.join(known.options)}" if known.options else "it has none"
            raise InvalidArgument(f"read({str(source)!r}): the format {known.name!r} has no option {name!r}; {allowed}")
    is_id = known.has_ids and not local_path(source).exists()
    place = source if is_id or is_remote(source) else local_path(source)
    return _guarded(known.read(place, report, prefix, **options), place, known), report


def write(episodes: Given, target: str | Path, format: str, **options: Any) -> LossReport:
    """Write episodes to a new data set in the given format, and return a report of what was lost.

    Args:
        episodes: the episodes.
        target: path of the new data set; for "minari" its id.
        format: one of `FORMATS` that can be written.
        options: options of the format's function, such as `fps` of `to_lerobot`. `strict=True` raises instead of losing
            something.

    Raises:
        InvalidArgument: an unknown format, or the target exists.
        LostInConversion: with `strict`, something would be lost.
    """
    known = _known(format)
    if known.write is None:
        raise InvalidArgument(f"{format!r} can be read, not written; these can: {', '.join(writable())}")
    made = known.write(episodes, target, **options)
    return made[1] if isinstance(made, tuple) else made


def writable() -> list[str]:
    """Return the names of the formats that can be written."""
    return [name for name, known in FORMATS.items() if known.write is not None]


def recognize(source: str | Path, format: str | None = None, *options: str) -> Format:
    """Return the format of a path, which is recognized from its contents.

    Args:
        source: a path or URL.
        format: the format's name, which is checked. None: the first of `FORMATS` that recognizes the contents.
        options: names of options of `read`. Only formats with these options are considered.

    Raises:
        InvalidArgument: the format is unknown.
        UnreadableData: the path does not exist, cannot be read, is empty or truncated, or holds nothing that a format
            reads. The message lists what it holds, and what each format lacks.
    """
    known = None if format is None else _known(format)
    own = own_data_sets.FORMAT
    if is_remote(source):
        if known not in (None, own):
            raise InvalidArgument(f"{source}: only data sets of this library are read from a URL; download it first")
        return own
    if known is not None and known.has_ids and not local_path(source).exists():
        return known
    contents = Contents(source)
    lacking = {}
    for candidate in FORMATS.values() if known is None else [known]:
        with _as_unreadable(contents.path, "it cannot be recognized"):
            recognition = candidate.recognize(contents)
        if recognition.is_ours or (options and set(options) <= set(candidate.options) and contents.kind in TABLES):
            return candidate
        if recognition.missing:
            lacking[candidate.name] = recognition.missing
    raise _unrecognized(contents, known, lacking)


def count_episodes(source: str | Path, format: str | None = None, *options: str) -> int | None:
    """Return the number of episodes of a path without reading their arrays, or None if it is only known afterwards."""
    known = recognize(source, format, *options)
    is_file = not is_remote(source) and local_path(source).exists()
    with _as_unreadable(source, "its episodes cannot be counted"):
        return known.count(Contents(source)) if is_file else None


def _guarded(episodes: Iterator[Any], place: object, known: Format) -> Iterator[Any]:
    """Yield the episodes. Raise `UnreadableData` for all errors of the libraries that read the file."""
    with _as_unreadable(place, f"it cannot be read as {known.about}"):
        yield from episodes


@contextmanager
def _as_unreadable(where: object, what: str) -> Iterator[None]:
    """Return a context manager that converts errors of other libraries in damaged files to `UnreadableData`."""
    try:
        yield
    except (EpisodeError, ImportError):
        raise
    except Exception as error:  # h5py, minari and others have no common one
        raise UnreadableData(f"{where}: {what}: {error!r}; write or download it again") from error


def _unrecognized(contents: Contents, known: Format | None, lacking: dict[str, str]) -> UnreadableData:
    """Return the error for contents that are of no format, or not of the format `known`."""
    reasons = "; ".join(f"{name}: {missing}" for name, missing in lacking.items())
    listed = f" ({reasons})" if reasons else ""
    if known is not None:
        other = _format_or_none(contents)
        remedy = f"it is of the format {other!r}" if other else "give a path of that format, or leave the format out"
        return UnreadableData(f"{contents.path}: {contents}, not {known.about}{listed}; {remedy}")
    if contents.kind in TABLES:
        remedy = (
            "name its columns: read(path, observation=, action=, episode=), or episodes convert with --observation, "
            "--action and --episode"
        )
    elif contents.kind == "directory":
        remedy = _advice_on_folder(contents.path)
    else:
        remedy = "load it yourself, and pass its arrays to SingleAgentEpisode.from_arrays"
    return UnreadableData(f"{contents.path}: {contents}, which no format reads{listed}; {remedy}")


def _format_or_none(contents: Contents) -> str | None:
    """Return the name of the format that recognizes the contents, or None."""
    return next((name for name, known in FORMATS.items() if known.recognize(contents).is_ours), None)


def _advice_on_folder(folder: Path) -> str:
    """Return what to do with a folder of no format: give the folder or file in it that is of one."""
    for inner in sorted(folder.iterdir())[:_MOST_INNER]:
        try:
            name = _format_or_none(Contents(inner))
        except (EpisodeError, OSError):
            continue
        if name:
            return f"{inner.name!r} in it is of the format {name!r}; give {inner}"
    return "give the folder of a data set, or a file"


def _known(name: str) -> Format:
    """Return the format with this name. Raise `InvalidArgument` if the name is unknown."""
    if name not in FORMATS:
        raise InvalidArgument(f"unknown format {name!r}; known formats: {', '.join(FORMATS)}")
    return FORMATS[name]


def _held(source: Any, report: LossReport, prefix: str | None) -> Iterator[Any]:
    """Return an iterator over the episodes of an object of another library, such as its replay buffer.

    The other library is not imported.

    Raises:
        InvalidArgument: the object is of no supported kind.
    """
    if hasattr(source, "optimize_memory_usage") and hasattr(source, "next_observations"):
        return _converted(from_sb3, source, report, prefix)
    if hasattr(source, "episodes") and hasattr(source, "transition_count"):
        return d3rlpy.buffer_episodes(source, report, prefix)
    if hasattr(source, "sample_indices") and hasattr(source, "maxsize"):
        return _converted(from_tianshou, source, report, prefix)
    if hasattr(source, "iterate_episodes") and hasattr(source, "storage"):
        return minari.minari_episodes(source, report, prefix)
    if hasattr(source, "batch_size") and hasattr(source, "reshape") and hasattr(source, "keys"):
        return _converted(from_tensordict, source, report, prefix)
    originals = source if isinstance(source, (list, tuple)) else [source]
    if originals and _is_rllibs(originals[0]):
        return (prefixed(episode, prefix) for episode in rllib_episodes(originals, report))
    raise InvalidArgument(f"a {type(source).__name__} cannot be read; give a path, or an object that read() lists")


def _is_rllibs(value: object) -> bool:
    return type(value).__module__.startswith("ray.rllib.")


def _converted(
    convert: Callable[..., tuple[list[Any], LossReport]], source: Any, report: LossReport, prefix: str | None
) -> Iterator[Any]:
    """Yield the episodes that `convert` returns, and add its losses to `report`."""
    episodes, losses = convert(source, prefix=prefix)
    report.join(losses)
    yield from episodes
