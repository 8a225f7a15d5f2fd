"""Data sets in this library's own format, as one of the formats of `read` and `write`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from episodes.converters.bounded_packs import Given, bounded_lists
from episodes.converters.contents import Contents
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefixed
from episodes.multi_agent import MultiAgentEpisode
from episodes.storage import EpisodeWriter
from episodes.storage.files import local_path, whole_directory
from episodes.storage.games import open_dataset
from episodes.storage.header import NAME, is_data_set

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


def _recognize(contents: Contents) -> Recognition:
    if contents.kind != "directory":
        return OTHER_KIND
    return YES if is_data_set(contents.path) else Recognition(False, f"no {NAME!r}")


def _count(contents: Contents) -> int:
    return len(open_dataset(contents.path))


FORMAT = Format("episodes", "data sets of this library", _recognize, dataset_episodes, to_dataset, count=_count)
