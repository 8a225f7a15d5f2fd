"""Which shards a data set has: what its directory holds, what its writers said of them, and what replaced what.

    NAME.manifest         of each writer, its shards: a line when one begins and when it ends
    commit-000001.json    of each compaction, merge or repair: the shards it made, and those they stand for

A shard that a manifest or a commit names, that nothing replaced and that is not there, is lost. A made shard waits as
`*.arrow.new`, and counts from the moment its commit file is there; what it replaces counts until then.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from episodes.errors import UnreadableData
from episodes.storage.checksums import checked, signed_line, with_sum
from episodes.storage.files import append, put, sync

SEALED, UNFINISHED, MADE = ".arrow", ".arrow.partial", ".arrow.new"
MANIFEST = ".manifest"
_COMMIT = "commit-"
_NUMBERED = re.compile(rf"{_COMMIT}(\d+)\.json")  # also one that was put aside: its number is taken

Place = tuple[str, int]  # a made shard, and the row in it


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard that a data set has."""

    name: str
    order: str  # shards come in the order of these: of the first one it replaced, or its name
    path: Path
    num_episodes: int = 0  # it has at least so many, as who wrote it said

    @property
    def sealed(self) -> bool:
        """Whether its writer has finished it."""
        return not self.path.name.endswith(UNFINISHED)


@dataclass(slots=True)
class Manifest:
    """What a writer says of its shards, by name."""

    writer: str
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    started: str = field(default_factory=lambda: _own_start(os.getpid()))
    shards: dict[str, dict[str, Any]] = field(default_factory=dict)  # open, episodes
    _is_whole: bool = False  # the file says what `shards` does

    @staticmethod
    def of(data: bytes, source: str) -> Manifest:
        """The manifest of a file's bytes; `UnreadableData` names the source of a damaged one."""
        first, *lines = (checked(line, source) for line in data.split(b"\n")[:-1])  # what comes after is half a line
        manifest = Manifest(**first)
        for line in lines:
            manifest.shards[line.pop("shard")] = line
        return manifest

    def tell(self, directory: Path, shard: str, *, is_open: bool, episodes: int, fsync: bool = False) -> None:
        """Add what a shard has now.

        Lines are added, since a file that replaces another is flushed by some file systems, which takes milliseconds.
        """
        self.shards[shard] = {"open": is_open, "episodes": episodes}
        path = self.path(directory)
        if not self._is_whole:
            put(path, "".join(map(signed_line, [self._head, *map(self._entry, self.shards)])))
            self._is_whole = True
        else:
            self._is_whole = False
            append(path, signed_line(self._entry(shard)))
            self._is_whole = True
        if fsync:
            sync(path)

    def path(self, directory: Path) -> Path:
        """Its file."""
        return directory / (self.writer + MANIFEST)

    def of_shards(self, names: Container[str]) -> bytes:
        """The file's bytes, of these shards alone."""
        told = [self._head, *(self._entry(shard) for shard in self.shards if shard in names)]
        return "".join(map(signed_line, told)).encode()

    @property
    def _head(self) -> dict[str, Any]:
        return {"writer": self.writer, "host": self.host, "pid": self.pid, "started": self.started}

    def _entry(self, shard: str) -> dict[str, Any]:
        return {"shard": shard, **self.shards[shard]}

    @property
    def is_gone(self) -> bool:
        """Whether the process is known to have ended; one of another machine is not."""
        return self.host == socket.gethostname() and process_start_id(self.pid) != self.started


@lru_cache(maxsize=1)
def _own_start(pid: int) -> str:
    """When this process began; a fork of it has another number."""
    return process_start_id(pid)


def process_start_id(pid: int) -> str:
    """When a process of this machine began, in a form of the system's own; "" where there is none such."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "running"


@dataclass(slots=True)
class Commit:
    """What was made in place of what: `replaces` says where the rows of a shard are now, or that they are nowhere."""

    made: dict[str, dict[str, Any]] = field(default_factory=dict)  # name: order, episodes
    replaces: dict[str, Place | None] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)  # of those replaced: kept under another name, as they are damaged

    def put(self, directory: Path, number: int) -> None:
        """Make it count, all at once. `FileExistsError` when another one of this number was quicker."""
        text = json.dumps(with_sum({"made": self.made, "replaces": self.replaces, "aside": self.aside}))
        put(directory / f"{_COMMIT}{number:06d}.json", text, new=True, fsync=True)


@dataclass(slots=True)
class Catalog:
    """The shards of a directory."""

    directory: Path
    shards: list[ShardFile] = field(default_factory=list)  # in order
    manifests: dict[str, Manifest] = field(default_factory=dict)  # by writer
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    replaced: dict[str, Place | None] = field(default_factory=dict)
    aside: set[str] = field(default_factory=set)
    newest_commit: int = 0  # its number, damaged ones counted
    damaged: list[Path] = field(default_factory=list)  # manifests and commits
    problems: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # names of shards
    leftovers: list[Path] = field(default_factory=list)  # of who was killed, of no use

    @staticmethod
    def of(directory: Path, names: Iterable[str] | None = None) -> Catalog:
        """What a directory holds now; or would hold with files of these names, of which the small ones are there."""
        if names is None:
            names = [entry.name for entry in os.scandir(directory)] if directory.is_dir() else []
        names = sorted(names)
        catalog = Catalog(directory)
        for name in names:
            if number := _NUMBERED.match(name):
                catalog.newest_commit = max(catalog.newest_commit, int(number[1]))
            if name.startswith(_COMMIT) and name.endswith(".json"):
                catalog._read(name, catalog._put_commit)
            elif name.endswith(MANIFEST):
                catalog._read(name, catalog._put_manifest)
        catalog._put_files(names)
        return catalog

    def _read(self, name: str, take: Any) -> None:
        """Let a file's object be taken; a damaged one is a problem."""
        try:
            take((self.directory / name).read_bytes(), str(self.directory / name))
        except FileNotFoundError:  # it was replaced a moment ago, and its shards with it
            pass
        except (UnreadableData, KeyError, TypeError, ValueError, AttributeError) as error:
            told = str(error) if isinstance(error, UnreadableData) else f"{self.directory / name}: {error!r}"
            self.problems.append(told)
            self.damaged.append(self.directory / name)

    def _put_commit(self, data: bytes, source: str) -> None:
        found = checked(data, source)
        commit = Commit(**found)
        self.aside |= set(commit.aside)
        self.made |= commit.made
        self.replaced |= {old: place and (place[0], place[1]) for old, place in commit.replaces.items()}

    def _put_manifest(self, data: bytes, source: str) -> None:
        manifest = Manifest.of(data, source)
        self.manifests[manifest.writer] = manifest

    def _put_files(self, names: list[str]) -> None:
        there = set(names)
        told = {
            name: shard["episodes"] for manifest in self.manifests.values() for name, shard in manifest.shards.items()
        }
        told |= {name: shard["episodes"] for name, shard in self.made.items()}
        for name in sorted(
            {file.removesuffix(end) for file in there for end in _ENDS if file.endswith(end)} | set(told)
        ):
            ends = [end for end in _ENDS if name + end in there]
            if name in self.replaced or (ends == [MADE] and name not in self.made):
                self.leftovers += [self.directory / (name + end) for end in ends]
            elif ends:
                order = self.made.get(name, {}).get("order", name)
                self.shards.append(ShardFile(name, order, self.directory / (name + ends[0]), told.get(name, 0)))
            else:
                self.lost.append(name)
        self.shards.sort(key=lambda shard: (shard.order, shard.name))
        self.problems += [f"{self.directory}: shard {name} is lost; its writer made it" for name in self.lost]

    def place(self, name: str) -> Place | None:
        """The shard that has the rows of this one now, and where they begin; None where nobody has them."""
        row = 0
        while name in self.replaced:
            found = self.replaced[name]
            if found is None:
                return None
            name, row = found[0], row + found[1]
        return name, row


_ENDS = (SEALED, MADE, UNFINISHED)  # the first that is there is read
