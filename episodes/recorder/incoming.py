"""`IncomingEpisodes`: whose observations are about to be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from episodes.recorder.ongoing import OngoingEpisodes
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

__all__ = ["IncomingEpisodes"]


class IncomingEpisodes(Sequence[SingleAgentEpisode]):
    """The episode that each new observation belongs to: the observation is its last one, and its last action led there.

    Episodes are made when they are read, O(steps since the last take) each: finalized, without extra model outputs.

    Args:
        episodes: the ongoing ones [N], without the new observations.
        observations: nested arrays [n, ...].
        envs: [n] which environments they are of.
        begun: environments [k] of these whose observation is the first one of an episode.
        actions: nested arrays [N, ...], the last ones; likewise `rewards` [N].
    """

    def __init__(
        self,
        episodes: OngoingEpisodes,
        observations: Any,
        envs: np.ndarray,
        begun: np.ndarray,
        actions: Any = None,
        rewards: Any = None,
    ) -> None:
        self._episodes, self._observations, self._envs = episodes, observations, envs
        self._begun = begun
        self._actions, self._rewards = actions, rewards

    def __len__(self) -> int:
        return len(self._envs)

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        env = int(self._envs[i])
        rows = slice(i, i + 1)
        observation = nested.map_leaves(lambda leaf: np.asarray(leaf)[rows], self._observations)
        if env in self._begun:
            return SingleAgentEpisode(observations=[nested.take(observation, 0)])
        own = self._episodes[env]
        step = nested.map_leaves(lambda leaf: np.asarray(leaf)[env : env + 1], (self._actions, self._rewards))
        return SingleAgentEpisode.from_arrays(
            nested.concatenate([own.get_observations(), observation]),
            nested.concatenate([own.get_actions(), step[0]]) if len(own) else step[0],
            np.concatenate([own.get_rewards(), step[1]]) if len(own) else step[1],
            id_=own.id_,
            t_started=own.t_started,
            observation_space=own.observation_space,
            action_space=own.action_space,
        )
