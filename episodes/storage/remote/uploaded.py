"""The file `uploaded.json` of a remote data set: which shards readers see, and all its small files, as of one upload.

It is one object, so that readers see all of an upload or nothing of it. A remote directory without it, such as a copy
made by other tools, has the state of its files.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Any

from episodes.errors import UnreadableData
from episodes.storage.catalog import MADE, MANIFEST, SEALED
from episodes.storage.checksums import verify_json, with_checksum
from episodes.storage.remote.remote_directory import UPLOADED, RemoteDirectory

NAME = UPLOADED
_SHARD = re.compile(rf"\w[\w.-]*({re.escape(SEALED)}|{re.escape(MADE)})")
_SMALL = re.compile(rf"\w[\w.-]*(\.json|{re.escape(MANIFEST)})")


@dataclass(frozen=True, slots=True)
class Uploaded:
    """State of a remote data set.

    Attributes:
        shards: names of the Arrow files that readers see.
        small: the small files (header, commits, manifests, splits, statistics) by name.
    """

    shards: frozenset[str]
    small: dict[str, bytes]

    @staticmethod
    def read(place: RemoteDirectory) -> Uploaded | None:
        """Return the state that the last upload has written, or None if there is no file of it.

        Raises:
            UnreadableData: the file is damaged, or names files outside the directory.
        """
        try:
            data = place.read(NAME)
        except FileNotFoundError:
            return None
        source = place.path(NAME)
        try:
            return Uploaded._of(verify_json(data, source), source)
        except UnreadableData as error:
            raise UnreadableData(f"{error}; remove this file and upload again, or read the files as they are") from None

    @staticmethod
    def _of(value: dict[str, Any], source: str) -> Uploaded:
        """Check the content of the file `source`, and return the state. Raise `UnreadableData` if it is wrong."""
        shards, small = value.get("shards"), value.get("small")
        if not isinstance(shards, list) or not isinstance(small, dict):
            raise UnreadableData(f"{source}: shards and small files are not a list and an object")
        for names, allowed in ((shards, _SHARD), (small, _SMALL)):
            for name in names:
                if not isinstance(name, str) or not allowed.fullmatch(name) or name == NAME:
                    raise UnreadableData(f"{source}: {name!r} is not the name of a file of a data set")
        try:
            contents = {name: base64.b64decode(text, validate=True) for name, text in small.items()}
        except (ValueError, TypeError) as error:
            raise UnreadableData(f"{source}: a small file is not base64: {error}") from None
        return Uploaded(frozenset(shards), contents)

    def write(self, place: RemoteDirectory) -> None:
        """Write the state, which readers see from then on."""
        small = {name: base64.b64encode(data).decode() for name, data in sorted(self.small.items())}
        value = {"shards": sorted(self.shards), "small": small}
        place.write(NAME, json.dumps(with_checksum(value)).encode())


def list_files(place: RemoteDirectory) -> tuple[dict[str, int | None], Uploaded | None]:
    """Return the sizes of a remote data set's files by name, without shards that no upload has completed, and the
    state that the last upload has written, if it has.
    """
    uploaded = Uploaded.read(place)
    while True:
        sizes = place.sizes()
        if uploaded is None or uploaded.shards <= sizes.keys():
            break
        before, uploaded = uploaded, Uploaded.read(place)  # an upload has ended meanwhile, and removed shards
        if uploaded == before:
            break
    if uploaded is not None:
        sizes = {name: size for name, size in sizes.items() if name in uploaded.shards}
        sizes |= {name: len(data) for name, data in uploaded.small.items()}
    return sizes, uploaded
