"""Conversion of an episode's actions between the policy's action space and the environment's action space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.tracks.field import ACTIONS
from episodes.tracks.policy_box import (
    env_space_of,
    has_policy_actions,
    policy_space_of,
    to_env_actions,
    to_policy_actions,
)
from episodes.tracks.track import ArrayTrack, ListTrack, Track
from episodes.tracks.tracks import Tracks

OF_POLICY_ACTIONS = (Columns.ACTION_LOGP, Columns.ACTION_PROB, Columns.ACTION_DIST_INPUTS)
"""Extra model outputs that describe the policy's own actions, and no actions of the environment."""


def dropped_outputs(space: gym.Space | None, extra: Mapping[str, Any]) -> list[str]:
    """Return the names of the extra model outputs that become invalid if an episode's actions are converted.

    The conversion is to the environment's actions, and one such output is the action's log-probability. The list is
    empty if the stored actions are the environment's.
    """
    if Columns.ACTIONS_FOR_ENV not in extra and not has_policy_actions(space):
        return []
    return [name for name in OF_POLICY_ACTIONS if name in extra]


def with_env_actions(tracks: Tracks, space: gym.Space | None) -> tuple[Tracks, Any]:
    """Return a copy of an episode's time series with its actions converted to the environment's
    action space, and that space.

    Args:
        tracks: the tracks of an episode or a pack.
        space: the action space of its actions.
    """
    sent = tracks.extra.get(Columns.ACTIONS_FOR_ENV)
    if sent is None and not has_policy_actions(space):
        return tracks, space
    if sent is None:
        actions = _map_actions(tracks.actions, lambda items: to_env_actions(space, items))
    else:
        actions = _map_actions(sent, lambda items: items)
    dropped = {Columns.ACTIONS_FOR_ENV, *dropped_outputs(space, tracks.extra)}
    extra = {name: track for name, track in tracks.extra.items() if name not in dropped}
    return tracks._replace(actions=actions, extra=extra), env_space_of(space)


def with_policy_actions(tracks: Tracks, space: gym.Space | None, mapping: str) -> tuple[Tracks, Any]:
    """Return a copy of an episode's time series with its actions converted to a policy's action space, and that space.

    Actions that have this mapping already are not changed. Others are mapped from the environment's actions.

    Args:
        tracks: the tracks of an episode or a pack.
        space: the action space of its actions.
        mapping: "normalize", "clip" or "none", see `PolicyBox`.

    Raises:
        InvalidArgument: there is no action space, or the mapping is "recorded" or unknown.
    """
    if space is None or not isinstance(mapping, str) or mapping == "recorded":
        problem = "the episodes have no action_space" if space is None else f"mapping={mapping!r}"
        raise InvalidArgument(
            f"with_policy_actions: {problem}; give episodes with the environment's action_space, and a mapping of "
            "'normalize', 'clip' or 'none'"
        )
    policy_space = policy_space_of(env_space_of(space), mapping)
    if space == policy_space:
        return tracks, space
    tracks, _ = with_env_actions(tracks, space)
    return tracks._replace(
        actions=_map_actions(tracks.actions, lambda items: to_policy_actions(policy_space, items))
    ), policy_space


def _map_actions(track: Track, change: Callable[[Any], Any]) -> Track:
    """Return a copy of the actions of an episode, each converted by the function `change`."""
    if isinstance(track, ListTrack):
        return ListTrack(list(map(change, track.items)), track.lookback, False, ACTIONS)
    if not track.total:
        return ArrayTrack.of(track.data, track.lookback, ACTIONS)
    return ArrayTrack.of(change(track.data), track.lookback, ACTIONS)
