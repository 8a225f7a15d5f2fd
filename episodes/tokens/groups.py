"""Groups of token episodes, whose returns are compared with each other."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.tokens.arguments import check_group, check_pack
from episodes.tokens.names import GROUP, GROUP_ID, GROUP_SIZE
from episodes.tracks.validation import checked_count

__all__ = ["group_numbers"]


def group_numbers(pack: EpisodePack, *, group_size: int | None = None) -> np.ndarray:
    """Return the group of each episode of a pack, numbered from 0 by first occurrence, int64 [n].

    Episodes of a `TokenRecorder` have the id of their group in `custom_data["group_id"]`, so groups with one key, such
    as a prompt that is played again, are different groups. Other episodes with equal `custom_data["group"]` are one
    group.

    Args:
        pack: whole episodes.
        group_size: number of successive episodes that form a group, if no episode has one.

    Raises:
        WrongType: `pack` is not an `EpisodePack`, or a group is not hashable.
        InvalidArgument: only some of the episodes have a group, or none has and their number is not a multiple of
            `group_size`, or the pack has only some episodes of a recorder's group.

    >>> from episodes.tokens import TokenRecorder
    >>> recorder = TokenRecorder(group_size=2, outputs={})
    >>> for _ in range(4):
    ...     talk = recorder.begin([1, 2], group="prompt 1")
    ...     talk.turn([3], terminated=True)
    ...     recorder.end(talk)
    >>> group_numbers(recorder.take()).tolist()
    [0, 0, 1, 1]
    """
    check_pack(pack, "group_numbers")
    groups = [_group_of(data or {}) for data in pack.custom_data or [{}] * len(pack)]
    if all(group is None for group in groups):
        return _successive(len(pack), group_size)
    if None in groups:
        raise InvalidArgument(
            f"group_numbers: episode {pack.ids[groups.index(None)]} has no group, and others have one; record all with "
            "group=, or none"
        )
    numbers: dict[Any, int] = {}
    found = np.array([numbers.setdefault(group, len(numbers)) for group in groups], np.int64)
    _check_complete(pack, found)
    return found


def _group_of(data: Mapping[str, Any]) -> tuple[str, Hashable] | None:
    """Return the key under which an episode's group is known, by its custom data, or None if it has no group."""
    for name in (GROUP_ID, GROUP):
        if data.get(name) is not None:
            check_group(data[name], "group_numbers")
            return name, data[name]
    return None


def _successive(num: int, group_size: int | None) -> np.ndarray:
    """Return the groups of `num` episodes of which each `group_size` successive ones are a group, int64 [num]."""
    if group_size is None:
        if num:
            raise InvalidArgument(f"group_numbers: {num} episodes without groups; record them with group=")
        return np.zeros(0, np.int64)
    if num % checked_count("group_numbers: group_size", group_size):
        raise InvalidArgument(
            f"group_numbers: {num} episodes without groups; record them with group=, or give a multiple of group_size, "
            f"which is {group_size}"
        )
    return np.arange(num) // group_size


def _check_complete(pack: EpisodePack, numbers: np.ndarray) -> None:
    """Raise `InvalidArgument` if a group does not have the number of episodes that its recorder gave it."""
    counts = np.bincount(numbers)
    for i, (data, number) in enumerate(zip(pack.custom_data or (), numbers.tolist(), strict=True)):
        size = (data or {}).get(GROUP_SIZE)
        if size is not None and GROUP_ID in (data or {}) and counts[number] != size:
            raise InvalidArgument(
                f"group_numbers: the group of episode {pack.ids[i]} (group={(data or {}).get(GROUP)!r}) has {size} "
                f"episodes, and {counts[number]} of them are in the pack; give whole groups, as TokenRecorder.take() "
                "returns them, or compute advantages before episodes are left out (token_batch(episode_advantages=))"
            )
