"""What an env step or a joining that was broken off left behind: brought to its end, or taken back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from episodes.multi_agent.agents import Agents, ByAgent
from episodes.multi_agent.timeline import WAITS, complete_steps

_JOINED = ("timelines", "departed", "modules", "loose_infos", "rewards_apart", "passed_on")


def finish_step(
    agents: Agents,
    observations: ByAgent,
    actions: ByAgent,
    rewards: ByAgent,
    infos: ByAgent,
    extra: ByAgent,
    env_t: int,
    waiting: Sequence[Any],
) -> None:
    """Do what is missing of a step, up to who enters and who ends.

    What was done has left its mark: the env step, in `Timeline.seen`, `acted`, `paid_at` and `ended_at`, and beside
    what is kept apart.
    """
    _take_back_endings(agents, env_t)
    agents.keep_infos(observations, infos, env_t)
    for agent_id in waiting:
        line = agents.timelines[agent_id]
        if line.phase != WAITS:
            del line.acted[len(line.seen) - 1 :]
            line.wait_with(actions[agent_id], extra.get(agent_id), env_t - 1)
    agents.keep_rewards(observations, rewards, env_t)
    left = {}
    for agent_id, observation in observations.items():
        line = agents.timelines.get(agent_id)
        if line is not None and not line.has_completed(env_t):
            left[agent_id] = observation
    complete_steps(agents.timelines, left, actions, rewards, infos, extra, env_t)


def _take_back_endings(agents: Agents, env_t: int) -> None:
    """Let agents go on that ended at an env step; rewards of that step that were kept apart come again."""
    apart: Mapping[Any, Any] = {agent_id: reward for t, agent_id, reward in agents.rewards_apart if t == env_t}
    for agent_id, line in agents.timelines.items():
        if line.ended_at == env_t:
            line.go_on(apart.get(agent_id))
    agents.rewards_apart = [entry for entry in agents.rewards_apart if entry[0] != env_t]


def undo_of(agents: Agents) -> Callable[[], None]:
    """What takes agents back to what they are now, after half an `append`."""
    parts = [line.undo() for line in agents.timelines.values()]
    own = {name: copy(getattr(agents, name)) for name in _JOINED}

    def take_back() -> None:
        for name, value in own.items():
            setattr(agents, name, value)
        for part in parts:
            part()

    return take_back
