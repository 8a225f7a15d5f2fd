"""`FrameStacking`: view that stacks the last k observations to one policy input."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from connectors.views.piece import ViewPiece
from episodes.columns import Columns
from episodes.history import History, HistorySpaces
from episodes.tracks import nested
from episodes.tracks.space_kinds import is_box, is_nested, map_space, rejected_space
from episodes.tracks.validation import checked_count, checked_flag

__all__ = ["FrameStacking"]


class FrameStacking(ViewPiece):
    """View that stacks the last `num_frames` observations along one axis to one policy input "obs", the newest last.

    Episodes store single frames. Frames before the start of an episode are zeros. Images [H, W, 1] become [H, W,
    num_frames], and vectors [D] become [num_frames * D]. Frames of one channel are not copied.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        num_frames: number of observations in a stack.
        axis: axis of an observation along which frames are joined: -1, or 0 for images with channels first.
        multi_agent: accepted for compatibility with RLlib, without effect: a module's pipeline sees its agents one by
            one.
        name: name of the connector in its pipeline.

    Raises:
        InvalidArgument: `num_frames` is not an int of at least 1, or `axis` is not an int.
        WrongType: `multi_agent` is not a bool.
    """

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        num_frames: int = 4,
        axis: int = -1,
        multi_agent: bool = False,
        name: str | None = None,
    ) -> None:
        checked_flag("multi_agent", multi_agent)
        self.num_frames, self.axis = checked_count("num_frames", num_frames), checked_count("axis", axis, -math.inf)
        super().__init__(input_observation_space, input_action_space, name=name)

    def see(self, history: History) -> dict[str, Any]:
        """Return the column "obs" of stacked frames for a history of B observations."""
        return {Columns.OBS: nested.map_leaves(self._join_frames, history.observations(self.num_frames))}

    def spaces(self, input_spaces: HistorySpaces) -> dict[str, gym.Space]:
        """Return the space of the output column "obs", with Boxes `num_frames` times as long along the axis.

        Raises:
            InvalidArgument: a part of the observation space is not a Box, or lacks the axis.
        """
        space = input_spaces.observation_space
        return {} if space is None else {Columns.OBS: stacked_space(space, self.num_frames, self.axis)}

    def _join_frames(self, frames: np.ndarray) -> np.ndarray:
        """Return frames [B, k, ...] joined along the stacking axis, so that the axis k disappears."""
        place = 1 + self.axis % (frames.ndim - 2)  # where the axis is once k is away; k goes before it
        moved = frames.transpose(0, *range(2, place + 1), 1, *range(place + 1, frames.ndim))
        shape = moved.shape
        return moved.reshape(*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :])


def stacked_space(space: gym.Space, num_frames: int, axis: int) -> gym.Space:
    """Return the space of stacked frames: each Box of a space becomes `num_frames` times as long along an axis.

    Raises:
        InvalidArgument: a part is not a Box, or lacks the axis.
    """
    if is_nested(space):
        return map_space(lambda part: stacked_space(part, num_frames, axis), space)
    if not is_box(space) or not -len(space.shape) <= axis < len(space.shape):
        advice = f"other frames cannot be joined along axis {axis}: encode them as a Box first"
        raise rejected_space("FrameStacking", space, f"a Box with axis {axis}", advice)
    low, high = (np.concatenate([bound] * num_frames, axis) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype.type)
