"""`MultiAgentEpisode`: several agents in one environment, each with an episode and a clock of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Self

import numpy as np

from episodes.errors import EpisodeStateError, InvalidArgument, TrackMismatch, WrongType
from episodes.multi_agent import chunks as multi_agent_cutting
from episodes.multi_agent.getters import MultiAgentGetters
from episodes.multi_agent.growing import (
    NOTHING,
    Endings,
    check_actions,
    check_observations,
    endings_of,
    enter,
    keep_infos,
    refusal,
    with_repeated,
    write_endings,
    write_observations,
    write_pending,
)
from episodes.multi_agent.state import ALL, COMMON, default_module
from episodes.multi_agent.timeline import Chunk
from episodes.tracks import indexing

ByAgent = Mapping[Any, Any]  # agent -> value


class MultiAgentEpisode(MultiAgentGetters):
    """One chunk of an episode of several agents, which come late, rest, act in turns and end early.

    An agent that acted and has no next observation yet has a *pending* action and a running sum of rewards; its next
    observation completes the step. Data for the constructor comes as `add_env_reset` and `add_env_step` take it, one
    dict from agent to value for each env step; all of it becomes lookback with `len_lookback_buffer="auto"`.

    Args:
        observations: L + T + 1 dicts; likewise `infos`.
        actions: L + T dicts; likewise `rewards` and `extra_model_outputs` (`{agent: {key: value}}`).
        observation_space: a space for each agent; likewise `action_space`.
        terminateds: which agents terminated with the last step, or True for all; likewise `truncateds`.
        env_t_started: the env step of this chunk's first observations.
        agent_t_started: each agent's own step at which this chunk begins, 0 for those left out.
        len_lookback_buffer: L in env steps.
        agent_to_module_mapping_fn: `(agent_id, episode) -> module_id`.
        missing_final_observation: what happens when an agent is truncated in the middle of a step without a last
            observation: `"raise"`, or `"repeat"` the one before.

    >>> episode = MultiAgentEpisode(id_="game")
    >>> episode.add_env_reset(observations={"white": 0})
    >>> episode.add_env_step({"black": 1}, {"white": 10}, {})
    >>> episode.add_env_step({"white": 2}, {"black": 11}, {"white": 0.5})
    >>> episode.get_observations(), episode.get_actions(-1), episode.get_rewards(0)
    ({'white': [0, 2], 'black': [1]}, {'black': 11}, {'white': 0.5})
    >>> episode
    MultiAgentEpisode(game: 2 env steps, 2 agents, 1 pending, return 0.5, ongoing)
    """

    __slots__ = ()

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Sequence[ByAgent] | None = None,
        observation_space: ByAgent | None = None,
        infos: Sequence[ByAgent] | None = None,
        actions: Sequence[ByAgent] | None = None,
        action_space: ByAgent | None = None,
        rewards: Sequence[ByAgent] | None = None,
        terminateds: ByAgent | bool = False,
        truncateds: ByAgent | bool = False,
        extra_model_outputs: Sequence[ByAgent] | None = None,
        env_t_started: int | None = None,
        agent_t_started: ByAgent | None = None,
        len_lookback_buffer: int | str = "auto",
        agent_episode_ids: ByAgent | None = None,
        agent_module_ids: ByAgent | None = None,
        agent_to_module_mapping_fn: Callable[[Any, Any], Any] | None = None,
        missing_final_observation: str = "raise",
    ) -> None:
        if missing_final_observation not in ("raise", "repeat"):
            raise InvalidArgument(f'missing_final_observation={missing_final_observation!r}: give "raise" or "repeat"')
        num_steps = max(len(observations or ()) - 1, 0)
        lookback = (
            num_steps if len_lookback_buffer == "auto" else min(_checked_lookback(len_lookback_buffer), num_steps)
        )
        begin = (env_t_started or 0) - lookback
        self._set(
            id_=uuid.uuid4().hex if id_ is None else id_,
            env_t_started=begin,
            env_t=begin,
            lookback=0,
            observation_space=observation_space,
            action_space=action_space,
            agent_to_module_mapping_fn=agent_to_module_mapping_fn or default_module,
            missing_final_observation=missing_final_observation,
            modules=agent_module_ids,
            is_reset=False,
        )
        if observations:
            ending = tuple({ALL: True} if flags is True else flags or None for flags in (terminateds, truncateds))
            self._replay(observations, actions or (), rewards or (), infos, extra_model_outputs, ending)
            self._move_start(lookback, agent_t_started or NOTHING)
        elif actions or rewards or infos or extra_model_outputs:
            raise TrackMismatch(f"episode {self.id_}: data without observations; give one dict more than actions")
        for agent_id, own_id in (agent_episode_ids or NOTHING).items():
            self._line(agent_id).episode.id_ = own_id

    def _replay(
        self,
        observations: Sequence[ByAgent],
        actions: Sequence[ByAgent],
        rewards: Sequence[ByAgent],
        infos: Sequence[ByAgent] | None,
        extra: Sequence[ByAgent] | None,
        ending: tuple[Any, ...],
    ) -> None:
        """Grow by the given env steps, the last of which has the given ending."""
        num = len(observations) - 1
        lengths = {"actions": len(actions), "rewards": len(rewards)}
        lengths |= {"infos": num if infos is None else len(infos) - 1}
        lengths |= {"extra_model_outputs": num if extra is None else len(extra)}
        for name, length in lengths.items():
            if length != num:
                raise TrackMismatch(
                    f"episode {self.id_}: {len(observations)} dicts of observations do not go with the {name} given; "
                    f"there must be {num} of actions, rewards and extra outputs, and {num + 1} of infos"
                )
        told = infos or [NOTHING] * (num + 1)
        self.add_env_reset(observations=observations[0], infos=told[0])
        for i in range(num):
            flags = ending if i == num - 1 else (None, None)
            outputs = None if extra is None else extra[i]
            step = (observations[i + 1], actions[i], rewards[i], told[i + 1])
            self.add_env_step(*step, terminateds=flags[0], truncateds=flags[1], extra_model_outputs=outputs)
        if not num and any(ending):
            endings = endings_of(self, NOTHING, *ending)
            write_endings(self, endings, *ending)

    def _move_start(self, lookback: int, agent_t_started: ByAgent) -> None:
        """Let step 0 be `lookback` env steps after the first one; what lies before is lookback."""
        chunk = Chunk(self.env_t_started + lookback, self.env_t, lookback, True)
        attributes = multi_agent_cutting.chunk_attributes(self, chunk)
        for agent_id, line in attributes["lines"].items():
            line.episode.t_started = agent_t_started.get(agent_id, 0)
        began = self._began
        self._set(**attributes)
        self._began = None if self.is_done else began

    # --- growing ---------------------------------------------------------------------------------------------

    def add_env_reset(self, *, observations: ByAgent, infos: ByAgent | None = None) -> None:
        """Begin with the reset observations of the agents that are there. `EpisodeStateError` when reset already."""
        if self.is_reset:
            raise EpisodeStateError(
                f"episode {self.id_}: add_env_reset after a reset; make a new episode for a new reset"
            )
        self.is_reset = True
        told = infos or NOTHING
        keep_infos(self, observations, told)
        for agent_id, observation in observations.items():
            enter(self, agent_id, observation, told.get(agent_id) or {})
        self._began = perf_counter()

    def add_env_step(
        self,
        observations: ByAgent,
        actions: ByAgent,
        rewards: ByAgent,
        infos: ByAgent | None = None,
        *,
        terminateds: ByAgent | None = None,
        truncateds: ByAgent | None = None,
        extra_model_outputs: ByAgent | None = None,
    ) -> None:
        """Add one env step, each argument a dict from agent to its part. O(agents that did something).

        Args:
            observations: of the agents that got one; an agent's first one lets it in.
            actions: of the agents that acted on their last observation.
            rewards: of any agent; they are summed until its next observation.
            infos: of any agent, and of none (`"__common__"`); one without an observation stays at its env step.
            terminateds: flags of agents, and `"__all__"` for the episode; likewise `truncateds`. The episode ends by
                `"__all__"`; where neither is given, when every agent is done: terminated if all of them terminated.
            extra_model_outputs: `{agent: {key: value}}` of the agents that acted.

        Errors, each naming agent and env step and leaving the episode as it was: `EpisodeStateError` when it does not
        grow; `InvalidArgument` for an action of an agent that is not there, waits or is done, an observation of one
        that has not acted or is done, a missing reward, a truncation in the middle of a step without a last
        observation, flags that disagree; `ShapeMismatch`, `TrackMismatch` as in `SingleAgentEpisode`.
        """
        if not self.is_reset or self.is_numpy or self._is_cut or self.is_terminated or self.is_truncated:
            raise refusal(self, "add_env_step")
        extra = extra_model_outputs or NOTHING
        endings: Endings = {}
        check_actions(self, actions, extra)
        ends = (terminateds and True in terminateds.values()) or (truncateds and True in truncateds.values())
        if ends:
            endings = endings_of(self, observations, terminateds, truncateds)
            observations = with_repeated(self, observations, actions, endings)
        check_observations(self, observations, actions, rewards)
        self.env_t += 1
        told = infos or NOTHING
        if told:
            keep_infos(self, observations, told)
        write_pending(self, observations, actions, rewards, extra)
        write_observations(self, observations, actions, rewards, told, extra)
        if ends:
            write_endings(self, endings, terminateds, truncateds)

    # --- cutting and joining ---------------------------------------------------------------------------------

    def __getitem__(self, slice_: slice) -> Self:
        """The sub-episode of the env steps `[a:b]`; as `slice`."""
        if not isinstance(slice_, slice):
            raise WrongType(
                f"episode[{slice_!r}]: an episode is sliced by env steps, episode[a:b]; read one item with a getter"
            )
        return self.slice(slice_)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Self:
        """The sub-episode of a slice of env steps, clipped as Python clips; views once finalized. O(agents).

        It is the chunk that cutting at both ends gives: a step belongs to where it completes, and what is pending
        belongs to the end of the episode. Ids, modules, spaces, infos and `custom_data` stay.

        Args:
            len_lookback_buffer: how many env steps before the slice to keep, as far as they are there; this episode's
                own lookback when None.
        """
        start, stop = indexing.chunk_bounds(slice_, len(self))
        wanted = self.lookback if len_lookback_buffer is None else _checked_lookback(len_lookback_buffer)
        begin, end = self.env_t_started + start, self.env_t_started + stop
        chunk = Chunk(begin, end, min(wanted, self.lookback + start), end == self.env_t)
        return self._make(**multi_agent_cutting.chunk_attributes(self, chunk))

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """The successor chunk, which goes on growing where this one stops; what is pending moves to it.

        Args:
            len_lookback_buffer: how many env steps of this chunk (and its lookback) the successor can still reach.

        Errors: `EpisodeStateError` when there is nothing to go on with: ended, not reset, or cut already.
        """
        successor = self._make(**multi_agent_cutting.cut(self, _checked_lookback(len_lookback_buffer)))
        successor._began = perf_counter()
        return successor

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Append the chunk that follows this one, in place: the inverse of `cut`. The other's lookback is dropped.

        Errors: `ChunkMismatch` unless `other` has the same id and begins where this one stops, with the same agents
        and observations; `EpisodeStateError` when this one has ended. Each leaves the episode as it was.
        """
        multi_agent_cutting.join(self, other)

    def validate(self) -> None:
        """Raise `TrackMismatch` unless every agent's tracks and clocks go together."""
        for agent_id, line in self._lines.items():
            own = line.episode
            own.validate()
            waits = len(line.acted) - own.actions.total
            if len(line.seen) != own.observations.total or waits not in (0, 1):
                raise TrackMismatch(
                    f"episode {self.id_}: agent {agent_id!r} has {own.observations.total} observations and "
                    f"{own.actions.total} actions, its clocks {len(line.seen)} and {len(line.acted)} env steps"
                )


def _checked_lookback(length: Any) -> int:
    if not isinstance(length, (int, np.integer)) or length < 0:
        raise InvalidArgument(f"len_lookback_buffer={length!r}: give the number of env steps, 0 or more")
    return int(length)


__all__ = ["ALL", "COMMON", "MultiAgentEpisode"]
