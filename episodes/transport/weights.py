"""Weights as bytes, and back: nested arrays that travel from episode_learners to workers, with their version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from episodes.errors import UnreadableData
from episodes.storage.track_schema import TrackField, assembled, structure_of
from episodes.tracks import nested
from episodes.transport.parts import Buffer, PartsReader, PartsWriter
from episodes.transport.wire import DAMAGES, checked_field, item_size


class Weights(NamedTuple):
    """What a learner published."""

    version: int
    values: Any  # nested dicts and tuples of read-only arrays


def encoded_weights(values: Any) -> list[Buffer]:
    """Nested arrays (or what numpy makes arrays of, as tensors on a CPU) as parts. `WrongType` names one of objects."""
    arrays = {path: np.asarray(value) for path, value in nested.flatten(values).items()}
    fields = [[path, TrackField.of(path, array[None], "none")] for path, array in arrays.items()]
    laid = PartsWriter()
    for array in arrays.values():
        laid.put(array.copy())  # a learner goes on writing into its own
    told = [structure_of(values), [[path, own.dtype, list(own.shape)] for path, own in fields]]
    return [b"".join(laid.body(told)), *laid.large]


def decoded_weights(version: int, parts: Sequence[Buffer], start: int = 0) -> Weights:
    """The weights of their parts, the first one from `start` on; `UnreadableData` where they are damaged."""
    try:
        source = PartsReader(parts, start)
        structure, described = source.facts
        arrays = {}
        for path, dtype, shape in described:
            field = checked_field(dtype, shape)
            arrays[path] = source.array(np.dtype(field.dtype), field.shape, item_size(field))
        source.end()
        return Weights(version, assembled(structure, arrays))
    except DAMAGES as error:
        raise UnreadableData(f"a message that holds no weights: {error!r}") from None
