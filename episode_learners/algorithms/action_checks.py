"""Check that the actions of a train batch are actions of the policy: their structure, shapes and choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.tracks.fitting import space_mismatches
from episodes.tracks.nested import first_leaf, host_array, map_leaves
from episodes.tracks.space_kinds import bounds_of, is_box, parts_of


def check_actions(
    batch: Mapping[str, Any], space: gym.Space | None, name: str, row: Callable[[tuple[int, ...]], str]
) -> None:
    """Raise `InvalidArgument` unless the actions of a batch are actions of a policy.

    Numbers of a `Box` are not compared with its bounds and dtype, since policies act in units of their own.

    Args:
        batch: columns [B, ...] or [B, T, ...], of which "loss_mask" marks the actions that are no padding.
        space: the policy's action space, or None to accept all actions.
        name: the algorithm, for the error.
        row: function that returns text on the origin of a row, for the error.
    """
    actions = batch.get(Columns.ACTIONS)
    if space is None or actions is None:
        return
    actions, mask = map_leaves(host_array, actions), batch.get(Columns.LOSS_MASK)
    if mask is not None:
        mask = host_array(mask)
        actions = map_leaves(lambda leaf: leaf[mask], actions)
    leading = np.shape(first_leaf(actions))[:1]
    if leading == (0,):
        return
    for mismatch in space_mismatches(space, actions, Columns.ACTIONS, leading, dtypes=False):
        raise InvalidArgument(f"{name}: {mismatch}; give actions of the policy's space {space}")
    for part, at, values in _outside(space, actions, Columns.ACTIONS):
        place = (at,) if mask is None else tuple(axis[at].item() for axis in mask.nonzero())
        raise InvalidArgument(
            f"{name}: {part}{list(place)} is {values}{row(place)}, which is not in the policy's space {space}; give "
            "actions of this space"
        )


def _outside(space: gym.Space, actions: Any, name: str) -> Iterator[tuple[str, int, Any]]:
    """Yield name, row and value of the first action of each part of a space that is out of its range."""
    for key, part in parts_of(space).items():
        yield from _outside(part, actions[key], f"{name}[{key!r}]")
    bounds = bounds_of(space)
    if bounds is None or (is_box(space) and actions.dtype.kind != "b"):
        return
    is_inside = (actions >= bounds.low) & (actions <= bounds.high) & (not is_box(space))  # truth values are no numbers
    if actions.dtype.kind == "f":
        is_inside &= actions == np.floor(actions)
    if not is_inside.all():
        at = int(is_inside.reshape(len(actions), -1).all(-1).argmin())
        yield name, at, actions[at].tolist()
