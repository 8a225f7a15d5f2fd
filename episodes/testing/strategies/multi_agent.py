"""Hypothesis strategies that generate multi-agent episodes, in which agents join late, skip steps and end early."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from hypothesis import strategies as st

from episodes.multi_agent import MultiAgentEpisode
from episodes.testing.strategies.items import ItemSource, spaces


@dataclass(frozen=True)
class MultiAgentHistory:
    """Generated results of a multi-agent environment from its reset on, with env steps at which to cut the episode.

    >>> reset, step = {"observations": {"a": 0}}, {"observations": {"a": 1}, "actions": {"a": 5}, "rewards": {"a": 1.0}}
    >>> history = MultiAgentHistory(reset, [step, {**step, "terminateds": {"__all__": True}}], cuts=[1])
    >>> history.whole(id_="game")
    MultiAgentEpisode(game: 2 env steps, 1 agent, return 2, terminated)
    >>> [len(chunk) for chunk in history.chunks(len_lookback_buffer=1)]
    [1, 1]
    """

    reset: dict[str, Any]  # arguments of `add_env_reset`
    steps: Sequence[dict[str, Any]]  # arguments of `add_env_step`
    cuts: Sequence[int] = ()  # ascending, each before the last env step
    arguments: dict[str, Any] = field(default_factory=dict)  # of `MultiAgentEpisode`

    def whole(self, **arguments: Any) -> MultiAgentEpisode:
        """Return a growing episode with all generated steps. `arguments` are passed to its constructor."""
        return self._grown(0, (), **arguments)[0]

    def chunks(self, len_lookback_buffer: int = 0, **arguments: Any) -> list[MultiAgentEpisode]:
        """Return the generated steps as consecutive growing chunks of one episode, with the given lookback."""
        return self._grown(len_lookback_buffer, self.cuts, **arguments)

    def _grown(self, lookback: int, cuts: Sequence[int], **arguments: Any) -> list[MultiAgentEpisode]:
        """Return the episode as chunks that are cut before the steps `cuts`, with `lookback` env steps each.

        Args:
            arguments: replace those of `MultiAgentEpisode`.
        """
        chunks = [MultiAgentEpisode(**{**self.arguments, **arguments})]
        chunks[0].add_env_reset(**copy.deepcopy(self.reset))
        for at, step in enumerate(self.steps):
            if at in cuts:
                chunks.append(chunks[-1].cut(lookback))
            chunks[-1].add_env_step(**copy.deepcopy(step))
        return chunks


@st.composite
def multi_agent_histories(
    draw: st.DrawFn,
    agents: Sequence[Any] = ("a", "b", "c"),
    *,
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
    max_steps: int = 10,
    missing_final_observation: str | None = None,
    together: bool | None = None,
    extra_outputs: bool | None = None,
    arrange: bool = True,
) -> MultiAgentHistory:
    """Generate results of a multi-agent environment whose agents join late or never, skip env steps and end early.

    Args:
        agents: ids of the agents.
        observation_space: space of every agent's observations, by default any.
        action_space: space of every agent's actions, by default any.
        max_steps: maximal number of env steps.
        missing_final_observation: as in `MultiAgentEpisode`, by default either. With "raise", no last observation that
            is needed is missing.
        together: True for agents that all enter at the reset and act in each step until they end, by default either.
        extra_outputs: True for agents with an extra model output "vf", by default either.
    """
    observed = draw(spaces()) if observation_space is None else observation_space
    acted = draw(spaces()) if action_space is None else action_space
    missing = missing_final_observation or draw(st.sampled_from(["raise", "repeat"]))
    world = _World(
        agents=list(agents),
        rng=draw(st.randoms(use_true_random=False)),
        repeats=missing == "repeat",
        pace="together" if together else draw(st.sampled_from(["any", "turns"] + ["together"] * (together is None))),
        observed=ItemSource(observed, draw(st.integers(0, 2**16)), arrange),
        action_items=ItemSource(acted, 1, arrange),
        extra_outputs=draw(st.booleans()) if extra_outputs is None else extra_outputs,
    )
    reset, steps = world.reset(), []
    for _ in range(draw(st.integers(0, max_steps))):
        steps.append(world.step())
        if world.over:
            break
    cuts = draw(st.sets(st.integers(0, max(len(steps) - 1, 0)), max_size=3)) if steps else set()
    known = {"observation_space": dict.fromkeys(agents, observed), "action_space": dict.fromkeys(agents, acted)}
    has_spaces = draw(st.booleans())
    return MultiAgentHistory(
        reset, steps, sorted(cuts), {"missing_final_observation": missing} | (known if has_spaces else {})
    )


ABSENT, RESTS, WAITS, ENDED = "absent", "rests", "waits", "ended"  # what an agent is at the newest env step


@dataclass
class _World:
    """Simulated multi-agent environment that generates random but valid results of env steps."""

    agents: list[Any]
    rng: random.Random
    repeats: bool  # agents may end without a last observation, however they end
    pace: str  # "together": all act; "turns": one; "any"
    observed: ItemSource
    action_items: ItemSource
    extra_outputs: bool
    status: dict[Any, str] = field(default_factory=dict)
    rewarded: set[Any] = field(default_factory=set)  # since their newest observation
    over: bool = False
    t: int = 0

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def those(self, *statuses: str) -> list[Any]:
        return [agent for agent in self.agents if self.status[agent] in statuses]

    def reset(self) -> dict[str, Any]:
        """Start the episode, and return the arguments of `add_env_reset`. Some agents may join later."""
        first = [agent for agent in self.agents if self.pace == "together" or self.chance(0.5)]
        self.status = {agent: RESTS if agent in first else ABSENT for agent in self.agents}
        return {"observations": {agent: self.observed.next() for agent in first}, "infos": self.infos(first)}

    def infos(self, agents: Sequence[Any]) -> dict[Any, Any]:
        """Return infos of some of the agents, and sometimes of all in common."""
        infos: dict[Any, Any] = {agent: {"t": self.t, f"k{self.t % 3}": "x"} for agent in agents if self.chance(0.25)}
        return infos | ({"__common__": {"level": self.t}} if self.chance(0.2) else {})

    def step(self) -> dict[str, Any]:
        """Make one env step, and return the arguments of `add_env_step`."""
        self.t += 1
        actors = self.actors()
        waiting = [*self.those(WAITS), *actors]
        chance = 1.0 if self.pace == "together" else 0.6
        arrived = [agent for agent in waiting if self.chance(chance)]
        arrived += [agent for agent in self.those(ABSENT) if self.chance(0.25)]
        terminateds, truncateds = self.flags(waiting, arrived)
        rewards = self.rewards(waiting, arrived, terminateds, truncateds)
        step: dict[str, Any] = {
            "observations": {agent: self.observed.next() for agent in arrived},
            "actions": {agent: self.action_items.next() for agent in actors},
            "rewards": rewards,
            "infos": self.infos(self.agents),
            "terminateds": terminateds,
            "truncateds": truncateds,
        }
        if self.extra_outputs:
            step["extra_model_outputs"] = {agent: {"vf": self.t / 4} for agent in actors}
        self.go_on(actors, arrived, terminateds, truncateds)
        return step

    def actors(self) -> list[Any]:
        """Return the agents that act in this env step: all, some, or one at a time."""
        remaining = self.those(RESTS)
        if self.pace == "turns":
            return remaining[self.t % len(remaining) :][:1] if remaining else []
        return [agent for agent in remaining if self.pace == "together" or self.chance(0.7)]

    def flags(self, waiting: list[Any], arrived: list[Any]) -> tuple[dict[Any, bool], dict[Any, bool]]:
        """Return random end flags of agents or the episode. Agents without a last observation are not truncated."""
        terminateds: dict[Any, bool] = {}
        truncateds: dict[Any, bool] = {}
        without_last = set() if self.repeats else set(waiting) - set(arrived)
        for agent in self.agents:
            if self.status[agent] == ABSENT and agent not in arrived:
                continue
            if self.chance(0.08):
                terminateds[agent] = True
            elif agent not in without_last and self.chance(0.08):
                truncateds[agent] = True
        if self.chance(0.04):
            terminateds["__all__"] = True
        elif self.chance(0.06) and without_last <= terminateds.keys():
            truncateds["__all__"] = True
        elif self.chance(0.1):
            terminateds["__all__"] = False
        return terminateds, truncateds

    def rewards(
        self, waiting: list[Any], arrived: list[Any], terminateds: dict[Any, bool], truncateds: dict[Any, bool]
    ) -> dict[Any, float]:
        """Return random rewards, at least for each agent that completes a step and has no reward yet."""
        rewards = {agent: self.rng.randrange(-4, 9) / 4 for agent in self.agents if self.chance(0.3)}
        ending = {**terminateds, **truncateds}
        for agent in waiting:
            complete = agent in arrived or agent in ending or ending.get("__all__", False)
            if complete and agent not in self.rewarded:
                rewards.setdefault(agent, 0.25)
        return rewards

    def go_on(
        self, actors: list[Any], arrived: list[Any], terminateds: dict[Any, bool], truncateds: dict[Any, bool]
    ) -> None:
        """Update which agents are active and which act next, after an env step."""
        self.rewarded -= set(arrived)
        for agent in actors:
            self.status[agent] = WAITS
        for agent in arrived:
            self.status[agent] = RESTS
        every = terminateds.get("__all__", False) or truncateds.get("__all__", False)
        for agent in self.those(RESTS, WAITS):
            if every or agent in terminateds or agent in truncateds:
                self.status[agent] = ENDED
        entered = [agent for agent in self.agents if self.status[agent] != ABSENT]
        self.over = every or ("__all__" not in terminateds and bool(entered) and not self.those(RESTS, WAITS))
