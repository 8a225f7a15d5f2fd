"""The last few observations instead of the last one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from connectors.connector import Batch, Connector
from connectors.env_to_module.recent import recent
from connectors.frames import check_num_frames, join_nested, stacked_space
from episodes.columns import Columns

__all__ = ["FrameStacking"]


class FrameStacking(Connector):
    """Makes "obs" the last `num_frames` observations of each episode, joined along one axis, the newest last.

    Episodes store single frames. Frames from before an episode's start are zeros. Images [H, W, 1] become
    [H, W, num_frames], vectors [D] become [num_frames * D]. The learner pipeline needs the piece of the same name.

    Args:
        axis: of an observation, along which frames are joined: -1, or 0 for images with channels first.
    """

    writes = (Columns.OBS,)
    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        num_frames: int = 4,
        axis: int = -1,
        name: str | None = None,
    ) -> None:
        self.num_frames, self.axis = check_num_frames(num_frames), axis
        self.lookback = num_frames - 1
        super().__init__(input_observation_space, input_action_space, name=name)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Box parts `num_frames` times as long along the axis."""
        return stacked_space(input_observation_space, self.num_frames, self.axis)

    def __call__(self, *, batch: Batch, episodes: Any = (), **kwargs: Any) -> Batch:
        frames, _ = recent(episodes, "observations", self.num_frames)  # [k, N, ...]
        batch[Columns.OBS] = join_nested(frames, 0, self.axis)
        return batch
