"""Conversion between `MultiAgentEpisode` and RLlib's class, with time indices and pending actions.

RLlib has one time index per agent: a buffer with an entry for each env step, which is the agent's own step at which it
observed something, or a sign that it did not. An agent acts in the env step of its observation. So an action time that
differs from the observation time is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from episodes.converters import rllib_spaces, rllib_states
from episodes.converters.action_mapping import imported_space
from episodes.converters.loss_report import LossReport
from episodes.facts import Ending, EpisodeFacts
from episodes.multi_agent import MultiAgentEpisode
from episodes.multi_agent.agents import Agents
from episodes.multi_agent.timeline import ENDED, RESTS, WAITS, Timeline
from episodes.tracks.policy_box import env_space_of

_SKIPPED = "S"  # stands for an env step at which an agent saw nothing


def object_of(cls: Any, episode: MultiAgentEpisode, report: LossReport) -> Any:
    """Convert a multi-agent episode to an object of RLlib's class, and add losses to `report`."""
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

    _report_losses(episode, report)
    timelines = episode.agents.timelines
    env_t_to_agent_t = {
        a: InfiniteLookbackBuffer(_observation_index_by_env_step(timeline, episode), lookback=episode.lookback)
        for a, timeline in timelines.items()
    }
    states = [(agent_id, rllib_states.state_of(timeline.episode, report)) for agent_id, timeline in timelines.items()]
    waits = {agent_id: timeline for agent_id, timeline in timelines.items() if timeline.phase == WAITS}
    pending = {agent_id: timeline.reward for agent_id, timeline in timelines.items() if timeline.reward is not None}
    made = cls.from_state(
        {
            "id_": episode.id_,
            "agent_to_module_mapping_fn": episode.agent_to_module_mapping_fn,
            "_agent_to_module_mapping": dict(episode.agents.modules),
            "observation_space": _spaces(episode.observation_space),
            "action_space": _spaces(_env_spaces(episode)),
            "env_t_started": episode.env_t_started,
            "env_t": episode.env_t,
            "agent_t_started": {agent_id: timeline.episode.t_started for agent_id, timeline in timelines.items()},
            "env_t_to_agent_t": env_t_to_agent_t,
            "_hanging_actions_end": {agent_id: deepcopy(timeline.action) for agent_id, timeline in waits.items()},
            "_hanging_extra_model_outputs_end": {
                a: deepcopy(dict(timeline.extra or {})) for a, timeline in waits.items()
            },
            "_hanging_rewards_end": dict.fromkeys(waits, 0.0) | pending,
            "_hanging_rewards_begin": {},
            "is_terminated": episode.is_terminated,
            "is_truncated": episode.is_truncated,
            "agent_episodes": states,
            "_start_time": None,
            "_last_step_time": None,
            "custom_data": deepcopy(episode.custom_data),
        }
    )
    made.id_ = episode.id_
    made.observation_space, made.action_space = dict(episode.observation_space or {}), _env_spaces(episode)
    for agent_id, timeline in timelines.items():
        rllib_states.copy_id_and_spaces(timeline.episode, made.agent_episodes[agent_id])
    return made


def _env_spaces(episode: MultiAgentEpisode) -> dict[Any, Any]:
    return {agent_id: env_space_of(space) for agent_id, space in (episode.action_space or {}).items()}


def _observation_index_by_env_step(timeline: Timeline, episode: MultiAgentEpisode) -> list[Any]:
    """Return a list with the agent's own step at each env step, lookback included, or "S" (skipped) where the agent has
    no observation.
    """
    agent_episode, begin = timeline.episode, episode.env_t_started - episode.lookback
    indices: list[Any] = [_SKIPPED] * (episode.env_t - begin + 1)
    for own_t, env_t in enumerate(
        np.asarray(timeline.observation_times).tolist(), agent_episode.t_started - agent_episode.lookback
    ):
        if env_t >= begin:
            indices[env_t - begin] = own_t
    return indices


def _spaces(by_agent: Mapping[Any, Any] | None) -> dict[Any, Any]:
    return {agent_id: rllib_spaces.to_dict(space) for agent_id, space in (by_agent or {}).items()}


def _report_losses(episode: MultiAgentEpisode, report: LossReport) -> None:
    """Note in `report` which data of a multi-agent episode RLlib's class cannot store, such as the env steps of
    actions."""
    agents, reason = episode.agents, rllib_states.WHY
    begin = episode.env_t_started - episode.lookback
    for timeline in agents.timelines.values():
        observation_times, action_times = timeline.env_times()
        lost = {
            "when an agent acted": (
                (action_times != observation_times[: len(action_times)])
                | (observation_times[: len(action_times)] < begin)
            ).any(),
            "when an agent ended": timeline.ended_at is not None and timeline.ended_at != observation_times[-1],
            "when an agent saw": (observation_times < begin).any(),
            "that no reward came yet": timeline.phase == WAITS and timeline.reward is None,
            "the type of a pending reward": timeline.reward is not None and type(timeline.reward) is not float,
        }
        for item in (name for name, is_lost in lost.items() if is_lost):
            report.add(item, reason, episode.id_)
    lost = {
        "infos without an observation": agents.loose_infos,
        "rewards before an agent's first observation or after its end": agents.rewards_apart,
        "agents that left no data": agents.departed,
        "what was passed on by cut()": agents.passed_on is not None,
        "missing_final_observation": episode.missing_final_observation != "raise",
    }
    for item in (name for name, is_lost in lost.items() if is_lost):
        report.add(item, reason, episode.id_)


def episode_of(original: Any, report: LossReport, action_mapping: str | None = None) -> MultiAgentEpisode:
    """Convert an RLlib multi-agent episode to one of this library, and add losses to `report`. `action_mapping` is that
    of `from_rllib`.
    """
    state = rllib_states.rllib_state_of(original)
    begin = int(state["env_t_started"])
    actions, outputs = state["_hanging_actions_end"], state["_hanging_extra_model_outputs_end"]
    rewards = state["_hanging_rewards_end"]
    timelines = {}
    for agent_id, own_state in state["agent_episodes"]:
        agent_episode, rllibs = rllib_states.episode_of(own_state), original.agent_episodes[agent_id]
        agent_episode.observation_space = rllibs.observation_space
        agent_episode.action_space = imported_space(rllibs.action_space, action_mapping)
        clock = original.env_t_to_agent_t[agent_id].get_state()
        first = begin - int(clock["lookback"])
        observation_times = [first + i for i, own_t in enumerate(clock["data"]) if not isinstance(own_t, str)]
        observation_times = _fit_times(observation_times, agent_episode.observations.total, first, original.id_, report)
        waits, pending_reward = agent_id in actions and not agent_episode.is_done, rewards.get(agent_id)
        record = {
            "seen": observation_times,
            "acted": observation_times[: agent_episode.actions.total + waits],
            "phase": ENDED if agent_episode.is_done else WAITS if waits else RESTS,
            "ended_at": observation_times[-1] if agent_episode.is_done else None,
            "action": deepcopy(actions[agent_id]) if waits else None,
            "extra": (deepcopy(dict(outputs.get(agent_id) or {})) or None) if waits else None,
            "reward": pending_reward
            if not agent_episode.is_done and pending_reward is not None and (waits or pending_reward)
            else None,
        }
        timelines[agent_id] = Timeline.of(agent_episode, record)
    if any(reward for agent_id, reward in rewards.items() if agent_id not in timelines):
        report.add("rewards of agents that were not observed", "they are of no agent's step", original.id_)
    ending = Ending.of(bool(state["is_terminated"]), bool(state["is_truncated"]))
    spaces = {name: dict(getattr(original, name) or {}) or None for name in ("observation_space", "action_space")}
    if spaces["action_space"]:
        spaces["action_space"] = {a: imported_space(s, action_mapping) for a, s in spaces["action_space"].items()}
    facts = EpisodeFacts(state["id_"], begin, ending, **spaces)  # type: ignore[arg-type]
    env_t_to_agent_t = [original.env_t_to_agent_t[agent_id] for agent_id in timelines]
    mapping = state["agent_to_module_mapping_fn"]
    return MultiAgentEpisode.of(
        facts,
        Agents(facts.id_, timelines, modules=state["_agent_to_module_mapping"]),
        env_t=int(state["env_t"]),
        lookback=max((int(clock.lookback) for clock in env_t_to_agent_t), default=0),
        **({"agent_to_module_mapping_fn": mapping} if mapping is not None else {}),
        is_reset=bool(timelines),
        is_numpy=bool(timelines) and all(timeline.episode.is_numpy for timeline in timelines.values()),
        custom_data=deepcopy(dict(state.get("custom_data") or {})),
    )


def _fit_times(times: list[int], num_times: int, first: int, id_: object, report: LossReport) -> list[int]:
    """Return an agent's list of env steps with exactly `num_times` entries. Missing entries at the front are estimated,
    and noted in `report`.

    RLlib stores no env step for some items of the lookback. The missing ones are counted backwards from `first`.
    """
    if len(times) < num_times:
        report.add("when an agent saw", "its data reaches back further than its clock; counted back one by one", id_)
        num_missing = num_times - len(times)
        times = [*range(first - num_missing, first), *times]
    return times[len(times) - num_times :]
