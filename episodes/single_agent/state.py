"""What an episode is: its attributes, its state as plain values, and when two episodes are equal."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from time import perf_counter
from typing import Any, Self

import numpy as np
from gymnasium import spaces

from episodes.columns import Columns
from episodes.errors import ShapeMismatch, TrackMismatch
from episodes.single_agent.getters import TrackGetters
from episodes.tracks import ArrayTrack, ListTrack
from episodes.tracks.infos import Infos
from episodes.tracks.infos.kinds import ListInfos, same_info
from episodes.tracks.track import Track


class EpisodeState(TrackGetters):
    """The attributes of a chunk: its tracks, where it begins and how it stops, whose it is."""

    __slots__ = (
        "_began",
        "_duration",
        "_item_shape",
        "agent_id",
        "custom_data",
        "is_terminated",
        "is_truncated",
        "module_id",
        "multi_agent_episode_id",
        "t_started",
    )

    def _set(
        self,
        *,
        id_: Any,
        observations: Track,
        actions: Track,
        rewards: Track,
        infos: list[dict[str, Any]] | Infos,
        extra_model_outputs: dict[str, Track],
        lookback: int,
        t_started: int,
        terminated: bool,
        truncated: bool,
        observation_space: spaces.Space | None,
        action_space: spaces.Space | None,
        agent_id: Any,
        module_id: Any,
        multi_agent_episode_id: Any,
        custom_data: dict[str, Any],
    ) -> None:
        """Set every attribute: the one place that does, so that no way of making an episode forgets one."""
        self.id_ = id_
        self.observations = observations
        self.actions = actions
        self.rewards = rewards
        self.infos = infos
        self.extra_model_outputs = extra_model_outputs
        self.lookback = lookback
        self.t_started = t_started
        self.is_terminated = terminated
        self.is_truncated = truncated
        self.observation_space = observation_space
        self.action_space = action_space
        self.agent_id = agent_id
        self.module_id = module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self.custom_data = custom_data
        self._grow = None
        self._item_shape: Any = None  # of the observations added; a stored one may have been rewritten
        self._began: float | None = None  # when this object began to grow
        self._duration = 0.0  # seconds that it grew before

    @classmethod
    def _make(cls, **attributes: Any) -> Self:
        """An episode of the attributes that `_set` takes."""
        episode = cls.__new__(cls)
        episode._set(**attributes)
        return episode

    def _derived(
        self,
        observations: Track,
        actions: Track,
        rewards: Track,
        infos: list[dict[str, Any]] | Infos,
        extra_model_outputs: dict[str, Track],
        lookback: int,
        t_started: int,
        terminated: bool = False,
        truncated: bool = False,
    ) -> Self:
        """An episode of other tracks with this one's ids, spaces and custom data."""
        episode = self.__new__(type(self))
        episode._set(
            id_=self.id_,
            observations=observations,
            actions=actions,
            rewards=rewards,
            infos=infos,
            extra_model_outputs=extra_model_outputs,
            lookback=lookback,
            t_started=t_started,
            terminated=terminated,
            truncated=truncated,
            observation_space=self.observation_space,
            action_space=self.action_space,
            agent_id=self.agent_id,
            module_id=self.module_id,
            multi_agent_episode_id=self.multi_agent_episode_id,
            custom_data=dict(self.custom_data),
        )
        return episode

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def t(self) -> int:
        """The environment step at which this chunk stops: `t_started + len(self)`."""
        return self.t_started + len(self.rewards)

    @property
    def is_done(self) -> bool:
        """True when the episode terminated or was truncated; False for an ongoing or cut chunk."""
        return self.is_terminated or self.is_truncated

    @property
    def is_reset(self) -> bool:
        """True once there is a first observation."""
        return len(self.observations) > 0

    @property
    def is_numpy(self) -> bool:
        """True once finalized by `to_numpy`."""
        return type(self.observations) is ArrayTrack

    is_finalized = is_numpy

    def env_steps(self) -> int:
        """The number of environment steps: `len(self)`."""
        return len(self)

    def agent_steps(self) -> int:
        """The number of agent steps: `len(self)`."""
        return len(self)

    def get_return(self) -> float:
        """The undiscounted sum of the rewards from step 0 of this chunk on."""
        rewards = self.rewards.get()
        return float(rewards.sum() if isinstance(rewards, np.ndarray) else sum(rewards))

    def get_duration_s(self) -> float:
        """The seconds that it grew: from the reset to the end, the cut or `to_numpy`; until now while it grows."""
        return self._duration + (0.0 if self._began is None else perf_counter() - self._began)

    def _stop_clock(self) -> None:
        self._duration, self._began = self.get_duration_s(), None

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """The slots, for pickles and copies: the lists, but not the bound methods that append to them."""
        names = [name for cls in type(self).__mro__ for name in getattr(cls, "__slots__", ())]
        slots = {name: getattr(self, name) for name in names}
        return None, slots | {"_grow": None, "_began": None, "_duration": self.get_duration_s()}

    def validate(self) -> None:
        """Raise `TrackMismatch` unless all tracks have L + T items, observations and infos one more."""
        steps = self.rewards.total
        if type(self.rewards) is ArrayTrack and self.rewards.data.ndim != 1:
            raise ShapeMismatch(
                f"episode {self.id_}: rewards have shape {self.rewards.data.shape}; give one number for each step, [T]"
            )
        lengths = {"observations": self.observations.total, "infos": len(self.infos), "actions": self.actions.total}
        lengths |= {f"extra_model_outputs[{key!r}]": track.total for key, track in self.extra_model_outputs.items()}
        for name, length in lengths.items():
            wanted = steps + (name in ("observations", "infos"))
            if length != wanted:
                raise TrackMismatch(
                    f"episode {self.id_}: {length} {name} beside {steps} rewards; there must be {wanted} (one more "
                    "observation and info than rewards, as many of all else)"
                )

    def get_data_dict(self) -> dict[str, Any]:
        """The T steps as columns: `obs` (but the last), `actions`, `rewards`, flags, `t`, ids, infos, extra outputs."""
        steps = len(self)
        flags = np.zeros((2, steps), bool)
        flags[:, -1:] = [[self.is_terminated], [self.is_truncated]]
        columns = {
            Columns.OBS: self.get_observations(slice(0, steps)),
            Columns.ACTIONS: self.get_actions(),
            Columns.REWARDS: self.get_rewards(),
            Columns.TERMINATEDS: flags[0],
            Columns.TRUNCATEDS: flags[1],
            Columns.T: np.arange(self.t_started, self.t),
            Columns.EPS_ID: np.full(steps, self.id_),
            Columns.INFOS: self.get_infos(slice(0, steps)),
        }
        if not self.is_numpy:
            columns = {
                key: column.tolist() if isinstance(column, np.ndarray) else column for key, column in columns.items()
            }
        return columns | {key: track.get() for key, track in self.extra_model_outputs.items()}

    def get_state(self) -> dict[str, Any]:
        """The whole episode as a dict of plain values and arrays; it shares no memory with the episode."""
        state = {name: getattr(self, name) for name in _STATE}
        state["observations"] = self.observations.items_or_arrays()
        state["actions"] = self.actions.items_or_arrays()
        state["rewards"] = self.rewards.items_or_arrays()
        state["extra_model_outputs"] = {key: track.items_or_arrays() for key, track in self.extra_model_outputs.items()}
        state["infos"] = list(self.infos)
        return deepcopy(state) | {"is_numpy": self.is_numpy, "duration_s": self.get_duration_s()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The episode of a `get_state`; it shares no memory with the state."""
        copied = deepcopy(dict(state))
        finished, duration = copied.pop("is_numpy"), copied.pop("duration_s")
        lookback = copied["lookback"]
        track = lambda data: ArrayTrack.of(data, lookback) if finished else ListTrack(data, lookback)  # noqa: E731
        for name in ("observations", "actions", "rewards"):
            copied[name] = track(copied[name])
        copied["extra_model_outputs"] = {key: track(data) for key, data in copied["extra_model_outputs"].items()}
        if finished:
            copied["infos"] = ListInfos.of(copied["infos"])
        copied |= {"terminated": copied.pop("is_terminated"), "truncated": copied.pop("is_truncated")}
        episode = cls._make(**copied)
        episode._duration = duration
        return episode

    def equals(self, other: object) -> bool:
        """True when both are the same chunk of the same episode: ids, tracks, lookback, infos, ending, custom data."""
        if not isinstance(other, EpisodeState) or self.is_numpy != other.is_numpy:
            return False
        names = [name for name in _STATE if name != "custom_data"]
        if any(getattr(self, name) != getattr(other, name) for name in names):
            return False
        mine, theirs = self.extra_model_outputs, other.extra_model_outputs
        tracks = [(getattr(self, name), getattr(other, name)) for name in ("observations", "actions", "rewards")]
        return (
            mine.keys() == theirs.keys()
            and all(a.same_items(b) for a, b in [*tracks, *((mine[key], theirs[key]) for key in mine)])
            and same_info(list(self.infos), list(other.infos))
            and same_info(self.custom_data, other.custom_data)
        )

    def __repr__(self) -> str:
        begin = f" from t={self.t_started}" if self.t_started else ""
        ending = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "ongoing"
        agent = "" if self.agent_id is None else f", agent {self.agent_id}"
        steps = "1 step" if len(self) == 1 else f"{len(self)} steps"
        return f"SingleAgentEpisode({str(self.id_)[:8]}: {steps}{begin}{agent}, return {self.get_return():g}, {ending})"


_STATE = (
    "id_",
    "agent_id",
    "module_id",
    "multi_agent_episode_id",
    "observation_space",
    "action_space",
    "custom_data",
    "lookback",
    "t_started",
    "is_terminated",
    "is_truncated",
)
