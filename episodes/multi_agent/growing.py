"""Growing a multi-agent episode by one env step: first everything is checked, then everything is written.

The checks are apart from the writing, so that an error leaves the episode as it was. Both cost O(agents that did
something), whatever the number of agents and the length of the episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, TrackMismatch
from episodes.multi_agent.state import ALL, MultiAgentState
from episodes.multi_agent.timeline import ENDED, RESTS, WAITS, AgentTimeline
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import reading

Endings = dict[Any, tuple[bool, bool]]  # agent -> terminated, truncated

NOTHING: Mapping[Any, Any] = {}


def refusal(episode: MultiAgentState, call: str) -> EpisodeStateError:
    """The error for growing an episode that does not grow."""
    if not episode.is_reset:
        what, how = "before the reset", "call add_env_reset(observations=...) first"
    elif episode.is_done:
        ending = "terminated" if episode.is_terminated else "truncated"
        what, how = f"after the end ({ending} at env step {episode.env_t})", "make a new episode"
    elif episode._is_cut:
        what, how = f"after the cut at env step {episode.env_t}", "go on with the successor that cut() gave"
    else:
        what, how = "on a finalized episode", "go on with its successor: cut()"
    return EpisodeStateError(f"episode {episode.id_}: {call} {what}; {how}")


# --- checking ------------------------------------------------------------------------------------------------


def check_actions(episode: MultiAgentState, actions: Mapping[Any, Any], extra: Mapping[Any, Any]) -> None:
    """Raise unless every agent that acts may, with the extra model outputs that its steps have had so far."""
    lines = episode._lines
    given = 0
    for agent_id in actions:
        line = lines.get(agent_id)
        if line is None or line.phase != RESTS:
            raise _cannot_act(episode, agent_id, line)
        known = line.episode.extra_model_outputs
        if agent_id in extra:
            given += 1
            if known.keys() != extra[agent_id].keys() and (known or line.episode.rewards.total):
                raise _extra_mismatch(episode, agent_id, known, extra[agent_id])
        elif known:
            raise _extra_mismatch(episode, agent_id, known, NOTHING)
    if len(extra) != given:
        idle = next(agent_id for agent_id in extra if agent_id not in actions)
        raise InvalidArgument(
            f"{_place(episode, idle)}: extra model outputs for an agent that does not act; give them with its action"
        )


def check_observations(
    episode: MultiAgentState, observations: Mapping[Any, Any], actions: Mapping[Any, Any], rewards: Mapping[Any, Any]
) -> None:
    """Raise unless every observation completes a step that has a reward, or is an agent's first."""
    lines = episode._lines
    for agent_id, observation in observations.items():
        line = lines.get(agent_id)
        if line is None:
            if agent_id in episode._departed:
                raise _not_acted(episode, agent_id, line)
            continue
        if agent_id not in actions and line.phase != WAITS:
            raise _not_acted(episode, agent_id, line)
        if agent_id not in rewards and line.reward is None:
            raise InvalidArgument(
                f"{_place(episode, agent_id)}: no reward came since it acted, though its next observation is here; "
                "give a reward (0.0 counts)"
            )
        shape = line.episode._item_shape
        if shape is None:
            shape = line.episode._item_shape = reading.shape_of(line.episode.observations.get(-1))
        if getattr(observation, "shape", None) != shape and reading.shape_of(observation) != shape:
            raise ShapeMismatch(
                f"{_place(episode, agent_id)}: its observation has shape {reading.shape_of(observation)}, those before "
                f"it have {shape}; all observations of an agent have one shape"
            )


def endings_of(
    episode: MultiAgentState,
    observations: Mapping[Any, Any],
    terminateds: Mapping[Any, bool] | None,
    truncateds: Mapping[Any, bool] | None,
) -> Endings:
    """The agents that end in this env step: those flagged, and all others too when `"__all__"` is."""
    terminateds, truncateds = terminateds or NOTHING, truncateds or NOTHING
    over = bool(terminateds.get(ALL)), bool(truncateds.get(ALL))
    endings: Endings = {}
    for agent_id in {**terminateds, **truncateds}:
        ending = bool(terminateds.get(agent_id)), bool(truncateds.get(agent_id))
        if any(ending) and agent_id != ALL and not _has_ended(episode, agent_id):
            endings[agent_id] = ending
    if any(over):
        for agent_id in {**episode._lines, **observations}:
            if agent_id not in endings and not _has_ended(episode, agent_id):
                _check_agrees(episode, agent_id, (terminateds if over[0] else truncateds))
                endings[agent_id] = over
    return endings


def with_repeated(
    episode: MultiAgentState, observations: Mapping[Any, Any], actions: Mapping[Any, Any], endings: Endings
) -> Mapping[Any, Any]:
    """The observations, and the last one again of each agent that ends in the middle of a step without a new one."""
    repeated = {}
    for agent_id, (terminated, _) in endings.items():
        line = episode._lines.get(agent_id)
        if line is None or agent_id in observations or (line.phase != WAITS and agent_id not in actions):
            continue
        if not terminated and episode.missing_final_observation != "repeat":
            raise InvalidArgument(
                f"{_place(episode, agent_id)}: it is truncated without a last observation, which its value is "
                'bootstrapped from; give it, or make the episode with missing_final_observation="repeat"'
            )
        repeated[agent_id] = line.episode.observations.get(-1)
    return {**observations, **repeated} if repeated else observations


def _has_ended(episode: MultiAgentState, agent_id: Any) -> bool:
    line = episode._lines.get(agent_id)
    return agent_id in episode._departed if line is None else line.phase == ENDED


def _check_agrees(episode: MultiAgentState, agent_id: Any, flags: Mapping[Any, bool]) -> None:
    if not flags.get(agent_id, True):
        raise InvalidArgument(
            f'{_place(episode, agent_id)}: the flags disagree: "__all__" is done and this agent is not; leave the '
            "agent out, or say how it ended"
        )


def _place(episode: MultiAgentState, agent_id: Any) -> str:
    return f"episode {episode.id_}: agent {agent_id!r} at env step {episode.env_t + 1}"


def _cannot_act(episode: MultiAgentState, agent_id: Any, line: AgentTimeline | None) -> InvalidArgument:
    place = f"episode {episode.id_}: agent {agent_id!r} cannot act at env step {episode.env_t}"
    if line is None and agent_id not in episode._departed:
        return InvalidArgument(f"{place}: it has had no observation; there are {list(episode._lines)}")
    if line is not None and line.phase == WAITS:
        return InvalidArgument(f"{place}: it acted at env step {line.acted[-1]} and still waits for an observation")
    ended_at = episode._departed[agent_id][2] if line is None else line.ended_at
    return InvalidArgument(f"{place}: it is done since env step {ended_at}; leave its action out")


def _not_acted(episode: MultiAgentState, agent_id: Any, line: AgentTimeline | None) -> InvalidArgument:
    if line is None or line.phase == ENDED:
        ended_at = episode._departed[agent_id][2] if line is None else line.ended_at
        return InvalidArgument(f"{_place(episode, agent_id)}: an observation after its end (env step {ended_at})")
    return InvalidArgument(
        f"{_place(episode, agent_id)}: an observation, though it has not acted on that of env step {line.seen[-1]}; "
        "give its action first, or leave the observation out while it rests"
    )


def _extra_mismatch(
    episode: MultiAgentState, agent_id: Any, known: Mapping[str, Any], given: Mapping[str, Any]
) -> TrackMismatch:
    return TrackMismatch(
        f"episode {episode.id_}: agent {agent_id!r} acts at env step {episode.env_t} with the extra model outputs "
        f"{list(given)}, its steps so far have {list(known)}; every step of an agent has the same"
    )


# --- writing -------------------------------------------------------------------------------------------------


def enter(episode: MultiAgentState, agent_id: Any, observation: Any, info: dict[str, Any]) -> None:
    """A new agent, with its first observation."""
    own = SingleAgentEpisode(
        f"{episode.id_}_{agent_id}",
        observation_space=(episode.observation_space or NOTHING).get(agent_id),
        action_space=(episode.action_space or NOTHING).get(agent_id),
        agent_id=agent_id,
        module_id=episode.module_for(agent_id),
        multi_agent_episode_id=episode.id_,
    )
    own.add_env_reset(observation, info)
    episode._lines[agent_id] = AgentTimeline(own, [episode.env_t])


def write_observations(
    episode: MultiAgentState,
    observations: Mapping[Any, Any],
    actions: Mapping[Any, Any],
    rewards: Mapping[Any, Any],
    infos: Mapping[Any, Any],
    extra: Mapping[Any, Any],
) -> None:
    """Complete the step of every agent observed, at the env step that has just begun; let new agents in."""
    lines, now = episode._lines, episode.env_t
    for agent_id, observation in observations.items():
        line = lines.get(agent_id)
        if line is None:
            enter(episode, agent_id, observation, infos.get(agent_id) or {})
            if agent_id in rewards:
                episode._apart.append((now, agent_id, rewards[agent_id]))
            continue
        own = line.episode
        add_observation, add_action, add_reward, add_info, tracks = own._grow or own._growing("add_env_step")
        if line.phase == WAITS:
            action, outputs = line.action, line.extra
            line.phase, line.action, line.extra = RESTS, None, None
        else:
            action, outputs = actions[agent_id], extra.get(agent_id)
            line.acted.append(now - 1)
        reward = rewards.get(agent_id)
        if line.reward is not None:
            reward = line.reward if reward is None else line.reward + reward
            line.reward = None
        if outputs:
            for key, append in tracks or own._start_extra(outputs):
                append(outputs[key])
        add_observation(observation)
        add_action(action)
        add_reward(reward)
        add_info(infos.get(agent_id) or {})
        line.seen.append(now)


def write_pending(
    episode: MultiAgentState,
    observations: Mapping[Any, Any],
    actions: Mapping[Any, Any],
    rewards: Mapping[Any, Any],
    extra: Mapping[Any, Any],
) -> None:
    """Keep the actions and rewards of agents that got no observation; before `write_observations`."""
    lines, now = episode._lines, episode.env_t
    if not actions.keys() <= observations.keys():
        for agent_id, action in actions.items():
            if agent_id not in observations:
                lines[agent_id].wait_with(action, extra.get(agent_id), now - 1)
    if rewards.keys() <= observations.keys():
        return
    for agent_id, reward in rewards.items():
        line = lines.get(agent_id)
        if agent_id in observations:
            continue
        if line is None or line.phase == ENDED:
            episode._apart.append((now, agent_id, reward))
        else:
            line.reward = reward if line.reward is None else line.reward + reward


def keep_infos(episode: MultiAgentState, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
    """Keep the infos that come without an observation of their agent (or of no agent) at the newest env step."""
    loose = {agent_id: info for agent_id, info in infos.items() if info and agent_id not in observations}
    if loose:
        episode._loose_infos[episode.env_t] = loose


def write_endings(
    episode: MultiAgentState,
    endings: Endings,
    terminateds: Mapping[Any, bool] | None,
    truncateds: Mapping[Any, bool] | None,
) -> None:
    """End the agents, and the episode when it is over: by `"__all__"`, or when nothing is said and no agent is left."""
    now = episode.env_t
    for agent_id, ending in endings.items():
        line = episode._lines.get(agent_id)
        if line is None:
            episode._departed[agent_id] = (*ending, now)
            continue
        line.end(*ending, now)
        if line.reward is not None:
            episode._apart.append((now, agent_id, line.reward))
            line.reward = None
    given = (terminateds or NOTHING).get(ALL), (truncateds or NOTHING).get(ALL)
    if given != (None, None):
        episode.is_terminated, episode.is_truncated = bool(given[0]), bool(given[1])
    elif endings and all(line.phase == ENDED for line in episode._lines.values()):
        flags = [line.episode.is_terminated for line in episode._lines.values()]
        flags += [ending[0] for ending in episode._departed.values()]
        episode.is_terminated, episode.is_truncated = all(flags), not all(flags)
    if episode.is_done:
        episode._stop_clock()
