"""A slow reference of multi-agent episodes: one plain dict per env step and kind of data.

Every result is computed from the whole history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class History:
    """All data from the reset on: item t of each list is env step t."""

    observations: list[dict] = field(default_factory=list)  # what arrived at t
    infos: list[dict] = field(default_factory=list)
    actions: list[dict] = field(default_factory=list)  # what was done at t; empty for the newest t
    rewards: list[dict] = field(default_factory=list)  # what arrived at t
    extra: list[dict] = field(default_factory=list)
    endings: list[dict] = field(default_factory=list)  # agent -> (terminated, truncated), at t
    terminated: bool = False
    truncated: bool = False

    def add(self, observations, actions, rewards, infos, extra, endings) -> None:
        if self.observations:
            self.actions[-1], self.extra[-1] = dict(actions), dict(extra)
        for name, values in [
            ("observations", observations),
            ("infos", infos),
            ("rewards", rewards),
            ("endings", endings),
            ("actions", {}),
            ("extra", {}),
        ]:
            getattr(self, name).append(dict(values))

    @property
    def now(self) -> int:
        return len(self.observations) - 1

    def agents(self) -> list[str]:
        return list(dict.fromkeys(agent for step in self.observations for agent in step))

    def seen(self, agent) -> list[int]:
        return [t for t, step in enumerate(self.observations) if agent in step]

    def acted(self, agent) -> list[int]:
        return [t for t, step in enumerate(self.actions) if agent in step]

    def ended_at(self, agent) -> int | None:
        return next((t for t, step in enumerate(self.endings) if agent in step), None)

    def ending(self, agent) -> tuple[bool, bool]:
        at = self.ended_at(agent)
        return (False, False) if at is None else self.endings[at][agent]

    def reward_between(self, agent, after: int, until: int) -> float | None:
        rewards = [self.rewards[t][agent] for t in range(after + 1, until + 1) if agent in self.rewards[t]]
        return sum(rewards) if rewards else None

    def status(self, agent) -> str:
        if self.ended_at(agent) is not None:
            return "ended"
        observation_times, action_times = self.seen(agent), self.acted(agent)
        if not observation_times:
            return "absent"
        return "waits" if action_times and action_times[-1] >= observation_times[-1] else "rests"


@dataclass
class ReferenceChunk:
    """The part of a history from env step `begin` to `end`, with a lookback in env steps."""

    history: History
    begin: int
    end: int
    lookback: int
    is_last: bool  # False for a chunk that was cut: what was pending belongs to its successor

    def agents(self) -> list[str]:
        """Return the agents of the chunk and its lookback."""
        agents = []
        for agent in self.history.agents():
            observation_times, ended = self.history.seen(agent), self.history.ended_at(agent)
            last = [t for t in observation_times if t <= self.end]
            has_left = ended is not None and ended <= self.begin and observation_times[-1] < self.begin - self.lookback
            if last and not has_left:
                agents.append(agent)
        return agents

    def status(self, agent) -> str:
        """Return the agent's status at the end of the chunk: "ended", "waits" or "rests"."""
        ended = self.history.ended_at(agent)
        if ended is not None and ended <= self.end:
            return "ended"
        return "waits" if self.is_last and self.history.status(agent) == "waits" else "rests"

    def own_steps(self, agent) -> dict[str, Any]:
        """Return the agent's observations, complete steps, lookback, and pending step."""
        h = self.history
        observation_times, action_times = h.seen(agent), h.acted(agent)
        zero = max([i for i, t in enumerate(observation_times) if t <= self.begin], default=0)
        last = max(i for i, t in enumerate(observation_times) if t <= self.end)
        first = min([i for i in range(zero) if action_times[i] >= self.begin - self.lookback], default=zero)
        steps = range(first, last)
        pending = self.is_last and h.status(agent) == "waits"
        return {
            "lookback": zero - first,
            "seen": [observation_times[i] for i in range(first, last + 1)],
            "observations": [h.observations[observation_times[i]][agent] for i in range(first, last + 1)],
            "infos": [h.infos[observation_times[i]].get(agent, {}) for i in range(first, last + 1)],
            "acted": [action_times[i] for i in steps] + action_times[-1:] * pending,
            "actions": [h.actions[action_times[i]][agent] for i in steps]
            + ([h.actions[action_times[-1]][agent]] if pending else []),
            "rewards": [h.reward_between(agent, observation_times[i], observation_times[i + 1]) for i in steps]
            + ([h.reward_between(agent, observation_times[-1], self.end) or 0.0] if pending else []),
            "extra": [h.extra[action_times[i]].get(agent, {}) for i in steps]
            + ([h.extra[action_times[-1]].get(agent, {})] if pending else []),
            "pending": int(pending),
            "terminated": h.ending(agent)[0] and h.ended_at(agent) <= self.end,
            "truncated": h.ending(agent)[1] and h.ended_at(agent) <= self.end,
            "t_started": zero,
        }

    def table(self, name: str) -> dict[int, dict[str, Any]]:
        """Return the items by env step and agent, lookback included."""
        table: dict[int, dict[str, Any]] = {t: {} for t in range(self.begin - self.lookback, self.end + 1)}
        for agent in self.agents():
            steps = self.own_steps(agent)
            name_, key = (name, None) if name in steps else ("extra", name)
            times = steps["seen"] if name in ("observations", "infos") else steps["acted"]
            for t, item in zip(times, steps[name_], strict=True):
                if t in table and (key is None or key in item):
                    table[t][agent] = item if key is None else item[key]
        if name == "infos":
            for t in table:
                table[t] = {agent: info for agent, info in self.history.infos[t].items() if info} | table[t]
        return table

    def items(self, name: str, agent: str) -> list[Any]:
        steps = self.own_steps(agent)
        if name in steps:
            return steps[name]
        return [step[name] for step in steps["extra"] if name in step]

    def knows(self, name: str) -> list[str]:
        """Return the agents with this kind of data."""
        known = [agent for agent in self.agents() if name in self.own_steps(agent) or self.items(name, agent)]
        if name == "infos":  # those of no agent, and those without an observation
            known += [agent for step in self.table("infos").values() for agent in step]
        return list(dict.fromkeys(known))

    def by_env_step(self, name: str, indices: Any, neg: bool = False, fill: Any = None) -> Any:
        """Return {agent: item or list}, or "out of range"."""
        table = self.table(name)
        size = self.end - self.begin + (name in ("observations", "infos"))
        places = positions(indices, self.lookback, size, neg, clip=fill is None)
        origin = self.begin - self.lookback
        single = isinstance(places, int)
        spots = [places] if single else places
        if fill is None and any(not 0 <= p < self.lookback + size for p in spots):
            return "out of range"
        answers = {}
        for agent in self.knows(name):
            row = [table.get(origin + p, {}).get(agent, MISSING) if p >= 0 else MISSING for p in spots]
            if fill is None:
                row = [item for item in row if item is not MISSING]
            if not row and not (fill is not None and not single):
                continue
            row = [fill if item is MISSING else item for item in row]
            answers[agent] = row[0] if single else row
        return answers

    def by_agent_step(self, name: str, indices: Any, neg: bool = False, fill: Any = None) -> Any:
        answers = {}
        for agent in self.knows(name):
            if agent not in self.agents():
                continue
            steps, items = self.own_steps(agent), self.items(name, agent)
            size = len(items) - steps["lookback"]
            if indices is None:
                pending = 0 if name in ("observations", "infos") else steps["pending"]
                places: Any = list(range(steps["lookback"], len(items) - pending))
            else:
                places = positions(indices, steps["lookback"], size, neg, clip=fill is None)
            spots = [places] if isinstance(places, int) else places
            if fill is None and any(not 0 <= p < len(items) for p in spots):
                return "out of range"
            row = [items[p] if 0 <= p < len(items) else fill for p in spots]
            if row:
                answers[agent] = row[0] if isinstance(places, int) else row
        return answers

    def as_list(self, name: str) -> list[dict]:
        table = self.table(name)
        size = self.end - self.begin + (name in ("observations", "infos"))
        return [table[self.begin + i] for i in range(size)]

    def returns(self, include_pending: bool) -> dict[str, float]:
        """Return each agent's sum of rewards of complete steps, or of all rewards since the begin."""
        returns = {}
        for agent in self.agents():
            steps = self.own_steps(agent)
            returns[agent] = sum(steps["rewards"][steps["lookback"] : len(steps["rewards"]) - steps["pending"]])
        for agent in {a for step in self.history.rewards for a in step if include_pending}:
            returns[agent] = returns.get(agent, 0.0) + self.reward_apart(agent)
        return returns

    def reward_apart(self, agent: str) -> float:
        """Return the agent's rewards before its first observation, after its end, or since its newest observation."""
        h = self.history
        observation_times, ended = h.seen(agent), h.ended_at(agent)
        apart = 0.0
        for t in range(self.begin + 1, self.end + 1):
            late = ended is not None and t > ended
            if agent in h.rewards[t] and (not observation_times or t <= observation_times[0] or late):
                apart += h.rewards[t][agent]
        waiting = (
            (h.reward_between(agent, observation_times[-1], h.now if ended is None else ended) or 0.0)
            if observation_times
            else 0.0
        )
        belongs_here = self.is_last if ended is None else self.begin < ended <= self.end
        return apart + (waiting if belongs_here else 0.0)


MISSING = object()


def positions(indices: Any, lookback: int, size: int, neg: bool, clip: bool) -> int | list[int]:
    """Return positions in the lookback and the chunk, by counting."""

    def one(i: int) -> int:
        return lookback + i if i >= 0 or neg else lookback + size + i

    if indices is None:
        return list(range(lookback, lookback + size))
    if isinstance(indices, (int, np.integer)):
        return one(int(indices))
    if not isinstance(indices, slice):
        return [one(int(i)) for i in indices]
    step = indices.step or 1
    start = one(indices.start) if indices.start is not None else (lookback if step > 0 else lookback + size - 1)
    stop = one(indices.stop) if indices.stop is not None else (lookback + size if step > 0 else lookback - 1)
    spots = list(range(start, stop, step))
    if clip and step > 0:
        start = max(start, 0)
        spots = list(range(start, stop, step))
    elif clip:
        start = min(start, lookback + size - 1)
        spots = list(range(start, stop, step))
    return [p for p in spots if 0 <= p < lookback + size] if clip else spots


def plain(value: Any) -> Any:
    """Return the value with arrays as lists, so that growing and finished results compare."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
