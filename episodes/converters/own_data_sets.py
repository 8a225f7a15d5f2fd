"""Data sets in this library's own format, as one of the formats of `read` and `write`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from episodes.converters.bounded_packs import Given, bounded_lists
from episodes.converters.contents import Contents
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefixed
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.files import local_path, whole_directory
from episodes.storage.header import NAME


def to_dataset(episodes: Given, path: str | Path, *, strict: bool = False) -> LossReport:
    """Write episodes to a new data set in this library's own format, in which nothing is lost.

    An iterator of episodes is not collected in memory.

    Args:
        episodes: the episodes.
        path: path of the new data set.
        strict: has no effect.

    Returns:
        An empty report.

    Raises:
        InvalidArgument: the path exists.
        TrackMismatch: episodes of several schemas, for which a data set has no place.
        WrongType: infos or custom data that a file cannot hold.
    """
    with whole_directory(local_path(path)) as draft, EpisodeWriter(draft) as writer:
        for some in bounded_lists(episodes, ragged=True):
            writer.add(some)
    return LossReport()


def dataset_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[Any]:
    """Yield the episodes of a data set in this library's own format."""
    for episode in EpisodeDataset(path):
        yield prefixed(episode, prefix)


def _recognize(contents: Contents) -> Recognition:
    if contents.kind != "directory":
        return OTHER_KIND
    return YES if contents.has(NAME) else Recognition(False, f"no {NAME!r}")


def _count(contents: Contents) -> int:
    return len(EpisodeDataset(contents.path))


FORMAT = Format("episodes", "data sets of this library", _recognize, dataset_episodes, to_dataset, count=_count)
