"""Errors for ragged data, whose items have different lengths, where items of one shape are needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from episodes.columns import Columns
from episodes.errors import TrackMismatch
from episodes.tracks import nested
from episodes.tracks.ragged import Ragged

_REMEDY = (
    "make a token batch of them (connectors.learner.TokenColumns, episode_learners.TokenGRPO), or record items of one "
    "shape, such as padded ones"
)
_READ_BY_POLICIES = (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS)


def check_policy_columns(batch: Mapping[str, Any]) -> None:
    """Raise `TrackMismatch` if observations or actions of a batch are ragged, so that no tensor can hold them."""
    for name in _READ_BY_POLICIES:
        column = batch.get(name)
        if column is not None and _is_ragged(column):
            raise TrackMismatch(f"column {name!r} is ragged (its items have different lengths), no tensor; {_REMEDY}")


def check_padded_column(name: str, leaf: object) -> None:
    """Raise `TrackMismatch` if a column to pad is ragged."""
    if isinstance(leaf, Ragged):
        raise TrackMismatch(
            f"column {name!r} is ragged (its items have different lengths) and cannot be padded to sequences of steps; "
            f"leave the column out, or {_REMEDY}"
        )


def check_all_of_one_shape(episodes: Iterable[Any], call: str) -> None:
    """Raise `TrackMismatch` if an episode has ragged tracks. The error names the call, the episode and the tracks."""
    for episode in episodes:
        if kinds := episode.tracks.ragged_kinds():
            raise TrackMismatch(
                f"{call}: episode {episode.id_}: the tracks {list(kinds)} are ragged; give episodes whose items have "
                "one shape"
            )


def _is_ragged(column: object) -> bool:
    """Return True if a column, or any array in a nested one, is ragged."""
    return isinstance(column, Ragged) or (
        not nested.is_leaf(column) and any(isinstance(leaf, Ragged) for leaf in nested.leaves(column))
    )
