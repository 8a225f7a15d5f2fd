"""Rollouts of an environment with random actions, which record episodes and violations of Gymnasium's API."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from episodes.inspect.doctor.finding import Finding, Place, gather_findings
from episodes.inspect.doctor.trial import Trial, array_of, digest
from episodes.tracks import nested

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from episodes.data_types import AgentID, Space

MOST_BYTES = 64_000_000  # of observations
ENOUGH_EPISODES = 40
REPLAYED = 300  # steps, for the same results under one seed


@dataclass
class Play:
    """Rollout of an environment with random actions, or with the actions of an earlier rollout."""

    env: Any
    num_steps: int
    seconds: float
    actions: list[Any] = field(default_factory=list)  # of the earlier rollout
    trials: list[Trial] = field(default_factory=list)
    acted: list[Any] = field(default_factory=list)
    places: dict[str, list[Place]] = field(default_factory=dict)
    nbytes: int = 0

    def run(self, seed: int) -> Play:
        """Step the environment until an error occurs or a limit is reached, and return this object."""
        until = perf_counter() + self.seconds
        episodes = _players(self.env)(self, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for _ in episodes:  # after each step
                    enough = sum(trial.is_done for trial in self.trials) >= ENOUGH_EPISODES and len(self.acted) >= 300
                    if (
                        enough
                        or len(self.acted) >= self.num_steps
                        or self.nbytes > MOST_BYTES
                        or perf_counter() > until
                    ):
                        break
            except Exception as error:  # environments are code of users, which may raise anything
                self.note("error", f"{type(error).__name__}: {error}"[:300])
        return self

    def findings(self) -> Iterator[Finding]:
        """Yield the findings that were noted in this rollout, one per kind."""
        for kind, places in self.places.items():
            yield from gather_findings(kind, places)

    def note(self, kind: str, words: str, trial: Trial | None = None, step: int | None = None) -> None:
        """Record that a problem of this kind occurred at a step of an episode. Without `trial`, it is the newest
        episode.
        """
        latest = len(self.trials) - 1 if self.trials else None
        self.places.setdefault(kind, []).append((trial.id_ if trial else latest, step, words))

    def begin(
        self, space: object, observation: object, info: object, agent: AgentID | None = None, number: int = 0
    ) -> Trial:
        """Start the record of one agent's episode with its reset observation, and return the record."""
        if space is not None and not isinstance(space, spaces.Space):
            self.note("outside_space", f"the observation space is {space!r}, and none of Gymnasium"[:200])
            space = None
        id_ = f"{number}/{agent}" if agent is not None else len(self.trials)
        trial = Trial(id_, agent, space)
        self.trials.append(trial)
        self.see(trial, observation, info)
        return trial

    def see(self, trial: Trial, observation: object, info: object) -> None:
        """Append a copy of an observation and its info to the record of an episode."""
        kept = copy.deepcopy(observation)
        trial.observe(kept, copy.copy(info))
        self.nbytes += sum(array_of(leaf).nbytes for leaf in nested.leaves(kept))
        if not isinstance(info, dict):
            self.note("info_type", f"infos are {type(info).__name__}, not dict", trial, len(trial))

    def act(self, space: Space, mask: ArrayLike | None = None) -> Any:
        """Return and record the next action: the action of the earlier rollout, if it has one, or a random action."""
        num = len(self.acted)
        action = self.actions[num] if num < len(self.actions) else _sample(space, mask)
        self.acted.append(copy.deepcopy(action))
        return action

    def check_flags(self, trial: Trial, terminated: object, truncated: object) -> None:
        """Note flags that are not bools, and end the recorded episode if one is set."""
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, (bool, np.bool_)):
                self.note("flag_type", f"{name} is {flag!r}, {type(flag).__name__}", trial, len(trial))
        trial.end(terminated, truncated)


def _sample(space: Space, mask: ArrayLike | None) -> Any:
    return space.sample() if mask is None else space.sample(np.asarray(mask, np.int8))


def _mask(observation: object, info: object) -> Any:
    """Return the mask of legal actions in an observation or info dict, or None if there is no mask."""
    for source in (observation, info):
        if isinstance(source, dict) and "action_mask" in source:
            return source["action_mask"]
    return None


def _players(env: object) -> Any:
    """Return the rollout function for the environment's API: single-agent, parallel, or agents in turns."""
    if hasattr(env, "agent_iter"):
        return _run_in_turns
    return _run_parallel if hasattr(env, "possible_agents") else _run_single_agent


# --- Gymnasium --------------------------------------------------------------------------------------------------------


def _run_single_agent(play: Play, seed: int) -> Iterator[None]:
    """Run episodes of a Gymnasium environment, and yield after each step.

    Stop if `reset` or `step` returns another form of result than Gymnasium's API requires. This is noted in `play`.
    """
    play.env.action_space.seed(seed)
    first: int | None = seed
    while True:
        answer = play.env.reset(seed=first)
        first = None
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
            play.note("step_result", f"reset returned {type(answer).__name__} and not (observation, info)", step=0)
            return
        trial = play.begin(play.env.observation_space, *answer)
        last, last_info = answer
        while not trial.is_done:
            answer = _take_step(play, trial, last, last_info)
            if not isinstance(answer, tuple) or len(answer) != 5:
                length = len(answer) if isinstance(answer, tuple) else type(answer).__name__
                play.note("step_result", f"step returned {length} values and not 5", trial, len(trial) + 1)
                return
            last, reward, terminated, truncated, last_info = answer
            trial.rewards.append(copy.deepcopy(reward))
            play.see(trial, last, last_info)
            play.check_flags(trial, terminated, truncated)
            yield


def _take_step(play: Play, trial: Trial, last: object, last_info: object) -> Any:
    """Take a random step, and return its result. Note if the environment modified the action or earlier results."""
    action = play.act(play.env.action_space)
    answer = play.env.step(action)
    trial.actions.append(play.acted[-1])
    if not nested.equal(action, play.acted[-1]):
        play.note("writes_actions", f"{play.acted[-1]} became {action}"[:200], trial, len(trial))
    if not nested.equal(last, trial.observations[-1]):
        play.note("reused_buffer", "the observation of the call before changed", trial, len(trial))
    if isinstance(last_info, dict) and not _equal_infos(last_info, trial.infos[-1]):
        play.note("reused_buffer", "the info of the call before changed", trial, len(trial))
    return answer


def _equal_infos(left: dict[Any, Any], right: dict[Any, Any]) -> bool:
    """Return True if two info dicts have the same keys and equal scalar values."""
    scalars = (bool, int, float, str, np.generic)
    if left.keys() != right.keys():
        return False
    pairs = [(left[key], right[key]) for key in left if isinstance(left[key], scalars)]
    return all(digest(a) == digest(b) for a, b in pairs)


# --- PettingZoo -------------------------------------------------------------------------------------------------------


def _seed_actions(env: Any, seed: int) -> None:
    """Seed the action space of each agent."""
    for i, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(seed + i)


def _run_parallel(play: Play, seed: int) -> Iterator[None]:
    """Run episodes of a PettingZoo parallel environment, and yield after each step.

    Stop if there are no agents after a reset.
    """
    env, number = play.env, 0
    _seed_actions(env, seed)
    while True:
        observations, infos = env.reset(seed=seed if not number else None)
        if not env.agents:
            return play.note("step_result", "there are no agents after reset", step=0)
        lives = {}
        for agent in env.agents:
            if agent not in env.possible_agents:
                play.note("unknown_agent", f"{agent!r} is not in possible_agents", step=0)
            space = env.observation_space(agent)
            lives[agent] = play.begin(space, observations[agent], infos.get(agent, {}), agent, number)
        while env.agents:
            acting = [agent for agent in env.agents if agent in lives and not lives[agent].is_done]
            _check_dead(play, lives, env.agents)
            if not acting:
                break
            masks = {agent: _mask(lives[agent].observations[-1], lives[agent].infos[-1]) for agent in acting}
            actions = {agent: play.act(env.action_space(agent), masks[agent]) for agent in acting}
            _take_rows(play, lives, actions, env.step(actions), number)
            yield
        number += 1


def _check_dead(play: Play, lives: dict[Any, Trial], agents: list[Any]) -> None:
    """Note each agent that has ended and is still among the living `agents`."""
    for agent in agents:
        if agent in lives and lives[agent].is_done:
            trial = lives[agent]
            play.note("dead_agent_acts", f"{agent!r} ended and is still in `agents`", trial, len(trial))


def _take_rows(play: Play, lives: dict[Any, Trial], actions: dict[Any, Any], answer: object, number: int) -> None:
    """Append the results of a multi-agent step to the record of each agent's episode, and start records of new agents.

    Args:
        lives: the record of each agent of the ongoing episode. New agents are added.
        answer: what `step` returned.
        number: index of the episode.

    Raises:
        TypeError: `answer` is not a tuple of five.
    """
    if not isinstance(answer, tuple) or len(answer) != 5:
        raise TypeError("step did not return observations, rewards, terminations, truncations and infos")
    observations, rewards, terminations, truncations, infos = answer
    for agent, trial in lives.items():
        if agent not in actions:
            if rewards.get(agent, 0) != 0:
                words = f"{agent!r} gets reward {rewards[agent]} after its end"
                play.note("reward_after_end", words, trial, len(trial))
        elif agent not in observations:
            play.note("missing_observation", f"{agent!r} acted, and was not observed", trial, len(trial) + 1)
        else:
            trial.actions.append(actions[agent])
            if agent not in rewards or not (agent in terminations or agent in truncations):
                play.note("step_result", f"{agent!r} acted, and has no reward or no flag", trial, len(trial) + 1)
            trial.rewards.append(rewards.get(agent, 0.0))
            play.see(trial, observations[agent], infos.get(agent, {}))
            play.check_flags(trial, terminations.get(agent, False), truncations.get(agent, False))
    for agent in set(observations) - set(lives):
        known = agent in play.env.possible_agents
        if not known:
            play.note("unknown_agent", f"{agent!r} is not in possible_agents")
        space = play.env.observation_space(agent) if known else None
        lives[agent] = play.begin(space, observations[agent], infos.get(agent, {}), agent, number)


def _run_in_turns(play: Play, seed: int) -> Iterator[None]:
    """Run episodes of a PettingZoo AEC environment, in which agents take turns, and yield after each turn.

    An agent that acts after its end is noted, and ends the episode.
    """
    env, number = play.env, 0
    _seed_actions(env, seed)
    while True:
        env.reset(seed=seed if not number else None)
        if not env.agents:
            return play.note("step_result", "there are no agents after reset", step=0)
        lives: dict[Any, Trial] = {}
        while env.agents:
            agent = env.agent_selection
            observation, reward, terminated, truncated, info = env.last()
            trial = lives.get(agent)
            if trial is None:
                trial = lives[agent] = play.begin(env.observation_space(agent), observation, info, agent, number)
            elif trial.is_done:
                play.note("dead_agent_acts", f"{agent!r} ended and has another turn", trial, len(trial))
                if reward:
                    play.note("reward_after_end", f"{agent!r} gets reward {reward} after its end", trial, len(trial))
                yield
                break
            else:
                trial.rewards.append(copy.deepcopy(reward))
                play.see(trial, observation, info)
            play.check_flags(trial, terminated, truncated)
            if trial.is_done:
                env.step(None)
                yield
                continue
            action = play.act(env.action_space(agent), _mask(observation, info))
            trial.actions.append(action)
            env.step(action)
            yield
        number += 1
