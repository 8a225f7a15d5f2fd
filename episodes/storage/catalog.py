"""Determine which Arrow files of a data set are current, from the directory listing, the writers'
manifests and the commit files.

    NAME.manifest         one for each writer: a line when a shard of it begins and when it ends
    commit-000001.json    one for each compaction, merge or repair: the shards it made, and those that they replace

A shard is lost if a manifest or commit names it, nothing replaced it, and its file does not exist. A shard made by a
commit is called `*.arrow.new` at first. It counts as soon as the commit file exists, and the shards that it replaces do
not count from then on.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from episodes.errors import UnreadableData
from episodes.storage.checksums import signed_line, verify_json, with_checksum
from episodes.storage.files import append, put, put_locked, read_file, sync
from episodes.storage.locks import HAS_POSIX_FILES, Lock, is_locked

SEALED, UNFINISHED, MADE = ".arrow", ".arrow.partial", ".arrow.new"
MANIFEST = ".manifest"
_COMMIT = "commit-"
_NUMBERED = re.compile(rf"{_COMMIT}(\d+)\.json")  # also matches a damaged one that was renamed: its number is taken
_ORDERED = re.compile("([0-9a-f]{16})-")
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")  # of a writer or shard: no dot and no slash, so it is never a path

Place = tuple[str, int]  # a made shard, and the row in it


def checked_name(name: object, source: str) -> str:
    """Validate a writer or shard name that was read from a file, and return the name.
    Raise `UnreadableData` if it is not a plain file name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UnreadableData(f"{source}: {name!r} is no name of a writer or shard")
    return name


def _checked_count(value: object, source: str) -> int:
    """Return a number of episodes that was read from `source`. Raise `UnreadableData` if it is not an int of at least
    0.
    """
    if type(value) is not int or value < 0:
        raise UnreadableData(f"{source}: {value!r} is no number of episodes")
    return value


@dataclass(frozen=True, slots=True)
class ShardFile:
    """Arrow file (shard) of a data set: name, sort key, path and number of episodes.

    Attributes:
        name: of the shard.
        order: the name by which shards are sorted: that of the first shard that it replaced, or its own.
        path: of the file.
        num_episodes: lowest number of episodes that it has, according to its writer.
    """

    name: str
    order: str
    path: Path
    num_episodes: int = 0

    @property
    def sealed(self) -> bool:
        """Whether this Arrow file is complete, that is, finished by its writer."""
        return not self.path.name.endswith(UNFINISHED)


@dataclass(slots=True)
class Manifest:
    """List of the Arrow files that one writer has created, stored as a text file in the directory of the data set.

    A live writer holds a lock on the file, which the field `lock` records. Without a lock (the file system has none, or
    the writer is of an earlier version) the host and the process id determine whether the writer may be alive.
    """

    writer: str
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    started: str = field(default_factory=lambda: _own_start_id(os.getpid()))
    lock: bool = False
    data_set: str | None = None  # the id of the data set that it was written for
    shards: dict[str, dict[str, Any]] = field(default_factory=dict)  # open, episodes
    _held: Lock | None = None  # on the file, if this is the writer's
    _is_complete: bool = False  # the file has all of `shards`

    @staticmethod
    def of(data: bytes, source: str) -> Manifest:
        """Parse the bytes of a manifest file. Raise `UnreadableData`, naming `source`, if they are damaged."""
        first, *lines = (
            verify_json(line, source) for line in data.split(b"\n")[:-1]
        )  # what comes after is half a line
        head = {name: first[name] for name in ("writer", "host", "pid", "started")}
        manifest = Manifest(**head, lock=first.get("lock") is True, data_set=first.get("data_set"))
        checked_name(manifest.writer, source)
        if type(manifest.pid) is not int or not isinstance(manifest.started, str):
            raise UnreadableData(f"{source}: process {manifest.pid!r} began at {manifest.started!r}")
        for line in lines:
            shard = checked_name(line["shard"], source)
            if not shard.startswith(manifest.writer):
                raise UnreadableData(f"{source}: shard {shard} is not of the writer {manifest.writer}")
            episodes = _checked_count(line["episodes"], source)
            manifest.shards[shard] = {"open": line["open"] is not False, "episodes": episodes}
        return manifest

    def record(self, directory: Path, shard: str, *, is_open: bool, episodes: int, fsync: bool = False) -> None:
        """Record in the manifest file that an Arrow file is open or finished, and its number of episodes.

        With `fsync`, the line is on the disk when the call returns.

        The file is not replaced for each line, since some file systems flush a file that replaces another one, which
        takes milliseconds.
        """
        self.shards[shard] = {"open": is_open, "episodes": episodes}
        path = self.path(directory)
        if not self._is_complete:
            self._write(path)
        else:
            self._is_complete = False
            append(path, signed_line(self._entry(shard)))
        self._is_complete = True
        if fsync:
            sync(path)

    def _write(self, path: Path) -> None:
        """Write the whole manifest file and keep it locked until `release`, to show that the writer is running."""

        def make_text(is_locked: bool) -> str:
            """Return the file's text. `is_locked` is stored in it: whether the process locks the file while it is
            alive.
            """
            self.lock = is_locked
            return "".join(map(signed_line, [self._head, *map(self._entry, self.shards)]))

        held = put_locked(path, make_text)
        self.release()
        self._held = held

    @property
    def is_damaged(self) -> bool:
        """Whether appending a line to the manifest file has failed, so that the file must be rewritten."""
        return bool(self.shards) and not self._is_complete

    def release(self) -> None:
        """Unlock the manifest file, which shows other processes that the writer has ended."""
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def path(self, directory: Path) -> Path:
        """Return the path of the manifest file in `directory`."""
        return directory / (self.writer + MANIFEST)

    def of_shards(self, names: Container[str]) -> bytes:
        """Return the text of this manifest, as bytes, with only the shards `names`."""
        lines = [self._head, *(self._entry(shard) for shard in self.shards if shard in names)]
        return "".join(map(signed_line, lines)).encode()

    @property
    def _head(self) -> dict[str, Any]:
        """The manifest's first line: which process writes, and to which data set."""
        head: dict[str, Any] = {"writer": self.writer, "host": self.host, "pid": self.pid, "started": self.started}
        if self.lock:
            head["lock"] = True
        return head if self.data_set is None else head | {"data_set": self.data_set}

    def _entry(self, shard: str) -> dict[str, Any]:
        return {"shard": shard, **self.shards[shard]}

    def is_abandoned(self, directory: Path) -> bool:
        """Return True if this manifest's writer has certainly ended: its lock is free, or its
        process on this machine is gone."""
        if self.lock:
            return not is_locked(self.path(directory))
        return self.host == socket.gethostname() and process_start_id(self.pid) != self.started


@lru_cache(maxsize=1)
def _own_start_id(pid: int) -> str:
    """Return the (cached) `process_start_id` of the current process.

    The argument keeps a forked process from using its parent's cached value.
    """
    return process_start_id(pid)


def process_start_id(pid: int) -> str:
    """Return the start time of the process with the id `pid` as a text, "running" if the system does not report it, or
    "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    if not HAS_POSIX_FILES:  # on Windows signal 0 is Ctrl-C
        return "running"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "running"


@dataclass(slots=True)
class Commit:
    """Atomic replacement of some Arrow files of a data set by new files, stored as one JSON file.

    Attributes:
        made: the new shards by name, with `order`, `episodes`, and `data_set` if it was merged from that data set.
        replaces: for each replaced shard the new shard and the row where its rows begin; None if they are dropped
            or, after a repair, at other rows.
        aside: replaced shards whose files are kept under another name, since they are damaged.
    """

    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    replaces: dict[str, Place | None] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)

    @staticmethod
    def of(data: bytes, source: str) -> Commit:
        """Parse the bytes of a commit file. Raise `UnreadableData`, naming `source`, if they are damaged."""
        value, commit = verify_json(data, source), Commit()
        for name, made in value["made"].items():
            order = checked_name(made["order"], source)
            episodes = _checked_count(made["episodes"], source)
            commit.made[checked_name(name, source)] = {**made, "order": order, "episodes": episodes}
        for name, place in value["replaces"].items():
            if place is not None:
                target, row = place
                if target not in commit.made:
                    raise UnreadableData(f"{source}: {target!r} replaces another shard, but does not exist")
                place = target, _checked_count(row, source)
            commit.replaces[checked_name(name, source)] = place
        commit.aside = [checked_name(name, source) for name in value["aside"]]
        return commit

    def put(self, directory: Path, number: int) -> None:
        """Write this commit as the commit file with index `number`. From then on the new Arrow
        files replace the old ones.

        Raises:
            FileExistsError: another process wrote a commit with this number.
        """
        text = json.dumps(with_checksum({"made": self.made, "replaces": self.replaces, "aside": self.aside}))
        put(directory / f"{_COMMIT}{number:06d}.json", text, new=True, fsync=True)


@dataclass(slots=True)
class Catalog:
    """Overview of the Arrow files in a data set directory: the current files in order, and lost,
    replaced and useless ones.

    A commit may only make shards with new names, and every replaced shard points to one that the same commit made. So
    a chain of replacements ends, whatever the files contain.
    """

    directory: Path
    shards: list[ShardFile] = field(default_factory=list)  # in order
    manifests: dict[str, Manifest] = field(default_factory=dict)  # by writer
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    replaced: dict[str, Place | None] = field(default_factory=dict)
    aside: set[str] = field(default_factory=set)
    newest_commit: int = 0  # highest number, also of damaged ones
    damaged: list[Path] = field(default_factory=list)  # manifests and commits
    problems: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # names of shards
    leftovers: list[Path] = field(default_factory=list)  # useless files of killed processes

    @staticmethod
    def of(directory: Path, names: Iterable[str] | None = None) -> Catalog:
        """Determine which Arrow files of a directory are current, from its manifests, commit files and file names.

        Args:
            directory: has the manifests and commits.
            names: names of all files, if some of them are not in the directory; None for the directory's own.
        """
        if names is None:
            names = list_names(directory)
        names = sorted(names)
        catalog = Catalog(directory, newest_commit=_newest_commit(names))
        for name in sorted(filter(_is_commit, names), key=_commit_number):
            catalog._read(name, catalog._put_commit)
        for name in names:
            if name.endswith(MANIFEST):
                catalog._read(name, catalog._put_manifest)
        catalog._put_files(names)
        return catalog

    def _read(self, name: str, take: Callable[[bytes, str], object]) -> None:
        """Read a manifest or commit file, and pass its bytes to the function `take`.
        If it is damaged, note a problem instead."""
        try:
            take(read_file(self.directory / name), str(self.directory / name))
        except FileNotFoundError:  # it was removed meanwhile, with its shards
            pass
        except (UnreadableData, KeyError, TypeError, ValueError, AttributeError) as error:
            problem = str(error) if isinstance(error, UnreadableData) else f"{self.directory / name}: {error!r}"
            self.problems.append(problem)
            self.damaged.append(self.directory / name)

    def _put_commit(self, data: bytes, source: str) -> None:
        """Add the content of a commit file to this catalog: which shards it made, which it replaced, and which are kept
        aside.

        Args:
            source: path of the file, for error messages.

        Raises:
            UnreadableData: the commit makes a shard that was made or replaced before.
        """
        commit = Commit.of(data, source)
        for name in commit.made:  # new names each time, so rows never come back to where they were
            if name in self.made or name in self.replaced or name in commit.replaces:
                raise UnreadableData(f"{source}: shard {name} was made or replaced before")
        self.aside |= set(commit.aside)
        self.made |= commit.made
        self.replaced |= commit.replaces

    def _put_manifest(self, data: bytes, source: str) -> None:
        """Add the content of a manifest file to this catalog. Raise `UnreadableData` if the file has another name than
        its writer's."""
        manifest = Manifest.of(data, source)
        if manifest.path(self.directory) != Path(source):
            raise UnreadableData(f"{source} is the manifest of {manifest.writer} under another name")
        self.manifests[manifest.writer] = manifest

    def _put_files(self, names: list[str]) -> None:
        """Classify the directory's files: current shards, lost shards (also noted as problems), and leftovers of
        compactions.
        """
        files = set(names)
        counts = {
            name: shard["episodes"] for manifest in self.manifests.values() for name, shard in manifest.shards.items()
        }
        counts |= {name: shard["episodes"] for name, shard in self.made.items()}
        for name in sorted(
            {file.removesuffix(end) for file in files for end in _ENDS if file.endswith(end)} | set(counts)
        ):
            ends = [end for end in _ENDS if name + end in files]
            if name in self.replaced or (ends == [MADE] and name not in self.made):
                self.leftovers += [self.directory / (name + end) for end in ends]
            elif ends:
                order = self.made.get(name, {}).get("order", name)
                self.shards.append(ShardFile(name, order, self.directory / (name + ends[0]), counts.get(name, 0)))
            else:
                self.lost.append(name)
        self.shards.sort(key=lambda shard: (shard.order, shard.name))
        self.problems += [f"{self.directory}: shard {name} is lost; its writer made it" for name in self.lost]

    def place(self, name: str) -> Place | None:
        """Return the shard that contains the episodes of the (possibly replaced) shard `name` now, and their first row,
        or None if they were removed."""
        row = 0
        while name in self.replaced:
            target = self.replaced[name]
            if target is None:
                return None
            name, row = target[0], row + target[1]
        return name, row


def _is_commit(name: str) -> bool:
    return name.startswith(_COMMIT) and name.endswith(".json")


def _commit_number(name: str) -> int:
    """Return the number in the name of a commit file, or -1 if the name has none."""
    number = _NUMBERED.match(name)
    return int(number[1]) if number else -1


def _newest_commit(names: Iterable[str]) -> int:
    """Return the highest commit number among the given file names, or 0 if there is no commit file."""
    return max(0, 0, *map(_commit_number, names))


def list_names(directory: Path) -> list[str]:
    """Return the names of the files in a directory, or an empty list if there is no such directory."""
    return [entry.name for entry in os.scandir(directory)] if directory.is_dir() else []


def newest_commit(directory: Path) -> int:
    """Return the highest commit number in a data set directory, or 0 if there is no commit file.
    It rises when files are replaced."""
    return _newest_commit(list_names(directory))


def next_order(directory: Path) -> str:
    """Return the next number of a data set or ledger, as 16 hexadecimal digits. It is sorted after all shards there.

    It is one more than the highest number with which a name or a place in the order begins. No clock is read, since
    that of another machine, or of this one after a correction, may be behind.
    """
    names = list_names(directory)
    if any(map(_is_commit, names)):
        names += [made["order"] for made in Catalog.of(directory, names).made.values()]
    numbers = [int(match[1], 16) for name in names if (match := _ORDERED.match(name))]
    return f"{max(numbers, default=0) + 1:016x}"


_ENDS = (SEALED, MADE, UNFINISHED)  # the first that is there is read
