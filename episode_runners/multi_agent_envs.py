"""Environments of several agents, all stepped alike: PettingZoo's parallel and turn-based ones, and plain dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast

import gymnasium as gym
import numpy as np

from episodes.errors import EpisodeStateError, UnknownKey, WrongType
from episodes.tracks import nested

__all__ = ["DictEnv", "EnvStep", "MultiAgentEnv", "TurnBasedEnv", "as_multi_agent_env"]


class EnvStep(NamedTuple):
    """What one env step gave, each a dict from agent to its part, as `MultiAgentEpisode.add_env_step` takes it."""

    observations: dict[Any, Any]
    rewards: dict[Any, Any]
    infos: dict[Any, Any]
    terminateds: Mapping[Any, bool]
    truncateds: Mapping[Any, bool]
    is_over: bool  # True when no agent is left


class MultiAgentEnv(Protocol):
    """What the runner steps."""

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """The observations of the agents that act first, and infos."""
        ...

    def step(self, actions: Mapping[Any, Any]) -> EnvStep:
        """One env step with the actions of the agents that observed last."""
        ...

    def space(self, kind: str, agent_id: Any) -> gym.Space:
        """An agent's "observation_space" or "action_space"."""
        ...

    def close(self) -> None: ...


def as_multi_agent_env(env: Any) -> MultiAgentEnv:
    """The environment behind one face.

    Args:
        env: a PettingZoo environment of either kind, an environment with `reset` and `step` that take and give dicts
            by agent, or a callable that makes one.
    """
    if isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
        env = env()
    if isinstance(env, (DictEnv, TurnBasedEnv)):
        return env
    if hasattr(env, "last") and hasattr(env, "agent_iter"):
        return TurnBasedEnv(env)
    if hasattr(env, "step") and hasattr(env, "reset"):
        return DictEnv(env)
    raise WrongType(
        f"{env!r} is no multi-agent environment: give a PettingZoo one, or one whose reset and step take dicts by agent"
    )


def makes_envs(env: Any) -> bool:
    """True for a class or a function that makes an environment, False for an environment."""
    return isinstance(env, type) or (callable(env) and not hasattr(env, "step"))


class DictEnv:
    """An environment whose agents step at once; `step(actions)` gives five dicts as PettingZoo's parallel ones do.

    Observations and infos are copied, since many environments write to the same arrays and dicts again.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        observations, infos = checked_parts(self.env, "reset", self.env.reset(seed=seed), ("observations", "infos"))
        agents = getattr(self.env, "agents", None)
        if not observations and agents is not None and not agents:
            raise _has_nobody(self.env)
        return _copied(observations), _copied(infos)

    def step(self, actions: Mapping[Any, Any]) -> EnvStep:
        given = self.env.step(dict(actions))
        observations, rewards, terminateds, truncateds, infos = checked_parts(self.env, "step", given, _OF_A_STEP)
        agents = getattr(self.env, "agents", None)  # PettingZoo's: those that are left
        said = "__all__" in terminateds or "__all__" in truncateds
        is_over = agents is not None and not agents and not said
        return EnvStep(_copied(observations), rewards, _copied(infos), terminateds, truncateds, is_over)

    def space(self, kind: str, agent_id: Any) -> gym.Space:
        return space_of(self.env, kind, agent_id)

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if close is not None:
            close()


class TurnBasedEnv:
    """A PettingZoo AEC environment; one env step is one agent's turn.

    The agent whose turn it is observes, and gets what `last()` has cumulated since its last action: the reward of that
    action. A dead agent's extra turn, in which PettingZoo wants None as its action, is taken here: it gives the agent's
    last observation and reward within the env step that led to it.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        self.env.reset(seed=seed)
        self._acted: set[Any] = set()
        first = self._turns()
        if first.is_over:
            raise _has_nobody(self.env)
        if first.terminateds:
            raise EpisodeStateError(f"{self.env}.reset: the agents {list(first.terminateds)} have ended before a step")
        return first.observations, first.infos

    def step(self, actions: Mapping[Any, Any]) -> EnvStep:
        selected = self.env.agent_selection
        if set(actions) != {selected}:
            raise UnknownKey(f"it is the turn of agent {selected!r}, and there are actions of {list(actions)}")
        self._acted.add(selected)
        self.env.step(actions[selected])
        return self._turns()

    def _turns(self) -> EnvStep:
        """The extra turns of dead agents, and the observation of the next one that lives."""
        step = EnvStep({}, {}, {}, {}, {}, False)
        terminateds, truncateds = {}, {}
        env = self.env
        while env.agents:
            agent_id = env.agent_selection
            observation, reward, terminated, truncated, info = env.last()
            step.observations[agent_id] = _copied(observation)
            step.infos[agent_id] = _copied(info)
            if agent_id in self._acted or reward:
                step.rewards[agent_id] = reward
            if not (terminated or truncated):
                break
            terminateds[agent_id], truncateds[agent_id] = bool(terminated), bool(truncated)
            env.step(None)
        return step._replace(terminateds=terminateds, truncateds=truncateds, is_over=not env.agents)

    def space(self, kind: str, agent_id: Any) -> gym.Space:
        return space_of(self.env, kind, agent_id)

    def close(self) -> None:
        self.env.close()


def _has_nobody(env: Any) -> EpisodeStateError:
    return EpisodeStateError(
        f"{env}.reset left no agent to play with: env.agents is empty, and the episode over before its first step"
    )


_OF_A_STEP = ("observations", "rewards", "terminateds", "truncateds", "infos")


def checked_parts(env: Any, call: str, given: Any, names: tuple[str, ...]) -> Any:
    """What a call of the environment gave, if that is a dict by agent for each of the names; None for no infos.

    Raises:
        WrongType: says which part is something else.
    """
    if not isinstance(given, (tuple, list)) or len(given) != len(names):
        gave = f"{len(given)} items" if isinstance(given, (tuple, list)) else f"a {type(given).__name__}"
        raise WrongType(f"{env}.{call} gave {gave}; give ({', '.join(names)}), each a dict by agent")
    for name, part in zip(names, given, strict=True):
        if not (type(part) is dict or isinstance(part, Mapping) or (part is None and name == "infos")):
            raise WrongType(f"{env}.{call}: {name} are a {type(part).__name__}; give a dict by agent")
    return given


def space_of(env: Any, kind: str, agent_id: Any) -> gym.Space:
    """An agent's space: from `env.<kind>(agent)`, `env.<kind>s[agent]`, `env.get_<kind>(agent)` or one for all."""
    own: Any = getattr(env, kind, None)
    if not isinstance(own, gym.Space) and callable(own):  # first: PettingZoo warns where its dict is asked for
        return cast(gym.Space, own(agent_id))
    by_agent = getattr(env, f"{kind}s", None)
    if isinstance(by_agent, Mapping) and agent_id in by_agent:
        return by_agent[agent_id]
    if isinstance(own, gym.spaces.Dict) and agent_id in own.spaces:
        return own.spaces[agent_id]
    if isinstance(own, gym.Space):
        return own
    getter: Callable[[Any], gym.Space] | None = getattr(env, f"get_{kind}", None)
    if getter is not None:
        return getter(agent_id)
    raise UnknownKey(f"{env!r} has no {kind} for agent {agent_id!r}; give it {kind}s, a dict by agent")


def random_action(space: gym.Space, observation: Any, info: Any) -> Any:
    """A random action of the space; a legal one where the observation or the info has an "action_mask"."""
    for told in (observation, info):
        if isinstance(told, Mapping) and "action_mask" in told and isinstance(space, gym.spaces.Discrete):
            return space.sample(np.asarray(told["action_mask"], np.int8))
    return space.sample()


def _copied(value: Any) -> Any:
    """The value with arrays and containers that are nobody else's."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, list):
        return list(map(_copied, value))
    return value if nested.is_leaf(value) else nested.rebuild(value, list(map(_copied, value)))
