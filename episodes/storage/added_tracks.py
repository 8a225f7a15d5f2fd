"""A track that a data set did not have from the beginning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import InvalidArgument, UnreadableData, WrongType
from episodes.storage.files import local_path
from episodes.storage.header import NAME, put_header, read_header
from episodes.storage.track_schema import TrackField
from episodes.tracks import nested


def add_track(path: str | Path, key: str, item: Any) -> None:
    """Let the episodes of a data set have another extra model output from now on.

    Nothing that is there is rewritten: all steps of episodes without it read as `item`, which also says what the dtype
    and the shape of the track are. Writers that are made from now on expect it of each episode; those at work go
    on without. Episodes from before should be told from those after: choose an item that does, such as NaN.

    Raises:
        InvalidArgument: there is such a track, or no episode with a step yet.
        WrongType: an item of a dtype that a file cannot hold; a key that is no text.
    """
    if not isinstance(key, str):
        raise WrongType(f"key {key!r}: the key of an extra model output is a text")
    directory = local_path(path)
    header = read_header(directory)
    if header is None:
        raise UnreadableData(f"{directory} is no data set: there is no {NAME}")
    if not header.knows_steps:
        raise InvalidArgument(f"{directory} has no episode with a step yet; just write episodes that have {key!r}")
    array, track = np.asarray(item), f"extra_model_outputs/{nested.escape(key)}"
    if any(name == track or name.startswith(f"{track}/") for name in header.tracks):
        raise InvalidArgument(f"{directory} has a track {track!r} already; give another key")
    field = replace(TrackField.of(track, array[None], "none"), fill=array.tobytes().hex())
    columns = dict(header.structure["dict"])
    extra = columns.get("extra_model_outputs", {"dict": []})["dict"]
    columns["extra_model_outputs"] = {"dict": [*extra, [key, track]]}
    structure = {"dict": [list(column) for column in columns.items()]}
    put_header(directory, replace(header, tracks=header.tracks | {track: field}, structure=structure), new=False)
