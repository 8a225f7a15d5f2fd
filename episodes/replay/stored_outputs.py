"""Which of a policy's extra outputs a buffer stores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from episodes.columns import Columns
from episodes.errors import TrackMismatch, UnknownKey, WrongType

_RESERVED = {column for name, column in vars(Columns).items() if name.isupper()} - {
    Columns.ACTION_DIST_INPUTS,
    Columns.ACTION_LOGP,
    Columns.VF_PREDS,
    Columns.STATE_OUT,
}


def checked_extra(extra_model_outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs by name; `TrackMismatch` if one has the name of a column that draws have anyway."""
    taken = _RESERVED & extra_model_outputs.keys()
    if taken:
        raise TrackMismatch(
            f"extra model outputs named {sorted(taken)}: draws have columns of these names; rename them"
        )
    return dict(extra_model_outputs)


def chosen_outputs(extra_model_outputs: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """The outputs named by `keys`; `UnknownKey` for one that there is not, `WrongType` for a bare name."""
    if isinstance(keys, str):
        raise WrongType(f"keys={keys!r}: give a list of names of extra model outputs")
    missing = [key for key in keys if key not in extra_model_outputs]
    if missing:
        raise UnknownKey(f"no extra model output {missing[0]!r} to store; there are {list(extra_model_outputs)}")
    return {key: extra_model_outputs[key] for key in keys}
