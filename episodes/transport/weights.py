"""Encoding of network weights (nested arrays) as messages from a receiver to its senders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from episodes.errors import UnreadableData
from episodes.storage.track_schema import TrackField, assemble, structure_of
from episodes.tracks import nested
from episodes.tracks.levels import check_levels
from episodes.transport.parts import Buffer, PartsReader, PartsWriter
from episodes.transport.wire import DAMAGES, checked_field, item_size


class Weights(NamedTuple):
    """Network weights that a receiver has published, with their policy version.

    Attributes:
        version: their policy version.
        values: nested dicts and tuples of read-only arrays.
    """

    version: int
    values: Any


def encoded_weights(values: object) -> list[Buffer]:
    """Encode network weights, nested arrays or CPU tensors, as the parts of a message.

    Raises:
        WrongType: an array has objects.
        ShapeMismatch: the values are nested too deeply, or a list has items of several shapes.
    """
    check_levels(values, what="the weights")
    arrays = {path: nested.as_array(value) for path, value in nested.flatten(values).items()}
    fields = [[path, TrackField.of(path, array[None], "none")] for path, array in arrays.items()]
    writer = PartsWriter()
    for array in arrays.values():
        writer.put(array.copy())  # the learner changes the original
    metadata = [structure_of(values), [[path, field.dtype, list(field.shape)] for path, field in fields]]
    return [b"".join(writer.body(metadata)), *writer.large]


def decoded_weights(version: int, parts: Sequence[Buffer], start: int = 0) -> Weights:
    """Decode network weights from the parts of a message. In the first part they begin at byte `start`.

    Raises:
        UnreadableData: the message is damaged.
    """
    try:
        source = PartsReader(parts, start)
        structure, described = source.facts
        arrays = {}
        for path, dtype, shape in described:
            field = checked_field(dtype, shape)
            arrays[path] = source.array(np.dtype(field.dtype), field.shape, item_size(field))
        source.end()
        return Weights(version, assemble(structure, arrays))
    except DAMAGES as error:
        raise UnreadableData(f"a message without readable weights: {error!r}") from None
