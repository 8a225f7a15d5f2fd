"""`IncomingEpisodes`: whose observations are about to be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from episodes.errors import EpisodeStateError
from episodes.recorder.info_rows import InfoRows
from episodes.recorder.ongoing import OngoingEpisodes
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import InfoTrack, nested
from episodes.tracks.infos import Infos

__all__ = ["IncomingEpisodes"]


class IncomingEpisodes(Sequence[SingleAgentEpisode]):
    """The episode that each new observation belongs to: the observation is its last one, and its last action led there.

    What is in an episode is looked up when something of it is read, O(steps since the last take) each, until `close`:
    who only wants the observation pays nothing for its episode. There are no extra model outputs. It is finalized where
    the observation is like those that are recorded, and grows where it is to become like them.

    Args:
        episodes: the ongoing ones [N], without the new observations.
        observations: nested arrays [n, ...].
        envs: [n] which environments they are of.
        begun: environments [k] of these whose observation is the first one of an episode.
        actions: nested arrays [N, ...], the last ones; likewise `rewards` [N].
        infos: of the vector environment [N], those that came with the observations.
    """

    def __init__(
        self,
        episodes: OngoingEpisodes,
        observations: Any,
        envs: np.ndarray,
        begun: np.ndarray,
        actions: Any = None,
        rewards: Any = None,
        infos: dict[str, Any] | None = None,
    ) -> None:
        self._episodes, self._observations, self._envs = episodes, observations, envs
        self._begun = begun
        self._actions, self._rewards = actions, rewards
        self._infos = infos
        self._told: InfoRows | None = None  # the infos by environment, once somebody looked
        self._own: Any = None  # the ongoing episodes by environment, likewise
        self._is_closed = False

    def close(self) -> None:
        """The observations are recorded now: what was not read can no longer be."""
        self._is_closed = True

    def __len__(self) -> int:
        return len(self._envs)

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return _Incoming(self, range(len(self))[index])

    def read(self, i: int) -> SingleAgentEpisode:
        """The episode of observation i, whole.

        Raises:
            EpisodeStateError: its observation is recorded already.
        """
        if self._is_closed:
            raise EpisodeStateError(
                "an episode that came with an observation to preprocess is read after that: read it within preprocess"
            )
        env = int(self._envs[i])
        observation = _row(self._observations, i)
        told = self._info(env)
        if env in self._begun:
            return SingleAgentEpisode(observations=[nested.take(observation, 0)], infos=list(told))
        if self._own is None:
            self._own = self._episodes[:] if len(self._envs) > 1 else {env: self._episodes[env]}
        own = self._own[env]
        whole = self._continued(own, observation, _row((self._actions, self._rewards), env), told)
        whole.custom_data = own.custom_data  # the same dict: what is written there is kept
        return whole

    @staticmethod
    def _continued(own: SingleAgentEpisode, observation: Any, step: Any, told: Infos) -> SingleAgentEpisode:
        """The episode with one step more: nested arrays [1, ...] of its observation, its action and reward."""
        seen = own.get_observations()
        if not _are_alike(seen, observation):
            return _grown(own, observation, step, told)
        observed = slice(own.lookback, own.lookback + len(own) + 1)
        return SingleAgentEpisode.from_arrays(
            nested.concatenate([seen, observation]),
            nested.concatenate([own.get_actions(), step[0]]) if len(own) else step[0],
            np.concatenate([own.get_rewards(), step[1]]) if len(own) else step[1],
            infos=own.tracks.infos.view(observed).joined(InfoTrack(told)).whole(),
            id_=own.id_,
            t_started=own.t_started,
            observation_space=own.observation_space,
            action_space=own.action_space,
        )

    def _info(self, env: int) -> Infos:
        """The info of the environment's observation, [1]."""
        if self._told is None:
            self._told = InfoRows(len(self._episodes))
            self._told.add(self._infos or {})
        return self._told.gather(np.array([(self._told.num_slots - 1) * len(self._episodes) + env]))


class _Incoming(SingleAgentEpisode):
    """An episode whose slots are empty until one of them is read."""

    __slots__ = ("_among", "_index")

    def __init__(self, among: IncomingEpisodes, place: int) -> None:
        self._among, self._index = among, place

    def __getattr__(self, name: str) -> Any:
        if name not in SingleAgentEpisode.__slots__:
            raise AttributeError(f"an episode has no attribute {name!r}")
        whole = self._among.read(self._index)
        for slot in SingleAgentEpisode.__slots__[1:]:  # the first is of weak references
            setattr(self, slot, getattr(whole, slot))
        return getattr(self, name)

    def __reduce__(self) -> Any:
        restored, (_, *parts) = super().__reduce__()
        return restored, (SingleAgentEpisode, *parts)


def _grown(own: SingleAgentEpisode, observation: Any, step: Any, told: Infos) -> SingleAgentEpisode:
    """The episode with the step, growing: its last observation may have another shape than those before."""
    action, reward = nested.take(step, 0)
    return SingleAgentEpisode(
        own.id_,
        observations=[*own.observations, nested.take(observation, 0)],
        infos=[*own.tracks.infos, *told],
        actions=[*own.actions, action],
        rewards=[*own.rewards, reward],
        len_lookback_buffer=0,
        t_started=own.t_started,
        observation_space=own.observation_space,
        action_space=own.action_space,
    )


def _row(rows: Any, i: int) -> Any:
    """Row i of nested arrays, as nested arrays [1, ...]."""
    return nested.map_leaves(lambda leaf: np.asarray(leaf)[i : i + 1], rows)


def _are_alike(seen: Any, observation: Any) -> bool:
    """Whether both are nested alike, arrays [*, ...] of the same dtypes and shapes."""
    a, b = nested.flatten(seen), nested.flatten(observation)
    return a.keys() == b.keys() and all(
        a[path].dtype == b[path].dtype and a[path].shape[1:] == b[path].shape[1:] for path in a
    )
