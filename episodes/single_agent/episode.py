"""`SingleAgentEpisode`: T actions and rewards, T + 1 observations, read through getters.

It grows as lists; `to_numpy` makes each track one read-only array.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Self

import numpy as np
from gymnasium import spaces

from episodes.errors import EpisodeStateError, ShapeMismatch, TrackMismatch
from episodes.single_agent.chunks import EpisodeChunks, checked_lookback
from episodes.tracks import ArrayTrack, ListTrack, nested, reading
from episodes.tracks.infos.kinds import EmptyInfos, ListInfos


class SingleAgentEpisode(EpisodeChunks):
    """One chunk of one agent's episode in one environment.

    All given data becomes lookback with `len_lookback_buffer="auto"`, as in RLlib: the episode then starts at the
    last observation. `from_arrays` makes a finished episode of arrays, without a lookback.

    Args:
        observations: a list of L + T + 1 items; likewise `infos`. Nested items (dicts, tuples) are welcome.
        actions: a list of L + T items; likewise `rewards` and each of `extra_model_outputs`.
        t_started: the environment step of this chunk's first observation; 0 when nothing is said.
        len_lookback_buffer: L, how many of the given items lie before step 0.

    Errors: `TrackMismatch` when the lengths do not go together, `InvalidArgument` for a lookback that is not there.

    >>> episode = SingleAgentEpisode()
    >>> episode.add_env_reset(np.zeros(4))
    >>> episode.add_env_step(np.ones(4), 1, 0.5, terminated=True)
    >>> len(episode), episode.get_return(), episode.get_observations(-1).tolist()
    (1, 0.5, [1.0, 1.0, 1.0, 1.0])
    """

    __slots__ = ()

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Sequence[Any] | None = None,
        observation_space: spaces.Space | None = None,
        infos: Sequence[dict[str, Any]] | None = None,
        actions: Sequence[Any] | None = None,
        action_space: spaces.Space | None = None,
        rewards: Sequence[Any] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Sequence[Any]] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | str = "auto",
        agent_id: Any = None,
        module_id: Any = None,
        multi_agent_episode_id: str | None = None,
    ) -> None:
        num_given = len(rewards) if rewards is not None else 0
        lookback = num_given if len_lookback_buffer == "auto" else min(checked_lookback(len_lookback_buffer), num_given)
        observed = [] if observations is None else list(observations)
        self._set(
            id_=uuid.uuid4().hex if id_ is None else id_,
            observations=ListTrack(observed, lookback),
            actions=ListTrack([] if actions is None else list(actions), lookback),
            rewards=ListTrack([] if rewards is None else list(rewards), lookback),
            infos=list(infos) if infos is not None else [{} for _ in observed],
            extra_model_outputs={k: ListTrack(list(v), lookback) for k, v in (extra_model_outputs or {}).items()},
            lookback=lookback,
            t_started=t_started or 0,
            terminated=bool(terminated),
            truncated=bool(truncated),
            observation_space=observation_space,
            action_space=action_space,
            agent_id=agent_id,
            module_id=module_id,
            multi_agent_episode_id=multi_agent_episode_id,
            custom_data={},
        )
        if observed or num_given or actions is not None or extra_model_outputs:
            self.validate()

    @classmethod
    def from_arrays(
        cls,
        observations: Any,
        actions: Any,
        rewards: Any,
        *,
        infos: Sequence[dict[str, Any]] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
        id_: str | None = None,
        t_started: int = 0,
        agent_id: Any = None,
        module_id: Any = None,
        multi_agent_episode_id: str | None = None,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        custom_data: Mapping[str, Any] | None = None,
    ) -> Self:
        """A finished episode of the arrays, which it views and does not copy; it has no lookback.

        Args:
            observations: nested arrays [T + 1, ...]; likewise T + 1 `infos`.
            actions: nested arrays [T, ...]; likewise `rewards` [T] and each of `extra_model_outputs`.

        Errors: `TrackMismatch` when the lengths do not go together.

        >>> SingleAgentEpisode.from_arrays(np.zeros((3, 2)), [0, 1], [1.0, 1.0], terminated=True, id_="a")
        SingleAgentEpisode(a: 2 steps, return 2, terminated)
        """
        observed = _array_track(observations)
        episode = cls._make(
            id_=uuid.uuid4().hex if id_ is None else id_,
            observations=observed,
            actions=_array_track(actions),
            rewards=_array_track(rewards),
            infos=ListInfos.of(infos) if infos is not None else EmptyInfos(len(observed)),
            extra_model_outputs={key: _array_track(value) for key, value in (extra_model_outputs or {}).items()},
            lookback=0,
            t_started=t_started,
            terminated=bool(terminated),
            truncated=bool(truncated),
            observation_space=observation_space,
            action_space=action_space,
            agent_id=agent_id,
            module_id=module_id,
            multi_agent_episode_id=multi_agent_episode_id,
            custom_data=dict(custom_data or {}),
        )
        episode.validate()
        return episode

    # --- growing ---------------------------------------------------------------------------------------------

    def add_env_reset(self, observation: Any, infos: dict[str, Any] | None = None) -> None:
        """Begin with the reset observation. `EpisodeStateError` when the episode was reset already."""
        if self.is_reset or self.is_done:
            raise EpisodeStateError(
                f"episode {self.id_}: add_env_reset after a reset; make a new episode for a new reset"
            )
        items = self.observations.items  # type: ignore[union-attr]
        items.append(observation)
        self.observations.uniform = len(items) == 1  # type: ignore[union-attr]
        self.infos.append({} if infos is None else infos)  # type: ignore[union-attr]
        self._item_shape = reading.shape_of(observation)
        self._began = perf_counter()

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        infos: dict[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one step: the action taken, and the reward and observation that it led to. O(1), nothing is copied.

        Errors, each leaving the episode as it was: `EpisodeStateError` before the reset, after the end, or once
        finalized; `ShapeMismatch` for an observation of another shape; `TrackMismatch` for an extra model output
        that starts late or stops early.
        """
        add_observation, add_action, add_reward, add_info, extra = self._grow or self._growing("add_env_step")
        try:
            if observation.shape != self._item_shape:
                self._check_observation(observation)
        except AttributeError:
            self._check_observation(observation)
        if extra_model_outputs:
            if len(extra_model_outputs) != len(extra):
                extra = self._start_extra(extra_model_outputs)
            try:
                for key, append in extra:
                    append(extra_model_outputs[key])
            except KeyError:
                raise self._without_half_a_step(extra_model_outputs) from None
        elif extra:
            raise self._extra_mismatch({})
        add_observation(observation)
        add_action(action)
        add_reward(reward)
        add_info({} if infos is None else infos)
        if terminated or truncated:
            self.is_terminated, self.is_truncated, self._grow = bool(terminated), bool(truncated), None
            self._stop_clock()

    def _growing(self, call: str) -> tuple[Any, ...]:
        """The `append`s of observations, actions, rewards and infos, and the (key, `append`) pairs of extra outputs."""
        if self.is_done or self.is_numpy or not self.is_reset:
            raise self._refusal(call)
        lists = [track.items for track in (self.observations, self.actions, self.rewards)]  # type: ignore[union-attr]
        pairs = tuple((key, track.items.append) for key, track in self.extra_model_outputs.items())  # type: ignore[union-attr]
        self._grow = (*(items.append for items in lists), self.infos.append, pairs)  # type: ignore[union-attr]
        return self._grow

    def _check_observation(self, observation: Any) -> None:
        if self._item_shape is None:
            self._item_shape = reading.shape_of(self.observations.get(-1))
        shape = reading.shape_of(observation)
        if shape != self._item_shape:
            raise ShapeMismatch(
                f"episode {self.id_}: the observation of step {len(self)} has shape {shape}, those before it have "
                f"{self._item_shape}; all observations of an episode have one shape"
            )

    def _start_extra(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        if self.extra_model_outputs or self.rewards.total:
            raise self._extra_mismatch(given)
        self.extra_model_outputs = {key: ListTrack() for key in given}
        return self._growing("add_env_step")[4]

    def _without_half_a_step(self, given: Mapping[str, Any]) -> TrackMismatch:
        """The error for a key that is not given, after what was appended for other keys is taken back."""
        for track in self.extra_model_outputs.values():
            del track.items[self.rewards.total :]  # type: ignore[union-attr]
        return self._extra_mismatch(given)

    def _extra_mismatch(self, given: Mapping[str, Any]) -> TrackMismatch:
        known = self.extra_model_outputs
        late, missing = [k for k in given if k not in known], [k for k in known if k not in given]
        what = f"{late} would start late" if late else f"{missing} would stop early"
        return TrackMismatch(
            f"episode {self.id_}: extra model outputs: {what}, at step {len(self)}; every step so far has "
            f"{list(known)}, and so must this one"
        )


def _array_track(data: Any) -> ArrayTrack:
    return ArrayTrack.of(nested.map_leaves(np.asarray, data))
