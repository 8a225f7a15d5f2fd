"""Detection of Arrow files and manifests that belong to another data set, for example because they were moved.

A data set has a random id, which its header, manifests and shards contain. Data sets of earlier versions have none, and
are not checked. A merged shard keeps the id of its source; the commit that added it names that id.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from episodes.storage.catalog import Catalog
from episodes.storage.header import NAME, Header
from episodes.storage.shards import ShardRead


def foreign_parts(path: Path | str, header: Header, catalog: Catalog, shards: Sequence[ShardRead]) -> list[str]:
    """Return texts on those Arrow files and manifests in a data set's directory that belong to another data set, by
    their ids. Empty if the data set has no id.
    """
    if header.id is None:
        return []
    foreign = [read.file.name for read in shards if not _belongs(read, header.id, catalog)]
    manifests = [
        manifest.writer for manifest in catalog.manifests.values() if manifest.data_set not in (None, header.id)
    ]
    problems = []
    for kind, names in (("shard", foreign), ("manifest", manifests)):
        if names:
            and_more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            problems.append(
                f"{path}: {kind} {names[0]}{and_more} belongs to another data set than {NAME} (id {header.id}): move "
                "it back, or merge the data sets"
            )
    return problems


def _belongs(read: ShardRead, data_set: str, catalog: Catalog) -> bool:
    """Return True if a file is of the data set with the id `data_set`, was merged into it, or does not record an id."""
    merged_from = catalog.made.get(read.file.name, {}).get("data_set", data_set)
    return read.data_set in (None, data_set, merged_from)
