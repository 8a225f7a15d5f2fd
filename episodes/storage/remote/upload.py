"""Upload of a data set to remote storage. If it was uploaded before, only new files are sent.

Files are sent in an order that keeps the remote data set complete at any time: shards, commits, manifests, and the
header of a new data set last. An upload that was killed can be repeated, and sends only missing files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from episodes.errors import InvalidArgument, UnreadableData
from episodes.storage.catalog import MADE, SEALED, Catalog
from episodes.storage.compacting import finish_commits
from episodes.storage.files import local_path
from episodes.storage.header import NAME, Header, header_of, read_header
from episodes.storage.remote.remote_directory import RemoteDirectory
from episodes.storage.search import splits, statistics
from episodes.storage.shards import read_shard


def upload(source: str | Path, target: str, *, storage_options: dict[str, Any] | None = None) -> int:
    """Upload the finished Arrow files (shards) of a data set to a remote directory, such as `s3://bucket/data`.

    An existing copy gets the missing shards and the compactions since the last upload. Unfinished shards are not sent.
    Remote readers see complete shards only.

    Args:
        source: path of the data set.
        target: URL.
        storage_options: options of the file system as fsspec takes them, such as `{"endpoint_url": ...}`.

    Returns:
        The number of shards that were sent.

    Raises:
        MissingExtra: fsspec, or the package of the scheme, is not installed.
        InvalidArgument, TrackMismatch: the target is another data set.
        UnreadableData: there is no data set, or a shard is damaged; run `check(path, repair=True)` first.
    """
    directory, place = local_path(source), RemoteDirectory(target, storage_options or {})
    header = read_header(directory)
    if header is None:
        raise UnreadableData(f"{directory} is not a data set: it has no {NAME}")
    remote_header = _check_remote_header(header, place)
    if remote_header is None:
        place.make()
    catalog, sizes = finish_commits(directory), place.sizes()
    commits = sorted(directory.glob("commit-*.json"))
    _check_commits(commits, place, sizes)
    num_sent = _send_shards(catalog, place, sizes)
    for file in commits:
        place.write(file.name, file.read_bytes())
    for name, data in _manifests(catalog).items():
        place.write(name, data)
    for name in (splits.NAME, statistics.NAME):
        if (directory / name).exists():
            place.write(name, (directory / name).read_bytes())
    if remote_header is None or header.known > remote_header.known:
        place.write(NAME, (directory / NAME).read_bytes())
    for name in sizes:
        if name.endswith((SEALED, MADE)) and name.partition(".")[0] in catalog.replaced:
            place.remove(name)
    return num_sent


def _check_remote_header(header: Header, place: RemoteDirectory) -> Header | None:
    """Return the header of the remote data set, or None if nothing was uploaded yet.

    Raises:
        InvalidArgument: it is another data set.
        TrackMismatch: its tracks differ.
    """
    try:
        remote_header = header_of(place.read(NAME), place.path(NAME))
    except FileNotFoundError:
        return None
    remote_header.check_given(header)
    remote_header.check_tracks(header.tracks, header.knows_steps)
    if header.id is not None and remote_header.id not in (None, header.id):
        raise InvalidArgument(
            f"{place.url} is another data set (id {remote_header.id}, the source has {header.id}); give another URL, "
            "or merge the data sets here and upload the result"
        )
    return remote_header


def _check_commits(commits: list[Path], place: RemoteDirectory, sizes: dict[str, int | None]) -> None:
    """Raise `InvalidArgument` if the remote data set has a commit (a compaction) that is missing or different in the
    local data set.

    Args:
        sizes: the remote files.
    """
    for file in commits:
        if file.name in sizes and place.read(file.name) != file.read_bytes():
            raise InvalidArgument(
                f"{place.url} was compacted by another process: its {file.name} differs from the local one; upload to "
                "another URL, or download it first"
            )
    unknown = {name for name in sizes if name.startswith("commit-")} - {file.name for file in commits}
    if unknown:
        raise InvalidArgument(
            f"{place.url} has {', '.join(sorted(unknown))}, which the local data set lacks; upload to another URL, or "
            "download it first"
        )


def _send_shards(catalog: Catalog, place: RemoteDirectory, sizes: dict[str, int | None]) -> int:
    """Upload the finished Arrow files that the remote directory does not have yet, and return their number. `sizes` are
    the sizes of the files that it has.

    A commit's shards get names that count only after the commit.

    Raises:
        UnreadableData: a local file is damaged.
    """
    num = 0
    for file in catalog.shards:
        name = file.name + (MADE if file.name in catalog.made else SEALED)
        if not file.sealed or sizes.get(name, -1) in (None, file.path.stat().st_size):
            continue
        read = read_shard(file)
        if read.damage or read.damaged():
            raise UnreadableData(f"{file.path} is damaged; check(path, repair=True) keeps the rest of it")
        place.send(file.path, name)
        num += 1
    return num


def _manifests(catalog: Catalog) -> dict[str, bytes]:
    """Return the writers' manifests as bytes by file name. They list only finished Arrow files,
    since only these are uploaded."""
    sealed = {file.name for file in catalog.shards if file.sealed} | catalog.replaced.keys()
    return {
        manifest.path(catalog.directory).name: manifest.of_shards(sealed)
        for manifest in catalog.manifests.values()
        if sealed & manifest.shards.keys()
    }
