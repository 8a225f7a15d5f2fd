"""The last few observations instead of the last one, gathered from the pack."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from connectors.connector import Batch, Connector
from connectors.frames import check_num_frames, join_nested, stacked_space
from connectors.learner.observation_source import (
    OBSERVATIONS_AT,
    Source,
    as_rows,
    check_reach,
    episode_of,
    observation_source,
    stored_observations,
)
from episodes.pack import EpisodePack
from episodes.tracks import nested

__all__ = ["FrameStacking"]


class FrameStacking(Connector):
    """Makes "obs", "new_obs" and what value functions see stacks of `num_frames` observations, the newest last.

    One gather by index, of the frames that are asked for. Frames from before an episode's start are zeros, those
    before a chunk's come from its lookback.

    Args:
        axis: of an observation, along which frames are joined: -1, or 0 for images with channels first.

    Raises:
        InvalidArgument: a chunk goes on in the middle of an episode, and its lookback has fewer frames than a stack.
    """

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
        super().__init__(input_observation_space, input_action_space, name=name)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Box parts `num_frames` times as long along the axis."""
        return stacked_space(input_observation_space, self.num_frames, self.axis)

    def __call__(
        self, *, batch: Batch, episodes: EpisodePack, shared_data: dict[str, Any] | None = None, **kwargs: Any
    ) -> Batch:
        shared_data = {} if shared_data is None else shared_data
        check_reach(episodes, self.num_frames - 1, self.name)
        single = observation_source(shared_data)
        shared_data[OBSERVATIONS_AT] = lambda pack, rows: self.stacks(pack, as_rows(pack, rows), single)
        return batch

    def stacks(self, pack: EpisodePack, rows: np.ndarray, single: Source) -> Any:
        """The stacks [B, ...] whose newest frames are the observations at the rows [B]."""
        frames = rows[:, None] + np.arange(1 - self.num_frames, 1)  # [B, k]
        begins = pack.observation_offsets[episode_of(pack, rows)][:, None]
        missing = frames < begins
        if not np.count_nonzero(missing):
            return join_nested(_taken(single, pack, frames), 1, self.axis)
        observations = _taken(single, pack, np.maximum(frames, begins))
        for leaf in nested.leaves(observations):
            leaf[missing] = 0
        return join_nested(observations, 1, self.axis)


def _taken(single: Source, pack: EpisodePack, rows: np.ndarray) -> Any:
    """The observations [B, k, ...] at the rows [B, k]."""
    if single is stored_observations:
        return nested.take(pack.observations, rows)
    flat = single(pack, rows.ravel())
    return nested.map_leaves(lambda leaf: leaf.reshape(*rows.shape, *leaf.shape[1:]), flat)
