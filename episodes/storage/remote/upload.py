"""Upload of a data set to remote storage. If it was uploaded before, only new files are sent.

Readers see what the file `uploaded.json` names. It is written once all shards are there, so they see all of an upload
or nothing of it. An upload that was killed can be repeated, and sends only missing files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from episodes.errors import InvalidArgument, UnreadableData
from episodes.storage.catalog import MADE, MANIFEST, SEALED, Catalog
from episodes.storage.compacting import finish_commits
from episodes.storage.files import local_path
from episodes.storage.header import NAME, Header, header_of, read_header
from episodes.storage.remote.remote_directory import RemoteDirectory
from episodes.storage.remote.uploaded import Uploaded
from episodes.storage.search import splits, statistics
from episodes.storage.shards import read_shard

CARD = "README.md"
_OPTIONAL = (splits.NAME, statistics.NAME)


def upload(source: str | Path, target: str | Path, *, storage_options: dict[str, Any] | None = None) -> int:
    """Upload the finished Arrow files (shards) of a data set to a remote directory, such as `s3://bucket/data`.

    An existing copy gets the missing shards and the compactions since the last upload. Unfinished shards are not sent.
    README.md is sent, which `write_card` makes.
    Remote readers see the state before or after the upload, also if it breaks off. Run one upload to a target at a
    time: the shards of two at once stay hidden in part until the next upload from their source.

    Args:
        source: path of the data set.
        target: URL, or path of a directory that other machines mount.
        storage_options: options of the file system as fsspec takes them, such as `{"endpoint_url": ...}`.

    Returns:
        The number of shards that were sent.

    Raises:
        MissingExtra: fsspec, or the package of the scheme, is not installed.
        InvalidArgument, TrackMismatch: the target is another data set.
        UnreadableData: there is no data set, or a shard is damaged; run `check(path, repair=True)` first.
    """
    directory, place = local_path(source), RemoteDirectory(str(target), storage_options or {})
    header = read_header(directory)
    if header is None:
        raise UnreadableData(
            f"{directory} is not a data set: it has no {NAME}; episodes convert makes one of other data"
        )
    before = _read_remote(place)
    remote_header = _check_remote_header(header, before, place)
    if remote_header is None:
        place.make()
    catalog, sizes = finish_commits(directory), place.sizes()
    commits = sorted(directory.glob("commit-*.json"))
    _check_commits(commits, before, place)
    small = before.small | {file.name: file.read_bytes() for file in commits} | _manifests(catalog)
    small |= {name: (directory / name).read_bytes() for name in _OPTIONAL if (directory / name).exists()}
    if remote_header is None or header.known > remote_header.known:
        small[NAME] = (directory / NAME).read_bytes()
    sent, num_sent = _send_shards(catalog, place, sizes)
    shards = {name for name in before.shards | sent if name.partition(".")[0] not in catalog.replaced}
    Uploaded(frozenset(shards), small).write(place)
    card = directory / CARD
    if card.is_file() and (CARD not in sizes or place.read(CARD) != card.read_bytes()):
        place.write(CARD, card.read_bytes())
    for name in sorted(small, key=_place_in_order):
        if small[name] != before.small.get(name) or name not in sizes:
            place.write(name, small[name])
    for name in sizes:
        if name.endswith((SEALED, MADE)) and name.partition(".")[0] in catalog.replaced:
            place.remove(name)
    return num_sent


def _read_remote(place: RemoteDirectory) -> Uploaded:
    """Return the current state of the remote data set, which is empty if nothing was uploaded yet.

    If an earlier version of this library has uploaded it, the state is written, so that this upload stays hidden until
    it is complete.
    """
    before = Uploaded.read(place)
    if before is not None:
        return before
    sizes = place.sizes()
    if NAME not in sizes:
        return Uploaded(frozenset(), {})
    small = {name: place.read(name) for name in sizes if name.endswith((".json", MANIFEST))}
    before = Uploaded(frozenset(name for name in sizes if name.endswith((SEALED, MADE))), small)
    before.write(place)
    return before


def _place_in_order(name: str) -> tuple[bool, bool, str]:
    """Return the sort key of a small file: commits, manifests and others, and the header last. Versions of this library
    that do not know the file `uploaded.json` read them one by one.
    """
    return name == NAME, not name.startswith("commit-"), name


def _check_remote_header(header: Header, before: Uploaded, place: RemoteDirectory) -> Header | None:
    """Return the header of the remote data set, or None if nothing was uploaded yet.

    Raises:
        InvalidArgument: it is another data set.
        TrackMismatch: its tracks differ.
    """
    if NAME not in before.small:
        return None
    remote_header = header_of(before.small[NAME], place.path(NAME))
    remote_header.check_given(header)
    remote_header.check_tracks(header.tracks, header.knows_steps)
    if header.id is not None and remote_header.id not in (None, header.id):
        raise InvalidArgument(
            f"{place.url} is another data set (id {remote_header.id}, the source has {header.id}); give another URL, "
            "or merge the data sets here and upload the result"
        )
    return remote_header


def _check_commits(commits: list[Path], before: Uploaded, place: RemoteDirectory) -> None:
    """Raise `InvalidArgument` if the remote data set has a commit (a compaction) that is missing or different in the
    local data set.
    """
    for file in commits:
        if before.small.get(file.name, file.read_bytes()) != file.read_bytes():
            raise InvalidArgument(
                f"{place.url} was compacted by another process: its {file.name} differs from the local one; upload to "
                "another URL, or download it first"
            )
    unknown = {name for name in before.small if name.startswith("commit-")} - {file.name for file in commits}
    if unknown:
        raise InvalidArgument(
            f"{place.url} has {', '.join(sorted(unknown))}, which the local data set lacks; upload to another URL, or "
            "download it first"
        )


def _send_shards(catalog: Catalog, place: RemoteDirectory, sizes: dict[str, int | None]) -> tuple[set[str], int]:
    """Upload the finished Arrow files that the remote directory does not have yet. `sizes` are the sizes of the files
    that it has. Return the remote names of all finished files, and the number of those that were sent.

    A commit's shards get names that count only after the commit.

    Raises:
        UnreadableData: a local file is damaged.
    """
    names, num = set[str](), 0
    for file in catalog.shards:
        if not file.sealed:
            continue
        name = file.name + (MADE if file.name in catalog.made else SEALED)
        names.add(name)
        if sizes.get(name, -1) in (None, file.path.stat().st_size):
            continue
        read = read_shard(file)
        if read.damage or read.damaged():
            raise UnreadableData(f"{file.path} is damaged; check(path, repair=True) keeps the rest of it")
        place.send(file.path, name)
        num += 1
    return names, num


def _manifests(catalog: Catalog) -> dict[str, bytes]:
    """Return the writers' manifests as bytes by file name. They list only finished Arrow files,
    since only these are uploaded."""
    sealed = {file.name for file in catalog.shards if file.sealed} | catalog.replaced.keys()
    return {
        manifest.path(catalog.directory).name: manifest.of_shards(sealed)
        for manifest in catalog.manifests.values()
        if sealed & manifest.shards.keys()
    }
