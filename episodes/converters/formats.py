"""Reading and writing of episodes in all supported formats, named by the user or recognized from the path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from episodes.converters.bounded_packs import Given, bounded_lists
from episodes.converters.d4rl import d4rl_episodes
from episodes.converters.lerobot import to_lerobot
from episodes.converters.lerobot_reading import lerobot_episodes
from episodes.converters.loss_report import LossReport
from episodes.converters.minari import minari_episodes, to_minari
from episodes.converters.parquet import parquet_episodes, to_parquet
from episodes.converters.parquet_files import files_of, schema_of
from episodes.converters.rllib import rllib_episodes
from episodes.converters.rllib_files import is_rllib, rllib_file_episodes, to_rllib_parquet
from episodes.converters.sb3 import from_sb3
from episodes.converters.source_ids import checked_prefix, prefixed
from episodes.converters.step_tables import KEY
from episodes.converters.tensordicts import from_tensordict
from episodes.converters.tianshou import from_tianshou
from episodes.errors import InvalidArgument, UnreadableData
from episodes.multi_agent import MultiAgentEpisode
from episodes.storage import EpisodeWriter
from episodes.storage.files import local_path, whole_directory
from episodes.storage.games import open_dataset

MOST_GAMES = 100  # that are written at a time


def to_dataset(episodes: Given, path: str | Path, *, strict: bool = False, several_kinds: bool = False) -> LossReport:
    """Write episodes to a new data set in this library's own format, in which nothing is lost.

    An iterator of episodes is not collected in memory.

    Args:
        episodes: the episodes.
        path: path of the new data set.
        strict: has no effect.
        several_kinds: allow games whose agents differ in spaces or tracks, also if the first games do not differ.

    Returns:
        An empty report.

    Raises:
        InvalidArgument: the path exists.
        TrackMismatch: single-agent episodes of several schemas, for which a data set has no place.
        WrongType: infos or custom data that a file cannot hold.
    """
    episodes = iter(episodes)
    first = next(episodes, None)
    is_games = isinstance(first, MultiAgentEpisode)
    rest: Given = episodes if first is None else chain([first], episodes)  # type: ignore[reportAssignmentType]
    with (
        whole_directory(local_path(path)) as draft,
        EpisodeWriter(draft, several_kinds=several_kinds) as writer,
    ):
        for some in _lists_of_games(rest) if is_games else bounded_lists(rest, ragged=True):
            writer.add(some)
    return LossReport()


def _lists_of_games(games: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield lists of a limited number of multi-agent episodes."""
    games = iter(games)
    while some := list(islice(games, MOST_GAMES)):
        yield some


def dataset_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[Any]:
    """Yield the episodes of a data set in this library's own format, or its games if agents are of several kinds."""
    dataset: Any = open_dataset(path)
    for episode in dataset:
        yield prefixed(episode, prefix)


@dataclass(frozen=True, slots=True)
class Format:
    """Reader and writer of one format, and the names of files that identify its directories."""

    read: Callable[[Any, LossReport, str | None], Iterator[Any]]  # (source, report, prefix of ids)
    write: Callable[..., Any] | None = None  # (episodes, target, strict=, ...) -> a report, or a result and a report
    has: tuple[str, ...] = ()  # each directory of this format has one of these files


FORMATS = {
    "episodes": Format(dataset_episodes, to_dataset, ("episodes.json",)),
    "lerobot": Format(lerobot_episodes, to_lerobot, ("meta/info.json",)),
    "minari": Format(minari_episodes, to_minari, ("data/main_data.hdf5", "data/metadata.json")),
    "parquet": Format(parquet_episodes, to_parquet),
    "rllib": Format(rllib_file_episodes, to_rllib_parquet),
    "d4rl": Format(d4rl_episodes),
}
"""Formats of `read` and `write`, by name. The target of "minari" is an id, such as "cartpole/mine-v0"."""


def read(source: Any, format: str | None = None, *, prefix: str | None = None) -> tuple[Iterator[Any], LossReport]:
    """Open a source in any supported format. Return an iterator over its episodes and the report of what gets lost.

    Args:
        source: a path (of one of `FORMATS`), the id of a Minari data set (with `format="minari"`), or an object of
            another library: a Minari data set, a buffer of Stable-Baselines3 or Tianshou, RLlib's episodes, or a
            TensorDict.
        format: one of `FORMATS`. None: inferred from the source.
        prefix: first part of the episodes' ids, "PREFIX/ID". None: ids that the source stores stay as they are, and
            others begin with a digest of the source. So two sources have different ids, and a source that is converted
            twice has the same ids.

    Raises:
        InvalidArgument: an unknown format, or a source of no known format, or an empty prefix.

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
    if format is None and not isinstance(source, (str, Path)):
        return _held(source, report, prefix), report
    name = format or format_of(source)
    if name is None:
        raise InvalidArgument(f"{source} looks like none of {', '.join(FORMATS)}; name its format (format=, --from)")
    return _known(name).read(source, report, prefix), report


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


def format_of(path: str | Path) -> str | None:
    """Return the name of the format of a file or directory, or None if it is not recognized or cannot be read."""
    place = Path(path).expanduser()
    if place.is_dir():
        for name, known in FORMATS.items():
            if any((place / name_of_file).exists() for name_of_file in known.has):
                return name
    if place.suffix in (".hdf5", ".h5") and place.is_file():
        return "d4rl"
    if place.exists() and (place.suffix == ".parquet" or place.is_dir()):
        try:
            schema = schema_of(files_of(place)[0])
        except UnreadableData:
            return None
        return "parquet" if KEY in (schema.metadata or {}) else "rllib" if is_rllib(schema.names) else None
    return None


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
    if hasattr(source, "sample_indices") and hasattr(source, "maxsize"):
        return _converted(from_tianshou, source, report, prefix)
    if hasattr(source, "iterate_episodes") and hasattr(source, "storage"):
        return minari_episodes(source, report, prefix)
    if hasattr(source, "batch_size") and hasattr(source, "reshape") and hasattr(source, "keys"):
        return _converted(from_tensordict, source, report, prefix)
    originals = source if isinstance(source, (list, tuple)) else [source]
    if originals and _is_rllibs(originals[0]):
        return (prefixed(episode, prefix) for episode in rllib_episodes(originals, report))
    raise InvalidArgument(f"a {type(source).__name__} cannot be read; give a path, or an object that read() lists")


def _is_rllibs(value: Any) -> bool:
    return type(value).__module__.startswith("ray.rllib.")


def _converted(
    convert: Callable[..., tuple[list[Any], LossReport]], source: Any, report: LossReport, prefix: str | None
) -> Iterator[Any]:
    """Yield the episodes that `convert` returns, and add its losses to `report`."""
    episodes, losses = convert(source, prefix=prefix)
    report.join(losses)
    yield from episodes
