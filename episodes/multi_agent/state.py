"""What a multi-agent episode is: its agents' timelines, what belongs to none of them, its state as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from time import perf_counter
from typing import Any, Self

import numpy as np

from episodes.columns import DEFAULT_MODULE_ID
from episodes.errors import UnknownKey
from episodes.multi_agent.timeline import ENDED, RESTS, WAITS, AgentTimeline
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.infos.kinds import same_info
from episodes.tracks.nested import equal

COMMON = "__common__"  # the key of infos that belong to no agent
ALL = "__all__"  # the key of the episode's own ending


def default_module(agent_id: Any, episode: Any) -> str:
    """The module of every agent when nothing is said."""
    return DEFAULT_MODULE_ID


class MultiAgentState:
    """The attributes of a multi-agent chunk."""

    __slots__ = (
        "_apart",
        "_began",
        "_departed",
        "_duration",
        "_is_cut",
        "_lines",
        "_loose_infos",
        "_modules",
        "action_space",
        "agent_to_module_mapping_fn",
        "custom_data",
        "env_t",
        "env_t_started",
        "id_",
        "is_numpy",
        "is_reset",
        "is_terminated",
        "is_truncated",
        "lookback",
        "missing_final_observation",
        "observation_space",
    )

    def _set(
        self,
        *,
        id_: str,
        env_t_started: int,
        env_t: int,
        lookback: int,
        observation_space: Mapping[Any, Any] | None,
        action_space: Mapping[Any, Any] | None,
        agent_to_module_mapping_fn: Callable[[Any, Any], Any] = default_module,
        missing_final_observation: str = "raise",
        lines: dict[Any, AgentTimeline] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        is_reset: bool = True,
        is_numpy: bool = False,
        modules: Mapping[Any, Any] | None = None,
        loose_infos: Mapping[int, dict[Any, Any]] | None = None,
        apart: list[tuple[int, Any, Any]] | None = None,
        departed: Mapping[Any, tuple[bool, bool, int]] | None = None,
        custom_data: Mapping[str, Any] | None = None,
    ) -> None:
        """Set every attribute: the one place that does, so that no way of making an episode forgets one."""
        self.id_ = id_
        self.env_t_started = env_t_started  # the env step of this chunk's first observations
        self.env_t = env_t  # the env step at which it stops
        self.lookback = lookback  # how many env steps before `env_t_started` are within reach
        self.observation_space = observation_space
        self.action_space = action_space
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self.missing_final_observation = missing_final_observation
        self.is_terminated = terminated
        self.is_truncated = truncated
        self.is_reset = is_reset
        self.is_numpy = is_numpy
        self.custom_data = dict(custom_data) if custom_data else {}
        self._lines = {} if lines is None else lines  # agents that were observed
        self._modules = dict(modules) if modules else {}
        self._loose_infos = (
            dict(loose_infos) if loose_infos else {}
        )  # env step -> agent -> info that came without an observation
        self._apart = (
            list(apart) if apart else []
        )  # (env step, agent, reward): before an agent's first observation, after its end
        self._departed = (
            dict(departed) if departed else {}
        )  # agents that ended and left no data: terminated, truncated, when
        self._is_cut = False  # True once a successor holds what was pending
        self._began: float | None = None
        self._duration = 0.0

    @classmethod
    def _make(cls, **attributes: Any) -> Self:
        """An episode of the attributes that `_set` takes."""
        episode = cls.__new__(cls)
        episode._set(**attributes)
        return episode

    def _same_episode(self) -> dict[str, Any]:
        """What a chunk of the same episode has in common with this one, as `_set` takes it."""
        return {
            "id_": self.id_,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "agent_to_module_mapping_fn": self.agent_to_module_mapping_fn,
            "missing_final_observation": self.missing_final_observation,
            "modules": self._modules,
            "custom_data": self.custom_data,
        }

    # --- what there is ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    def env_steps(self) -> int:
        """The number of env steps: `len(self)`."""
        return self.env_t - self.env_t_started

    def agent_steps(self) -> int:
        """The number of completed steps of all agents together."""
        return sum(len(line.episode) for line in self._lines.values())

    @property
    def is_done(self) -> bool:
        """True when the episode terminated or was truncated; False for an ongoing or cut chunk."""
        return self.is_terminated or self.is_truncated

    @property
    def is_finalized(self) -> bool:
        """True once finalized by `to_numpy`."""
        return self.is_numpy

    @property
    def agent_ids(self) -> set[Any]:
        """The agents that were observed in this chunk or its lookback."""
        return set(self._lines)

    @property
    def agent_episodes(self) -> dict[Any, SingleAgentEpisode]:
        """Each agent's own episode, on its own clock; without a step that waits for its next observation."""
        return {agent_id: line.episode for agent_id, line in self._lines.items()}

    def has_agent(self, agent_id: Any) -> bool:
        """True when the agent was observed in this chunk or its lookback."""
        return agent_id in self._lines

    def clocks(self, agent_id: Any) -> tuple[np.ndarray, np.ndarray]:
        """The env steps at which an agent's observations arrived, [L + T + 1], and at which it acted, [L + T].

        The second has one more while the agent waits. `UnknownKey` for an agent that was not observed.
        """
        line = self._line(agent_id)
        return np.array(line.seen, np.int64), np.array(line.acted, np.int64)

    def _line(self, agent_id: Any) -> AgentTimeline:
        line = self._lines.get(agent_id)
        if line is None:
            raise UnknownKey(f"episode {self.id_}: no agent {agent_id!r}; there are {list(self._lines)}")
        return line

    def env_steps_back(self, num_steps: int) -> int:
        """How many env steps back the last `num_steps` complete steps, and the pending one, of every agent reach.

        Cut with such a lookback, the successor has them all; agents that are done do not count.
        """
        reach = 0
        for line in self._lines.values():
            if num_steps and len(line.acted) and line.phase != ENDED:
                reach = max(reach, self.env_t - line.acted[max(line.episode.actions.total - num_steps, 0)])
        return reach

    def module_for(self, agent_id: Any) -> Any:
        """The module that acts for the agent: `agent_to_module_mapping_fn`'s answer, asked for once an episode."""
        try:
            return self._modules[agent_id]
        except KeyError:
            module = self._modules[agent_id] = self.agent_to_module_mapping_fn(agent_id, self)
            return module

    def get_agents_to_act(self) -> set[Any]:
        """The agents that got an observation in the newest env step and are not done: they act next."""
        return {agent_id for agent_id, _ in self.episodes_to_act()}

    def episodes_to_act(self) -> list[tuple[Any, SingleAgentEpisode]]:
        """The pairs of an agent that must act next and its episode."""
        now = self.env_t
        return (
            []
            if self.is_done
            else [(a, line.episode) for a, line in self._lines.items() if line.phase == RESTS and line.seen[-1] == now]
        )

    def get_agents_that_stepped(self) -> set[Any]:
        """The agents that got an observation in the newest env step."""
        now = self.env_t
        return {agent_id for agent_id, line in self._lines.items() if line.seen[-1] == now}

    def get_terminateds(self) -> dict[Any, bool]:
        """Which agents terminated; `"__all__"` is the episode itself."""
        flags = {agent_id: line.episode.is_terminated for agent_id, line in self._lines.items()}
        return {a: ending[0] for a, ending in self._departed.items()} | flags | {ALL: self.is_terminated}

    def get_truncateds(self) -> dict[Any, bool]:
        """Which agents were truncated; `"__all__"` is the episode itself."""
        flags = {agent_id: line.episode.is_truncated for agent_id, line in self._lines.items()}
        return {a: ending[1] for a, ending in self._departed.items()} | flags | {ALL: self.is_truncated}

    def get_returns(self, include_pending: bool = False) -> dict[Any, float]:
        """Each agent's sum of rewards from step 0 of this chunk on.

        Args:
            include_pending: count rewards that belong to no complete step too: those of waiting agents, and those that
                came before an agent's first observation or after its end.
        """
        returns = {agent_id: line.episode.get_return() for agent_id, line in self._lines.items()}
        if include_pending:
            waiting = [(a, line.reward) for a, line in self._lines.items() if line.reward is not None]
            for agent_id, reward in [*waiting, *((agent_id, reward) for _, agent_id, reward in self._apart)]:
                returns[agent_id] = returns.get(agent_id, 0.0) + float(reward)
        return returns

    def get_return(self, include_pending: bool = False) -> float:
        """The sum of all agents' rewards from step 0 of this chunk on; `include_pending` as in `get_returns`."""
        return float(sum(self.get_returns(include_pending).values()))

    def get_duration_s(self) -> float:
        """The seconds that it grew: from the reset to the end, the cut or `to_numpy`; until now while it grows."""
        return self._duration + (0.0 if self._began is None else perf_counter() - self._began)

    def _stop_clock(self) -> None:
        self._duration, self._began = self.get_duration_s(), None

    def to_numpy(self) -> Self:
        """Finalize every agent's episode in place, and the clocks; idempotent; returns itself."""
        for line in self._lines.values():
            line.to_numpy()
        if not self.is_numpy:
            self._stop_clock()
        self.is_numpy = True
        return self

    finalize = to_numpy

    # --- state -----------------------------------------------------------------------------------------------

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """The slots, for pickles and copies. What cannot grow goes without its mapping function, often a lambda."""
        names = [name for cls in type(self).__mro__ for name in getattr(cls, "__slots__", ())]
        slots = {name: getattr(self, name) for name in names} | {"_began": None, "_duration": self.get_duration_s()}
        if self.is_done or self._is_cut:
            slots["agent_to_module_mapping_fn"] = default_module
        return None, slots

    def get_state(self) -> dict[str, Any]:
        """The whole episode but its mapping function, as plain values and arrays; it shares no memory with it."""
        state = {name: getattr(self, name) for name in _STATE}
        agents = {agent_id: _line_state(line) for agent_id, line in self._lines.items()}
        return deepcopy(state) | {"agents": agents, "duration_s": self.get_duration_s()}

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], *, agent_to_module_mapping_fn: Callable[[Any, Any], Any] = default_module
    ) -> Self:
        """The episode of a `get_state`; it shares no memory with the state.

        Args:
            agent_to_module_mapping_fn: asked for agents that come later; those that were there keep their modules.
        """
        copied = deepcopy({name: state[name] for name in _STATE})
        is_cut = copied.pop("_is_cut")
        attributes = {_ARGUMENTS.get(name, name): value for name, value in copied.items()}
        lines = {agent_id: _line_of(line) for agent_id, line in state["agents"].items()}
        episode = cls._make(**attributes, lines=lines, agent_to_module_mapping_fn=agent_to_module_mapping_fn)
        episode._is_cut, episode._duration = is_cut, state["duration_s"]
        return episode

    def equals(self, other: object) -> bool:
        """True when both are the same chunk of the same episode: ids, agents, clocks, pending steps, infos, endings."""
        if not isinstance(other, MultiAgentState) or self._lines.keys() != other._lines.keys():
            return False
        mine = {name: getattr(self, name) for name in _STATE if name not in _NOT_COMPARED}
        theirs = {name: getattr(other, name) for name in mine}
        agents = self._lines.keys() | self._departed.keys()
        return (
            same_info(mine, theirs)
            and all(self.module_for(a) == other.module_for(a) for a in agents)
            and all(_same_line(line, other._lines[agent_id]) for agent_id, line in self._lines.items())
        )

    def __repr__(self) -> str:
        begin = f" from t={self.env_t_started}" if self.env_t_started else ""
        ending = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "ongoing"
        steps = "1 env step" if len(self) == 1 else f"{len(self)} env steps"
        agents = "1 agent" if len(self._lines) == 1 else f"{len(self._lines)} agents"
        waiting = sum(line.phase == WAITS for line in self._lines.values())
        pending = f", {waiting} pending" if waiting else ""
        total = f"return {self.get_return(include_pending=True):g}"
        return f"MultiAgentEpisode({str(self.id_)[:8]}: {steps}{begin}, {agents}{pending}, {total}, {ending})"


_STATE = (
    "id_",
    "env_t_started",
    "env_t",
    "lookback",
    "observation_space",
    "action_space",
    "missing_final_observation",
    "is_terminated",
    "is_truncated",
    "is_reset",
    "is_numpy",
    "custom_data",
    "_modules",
    "_loose_infos",
    "_apart",
    "_departed",
    "_is_cut",
)
_NOT_COMPARED = ("_is_cut", "_modules", "observation_space", "action_space")  # but each agent's own spaces are
_ARGUMENTS = {
    "is_terminated": "terminated",
    "is_truncated": "truncated",
    "_modules": "modules",
    "_loose_infos": "loose_infos",
    "_apart": "apart",
    "_departed": "departed",
}
_PENDING = ("phase", "action", "extra", "reward", "ended_at")


def _line_state(line: AgentTimeline) -> dict[str, Any]:
    pending = deepcopy({name: getattr(line, name) for name in _PENDING})
    clocks = {"seen": np.array(line.seen, np.int64), "acted": np.array(line.acted, np.int64)}
    return {"episode": line.episode.get_state()} | clocks | pending


def _line_of(state: Mapping[str, Any]) -> AgentTimeline:
    episode = SingleAgentEpisode.from_state(state["episode"])
    seen, acted = state["seen"].copy(), state["acted"].copy()
    line = AgentTimeline(episode, *((seen, acted) if episode.is_numpy else (seen.tolist(), acted.tolist())))
    for name in _PENDING:
        setattr(line, name, deepcopy(state[name]))
    return line


def _same_line(a: AgentTimeline, b: AgentTimeline) -> bool:
    return (
        list(a.seen) == list(b.seen)
        and list(a.acted) == list(b.acted)
        and (a.phase, a.ended_at) == (b.phase, b.ended_at)
        and a.episode.equals(b.episode)
        and equal((a.action, a.reward), (b.action, b.reward))
        and same_info(a.extra, b.extra)
    )
