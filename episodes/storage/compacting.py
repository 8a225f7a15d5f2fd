"""Join small Arrow files of a data set, finish the files of killed writers, and merge data sets.

New shards are written next to the old ones, and count as soon as a commit file names them (see `catalog`). A process
that is killed before has changed nothing. A process that is killed after it leaves old files, which the next one
removes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from episodes.errors import ChunkMismatch, InvalidArgument, UnreadableData
from episodes.storage.arrow import pyarrow
from episodes.storage.catalog import MADE, SEALED, Catalog, Commit, Manifest, ShardFile, next_order
from episodes.storage.chunk_checks import conflict_texts, order_of
from episodes.storage.episode_rows import EpisodeRows
from episodes.storage.files import left_if_open, local_path, sync
from episodes.storage.header import NAME, Header, create_or_load_header, read_header
from episodes.storage.id_prefixes import prefixed_name, with_prefix
from episodes.storage.kinds import directories_of, kinds_for
from episodes.storage.locks import locked
from episodes.storage.shards import ShardRead, ShardWriter, read_shard, writer_name

BATCH_BYTES = 1 << 26  # largest record batch that is joined from smaller ones
SHARD_BYTES = 1 << 28
DAMAGED = ".damaged"


def compact(path: str | Path) -> int:
    """Join the finished Arrow files (shards) of a data set into fewer, larger files.

    The order of episodes stays the same. Open readers and pickled data sets keep working. Writers may be at work; their
    unfinished shards are not changed.

    Args:
        path: the data set.

    Returns:
        The number of shards that were replaced.

    Raises:
        UnreadableData: there is no data set, or a shard is damaged; run `check(path, repair=True)` first.
    """
    return sum(map(_compact, directories_of(local_path(path))))


def _compact(path: Path) -> int:
    """Join the finished Arrow files of the data set of one kind of agents, and return the number of replaced files."""
    directory, header = _open_directory(path)

    def join(catalog: Catalog, commit: Commit) -> None:
        """Join small finished files, and files of many small record batches. The new and the replaced files are noted
        in `commit`."""
        for group in _joinable_groups([file for file in catalog.shards if file.sealed]):
            if len(group) > 1 or len(list(_batches_to_join(group))) < len(group[0].batches):
                replace_shards(directory, header, commit, group, _batches_to_join(group))

    return len(_propose_until_written(directory, join).replaces)


def seal(path: str | Path, *, force: bool = False) -> int:
    """Finish the Arrow files (shards) of writers that were killed, so that they can be compacted and uploaded.

    A live writer holds a lock on its manifest, so its shard is never taken, whatever container or machine it runs on.
    If the file system has no locks, a writer counts as killed if its process on this machine has ended.

    Args:
        path: the data set.
        force: finish all unfinished shards. Episodes that a live writer writes afterwards are lost.

    Returns:
        The number of shards that were finished.

    Raises:
        UnreadableData: there is no data set.
    """
    return sum(_seal(directory, force) for directory in directories_of(local_path(path)))


def _seal(path: Path, force: bool) -> int:
    """Finish the Arrow files of killed writers of the data set of one kind of agents, and return their number."""
    directory, header = _open_directory(path)

    def finish(catalog: Catalog, commit: Commit) -> None:
        """Copy the complete record batches of each file whose writer was killed to a finished file. With `force`,
        include all other unfinished files."""
        for file in catalog.shards:
            if not file.sealed and (force or _is_left_behind(catalog, file)):
                read = read_shard(file)
                replace_shards(directory, header, commit, [read], intact_batches(read))

    return len(_propose_until_written(directory, finish).replaces)


def merge(target: str | Path, *sources: str | Path, prefix: str | Sequence[str] | None = None) -> int:
    """Copy the episodes of other data sets into `target`, which is created if needed. The sources stay unchanged.

    They come after the episodes of `target`, one source after another, in the order of the source. Shards that were
    copied before are not copied again, so a merge that was killed can be repeated.

    Args:
        target: the data set to add to.
        sources: the data sets to copy from.
        prefix: text in front of all copied ids of episodes and multi-agent episodes, for sources whose ids are equal.
            One text for all sources, or a list of one for each.

    Returns:
        The number of shards that were copied.

    Raises:
        InvalidArgument, TrackMismatch: a source has other spaces, another env_spec, other metadata or other tracks.
        ChunkMismatch: two chunks have one id and cannot be of one episode. Nothing of this source is copied.
        UnreadableData: a source does not exist, or has a damaged or unfinished shard (`seal` finishes it).
    """
    for source in sources:
        if read_header(local_path(source), kinds=True) is None:
            raise UnreadableData(f"{source} is not a data set: it has no {NAME}")
    prefixes = [prefix or ""] * len(sources) if prefix is None or isinstance(prefix, str) else [*prefix]
    if len(prefixes) != len(sources) or not all(isinstance(text, str) for text in prefixes):
        raise InvalidArgument(f"prefix={prefix!r}: {len(sources)} sources; give a text, or a list of one for each")
    directory, number = local_path(target), 0
    for source, text in zip(map(local_path, sources), prefixes, strict=True):
        if source.resolve() == directory.resolve():
            raise InvalidArgument(f"{source} cannot be merged into {directory}; give another data set")
        pairs = kinds_for(directory, source)
        for kind, part in pairs if len(pairs) > 1 else ():  # nothing is copied if one of the kinds is refused
            if read_header(kind) is not None:
                _files_to_copy(Catalog.of(kind), part, text)
        number += sum(_merge(kind, part, text) for kind, part in pairs)
    return number


def _merge(directory: Path, source: Path, prefix: str) -> int:
    """Copy the episodes of a data set of one kind of agents into another one. Return the number of copied files."""
    source, header = _open_directory(source)
    own_header = create_or_load_header(directory, replace(header, id=None))

    def bring(catalog: Catalog, commit: Commit) -> None:
        """Copy the files of the source, and note them in `commit`."""
        first = next_order(directory)
        for read in _files_to_copy(catalog, source, prefix):
            _copy_shard(directory, own_header, commit, read, prefix, f"{first}-{read.file.order}")

    return len(_propose_until_written(directory, bring).made)


def _files_to_copy(catalog: Catalog, source: Path, prefix: str) -> list[ShardRead]:
    """Return those files of `source` that the data set with this catalog lacks.

    Raises:
        ChunkMismatch: two chunks have one id and cannot be of one episode.
        UnreadableData: a file is damaged or unfinished.
    """
    known = {file.name for file in catalog.shards} | set(catalog.replaced)
    files = [file for file in Catalog.of(source).shards if prefixed_name(file.name, prefix) not in known]
    reads = [_finished_shard(file) for file in files]
    _check_ids(source, [read_shard(file) for file in catalog.shards] if files else [], reads, prefix)
    return reads


def finish_commits(directory: Path) -> Catalog:
    """Complete file replacements that a killed process has left half done, and return the catalog of current files."""
    catalog, changed = Catalog.of(directory), False
    for name in catalog.made:
        waiting = directory / (name + MADE)
        if name not in catalog.replaced and waiting.exists():
            with suppress(FileNotFoundError), left_if_open():  # another process did it
                os.rename(waiting, directory / (name + SEALED))
            changed = True
    for file in catalog.leftovers:
        name = file.name.partition(".")[0]
        if name in catalog.replaced:
            if name in catalog.aside:
                with suppress(FileNotFoundError), left_if_open():
                    os.replace(file, file.with_name(file.name + DAMAGED))
            else:
                with left_if_open():
                    file.unlink(missing_ok=True)
            changed = True
    for manifest in catalog.manifests.values():
        if manifest.shards.keys() <= catalog.replaced.keys() and manifest.is_abandoned(directory):
            with left_if_open():
                manifest.path(directory).unlink(missing_ok=True)
    return Catalog.of(directory) if changed else catalog


def write_commit(catalog: Catalog, commit: Commit) -> bool:
    """Write a commit file. If another process has written one first, remove the new Arrow files and return False."""
    sync(catalog.directory)
    try:
        commit.put(catalog.directory, catalog.newest_commit + 1)
        return True
    except FileExistsError:
        _discard(catalog, commit)
        return False


def _discard(catalog: Catalog, commit: Commit) -> None:
    """Delete the new files of a commit that is not written."""
    for name in commit.made:
        (catalog.directory / (name + MADE)).unlink(missing_ok=True)


def _propose_until_written(directory: Path, propose: Callable[[Catalog, Commit], None]) -> Commit:
    """Let `propose` fill a commit with file replacements, and write this commit.
    If another process commits first, start again."""
    with locked(directory, shared=True):  # a repair must not remove shards before their commit
        while True:
            catalog, commit = finish_commits(directory), Commit()
            try:
                propose(catalog, commit)
            except FileNotFoundError:
                _discard(catalog, commit)
                if Catalog.of(directory).shards == catalog.shards:
                    raise
                continue  # another process has removed or renamed a shard
            if not commit.replaces and not commit.made:
                return commit
            if write_commit(catalog, commit):
                finish_commits(directory)
                return commit


def _open_directory(path: str | Path) -> tuple[Path, Header]:
    """Return the directory and the header of the data set at `path`. Raise `UnreadableData` if there is no data set."""
    directory = local_path(path)
    header = read_header(directory)
    if header is None:
        raise UnreadableData(f"{directory} is not a data set: it has no {NAME}")
    return directory, header


def _is_left_behind(catalog: Catalog, file: ShardFile) -> bool:
    """Return True if this unfinished Arrow file was abandoned, so that no running writer will
    add episodes to the file."""
    manifest: Manifest | None = catalog.manifests.get(file.name.rpartition("-")[0])
    if manifest is None:
        return False
    return manifest.is_abandoned(catalog.directory) or not manifest.shards.get(file.name, {"open": True})["open"]


def _joinable_groups(files: Sequence[ShardFile]) -> Iterator[list[ShardRead]]:
    """Yield groups of consecutive Arrow files that can be joined to a single file:
    equal schemas, and at most `SHARD_BYTES` in total. A larger file is a group of one.

    Raises:
        UnreadableData: a file is damaged.
    """
    group: list[ShardRead] = []
    for file in files:
        read = read_shard(file)
        if read.damage:
            raise UnreadableData(
                f"{file.path} is damaged ({read.damage}); check(path, repair=True) keeps the rest of it"
            )
        alike = group and read.layout == group[0].layout and read.schema.equals(group[0].schema)
        size = sum(part.file.path.stat().st_size for part in (*group, read))
        if group and (not alike or size > SHARD_BYTES):
            yield group
            group = []
        group.append(read)
    if group:
        yield group


def _batches_to_join(group: Sequence[ShardRead]) -> Iterator[list[Any]]:
    """Yield lists of record batches that are joined to one batch each, of at most `BATCH_BYTES` (unless
    a single batch is larger)."""
    waiting: list[Any] = []
    size = 0
    for read in group:
        for stored in read.batches:
            if waiting and size + stored.batch.nbytes > BATCH_BYTES:
                yield waiting
                waiting, size = [], 0
            waiting.append((read, stored))
            size += stored.batch.nbytes
    if waiting:
        yield waiting


def intact_batches(read: ShardRead) -> Iterator[list[Any]]:
    """Yield the undamaged record batches of an Arrow file, each as a list of one (Arrow file, batch) pair."""
    return ([(read, stored)] for stored in read.batches if not stored.damaged())


def replace_shards(
    directory: Path, header: Header, commit: Commit, group: Sequence[ShardRead], parts: Iterator[list[Any]]
) -> None:
    """Write the record batches of `parts` to one new Arrow file, and note in `commit` that it replaces the Arrow files
    in `group`.

    If there is no record batch, no file is written, and `commit` removes the files in `group`.

    Raises:
        UnreadableData: a batch is damaged.
    """
    name, episodes = f"{writer_name(directory)}-00000", 0
    writer: ShardWriter | None = None
    for part in parts:
        for read, stored in part:
            if stored.damaged():
                raise UnreadableData(f"{read.file.path} is damaged; check(path, repair=True) keeps the rest of it")
        writer = writer or ShardWriter(directory, name, part[0][0].schema, MADE, MADE, data_set=header.id)
        episodes += _write(writer, [stored.batch for _, stored in part])
    if writer is None:
        commit.replaces |= dict.fromkeys((read.file.name for read in group), None)
        return
    writer.seal()
    sync(writer.path)
    commit.made[name] = {"order": group[0].file.order, "episodes": episodes}
    first = 0
    for read in group:
        commit.replaces[read.file.name] = (name, first)
        first += read.num_episodes


def _write(writer: ShardWriter, batches: list[Any]) -> int:
    """Write batches, joined to one, to an Arrow file. Return the number of episodes."""
    arrow = pyarrow()
    if len(batches) > 1:
        bare = [batch.replace_schema_metadata(None) for batch in batches]
        batches = arrow.Table.from_batches(bare).combine_chunks().to_batches()
    for batch in batches:
        writer.write(batch)
    return sum(batch.num_rows for batch in batches)


def _finished_shard(file: ShardFile) -> ShardRead:
    """Return the contents of an Arrow file of another data set.

    Raises:
        UnreadableData: the file is damaged, or its writer has not finished it.
    """
    if not file.sealed:
        raise UnreadableData(f"{file.path} is not finished; seal({str(file.path.parent)!r}) it first")
    read = read_shard(file)
    if read.damage or read.damaged():
        raise UnreadableData(f"{file.path} is damaged; check(path, repair=True) keeps the rest of it")
    return read


def _check_ids(source: Path, there: Sequence[ShardRead], new: Sequence[ShardRead], prefix: str) -> None:
    """Raise `ChunkMismatch` if two chunks of the files `there` and `new` have one id and cannot be of one episode.

    Args:
        source: the data set of the new files, for the message.
        prefix: text in front of the ids of the new files.
    """
    batches = [stored.batch for read in there for stored in read.batches]
    batches += [with_prefix(stored.batch, prefix) for read in new for stored in read.batches]
    table = EpisodeRows.joined(batches).columns
    for problem in conflict_texts(table, order_of(table)):
        raise ChunkMismatch(f"{source}: {problem}: merge(..., prefix=...)")


def _copy_shard(directory: Path, header: Header, commit: Commit, read: ShardRead, prefix: str, order: str) -> None:
    """Copy an Arrow file of another data set into `directory`, and note it in `commit` as a new file.

    Args:
        header: of the data set in `directory`.
        prefix: text in front of the ids.
        order: place of the file in the order of shards.
    """
    file, name = read.file, prefixed_name(read.file.name, prefix)
    made = directory / (name + MADE)
    made_of = {} if read.data_set is None else {"data_set": read.data_set}
    if prefix:
        writer, made_of = ShardWriter(directory, name, read.schema, MADE, MADE, data_set=header.id), {}
        for stored in read.batches:
            writer.write(with_prefix(stored.batch, prefix))
        writer.seal()
    else:
        shutil.copyfile(file.path, made)
    sync(made)
    commit.made[name] = {"order": order, "episodes": read.num_episodes, **made_of}
