"""Checks and conversions of action units. Stored actions are in the environment's units, or in the policy's units
(such as -1..1), which algorithms need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.sampling.sampler import Sampler
from episodes.tracks.policy_box import bounded_parts, has_env_actions, policy_space_of
from episodes.tracks.space_kinds import is_box, is_nested, parts_of
from episodes.tracks.spaces import elementary_spaces


def to_policy_units(
    episodes: Sequence[SingleAgentEpisode], policy_space: gym.Space, mapping: str, name: str
) -> Sequence[SingleAgentEpisode]:
    """Return the episodes with actions in the policy's units, such as -1..1. Actions in the environment's units, for
    example of imported data, are converted.

    Other actions are not changed, after a check that they belong to a policy with this mapping.

    Args:
        episodes: a list of episodes or a pack.
        policy_space: the policy's action space, which is the environment's.
        mapping: how the policy's actions are mapped to the environment's, see `episodes.PolicyBox`.
        name: the algorithm, for error messages.

    Raises:
        InvalidArgument: the units of the actions are unknown, or are those of a policy with another mapping.
    """
    if not len(episodes) or _is_same_in_all_units(policy_space):
        return episodes
    space = episodes[0].action_space
    if space is not None and has_env_actions(space):
        if isinstance(episodes, list | tuple):
            return [episode.with_policy_actions(mapping) for episode in episodes]
        return episodes.with_policy_actions(mapping)  # type: ignore[attr-defined] # a pack
    check_units(space, policy_space, mapping, name)
    return episodes


def check_stored_units(replay: EpisodeReplayBuffer | Sampler, policy_space: gym.Space, mapping: str, name: str) -> None:
    """Raise `InvalidArgument` if the actions in a replay buffer or data set are not in the policy's units, such as
    -1..1.

    `mapping` is the one between the policy's and the environment's actions. `name` is the algorithm's name, for the
    error.
    """
    if len(replay) and not _is_same_in_all_units(policy_space):
        source: Any = replay.dataset if isinstance(replay, Sampler) else replay
        space = source.action_space
        check_units(space, policy_space, mapping, name)


def check_units(space: gym.Space | None, policy_space: gym.Space, mapping: str, name: str) -> None:
    """Raise `InvalidArgument` if recorded actions with the action space `space` are not in the units of a policy with
    this action mapping.

    Args:
        space: the action space of episodes.
        policy_space: the policy's action space, which is the environment's.
        mapping: how the policy's actions are mapped to the environment's.
        name: the algorithm, for error messages.

    Raises:
        InvalidArgument: the units are unknown, are those of the environment, or are those of a policy with another
            mapping.
    """
    expected_space = policy_space_of(policy_space, mapping)
    if space is None:
        raise InvalidArgument(
            f"{name}: the episodes have no action_space, so the units of their actions are unknown; set it to the "
            f"environment's {policy_space} for actions of the environment, or to {expected_space} for the policy's"
        )
    if has_env_actions(space):
        raise InvalidArgument(
            f"{name}: the stored actions are the environment's, in {space}; convert the episodes by "
            f"with_policy_actions({mapping!r}) before they are stored"
        )
    mappings = _mappings_of(space)
    if mappings - {mapping, "recorded"}:
        raise InvalidArgument(
            f"{name}: the episodes have actions of a policy with mapping {', '.join(sorted(mappings))}, this one "
            f"has {mapping!r}; convert them by with_policy_actions({mapping!r}), or give the algorithm their mapping"
        )


def _mappings_of(space: gym.Space | None) -> set[str]:
    """Return the names of the action mappings, such as "normalize", in an action space and its parts. The set is empty
    if the space is not of a policy.
    """
    mappings = (getattr(part, "mapping", None) for _, part in elementary_spaces(space))
    return {mapping for mapping in mappings if mapping is not None}


def _is_same_in_all_units(space: gym.Space | None) -> bool:
    """Return True if an action has the same numbers in the policy's and the environment's units, because each bounded
    Box has float bounds of -1 and 1.
    """
    if is_nested(space):
        return all(map(_is_same_in_all_units, parts_of(space).values()))
    if not is_box(space) or not has_env_actions(space):
        return True
    below, above = bounded_parts(space)
    is_unit = np.where(below & above, (space.low == -1) & (space.high == 1), True)
    return bool(is_unit.all()) and bool(np.issubdtype(space.dtype, np.floating))
