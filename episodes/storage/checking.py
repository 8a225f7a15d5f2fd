"""Check of a data set on disk for damaged and lost files, and repair."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from episodes.errors import UnreadableData
from episodes.storage.arrow import pyarrow
from episodes.storage.catalog import MADE, Catalog, Commit
from episodes.storage.chunk_checks import chunk_problems
from episodes.storage.compacting import DAMAGED, finish_commits, intact_batches, replace_shards, write_commit
from episodes.storage.dataset import EpisodeDataset
from episodes.storage.files import local_path, read_or_map
from episodes.storage.games import GameDataset
from episodes.storage.header import NAME, Header, read_header
from episodes.storage.identity import foreign_parts
from episodes.storage.kinds import directories_of
from episodes.storage.locks import locked
from episodes.storage.search.splits import NAME as SPLITS
from episodes.storage.search.splits import read_splits
from episodes.storage.shards import ShardRead, read_shard


@dataclass(slots=True)
class CheckReport:
    """Result of a check of a data set: number of files and episodes, problems found, and repairs made.

    Attributes:
        episodes: number of readable episodes.
        shards: number of shards.
        problems: damage and loss, as texts.
        notes: harmless findings, as texts: unfinished shards, leftover files, and games whose writer was killed.
        repaired: what was repaired, as texts.
    """

    episodes: int = 0
    shards: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)


def check(path: str | Path, *, repair: bool = False) -> CheckReport:
    """Read a whole data set, and report damaged, lost and useless files, and chunks that have one id and are not of one
    episode. With `repair`, all intact data are kept and the rest is set aside. Ids are compared if nothing is damaged,
    and are never repaired.

    A repair that is killed has changed nothing, or is completed by the next one.

    Args:
        path: the data set.
        repair: replace damaged shards by shards with their intact record batches, keep the damaged files as
            `*.damaged`, drop lost shards from the manifests, and remove what killed compactions left.

    Raises:
        UnreadableData: there is no data set, or its header is damaged.
    """
    report = CheckReport()
    directories = directories_of(local_path(path))
    for directory in directories:
        _check(directory, report, repair)
    if directories != [local_path(path)] and not report.problems:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are in the report
            games = GameDataset(path)
        report.notes += games.problems if games.incomplete else ()
    return report


def _check(directory: Path, report: CheckReport, repair: bool) -> None:
    """Check the data set of one kind of agents, and note in `report` what was found and repaired.

    Raises:
        UnreadableData: there is no data set, or its header is damaged.
    """
    header = read_header(directory)
    if header is None:
        raise UnreadableData(f"{directory} is not a data set: it has no {NAME}")
    _check_splits(directory, report, repair)
    catalog = _rename_damaged(finish_commits(directory), report) if repair else Catalog.of(directory)
    report.problems += catalog.problems
    report.notes += [f"{file}: left over" for file in catalog.leftovers]
    shards, damaged = list[ShardRead](), list[ShardRead]()
    for file in catalog.shards:
        try:
            read = read_shard(file)
        except FileNotFoundError:
            read = ShardRead(file, problem="it is not there")
        shards.append(read)
        problems = _find_problems(read)
        report.shards += 1
        report.episodes += read.num_episodes
        report.problems += problems
        damaged += [read] if problems else []
        if not file.sealed:
            report.notes.append(f"{file.path}: not finished, {read.unread} bytes unread")
    report.problems += foreign_parts(directory, header, catalog, shards)
    if not damaged:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are in the report
            report.problems += chunk_problems(EpisodeDataset(directory))
    if repair:
        _repair(catalog, header, damaged, report)


def _find_problems(read: ShardRead) -> list[str]:
    """Return the problems of one Arrow file as texts: damaged record batches, a damaged end, or a damaged footer."""
    path = read.file.path
    problems = [f"{path}: record batch {at} is damaged: {', '.join(columns)}" for at, columns in read.damaged().items()]
    if read.damage:
        problems.append(f"{path}: {read.damage}")
    elif read.file.sealed:
        try:
            reader = pyarrow().ipc.open_file(pyarrow().py_buffer(read_or_map(path, mapped=True)))
            alike = reader.num_record_batches == len(read.batches) and reader.schema.equals(read.schema)
        except (pyarrow().ArrowException, OSError):
            alike = False
        problems += [] if alike else [f"{path}: its footer is damaged, other readers cannot open it"]
    return problems


def _check_splits(directory: Path, report: CheckReport, repair: bool) -> None:
    """Note in `report` if the file of splits is damaged. With `repair`, the damaged file is renamed."""
    try:
        read_splits(directory)
    except UnreadableData as error:
        report.problems.append(str(error))
        if repair:
            _keep_aside(directory / SPLITS, report)


def _keep_aside(file: Path, report: CheckReport) -> None:
    """Rename a damaged file, and note that in `report`."""
    os.replace(file, file.with_name(file.name + DAMAGED))
    report.repaired.append(f"{file}: kept as *{DAMAGED}")


def _rename_damaged(catalog: Catalog, report: CheckReport) -> Catalog:
    """Rename damaged manifest and commit files to `*.damaged`, and return the catalog of the remaining files."""
    for file in catalog.damaged:
        _keep_aside(file, report)
    return finish_commits(catalog.directory) if catalog.damaged else catalog


def _repair(catalog: Catalog, header: Header, damaged: list[ShardRead], report: CheckReport) -> None:
    """Replace each damaged shard by a new one with its intact record batches, and remove the files that killed
    compactions left.

    Damaged files are kept under another name, lost shards are given up, and all changes are noted in `report`.

    Raises:
        UnreadableData: another process compacted the data set meanwhile.
    """
    directory, commit = catalog.directory, Commit()
    with locked(directory, shared=True):
        for read in damaged:
            commit.aside.append(read.file.name)
            replace_shards(directory, header, commit, [read], intact_batches(read))
            commit.replaces[read.file.name] = None  # rows have moved
            report.repaired.append(f"{read.file.path}: kept as *{DAMAGED}, its intact record batches have a new shard")
        commit.replaces |= dict.fromkeys(catalog.lost, None)
        report.repaired += [f"{directory}: shard {name} is missed no longer" for name in catalog.lost]
        if commit.replaces and not write_commit(catalog, commit):
            raise UnreadableData(f"{directory} was compacted meanwhile; run the repair again")
        leftovers = finish_commits(directory).leftovers
    with locked(directory) as is_alone:  # no compaction is at work
        for file in leftovers if is_alone else ():
            if file.name.endswith(MADE):
                file.unlink(missing_ok=True)
                report.repaired.append(f"{file}: removed, a compaction that was killed left it")
