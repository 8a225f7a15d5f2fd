"""The last actions and rewards beside the observation, gathered from the pack."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from connectors.connector import Batch, Connector
from connectors.learner.observation_source import (
    OBSERVATIONS_AT,
    Source,
    as_rows,
    check_reach,
    episode_of,
    observation_source,
)
from connectors.previous import PreviousSteps, action_flattener
from episodes.pack import EpisodePack
from episodes.tracks import nested
from episodes.tracks.flattening import Flattener

__all__ = ["PrevActionsPrevRewards"]


class PrevActionsPrevRewards(Connector):
    """Makes "obs", "new_obs" and what value functions see dicts with the actions and rewards before each observation.

    See the piece of the same name in the env-to-module pipeline.

    Raises:
        InvalidArgument: a chunk goes on in the middle of an episode, and its lookback does not reach back far enough.
    """

    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        n_prev_actions: int = 1,
        n_prev_rewards: int = 1,
        name: str | None = None,
    ) -> None:
        self.previous = PreviousSteps(n_prev_actions, n_prev_rewards)
        super().__init__(input_observation_space, input_action_space, name=name)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """A Dict of the observations and what goes with them."""
        return self.previous.space(input_observation_space, input_action_space)

    def __call__(
        self, *, batch: Batch, episodes: EpisodePack, shared_data: dict[str, Any] | None = None, **kwargs: Any
    ) -> Batch:
        shared_data = {} if shared_data is None else shared_data
        check_reach(episodes, self.previous.reach, self.name)
        bare = observation_source(shared_data)
        flatten = action_flattener(self.input_action_space or episodes.action_space)
        shared_data[OBSERVATIONS_AT] = lambda pack, rows: self._with_previous(pack, rows, bare, flatten)
        return batch

    def _with_previous(self, pack: EpisodePack, rows: Any, bare: Source, flatten: Flattener | None) -> Any:
        observations = bare(pack, rows)
        rows = as_rows(pack, rows)
        owners = episode_of(pack, rows)
        before, begins = (
            rows - owners - 1,
            pack.offsets[owners],
        )  # step rows: the step that led here, the first there is
        actions = _steps(pack.actions, before, begins, self.previous.num_actions)
        rewards = _steps(pack.rewards, before, begins, self.previous.num_rewards)
        return self.previous.joined(observations, actions, rewards, flatten)


def _steps(track: Any, newest: np.ndarray, begins: np.ndarray, num_items: int) -> tuple[Any, np.ndarray]:
    """(items [B, k, ...] of a step track that end at the rows `newest` [B], which of them are there [B, k])."""
    rows = newest[:, None] + np.arange(1 - num_items, 1)
    valid = rows >= begins[:, None]
    if not valid.any():
        return np.zeros(rows.shape), valid
    return nested.take(track, np.where(valid, rows, 0)), valid
