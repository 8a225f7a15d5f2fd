"""Connector that turns steps into padded sequences, for recurrent policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym

from connectors.column_parts import joined
from connectors.connector import ColumnDict, Connector
from connectors.sequences import Sequences
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.pack import EpisodePack
from episodes.tracks.validation import checked_count

if TYPE_CHECKING:
    from episodes.tracks.infos import Infos

__all__ = ["AddTimeDimensionAndZeroPad"]


class AddTimeDimensionAndZeroPad(Connector):
    """Connector that pads all columns [B, ...] to sequences [R, max_seq_len, ...], and adds "loss_mask" and "seq_lens".

    Episodes are cut into rows of `max_seq_len` steps. The last row of each episode is padded with zeros on the right.
    "loss_mask", bool [R, max_seq_len], is false for padding. "seq_lens" [R] has the number of steps.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        max_seq_len: the number of steps in a row.
        name: name of the connector in its pipeline.

    Raises:
        InvalidArgument: `max_seq_len` is not an int of at least 1.
    """

    writes = (Columns.LOSS_MASK, Columns.SEQ_LENS)
    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        max_seq_len: int = 20,
        name: str | None = None,
    ) -> None:
        self.max_seq_len = checked_count("max_seq_len", max_seq_len)
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(self, *, batch: ColumnDict, episodes: EpisodePack, **kwargs: object) -> ColumnDict:
        sequences = Sequences.of(episodes.lengths, self.max_seq_len)
        for name, column in batch.items():
            batch[name] = sequences.pad(joined(column), name)
        batch[Columns.LOSS_MASK] = sequences.mask
        batch[Columns.SEQ_LENS] = sequences.lengths
        return batch


def sequences_of(batch: ColumnDict, pack: EpisodePack) -> Sequences | None:
    """Return how the steps of `pack` are arranged in a padded batch, or None if each row of the batch is a single
    step.
    """
    mask = batch.get(Columns.LOSS_MASK)
    return None if mask is None else Sequences.of(pack.lengths, mask.shape[1])


def in_batch_form(column: NestedArrays | Infos, batch: ColumnDict, pack: EpisodePack) -> Any:
    """Return a column [S, ...] with one row per step in the layout of the batch: unchanged, or padded to sequences."""
    return all_in_batch_form({"column": column}, batch, pack)["column"]


def all_in_batch_form(columns: dict[str, Any], batch: ColumnDict, pack: EpisodePack) -> dict[str, Any]:
    """Return columns [S, ...] with one row per step in the layout of the batch: unchanged, or padded to sequences."""
    if Columns.LOSS_MASK not in batch:
        return columns
    sequences: Any = sequences_of(batch, pack)
    return {name: sequences.pad(column, name) for name, column in columns.items()}
