"""Add an extra model output, such as a label, to all steps of an existing data set on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from episodes.columns import check_extra_output_names
from episodes.errors import InvalidArgument, UnreadableData, WrongType
from episodes.storage.files import local_path
from episodes.storage.header import NAME, put_header, read_header
from episodes.storage.track_schema import TrackField
from episodes.tracks import nested


def add_track(path: str | Path, key: str, item: object) -> None:
    """Add an extra model output, such as a label, to a data set on disk. All existing steps get the same default value.

    Nothing is rewritten: existing steps get the value `item`, which also defines the dtype and shape. Writers that are
    created later need the output in every episode; running writers continue without it. To tell old episodes from new
    ones, use an item such as NaN.

    Args:
        path: the data set.
        key: name of the extra model output.
        item: value of one step in all existing episodes.

    Raises:
        InvalidArgument: the data set has this output, or no episode with a step yet.
        TrackMismatch: the key is the name of a column that batches get anyway.
        WrongType: the key is no text, or the item has a dtype that a file cannot hold.
        UnreadableData: there is no data set.
    """
    if not isinstance(key, str):
        raise WrongType(f"key {key!r}: the key of an extra model output is a text")
    check_extra_output_names([key], "add_track")
    directory = local_path(path)
    header = read_header(directory)
    if header is None:
        raise UnreadableData(f"{directory} is not a data set: it has no {NAME}")
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
