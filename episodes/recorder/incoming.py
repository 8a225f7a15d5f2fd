"""Episodes given to observation preprocessors. Each ends with a new observation that is not recorded yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from episodes.errors import EpisodeStateError
from episodes.recorder.info_rows import InfoRows
from episodes.recorder.ongoing import OngoingEpisodes
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import InfoTrack, nested
from episodes.tracks.infos import Infos

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from episodes.data_types import Items, NestedArrays

__all__ = ["IncomingEpisodes"]


class IncomingEpisodes(Sequence[SingleAgentEpisode]):
    """Sequence of episodes that end with new, not yet recorded observations. An episode is built when it is read.

    An episode is built when it is first read, in O(steps since the last take), until `close` is called. So callers that
    need only observations pay nothing for it. Episodes have no extra model outputs. An episode is finalized if the
    observation fits the recorded ones, else it is a growing episode.

    Args:
        episodes: the ongoing episodes [N], without the new observations.
        observations: nested arrays [n, ...].
        envs: environments of the observations, int [n].
        begun: environments [k] of these whose observation is the first one of an episode.
        actions: the last actions, nested arrays [N, ...].
        rewards: the last rewards [N].
        infos: vector info [N] of the observations.
    """

    def __init__(
        self,
        episodes: OngoingEpisodes,
        observations: Items,
        envs: np.ndarray,
        begun: np.ndarray,
        actions: Items | None = None,
        rewards: ArrayLike | None = None,
        infos: dict[str, Any] | None = None,
    ) -> None:
        self._episodes, self._observations, self._envs = episodes, observations, envs
        self._begun = begun
        self._actions, self._rewards = actions, rewards
        self._infos = infos
        self._info_rows: InfoRows | None = None  # the infos, once an episode was read
        self._ongoing: Any = None  # the ongoing episodes by environment, once an episode was read
        self._is_closed = False

    def close(self) -> None:
        """Make later reads raise an error. The recorder calls this after it has recorded the new observations."""
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
        """Build and return the episode that ends with the new observation i.

        Raises:
            EpisodeStateError: its observation is recorded already.
        """
        if self._is_closed:
            raise EpisodeStateError(
                "an episode that came with an observation to preprocess is read after that: read it within preprocess"
            )
        env = int(self._envs[i])
        observation = _row(self._observations, i)
        infos = self._info(env)
        if env in self._begun:
            return SingleAgentEpisode(observations=[nested.take(observation, 0)], infos=list(infos))
        if self._ongoing is None:
            self._ongoing = self._episodes[:] if len(self._envs) > 1 else {env: self._episodes[env]}
        episode = self._ongoing[env]
        whole = self._continued(episode, observation, _row((self._actions, self._rewards), env), infos)
        whole.custom_data = episode.custom_data  # the same dict, so that changes are kept
        return whole

    @staticmethod
    def _continued(
        episode: SingleAgentEpisode, observation: NestedArrays, step: tuple[NestedArrays, np.ndarray], infos: Infos
    ) -> SingleAgentEpisode:
        """Return the episode extended by one step, given as nested arrays [1, ...]."""
        recorded = episode.get_observations()
        if not _are_alike(recorded, observation):
            return _grown(episode, observation, step, infos)
        observed = slice(episode.lookback, episode.lookback + len(episode) + 1)
        return SingleAgentEpisode.from_arrays(
            nested.concatenate([recorded, observation]),
            nested.concatenate([episode.get_actions(), step[0]]) if len(episode) else step[0],
            np.concatenate([episode.get_rewards(), step[1]]) if len(episode) else step[1],
            infos=episode.tracks.infos.view(observed).joined(InfoTrack(infos)).data,
            id_=episode.id_,
            t_started=episode.t_started,
            observation_space=episode.observation_space,
            action_space=episode.action_space,
        )

    def _info(self, env: int) -> Infos:
        """Return the info of environment `env` that belongs to its new observation, as `Infos` of length 1."""
        if self._info_rows is None:
            self._info_rows = InfoRows(len(self._episodes))
            self._info_rows.add(self._infos or {})
        return self._info_rows.gather(np.array([(self._info_rows.num_slots - 1) * len(self._episodes) + env]))


class _Incoming(SingleAgentEpisode):
    """Episode that ends with a new observation, built at the first read of one of its attributes."""

    __slots__ = ("_among", "_index")

    def __init__(self, among: IncomingEpisodes, place: int) -> None:
        self._among, self._index = among, place

    def __getattr__(self, name: str) -> Any:
        if name not in SingleAgentEpisode.__slots__:
            raise AttributeError(f"an episode has no attribute {name!r}")
        whole = self._among.read(self._index)
        for slot in SingleAgentEpisode.__slots__[1:]:  # without the slot of weak references
            setattr(self, slot, getattr(whole, slot))
        return getattr(self, name)

    def __reduce__(self) -> Any:
        restored, (version, _, *parts) = super().__reduce__()
        return restored, (version, SingleAgentEpisode, *parts)


def _grown(
    episode: SingleAgentEpisode, observation: NestedArrays, step: tuple[NestedArrays, np.ndarray], infos: Infos
) -> SingleAgentEpisode:
    """Return the episode extended by one step, as lists, which allow a new item to have another dtype or shape.

    Its last observation may have another shape.
    """
    action, reward = nested.take(step, 0)
    return SingleAgentEpisode(
        episode.id_,
        observations=[*episode.observations, nested.take(observation, 0)],
        infos=[*episode.tracks.infos, *infos],
        actions=[*episode.actions, action],
        rewards=[*episode.rewards, reward],
        len_lookback_buffer=0,
        t_started=episode.t_started,
        observation_space=episode.observation_space,
        action_space=episode.action_space,
    )


def _row(rows: object, i: int) -> Any:
    """Return item i of nested arrays [N, ...] as nested arrays [1, ...] with one item."""
    return nested.map_leaves(lambda leaf: np.asarray(leaf)[i : i + 1], rows)


def _are_alike(recorded: NestedArrays, observation: NestedArrays) -> bool:
    """Return True if the recorded and the new observations have equal nesting, dtypes and item shapes."""
    a, b = nested.flatten(recorded), nested.flatten(observation)
    return a.keys() == b.keys() and all(
        a[path].dtype == b[path].dtype and a[path].shape[1:] == b[path].shape[1:] for path in a
    )
