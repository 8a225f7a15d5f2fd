"""Directories of the kinds of agents of a data set of games. Each kind has a data set in the folder `kinds`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from episodes.errors import InvalidArgument, TrackMismatch
from episodes.storage.header import KINDS, Header, create_or_load_header, is_data_set, read_header


def directories_of(path: Path) -> list[Path]:
    """Return the directories of the data sets of all kinds of agents, or for a data set of one kind its own directory.

    Raises:
        UnreadableData: the header is damaged, or of a newer format version.
    """
    header = read_header(path, kinds=True)
    if header is None or not header.has_kinds:
        return [path]
    folder = path / KINDS
    numbers = sorted(int(each.name) for each in folder.glob("*") if each.name.isdecimal() and is_data_set(each))
    return [folder / str(number) for number in numbers]


def kinds_for(target: Path, source: Path) -> list[tuple[Path, Path]]:
    """Return for each kind of agents of `source` the directory of this kind in `target`, and in `source`.

    A data set of one kind is itself its only kind. If `target` does not exist and `source` has several kinds, `target`
    is created.

    Raises:
        InvalidArgument, TrackMismatch: one of both has several kinds and the other one has not, or they differ in
            `env_spec` or metadata.
    """
    headers = [read_header(path, kinds=True) for path in (source, target)]
    source_header, target_header = headers
    if source_header is None or not source_header.has_kinds:
        if target_header is not None and target_header.has_kinds:
            raise TrackMismatch(
                f"{target} has games of several kinds of agents, {source} has one kind; merge it elsewhere"
            )
        return [(target, source)]
    create_or_load_header(target, replace(source_header, id=None))
    there = {path: read_header(path) for path in directories_of(target)}
    pairs = []
    for part in directories_of(source):
        header = read_header(part)
        if header is None:
            continue  # it was removed meanwhile
        kind = next((path for path, known in there.items() if known is not None and _fits(known, header)), None)
        if kind is None:
            numbers = [int(path.name) for path in there]
            kind = target / KINDS / str(max(numbers, default=-1) + 1)
            there[kind] = header
        pairs.append((kind, part))
    return pairs


def _fits(known: Header, header: Header) -> bool:
    """Return True if the episodes of a data set with `header` fit into the data set with the header `known`."""
    try:
        known.check_given(header)
        known.check_tracks(header.tracks, header.knows_steps)
    except (InvalidArgument, TrackMismatch):
        return False
    return True
