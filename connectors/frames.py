"""Stacks of observations: how frames are joined, and the space of the result."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument
from episodes.tracks import nested


def join_frames(frames: np.ndarray, frame_axis: int, axis: int) -> np.ndarray:
    """The frames of the items, oldest first, one after another along the items' `axis`.

    A view where that is possible (frames of one channel), else one copy.

    Args:
        frames: [k, N, ...] with `frame_axis=0`, or [N, k, ...] with 1.
        axis: of an item, counted without the two leading axes.
    """
    place = 1 + axis % (frames.ndim - 2)  # where the axis is once the frames are away; they go before it
    order = [axis for axis in range(frames.ndim) if axis != frame_axis]
    order.insert(place, frame_axis)
    moved = frames.transpose(order)
    shape = moved.shape
    return moved.reshape(*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :])


def stacked_space(space: gym.Space, num_frames: int, axis: int) -> gym.Space:
    """The space of stacks of items of the space: each Box part gets `num_frames` times as long along the axis.

    Raises:
        InvalidArgument: a part that is no Box, or one without that axis.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: stacked_space(part, num_frames, axis) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stacked_space(part, num_frames, axis) for part in space.spaces])
    if not isinstance(space, spaces.Box) or not -len(space.shape) <= axis < len(space.shape):
        raise InvalidArgument(
            f"frames of {space} cannot be joined along axis {axis}; give Box observations with that axis"
        )
    low, high = (np.concatenate([bound] * num_frames, axis) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype.type)


def check_num_frames(num_frames: int) -> int:
    """The number, if it is at least 1; else InvalidArgument."""
    if num_frames < 1:
        raise InvalidArgument(f"num_frames={num_frames}: a stack has at least 1 frame")
    return num_frames


def join_nested(frames: Any, frame_axis: int, axis: int) -> Any:
    """`join_frames` of each leaf."""
    return nested.map_leaves(lambda leaf: join_frames(leaf, frame_axis, axis), frames)
