"""Selection and validation of the extra model outputs that a replay buffer stores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from episodes.columns import check_extra_output_names
from episodes.errors import UnknownKey, WrongType


def checked_extra(extra_model_outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extra model outputs as a dict. Raise `TrackMismatch` if a name belongs to a batch column."""
    check_extra_output_names(extra_model_outputs, "replay buffer")
    return dict(extra_model_outputs)


def chosen_outputs(extra_model_outputs: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return the extra model outputs that `keys` names.

    Raises:
        WrongType: `keys` is a single str.
        UnknownKey: an output is missing.
    """
    if isinstance(keys, str):
        raise WrongType(f"keys={keys!r}: give a list of names of extra model outputs")
    missing = [key for key in keys if key not in extra_model_outputs]
    if missing:
        raise UnknownKey(f"no extra model output {missing[0]!r} to store; there are {list(extra_model_outputs)}")
    return {key: extra_model_outputs[key] for key in keys}
