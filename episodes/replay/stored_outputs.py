"""Selection and validation of the extra model outputs that a replay buffer stores."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from episodes.columns import Columns, check_extra_output_names
from episodes.errors import TrackMismatch, UnknownKey, WrongType
from episodes.tracks.validation import checked_items, shown

_STEP_TRACKS = (Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)


def output_names(tracks: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the extra model outputs among the names of a ring's tracks."""
    return tuple(name for name in tracks if name not in _STEP_TRACKS)


def checked_output_names(keys: object) -> list[str]:
    """Return names of extra model outputs as a list. Raise `WrongType` unless `keys` is an iterable of strings."""
    names = checked_items("keys", keys, "names of extra model outputs")
    for name in names:
        if not isinstance(name, str):
            raise WrongType(f"keys has {shown(name)}: give names of extra model outputs, which are strings")
    return names


def check_same_outputs(keys: Collection[str], tracks: Collection[str]) -> None:
    """Raise `TrackMismatch` if `keys` are not the extra model outputs of a ring with these tracks.
    A ring without tracks, which has never stored a step, accepts all names.
    """
    stored = output_names(tracks)
    if tracks and set(keys) != set(stored):
        raise TrackMismatch(
            f"a replay buffer: the extra model outputs {list(keys)} are to be stored, its steps have {list(stored)}, "
            "and all steps of a buffer have the same; give these names, or another buffer"
        )


def checked_extra(extra_model_outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extra model outputs as a dict. Raise `TrackMismatch` if a name belongs to a batch column."""
    check_extra_output_names(extra_model_outputs, "replay buffer")
    return dict(extra_model_outputs)


def chosen_outputs(extra_model_outputs: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return the extra model outputs that `keys` names.

    Raises:
        UnknownKey: an output is missing.
    """
    missing = [key for key in keys if key not in extra_model_outputs]
    if missing:
        raise UnknownKey(f"no extra model output {missing[0]!r} to store; there are {list(extra_model_outputs)}")
    return {key: extra_model_outputs[key] for key in keys}
